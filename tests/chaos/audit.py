"""What must be true of a thread after its clients were killed: the journal is held against the database."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from langgraph.checkpoint.base import WRITES_IDX_MAP, CheckpointTuple

from perdure.model.ops import Fetch, Range
from perdure.model.records import WRITE, Partition
from perdure.model.write_records import read_writes
from perdure.storage.sqlite.driver import file_of
from perdure.testing.faults import faulty
from tests.chaos.client import THREAD, Job, Journal, as_text

_NULL_TASK = "00000000-0000-0000-0000-000000000000"

_RESUME = WRITES_IDX_MAP["__resume__"]


def violations(job: Job, undisturbed: str) -> list[str]:
    """Every promise that was broken, in words."""
    lines = Journal(job.journal).lines()
    with faulty(job.url) as (database, driver):
        out = list(map(str, database.fsck()))
        stored = list(database.checkpointer().list({"configurable": {"thread_id": THREAD}}))
        (writes,) = driver.perform(Fetch(Partition("", THREAD), (Range(WRITE),)))
    out += _lost(lines, stored, {write.key for write in read_writes(writes)})
    out += _repeated(lines, by_label=job.durability == "sync" and job.fault == "kill")
    state = final_state(job)
    if job.durability == "async" and _is_ahead(stored):
        state, undisturbed = _without_memory(state), _without_memory(undisturbed)
    if state not in (undisturbed, _resumed_without_input(lines, undisturbed)):
        out.append(f"the state is {state}, that of an undisturbed run {undisturbed}")
    if job.backend == "sqlite":
        with closing(sqlite3.connect(file_of(job.url))) as connection:
            verdict = connection.execute("PRAGMA integrity_check").fetchall()
        if verdict != [("ok",)]:
            out.append(f"integrity_check: {verdict}")
    return out


def final_state(job: Job) -> str:
    """The state that the last client saw, and what would run next."""
    result = json.loads(job.result.read_text())
    return json.dumps([result["state"], result["next"]])


def _resumed_without_input(lines: list[list[Any]], undisturbed: str) -> str | None:
    """The one other state that LangGraph itself makes of a crash, with any saver (see test_langgraph.py).

    A run that resumes tells the subgraphs of its first step to resume too. One with ``checkpointer=True``
    whose call had not stored anything yet then takes up its last finished call instead, and its new input is
    never applied. In durability ``async`` its nodes may have run by then without any checkpoint being stored.
    """
    if any(line[0] == "put" and _is_stateful(line[1]) and "more" in line[3] for line in lines):
        return None
    state, following = json.loads(undisturbed)
    if "memory" not in state:
        return None
    state["memory"] = [note for note in state["memory"] if ":more:" not in note]
    return json.dumps([state, following])


def _is_stateful(namespace: str) -> bool:
    """Whether a namespace is a stateful subgraph's: it has no task's id in it."""
    return namespace != "" and ":" not in namespace


def _is_ahead(stored: list[CheckpointTuple]) -> bool:
    """Whether the stateful subgraph has stored what belongs to a step of its run that is not stored.

    In durability ``async`` LangGraph stores the two side by side, with any saver (see test_langgraph.py). A
    run whose own put fails, or is late when its process ends, does the step again as another one, which calls
    the subgraph once more.
    """
    steps = {each.checkpoint["id"] for each in stored}
    return any(
        _is_stateful(each.config["configurable"]["checkpoint_ns"])
        and each.metadata["parents"][""] not in steps
        for each in stored
    )


def _without_memory(state: str) -> str:
    """A state without what the stateful subgraph keeps."""
    values, following = json.loads(state)
    if isinstance(values, dict):
        values.pop("memory", None)
    return json.dumps([values, following])


def _lost(
    lines: list[list[Any]], stored: list[CheckpointTuple], slots: set[tuple[Any, ...]]
) -> Iterator[str]:
    """Acknowledged writes that are not stored, or not as they were. ``slots`` are those of stored writes."""
    checkpoints = {
        (each.config["configurable"]["checkpoint_ns"], each.checkpoint["id"]): each.checkpoint
        for each in stored
    }
    for line in lines:
        if line[0] == "put":
            _, namespace, checkpoint_id, values = line
            found = checkpoints.get((namespace, checkpoint_id))
            if found is None:
                yield f"the acknowledged checkpoint {namespace}/{checkpoint_id} is not stored"
            elif as_text(found["channel_values"]) != values:
                yield f"the checkpoint {namespace}/{checkpoint_id} does not hold what was acknowledged"
        elif line[0] == "writes":
            _, namespace, checkpoint_id, task, places = line
            missing = [i for i in places if (namespace, checkpoint_id, task, i) not in slots]
            if task == _NULL_TASK and any(slot[2] != _NULL_TASK and slot[3] == _RESUME for slot in slots):
                # An answer without an interrupt's id is removed by the commit with which a task has taken it.
                missing = [i for i in missing if i != _RESUME]
            if missing:
                yield f"acknowledged writes {missing} of task {task} of {checkpoint_id} are not stored"


def _repeated(lines: list[list[Any]], *, by_label: bool) -> Iterator[str]:
    """Tasks that ran after their writes were acknowledged.

    In durability ``async`` a task's writes may be acknowledged before the checkpoint that it belongs to is
    stored; a crash then takes the checkpoint, and the step is another one with other task ids. In ``sync``
    that cannot be, so there nothing of the same label may run again either.
    """
    committed: set[str] = set()
    labels: dict[str, str] = {}
    for line in lines:
        if line[0] == "ran":
            _, label, task = line
            if task in committed:
                yield f"{label} (task {task}) ran again after its writes were acknowledged"
            elif by_label and label in labels and labels[label] in committed:
                yield f"{label} ran again as task {task} after task {labels[label]} was acknowledged"
            labels[label] = task
        elif line[0] == "writes" and line[3] != _NULL_TASK and any(i >= 0 for i in line[4]):
            committed.add(line[3])
