"""Answers to the calls of a replayed step: each is looked up in the recording, and none is made."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, NamedTuple

from langchain_core.callbacks import BaseCallbackHandler
from langgraph.pregel._algo import task_path_str

from perdure.errors import UnrecordedCall
from perdure.langgraph.call_records import MODEL, CallRecord, CallRecorder
from perdure.replay.recording import TaskKey, TaskRecord

CURRENT: ContextVar[Answering | None] = ContextVar("replay", default=None)
"""Answers for the step that is replayed in this context."""


class CallDifference(NamedTuple):
    """A call that is not as it was recorded.

    Attributes:
        task: The recorded task that it belongs to, if there is one.
        kind: Model or tool.
        name: Its name now.
        recorded: The recorded name; ``None`` if no such call was recorded.
        parts: The parts of what is sent that differ.
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


class Places(BaseCallbackHandler):
    """Learns the step and the path of each task that starts, by its namespace."""

    run_inline = True

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
        parts = namespace.split("|") if namespace else []
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
        recorder: Digests of what is sent to models now.
        given: Number of answers to interrupts that a task has been given.
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
    _asked: dict[TaskKey, list[CallRecord]] = field(default_factory=dict[TaskKey, list[CallRecord]])
    _lock: Lock = field(default_factory=Lock)

    def begin(self, finished: Collection[TaskKey] = ()) -> None:
        """Begin a run of the step: tasks that are not finished make their calls from the start."""
        for key in [key for key in self._asked if key not in finished]:
            for call in self._asked.pop(key):
                self._used.discard(id(call))

    def answer(self, call: CallRecord, tool_call_id: str | None = None) -> Any:
        """Return the recorded answer to a call, or raise the recorded error.

        Args:
            call: What is asked, and by the task in which namespace.
            tool_call_id: The model's id of a tool's call.

        Raises:
            UnrecordedCall: There is none.
        """
        with self._lock:
            found, task = self._find(call, tool_call_id)
        if found is None or found.missing is not None:
            raise self.refuse(call, task, found)
        if call.kind != MODEL:
            self.answered_tools.add(self.places.key(call.place))
        if found.error is not None:
            raise _rebuilt(*found.error)
        return deepcopy(found.answer)

    def compare(self, call: CallRecord, tool_call_id: str | None = None) -> None:
        """Compare a call that is made for once with the recorded one."""
        with self._lock:
            self._find(call, tool_call_id)

    def refuse(
        self, call: CallRecord, task: TaskRecord | None = None, found: CallRecord | None = None
    ) -> UnrecordedCall:
        """Return the error for a call without a recorded answer, and note that it was refused."""
        node = task.node if task is not None else call.place.split("|")[-1].partition(":")[0]
        if found is not None:
            why = f"its recorded answer is a {found.missing}, which could not be stored"
        else:
            why = "the recorded step has no answer for it"
        error = UnrecordedCall(
            f"node {node!r} calls the {call.kind} {call.name!r}: {why}. It was not called. Threads of graphs "
            "with Agent(graph, record=True), or perdure.replay.recorded(graph), have every answer"
        )
        with self._lock:
            self.refused.append(RefusedCall(call.place, str(error)))
            if found is None:
                self.differences.append(CallDifference(task, call.kind, call.name, None, ()))
        return error

    def refuse_connection(self, namespace: str, reason: str) -> UnrecordedCall:
        """Return the error for what a node does by itself, and note that it was refused."""
        node = namespace.split("|")[-1].partition(":")[0]
        error = UnrecordedCall(f"node {node!r} asks for {reason}" if node else reason)
        with self._lock:
            self.refused.append(RefusedCall(namespace, str(error)))
        return error

    def unused(self) -> list[CallDifference]:
        """Return the recorded calls that tasks did not make, although they were replayed."""
        out: list[CallDifference] = []
        for key, calls in self._asked.items():
            left = [call for call in calls if id(call) not in self._used and call.parts]
            out += [CallDifference(self.tasks[key], call.kind, "", call.name, ()) for call in left]
        return out

    def expect(self, key: TaskKey) -> None:
        """Note that a task ended, so that all of its recorded calls should have been made."""
        self._calls(self.tasks[key])

    def _find(
        self, call: CallRecord, tool_call_id: str | None
    ) -> tuple[CallRecord | None, TaskRecord | None]:
        task, calls = self._recorded(self.places.key(call.place))
        free = [each for each in calls if id(each) not in self._used and each.kind == call.kind]
        if tool_call_id is not None:
            own = [each for each in free if getattr(each.answer, "tool_call_id", None) == tool_call_id]
            free = own or free
        exact = [each for each in free if each.name == call.name and each.parts == call.parts]
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

    def _recorded(self, key: TaskKey) -> tuple[TaskRecord | None, list[CallRecord]]:
        """Return the innermost recorded task on the way to a place that made calls, and its calls."""
        met: TaskRecord | None = None
        for end in range(len(key), 0, -1):
            task = self.tasks.get(key[:end])
            if task is None:
                continue
            met = met or task
            if calls := self._calls(task):
                return task, calls
        return met, []

    def _calls(self, task: TaskRecord) -> list[CallRecord]:
        if task.key not in self._asked:
            given = self.given.get(task.key, 0)
            if task.calls:
                at = given if given in task.calls else max(task.calls)
                self._asked[task.key] = task.calls[at]
            else:
                self._asked[task.key] = task.derived()
        return self._asked[task.key]


@contextmanager
def answering(answers: Answering) -> Iterator[None]:
    """Answer the calls of the block from the recording."""
    token = CURRENT.set(answers)
    try:
        yield
    finally:
        CURRENT.reset(token)


def _rebuilt(place: str, text: str) -> BaseException:
    """Return an error like the one that a call raised when it was recorded."""
    module, _, name = place.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        error = found.__new__(found, text)
        error.args = (text,)
    except (ImportError, AttributeError, TypeError):
        return RuntimeError(text)
    return error if isinstance(error, Exception) else RuntimeError(text)
