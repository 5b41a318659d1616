"""The tasks that wrote on a checkpoint: their nodes, times, messages and calls of models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME
from langgraph.constants import START

from perdure.engine.threads import chunk_reads, history
from perdure.engine.threads.chunk_reads import ChunkReader
from perdure.langgraph.migration.schema_task_ids import PULL, PUSH, SENDS, TaskPlace
from perdure.langgraph.reading.plain_serde import PlainSerde
from perdure.model.checkpoint import CheckpointRecord, PendingWrite
from perdure.model.model_calls import ModelCall, calls_in
from perdure.model.program import Program
from perdure.model.records import Partition
from perdure.model.values.chunks import Digester
from perdure.model.values.joined_values import join_tree, pack_tree
from perdure.model.values.refs import MSGPACK
from perdure.model.values.tree import EncodedList, Tree
from perdure.model.write_records import ERROR_SOURCE, NULL_TASK, visible
from perdure.schema.changes import BRANCH

_MARK = b"additional_kwargs"
"""Field that every stored message has: a value without it need not be decoded."""
_PULLED, _PUSHED = f"~{PULL}, ", f"~{PUSH}, "
_INPUT, _UPDATE = f"{_PULLED}{START}", f"~{INTERRUPT}, "
"""Path of the task that writes a run's input, and prefix of the paths of tasks that update a state by
hand."""
_NOTHING = "__no_writes__"
_CONTROL = frozenset((INTERRUPT, RESUME, ERROR, ERROR_SOURCE, SENDS, _NOTHING))
_DEPTH = 8
_serde = PlainSerde()


class WrittenMessage(NamedTuple):
    """A message as a task wrote it: without an ``id`` if it got that only later."""

    id: str | None
    kind: str
    content: object


class MessageReader:
    """Reader of the messages in stored values, which decodes equal items of lists once: a node may write a
    whole conversation again in each step."""

    def __init__(self) -> None:
        self._read: dict[bytes, tuple[list[ModelCall], list[WrittenMessage]]] = {}

    def read(self, tree: Tree) -> tuple[list[ModelCall], list[WrittenMessage]]:
        """Return the calls of models, and the messages, in a value."""
        items = tree.items if isinstance(tree, EncodedList) else None
        if items is None:
            bodies = [join_tree(tree)]
        else:
            bodies = [(MSGPACK, pack_tree(item)) for item in items]
        calls: list[ModelCall] = []
        messages: list[WrittenMessage] = []
        for kind, body in bodies:
            if _MARK not in body:
                continue
            if body not in self._read:
                value = _serde.value(kind, body)
                self._read[body] = calls_in(value), _messages_in(value)
            calls += self._read[body][0]
            messages += self._read[body][1]
        return calls, messages


@dataclass(slots=True)
class TaskAuthor:
    """A task, with what it wrote."""

    task_id: str
    path: str
    node: str | None = None
    caller: str | None = None
    place: str = ""
    writes: list[PendingWrite] = field(default_factory=list[PendingWrite])
    calls: list[ModelCall] = field(default_factory=list[ModelCall])
    messages: list[WrittenMessage] = field(default_factory=list[WrittenMessage])

    @property
    def is_call(self) -> bool:
        return self.path.startswith(f"{_PUSHED}~")

    @property
    def state(self) -> str:
        channels = {write.channel for write in self.writes if not write.is_aside}
        if not channels <= _CONTROL or channels & {SENDS, _NOTHING}:
            return "done"
        if ERROR in channels:
            return "failed"
        if INTERRUPT in channels:
            return "asked"
        return "open"

    def times(self, start: int | None, end: int | None) -> tuple[int | None, int | None]:
        """Return when the task began and ended: by the time stored with its writes, or else as its step did.
        The begin of a task that another task called is unknown. So is the begin of a task without a stored
        time if its step ended before it began, as the clocks of two writers differ."""
        # The result's time counts: it comes after the questions, whatever their writers' clocks say.
        timed = [(write.idx >= 0, sum(write.span), write.span) for write in self.writes if write.span]
        span = max(timed)[2] if timed else None
        is_backward = start is not None and end is not None and end < start
        if span is not None and start is not None:
            start, ended = start + span.waited, start + span.waited + span.took
            # The ends of task and step are measured in different OS threads, so the task's may come out
            # later: limit it to the step's.
            if end is None or is_backward:
                end = ended
            else:
                end = max(start, min(ended, end))
        elif is_backward:
            start = None
        elif any(write.channel == RESUME for write in self.writes):
            start = None  # The time since then includes the wait for the answer.
        return None if self.is_call else start, None if self.is_call and span is None else end


def load_authors(
    partition: Partition,
    digest: Digester,
    records: Sequence[CheckpointRecord],
    names: Sequence[str],
    chunks: ChunkReader | None = None,
    reader: MessageReader | None = None,
) -> Program[dict[str, dict[str, TaskAuthor]]]:
    """Return the authors of the writes on checkpoints of one namespace, by checkpoint and task.

    Args:
        partition: The thread.
        digest: Names the chunks.
        records: The checkpoints, at least one.
        names: Nodes that the tasks may be of, if their paths do not say it.
        chunks: Reads the chunks.
        reader: Reads the messages and calls of models in the writes; without one they are left out.
    """
    found = yield from history.read_pending_writes(partition, records[0].namespace, [r.id for r in records])
    writes = {name: visible(some) for name, some in found.items()}
    refs = {
        f"{name}|{number}": write.ref
        for name, some in writes.items()
        for number, write in enumerate(some)
        if reader is not None and may_have_messages(write.channel)
    }
    trees, _ = yield from chunk_reads.resolve(partition, refs, digest, chunks)
    out: dict[str, dict[str, TaskAuthor]] = {}
    for record in records:
        authors: dict[str, TaskAuthor] = {}
        for number, write in enumerate(writes[record.id]):
            if write.task_id == NULL_TASK:
                continue
            author = authors.setdefault(write.task_id, TaskAuthor(write.task_id, write.task_path))
            author.writes.append(write)
            tree = trees.get(f"{record.id}|{number}")
            if tree is not None and reader is not None:
                calls, messages = reader.read(tree)
                author.calls += calls
                author.messages += messages
        _find_nodes(authors.values(), record, names)
        if SENDS in record.refs and any(author.node is None for author in authors.values()):
            sent, _ = yield from chunk_reads.resolve(partition, {SENDS: record.refs[SENDS]}, digest, chunks)
            _find_nodes(authors.values(), record, [*_find_sent_nodes(*join_tree(sent[SENDS])), *names])
        out[record.id] = authors
    return out


def _find_nodes(authors: Iterable[TaskAuthor], record: CheckpointRecord, names: Sequence[str]) -> None:
    """Find the nodes and namespaces of a checkpoint's tasks. The node of a task started by ``Send`` or by
    another task is the one from whose name LangGraph computes the task's id."""
    by_path: dict[str, TaskAuthor] = {}
    for author in sorted(authors, key=lambda each: len(each.path)):
        by_path[author.path] = author
        above, rest = record.namespace, author.path.removeprefix(_PUSHED)
        if author.path.startswith(_PULLED):
            author.node = author.path.removeprefix(_PULLED)
        elif author.path.startswith(_PUSHED):
            caller, number = "", rest.partition(",")[0]
            if author.is_call:
                caller, _, number = rest.rpartition(", ")[0].rpartition(", ")
                if caller in by_path:
                    above = by_path[caller].place
                else:
                    above = ""
                if caller in by_path:
                    author.caller = by_path[caller].task_id
                else:
                    author.caller = None
            send = int(number) if number.isdigit() else -1
            places = (TaskPlace(name, (), send, caller) for name in names)
            author.node = next((p.node for p in places if p.task_id(record, above) == author.task_id), None)
        if author.node is not None:
            author.place = f"{above}|{author.node}:{author.task_id}".removeprefix("|")


