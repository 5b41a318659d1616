"""A thread's history: pages of its checkpoints with runs and writes by task, and the tree of its branches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME

from perdure.engine.decoding import read_each
from perdure.engine.queue import questions
from perdure.engine.threads import history, tags
from perdure.errors import BadSetting, NotFound
from perdure.inspector.access import Access
from perdure.inspector.listing import describe_run, describe_thread
from perdure.langgraph.reading.thread_messages import load_title
from perdure.model.checkpoint import CheckpointRecord
from perdure.model.ops import Fetch, Get, Range
from perdure.model.program import Program, ask
from perdure.model.records import CHECKPOINT, EPOCH, HEAD, LANE, OUTBOX, RUN, WRITE, Partition, Record
from perdure.model.runs.messages import DEAD, UNKNOWN, Reply, Run
from perdure.model.runs.queue import IN, LATER, OUT, Lane
from perdure.model.write_records import is_of_calls, read_writes
from perdure.runtime.operations import entries, open_questions
from perdure.runtime.threads import walk_by_id
from perdure.runtime.threads.rows import ThreadRow
from perdure.runtime.threads.user_and_title import find_title

PAGE = 100
_TREE_PAGE = 2_000
_RUNS = 20
_REPLIES = 50


async def thread(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return a thread: its row, tags, namespaces, heads, queue, newest runs, numbers of its newest replies
    that can be sent again (``unsent``), and its title: that of its metadata, or else the beginning of its
    first message.

    Args:
        access: The viewer's rights.
        asked: ``id`` of the thread.
    """
    partition, row = await read_thread(access, asked)
    details = await access.handle.arun(_load_details(partition))
    title = find_title(row.metadata)
    if not title and row.has_state and row.fault is None:
        title = await access.handle.arun(load_title(partition, access.handle.digest))
    about = {**describe_thread(row), **details, **await waits_of(access, row)}
    return {**about, "title": title, "permissions": sorted(await access.permissions())}


