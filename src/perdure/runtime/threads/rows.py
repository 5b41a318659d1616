"""A thread as its clients see it, read from its own records, whether a client or an application created
it.

A thread that an application created has no document of its own: its times and its metadata are those of
its checkpoints, and it is interrupted if its latest checkpoint has an unanswered interrupt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

from perdure.engine.documents import Document
from perdure.engine.queue.latest_checkpoint import LatestCheckpoint, read_at
from perdure.engine.threads.thread_state import refuse_headless
from perdure.errors import Corrupt
from perdure.langgraph.reading import plain_reading
from perdure.model.checkpoint import CheckpointRecord
from perdure.model.ops import Fetch, Get, Range
from perdure.model.program import Program, ask
from perdure.model.records import (
    CHECKPOINT,
    DOCUMENT,
    EDITED,
    HEAD,
    LANE,
    OF_THREAD,
    RUN,
    WRITE,
    Partition,
    Record,
)
from perdure.model.runs.lifecycle import Facts, Status, decide_thread_status
from perdure.model.runs.messages import DONE, FAILED, ROLLED_BACK, WAITING, Run
from perdure.model.runs.queue import IN, Lane
from perdure.model.runs.waits import Waits, find_unanswerable, read_waits
from perdure.model.thread_agents import Agent, choose_metadata, depends_on_checkpoint, list_agents
from perdure.model.times import read_time, time_of
from perdure.model.write_records import find_asking_tasks
from perdure.runtime.json_encoding import to_plain

_RUNS = 10
_ITEMS = (
    Get(DOCUMENT, OF_THREAD),
    Get(DOCUMENT, EDITED),
    Get(LANE, (IN,)),
    Range(RUN, by="first", reverse=True, limit=_RUNS),
    Get(HEAD, ("",)),
)
_TECHNICAL = frozenset({"source", "step", "parents", "run_id", "thread_id", "writes", "checkpoint_ns"})


class ThreadRow(NamedTuple):
    """A thread as it is now.

    Times are microseconds since 1970.

    Attributes:
        thread_id: the thread.
        metadata: its metadata.
        created_at: the time at which it was created.
        updated_at: the time of its last change.
        status: its status; ``error`` if there is a ``fault``.
        run: its newest run that was not rolled back.
        has_state: true if it has a checkpoint.
        ttl: its time to live, if it has one.
        has_document: true if clients created or adopted it.
        fault: the error of a record that cannot be read; the other records are shown.
        version: the version of its document.
        touched_at: the time at which its document was written.
        waits: the waits of the run whose question it waits on.
        is_asleep: true if no person can answer any of the interrupts of that run.
        agents: the graphs and assistants that its document names.
    """

    thread_id: str
    metadata: Mapping[str, Any]
    created_at: int
    updated_at: int
    status: Status
    run: Run | None
    has_state: bool
    ttl: Mapping[str, Any] | None
    has_document: bool = True
    fault: Corrupt | None = None
    version: int | None = None
    touched_at: int = 0
    waits: Waits = MappingProxyType({})
    is_asleep: bool = False
    agents: tuple[Agent, ...] = ()

    @property
    def graph_id(self) -> str | None:
        """The graph to which the thread belongs, if any: the one of its latest checkpoint."""
        graph_id = self.metadata.get("graph_id")
        if isinstance(graph_id, str):
            return graph_id
        return None


def load_row(partition: Partition) -> Program[ThreadRow | None]:
    """Return a thread as it is now, None if it does not exist."""
    (stored, edits, lanes, runs, heads), fault = yield from _fetch_records(partition)
    lane = Lane.read(IN, lanes)
    faults: list[Corrupt] = []
    documents, edited = _decode_readable(stored, faults), _decode_readable(edits, faults)
    standing: list[Run] = []
    with _note_fault(faults):
        # Like a run that was rolled back, one that never began left nothing behind.
        standing = [r for r in map(Run.read, runs) if r.state != ROLLED_BACK and r.note.get("begun", True)]
    if fault is not None:
        faults.append(fault)
    if not stored and not faults and not heads and not lane.version:
        return None
    run, document = next(iter(standing), None), next(iter(documents), None)
    edit = next((each.body for each in edited), None)
    head = next((each.fields["checkpoint_id"] for each in heads), None)
    latest: LatestCheckpoint | None = None
    waited = next((each for each in standing if each.id == lane.waiting), None)
    if head is not None and _depends_on_checkpoint(lane, run, edit):
        with _note_fault(faults):
            latest = yield from read_at(partition, head)
            waited = waited or (yield from _read_waited(partition, lane))
    run_ids = {record.key[0] for record in runs}
    row = row_of(partition, document, run, _find_status(lane, run, edit, latest, waited, run_ids))
    # After a rollback the inbox names no waiting run: the newest one that is left has asked.
    asking = waited
    if asking is None and run is not None and run.state == WAITING:
        asking = run
    is_edited = asking is not None and edit is not None and edit["run_id"] == asking.id
    if asking is not None and not is_edited and head and (latest is None or latest.is_of(asking)):
        ids = {one["id"] for one in asking.note.get("interrupts", ())}
        is_asleep = bool(ids) and ids <= find_unanswerable(asking.note)
        row = row._replace(waits=read_waits(asking.note), is_asleep=is_asleep)
    if document is not None and depends_on_checkpoint(document.body, (each.graph for each in standing)):
        with _note_fault(faults):
            row = row._replace(metadata=(yield from _choose_metadata(partition, document, head, run, latest)))
    if head is not None:
        with _note_fault(faults):
            row = yield from _add_state(partition, head, row, latest)
    elif run is not None and not faults:
        with _note_fault(faults):
            yield from refuse_headless(partition, "")
    if not faults:
        return row
    return row._replace(fault=faults[0], status="error")


def row_of(
    partition: Partition,
    document: Document | None,
    run: Run | None = None,
    status: Status = "idle",
) -> ThreadRow:
    """Return a thread from its records, without the data of its checkpoints.

    Args:
        partition: the thread's partition.
        document: the thread's document, if it has one.
        run: the newest run that was not rolled back.
        status: its status.
    """
    started_at, ran_at = (0, 0) if run is None else (run.started_at, run.updated_at)
    if document is None:
        return ThreadRow(partition.thread, {}, started_at, ran_at, status, run, False, None, False)
    body = document.body
    return ThreadRow(
        partition.thread,
        body.get("metadata", {}),
        body.get("created_at", started_at),
        max(ran_at, document.updated_at),
        status,
        run,
        False,
        body.get("ttl"),
        version=document.version,
        touched_at=document.updated_at,
        agents=list_agents(body),
    )


def _choose_metadata(
    partition: Partition,
    document: Document,
    head: str | None,
    run: Run | None,
    known: LatestCheckpoint | None,
) -> Program[dict[str, Any]]:
    """Return the metadata of a thread with the graph and the assistant of its latest checkpoint, which is
    read unless it is known."""
    stored: Mapping[str, Any] = {}
    if known is not None:
        stored = plain_reading.metadata_of(known.checkpoint)
    elif head is not None:
        (found,) = yield from ask(Fetch(partition, (Get(CHECKPOINT, ("", head)),)))
        stored = plain_reading.metadata_of(CheckpointRecord.read(found[0])) if found else {}
    return choose_metadata(document.body, head, stored, None if run is None else run.graph)


def _add_state(
    partition: Partition, head: str, row: ThreadRow, known: LatestCheckpoint | None
) -> Program[ThreadRow]:
    """Return the row with the data of the thread's latest checkpoint, which is read unless it is known."""
    row = row._replace(has_state=True)
    head_time = time_of(head)
    if head_time is None or not row.has_document:
        (latest, first) = yield from ask(
            Fetch(partition, (Get(CHECKPOINT, ("", head)), Range(CHECKPOINT, ("",), by="seq", limit=1)))
        )
        records = [CheckpointRecord.read(record) for record in (*latest, *first)]
        if not latest:
            return row
        head_time = head_time or _parse_time(records[0])
        if not row.has_document:
            first_time = time_of(records[-1].id) or _parse_time(records[-1])
            row = row._replace(metadata=_read_metadata(records[0]), created_at=row.created_at or first_time)
    if row.status == "idle" and (row.run is None or row.run.state != DONE or head_time > row.run.updated_at):
        if known is None:
            (writes,) = yield from ask(Fetch(partition, (Range(WRITE, ("", head), bodies=False),)))
        else:
            writes = known.writes
        if find_asking_tasks(writes):
            row = row._replace(status="interrupted")
    return row._replace(updated_at=max(row.updated_at, head_time))