def is_of_node(path: str) -> bool:
    """Return True if the task of a path ran a node: others write a run's input, or update a state by hand."""
    return path != _INPUT and not path.startswith(_UPDATE)


def _find_sent_nodes(kind: int, body: bytes) -> list[str]:
    """Return the nodes that a stored list of ``Send`` starts, each once."""
    value: object = _serde.value(kind, body)
    nodes: dict[str, None] = {}
    for each in cast("list[object]", value) if isinstance(value, list) else ():
        match each:
            case {"value": [str() as node, *_]}:
                nodes[node] = None
            case _:
                pass
    return list(nodes)


def may_have_messages(channel: str) -> bool:
    """Return True unless a channel is one of LangGraph's own."""
    return channel not in _CONTROL and not channel.startswith((BRANCH, "join:"))


def _messages_in(value: object, depth: int = 0) -> list[WrittenMessage]:
    """Return the ids, kinds and contents of the messages in a value of plain data."""
    if depth > _DEPTH:
        return []
    if isinstance(value, list):
        return [found for each in cast("list[object]", value) for found in _messages_in(each, depth + 1)]
    if not isinstance(value, dict):
        return []
    fields = cast("dict[str, object]", value)
    kind = fields.get("type")
    if "content" in fields and isinstance(kind, str):
        name = fields.get("id")
        return [WrittenMessage(name if isinstance(name, str) else None, kind, fields["content"])]
    return [found for each in fields.values() for found in _messages_in(each, depth + 1)]