async def timeline(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of a namespace's checkpoints, newest first, with the runs that made them.

    Args:
        access: The viewer's rights.
        asked: ``id`` of the thread; ``namespace``, the root by default; ``before``, the cursor of the
            previous page.
    """
    partition, _ = await read_thread(access, asked)
    program = _read_timeline(partition, asked.get("namespace") or "", number(asked, "before"))
    return await access.handle.arun(program)


async def branches(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return the branches of a namespace: chains of checkpoints without a fork, oldest first.

    Args:
        access: The viewer's rights.
        asked: ``id`` of the thread; ``namespace``, the root by default.
    """
    partition, _ = await read_thread(access, asked)
    return await access.handle.arun(_read_branches(partition, asked.get("namespace") or ""))


async def waits_of(access: Access, row: ThreadRow) -> dict[str, Any]:
    """Return the waits of a thread, apart from questions, whether it waits for an answer, and the first
    ``deadline`` of its questions."""
    if not row.waits or row.fault is not None:
        return {"asks": row.status == "interrupted", "waits": [], "deadline": None}
    program = open_questions.load_questions(access.handle, access.tenant, row, with_waits=True)
    found = await access.handle.arun(program)
    deadlines = [each.deadline for each in found if each.kind == "question" and each.deadline is not None]
    return {**entries.wait_entries(found), "deadline": min(deadlines, default=None)}


async def read_thread(access: Access, asked: Mapping[str, str]) -> tuple[Partition, ThreadRow]:
    """Return the thread whose ``id`` a request has, with its row; raise ``NotFound`` if the viewer may not
    read it."""
    row = await access.find_thread(require_parameter(asked, "id"))
    return Partition(access.tenant, row.thread_id), row


def _list_tagged(tag_records: Iterable[Record], namespace: str) -> dict[str, list[str]]:
    """Return the names of the tags in a namespace by checkpoint."""
    tagged: dict[str, list[str]] = {}
    for tag in tag_records:
        if tag.fields["namespace"] == namespace:
            tagged.setdefault(tag.fields["checkpoint_id"], []).append(tag.key[0])
    return tagged


def require_parameter(asked: Mapping[str, str], name: str) -> str:
    """Return a parameter of a request; raise ``BadSetting`` without it."""
    value = asked.get(name)
    if not value:
        raise BadSetting(f"the parameter {name!r} is missing")
    return value


def number(asked: Mapping[str, str], name: str) -> int | None:
    """Return a number in a request, ``None`` without one; raise ``BadSetting`` for anything else."""
    text = asked.get(name)
    if text:
        return walk_by_id.number(text, name)
    return None


def _load_details(partition: Partition) -> Program[dict[str, Any]]:
    items = (
        Range(HEAD),
        Get(EPOCH, ()),
        Get(LANE, (IN,)),
        Get(LANE, (OUT,)),
        Get(LANE, (LATER,)),
        Range(RUN, by="first", reverse=True, limit=_RUNS),
        Range(OUTBOX, reverse=True, limit=_REPLIES),
    )
    heads, epochs, inbox, outbox, later, runs, replies = yield from ask(Fetch(partition, items))
    tag_records = yield from tags.list_tags(partition)
    return {
        "heads": {head.key[0]: head.fields["checkpoint_id"] for head in heads},
        "tags": [
            {
                "name": tag.key[0],
                "namespace": tag.fields["namespace"],
                "checkpoint_id": tag.fields["checkpoint_id"],
            }
            for tag in tag_records
        ],
        "epoch": next((record.version for record in epochs), 0),
        "queue": (yield from read_inbox(partition, Lane.read(IN, inbox))),
        "outbox": describe_lane(Lane.read(OUT, outbox)),
        "later_at": read_due_at(later),
        "runs": [describe_run(run) for run in read_each(partition, Run.read, runs)],
        "unsent": [
            reply.seq for reply in read_each(partition, Reply.read, replies) if reply.state in (DEAD, UNKNOWN)
        ],
    }


def read_inbox(partition: Partition, lane: Lane) -> Program[dict[str, Any]]:
    """Return the state of an inbox as JSON data, with the run whose question may be answered now."""
    waiting = None
    if lane.run_id is None and not lane.pending:
        waiting = yield from questions.waiting_run(partition)
    return {**describe_lane(lane), "waiting": waiting}


def read_due_at(lanes: Sequence[Record]) -> int | None:
    """Return when a lane is due, ``None`` without one."""
    return next((lane.fields["due_at"] for lane in lanes), None)


def describe_lane(lane: Lane) -> dict[str, Any]:
    """Return the state of a queue as JSON data."""
    return {
        "pending": lane.pending,
        "due_at": lane.due_at,
        "run_id": lane.run_id,
        "owner": lane.owner,
        "epoch": lane.epoch,
        "lease_until": lane.lease_until,
        "retry_at": lane.retry_at,
        "stop": lane.stop,
    }


def _read_timeline(partition: Partition, namespace: str, before: int | None) -> Program[dict[str, Any]]:
    page = yield from history.read_page(partition, namespace, below=before, limit=PAGE)
    if not page and before is None:
        return {"checkpoints": [], "runs": {}, "cursor": None}
    ids = [record.id for record in page]
    writes = yield from ask(Fetch(partition, tuple(Range(WRITE, (namespace, one)) for one in ids)))
    run_ids = list(dict.fromkeys(record.run_id for record in page if record.run_id))
    found = yield from ask(Fetch(partition, tuple(Get(RUN, (one,)) for one in run_ids)))
    runs = [run for answer in found for run in read_each(partition, Run.read, answer)]
    tag_records = yield from tags.list_tags(partition)
    tagged = _list_tagged(tag_records, namespace)
    cursor = None
    if len(page) == PAGE:
        cursor = page[-1].seq
    return {
        "checkpoints": [
            {**_describe_checkpoint(record), "tags": tagged.get(record.id, []), "tasks": _describe_tasks(own)}
            for record, own in zip(page, writes, strict=True)
        ],
        "runs": {run.id: describe_run(run) for run in runs},
        "cursor": cursor,
    }


def _describe_checkpoint(record: CheckpointRecord) -> dict[str, Any]:
    return {
        "checkpoint_id": record.id,
        "namespace": record.namespace,
        "seq": record.seq,
        "parent_id": record.parent_id,
        "run_id": record.run_id,
        "source": record.source,
        "step": record.step,
        "at": record.made_at,
        "updated": list(record.updated or ()),
        "is_cut": record.cut,
        "schema": record.schema,
    }


def _describe_tasks(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return, for each task, the channels that it wrote, and whether it asked, was answered or failed."""
    by_task: dict[str, list[str]] = {}
    for write in read_writes(records):
        if not write.is_aside and not is_of_calls(write.channel):
            by_task.setdefault(write.task_id, []).append(write.channel)
    return [
        {
            "task_id": task,
            "channels": [name for name in channels if name not in (INTERRUPT, RESUME, ERROR)],
            "asked": INTERRUPT in channels,
            "answered": RESUME in channels,
            "failed": ERROR in channels,
        }
        for task, channels in by_task.items()
    ]


class _Node(NamedTuple):
    id: str
    parent: str | None
    seq: int
    source: str | None
    step: int | None

    @classmethod
    def read(cls, record: Record) -> _Node:
        fields = record.fields
        return cls(record.key[1], fields["parent_id"], fields["seq"], fields["source"], fields["step"])


def _read_branches(partition: Partition, namespace: str) -> Program[dict[str, Any]]:
    nodes: list[_Node] = []
    after: int | None = None
    while True:
        wanted = Range(CHECKPOINT, (namespace,), by="seq", after=after, limit=_TREE_PAGE, bodies=False)
        (records,) = yield from ask(Fetch(partition, (wanted,)))
        nodes += [_Node.read(record) for record in records]
        if len(records) < _TREE_PAGE:
            break
        after = records[-1].fields["seq"]
    if not nodes:
        raise NotFound(f"thread {partition.thread!r} has no checkpoint in namespace {namespace!r}")
    (heads,) = yield from ask(Fetch(partition, (Get(HEAD, (namespace,)),)))
    tag_records = yield from tags.list_tags(partition)
    head = next((record.fields["checkpoint_id"] for record in heads), None)
    tagged = _list_tagged(tag_records, namespace)
    return {"total": len(nodes), "head": head, "branches": _find_chains(nodes, head, tagged)}


def _find_chains(
    nodes: Sequence[_Node], head: str | None, tagged: Mapping[str, Sequence[str]]
) -> list[dict[str, Any]]:
    """Return the chains between roots, forks and ends, in the order of their first checkpoints."""
    children: dict[str | None, list[_Node]] = {}
    stored = {node.id for node in nodes}
    for node in nodes:
        if node.parent not in stored:
            node = node._replace(parent=None)
        children.setdefault(node.parent, []).append(node)
    out: list[dict[str, Any]] = []
    starts = [(node, 0) for node in reversed(children.get(None, []))]
    while starts:
        first, depth = starts.pop()
        last, count = first, 1
        names = [*tagged.get(first.id, ())]
        holds_head = first.id == head
        while len(after := children.get(last.id, [])) == 1:
            last, count = after[0], count + 1
            holds_head = holds_head or last.id == head
            names += tagged.get(last.id, ())
        out.append(
            {
                "first": first.id,
                "last": last.id,
                "first_seq": first.seq,
                "last_seq": last.seq,
                "count": count,
                "depth": depth,
                "forked_from": first.parent,
                "source": first.source,
                "steps": [first.step, last.step],
                "tags": names,
                "has_head": holds_head,
            }
        )
        starts += [(node, depth + 1) for node in reversed(after)]
    return out
