"""Answers to the calls of a replayed step: each answer is looked up in the recording, and no call is made."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, NamedTuple

from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.pregel._algo import task_path_str
from langgraph.types import Interrupt, interrupt

from perdure.errors import UnrecordedCall
from perdure.langgraph.call_records import MODEL, CallRecord, CallRecorder
from perdure.replay.plain_values import snapshot
from perdure.replay.recording import TaskKey, TaskRecord
from perdure.runtime.nodes.callback_handlers import NodesOnly

CURRENT: ContextVar[Answering | None] = ContextVar("replay", default=None)
"""Answers for the step that is replayed in this context."""


class CallDifference(NamedTuple):
    """A call that is not as it was recorded.

    Attributes:
        task: The recorded task that it belongs to, if there is one.
        kind: Model or tool.
        name: Its name now.
        recorded: The recorded name; ``None`` if no such call was recorded.
        parts: The parts of the request that differ.
    """

    task: TaskRecord | None
    kind: str
    name: str
    recorded: str | None
    parts: tuple[str, ...]


class RefusedCall(NamedTuple):
    """A call that was refused: the namespace of the task, and the reason."""

    place: str
    reason: str


class Places(NodesOnly):
    """Learns the step and the path of each task that starts, by its namespace."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[int, str]] = {}

    def on_chain_start(
        self, serialized: Any, inputs: Any, *, metadata: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        self.learn(metadata)

    def learn(self, metadata: Mapping[str, Any] | None) -> None:
        """Remember the place of the task that has this metadata."""
        if metadata and (namespace := metadata.get("langgraph_checkpoint_ns")):
            path = task_path_str(tuple(metadata["langgraph_path"]))
            self._places[namespace] = (metadata["langgraph_step"], path)

    def key(self, namespace: str) -> TaskKey:
        """Return the key of the task with this namespace, up to the first level that is unknown."""
        out: list[Any] = []
        parts = [*filter(None, namespace.split("|"))]
        for end, part in enumerate(parts, 1):
            if ":" not in part:
                out.append(part)
                continue
            place = self._places.get("|".join(parts[:end]))
            if place is None:
                break
            out.append(place)
        return tuple(out)


@dataclass(eq=False)
class Answering:
    """The recorded answers for one step.

    Attributes:
        tasks: The recorded tasks of the step.
        live: Names of tools that are called although a call is recorded.
        places: Places of the tasks that are replayed.
        recorder: Makes digests of the prompts of this replay.
        given: Number of answers to its interrupts that each task has been given.
        differences: Calls that are not as recorded.
        refused: The calls that were refused.
        answered_tools: Tasks in which a tool was answered.
        is_derived: True if an answer was taken from messages of the state, as no call is recorded.
    """

    tasks: Mapping[TaskKey, TaskRecord]
    live: Collection[str] = ()
    places: Places = field(default_factory=Places)
    recorder: CallRecorder = field(default_factory=CallRecorder)
    given: dict[TaskKey, int] = field(default_factory=dict[TaskKey, int])
    differences: list[CallDifference] = field(default_factory=list[CallDifference])
    answered_tools: set[TaskKey] = field(default_factory=set[TaskKey])
    refused: list[RefusedCall] = field(default_factory=list[RefusedCall])
    is_derived: bool = False
    _used: set[int] = field(default_factory=set[int])
    _expected: dict[TaskKey, list[CallRecord]] = field(default_factory=dict[TaskKey, list[CallRecord]])
    _lock: Lock = field(default_factory=Lock)

    def begin(self, finished: Collection[TaskKey] = ()) -> None:
        """Begin a run of the step: tasks that are not finished will make all of their calls again."""
        for key in [key for key in self._expected if key not in finished]:
            for call in self._expected.pop(key):
                self._used.discard(id(call))

    def answer(self, call: CallRecord, tool_call_id: str | None = None) -> Any:
        """Return the recorded answer to a call, or raise the recorded error.

        Args:
            call: The call, with the namespace of its task.
            tool_call_id: The model's id of a tool's call.

        Raises:
            UnrecordedCall: No answer is recorded.
        """
        with self._lock:
            if tool_call_id is not None and (stop := self._find_stop(call)) is not None:
                raise self._find_interrupt(call, stop)
            found, task = self._match(call, tool_call_id)
            earlier = self._find_earlier_questions(found, task)
        if found is None or found.missing is not None:
            raise self.refuse(call, task, found)
        if call.kind != MODEL:
            self.answered_tools.add(self.places.key(call.place))
        if found.questions is not None:
            raise self._find_interrupt(call, found.questions)
        for question in earlier:
            # Ask as the tool did, so that its interrupts take their answers. A question without one is passed
            # over, as the tool has ended.
            with suppress(GraphInterrupt):
                interrupt(question)
        if found.error is not None:
            raise _rebuild_error(*found.error)
        return deepcopy(found.answer)

    def compare(self, call: CallRecord, tool_call_id: str | None = None) -> None:
        """Compare a call that is really made with the recorded one."""
        with self._lock:
            if tool_call_id is None or self._find_stop(call) is None:
                self._match(call, tool_call_id)

    def refuse(
        self, call: CallRecord, task: TaskRecord | None = None, found: CallRecord | None = None
    ) -> UnrecordedCall:
        """Return the error for a call without a recorded answer, and note that it was refused."""
        node = call.place.split("|")[-1].partition(":")[0] if task is None else task.node
        why = "the recorded step has no answer for it"
        if found is not None:
            why = f"its recorded answer is a {found.missing}, which could not be stored"
        error = UnrecordedCall(
            f"node {node!r} calls the {call.kind} {call.name!r}: {why}. It was not called. Threads of graphs "
            "with Agent(graph, record=True), or perdure.replay.record_calls(graph), have every answer"
        )
        with self._lock:
            self.refused.append(RefusedCall(call.place, str(error)))
            if found is None:
                self.differences.append(CallDifference(task, call.kind, call.name, None, ()))
        return error

    def refuse_thread(self, call: CallRecord, namespace: str) -> UnrecordedCall:
        """Return the error for a call in an OS thread without the context of a task, which is never
        recorded."""
        return self.refuse(CallRecord(call.kind, call.name, {}, place=namespace))

    def refuse_connection(self, namespace: str, reason: str) -> UnrecordedCall:
        """Return the error for a connection or process that a node starts by itself, and note that it was
        refused."""
        node = namespace.split("|")[-1].partition(":")[0]
        error = UnrecordedCall(f"node {node!r} asks for {reason}" if node else reason)
        with self._lock:
            self.refused.append(RefusedCall(namespace, str(error)))
        return error

    def find_unused(self) -> list[CallDifference]:
        """Return the recorded calls that replayed tasks did not make."""
        out: list[CallDifference] = []
        for key, calls in self._expected.items():
            unused = [call for call in calls if id(call) not in self._used and call.parts]
            if any(call.questions is not None for call in calls):
                # When tools run at the same time, one may ask before others begin: only models' calls count.
                unused = [call for call in unused if call.kind == MODEL]
            out += [CallDifference(self.tasks[key], call.kind, "", call.name, ()) for call in unused]
        return out

    def expect(self, key: TaskKey) -> None:
        """Note that a task ended, so that all of its recorded calls should have been made."""
        self._expect_calls(self.tasks[key])

    def _match(
        self, call: CallRecord, tool_call_id: str | None
    ) -> tuple[CallRecord | None, TaskRecord | None]:
        task, calls = self._find_recorded(self.places.key(call.place))
        free = [each for each in calls if id(each) not in self._used and each.kind == call.kind]
        if tool_call_id is not None:
            own = [each for each in free if getattr(each.answer, "tool_call_id", None) == tool_call_id]
            free = own or free
        exact = [each for each in free if _is_same(each, call)]
        if not exact and tool_call_id is not None and (again := [c for c in calls if _is_same(c, call)]):
            # The recorded call is used already: the task runs again after a question, and repeats the call.
            return again[0], task
        named = [each for each in free if each.name in (call.name, "")]
        found = next(iter(exact or named or free), None)
        if found is None:
            return None, task
        self._used.add(id(found))
        if not found.parts:
            self.is_derived = True
        elif not exact:
            parts = tuple(part for part, value in found.parts.items() if call.parts.get(part) != value)
            self.differences.append(CallDifference(task, call.kind, call.name, found.name, parts))
        return found, task

    def _find_stop(self, call: CallRecord) -> Sequence[Any] | None:
        """Return the questions of another call if they stopped the task before this tool's call was recorded.
        This can happen as the tool calls of one message run at the same time."""
        _, calls = self._find_recorded(self.places.key(call.place))
        if any(_is_same(each, call) for each in calls):
            return None
        return next((each.questions for each in calls if each.questions is not None), None)

    def _find_interrupt(self, call: CallRecord, questions: Sequence[Any]) -> GraphInterrupt:
        """Return the interrupt of a tool. If several tools asked at the same time, any of them may have
        stopped the task: the recorded one counts."""
        task, calls = self._find_recorded(self.places.key(call.place))
        asked = [_make_interrupt(each.questions, call.place) for each in calls if each.questions is not None]
        own = _make_interrupt(questions, call.place)
        return next((e for e in asked if task is not None and snapshot(e.args[0]) == task.interrupts), own)

    def _find_earlier_questions(self, found: CallRecord | None, task: TaskRecord | None) -> list[Any]:
        """Return the questions at which a call stopped in earlier runs of its task."""
        if found is None or task is None:
            return []
        before = [task.calls[at] for at in sorted(task.calls) if at < self.given.get(task.key, 0)]
        return [
            question
            for calls in before
            for each in calls
            if _is_same(each, found)
            for question in each.questions or ()
        ]

    def _find_recorded(self, key: TaskKey) -> tuple[TaskRecord | None, list[CallRecord]]:
        """Return the innermost recorded task with calls on the path to a place, and its calls. If no task has
        calls, return the innermost one."""
        innermost: TaskRecord | None = None
        for end in range(len(key), 0, -1):
            task = self.tasks.get(key[:end])
            if task is None:
                continue
            innermost = innermost or task
            if calls := self._expect_calls(task):
                return task, calls
        return innermost, []

    def _expect_calls(self, task: TaskRecord) -> list[CallRecord]:
        if task.key not in self._expected:
            if task.calls:
                latest = task.calls[max(task.calls)]
                self._expected[task.key] = task.calls.get(self.given.get(task.key, 0), latest)
            else:
                self._expected[task.key] = task.derive_calls()
        return self._expected[task.key]


@contextmanager
def answer_calls(answers: Answering) -> Iterator[None]:
    """Answer the calls of the block from the recording."""
    token = CURRENT.set(answers)
    try:
        yield
    finally:
        CURRENT.reset(token)


def _is_same(one: CallRecord, other: CallRecord) -> bool:
    return (one.kind, one.name, one.parts) == (other.kind, other.name, other.parts)


def _make_interrupt(questions: Sequence[Any], namespace: str) -> GraphInterrupt:
    return GraphInterrupt([Interrupt.from_ns(each, ns=namespace) for each in questions])


def _rebuild_error(place: str, text: str) -> Exception:
    """Return an error like the one that a call raised when it was recorded.

    The name of its class is data: nothing is imported for it, and no code of the class runs.
    """
    module, _, name = place.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    if not isinstance(found, type) or not issubclass(found, Exception) or issubclass(found, GraphBubbleUp):
        return RuntimeError(text)
    builtin: Any = next(each for each in found.__mro__ if each.__module__ == "builtins")
    try:
        error: Exception = builtin.__new__(found, text)
    except TypeError:  # such as an exception group, which needs exceptions
        return RuntimeError(text)
    error.args = (text,)
    return error