def _parse_time(record: CheckpointRecord) -> int:
    try:
        return read_time(record.ts)
    except (TypeError, ValueError, OverflowError) as error:
        raise Corrupt(f"checkpoint {record.id} has the time {record.ts!r}, which is none") from error


def _read_metadata(record: CheckpointRecord) -> dict[str, Any]:
    """Return the metadata of a checkpoint without the entries that LangGraph adds, as JSON data."""
    metadata: dict[str, Any] = plain_reading.metadata_of(record)
    own = {name: value for name, value in metadata.items() if name not in _TECHNICAL}
    described: dict[str, Any] = to_plain(
        {n: v for n, v in own.items() if not n.startswith(("__", "langgraph_"))}
    )
    return described


@contextmanager
def _note_fault(faults: list[Corrupt]) -> Iterator[None]:
    """Add the error of a record that cannot be read in the block to the faults of its thread."""
    try:
        yield
    except Corrupt as error:
        faults.append(error)


def _decode_readable(records: Iterable[Record], faults: list[Corrupt]) -> list[Document]:
    documents: list[Document] = []
    for record in records:
        with _note_fault(faults):
            documents.append(Document.read(record))
    return documents


def _fetch_records(partition: Partition) -> Program[tuple[tuple[tuple[Record, ...], ...], Corrupt | None]]:
    """Return a thread's records. If one cannot be decoded, read each item by itself, and return the error,
    too."""
    try:
        return (yield from ask(Fetch(partition, _ITEMS))), None
    except Corrupt as error:
        fault = error
    out: list[tuple[Record, ...]] = []
    for item in _ITEMS:
        try:
            out += yield from ask(Fetch(partition, (item,)))
        except Corrupt as error:
            out.append(())
            fault = error
    return tuple(out), fault


def _depends_on_checkpoint(lane: Lane, run: Run | None, edit: Mapping[str, Any] | None) -> bool:
    """Return True if the latest checkpoint decides whether what the queue shows of a thread still holds."""
    if _is_busy(lane):
        return False
    has_failed = run is not None and run.state == FAILED
    return has_failed or lane.waiting is not None or (edit is not None and edit["goes_on"])


def _read_waited(partition: Partition, lane: Lane) -> Program[Run | None]:
    """Return the run that the inbox shows as waiting; ``None`` if there is none."""
    if lane.waiting is None:
        return None
    (stored,) = yield from ask(Fetch(partition, (Get(RUN, (lane.waiting,)),)))
    return next(map(Run.read, stored), None)


def _find_status(
    lane: Lane,
    run: Run | None,
    edit: Mapping[str, Any] | None,
    latest: LatestCheckpoint | None,
    waited: Run | None,
    run_ids: Set[str],
) -> Status:
    """Return the status that the queue shows, as far as the latest checkpoint agrees. A question that no run
    asked is known only from the checkpoint.

    Args:
        lane: the thread's inbox.
        run: the newest run that was not rolled back.
        edit: the document under ``EDITED``.
        latest: the latest checkpoint, unless the status does not depend on it.
        waited: the run that the inbox shows as waiting.
        run_ids: the ids of the newest runs.
    """
    has_failed = run is not None and run.state == FAILED
    is_noted = lane.waiting is not None
    if edit is not None and edit["run_id"] == (None if run is None else run.id):
        is_noted = bool(edit["goes_on"])
        has_failed = has_failed and edit.get("is_fork", False)
    if run is not None and latest is not None and latest.is_past(run, run_ids):
        has_failed = False
    return decide_thread_status(
        Facts(
            is_busy=_is_busy(lane),
            is_asking=is_noted and latest is not None and latest.is_asking(waited),
            has_failed=has_failed,
        )
    )


def _is_busy(lane: Lane) -> bool:
    return lane.run_id is not None or lane.pending > 0
