"""Records of the calls of models and tools that a task made, stored with the task's writes.

A record has digests of what was sent and the answer, so that ``perdure.replay`` can run the step again and
call nothing. The records of a task are one more write in a slot of their own: they are committed with its
other writes and removed with their checkpoint. LangGraph never sees them.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.serde.types import RESUME
from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.types import Command

from perdure.errors import TypeNotAllowed, Unserialisable
from perdure.langgraph.values.serde import Serde
from perdure.model.write_records import CALLS, count_answers, is_of_calls

MODEL, TOOL = "model", "tool"
_SLOT = -8
_MOST_ANSWERS = 7
_TASKS_MAX = 4096
_DEPTH_MAX = 100
_NAMESPACE = "langgraph_checkpoint_ns"


@dataclass(slots=True, eq=False)
class CallRecord:
    """One call of a model or a tool by a task.

    Attributes:
        kind: Model or tool.
        name: The model's or the tool's name.
        parts: Digests of the call's parts: of a model the system messages, the other messages, the tools and
            the settings; of a tool its input.
        answer: A model's message, or what a tool returned.
        error: Class and text of the error that it raised instead, if it did.
        missing: Name of the answer's type, if the answer cannot be stored.
        questions: Values of the interrupts with which a tool stopped instead, if it did.
        place: Namespace of the task. It is not stored.
    """

    kind: str
    name: str
    parts: Mapping[str, str]
    answer: Any = None
    error: tuple[str, str] | None = None
    missing: str | None = None
    place: str = ""
    is_over: bool = False
    questions: Sequence[Any] | None = None

    def dump(self) -> dict[str, Any]:
        """Return the call as it is stored."""
        out: dict[str, Any] = {"kind": self.kind, "name": self.name, "parts": dict(self.parts)}
        if self.error is not None:
            out["error"] = list(self.error)
        elif self.missing is not None:
            out["missing"] = self.missing
        elif self.questions is not None:
            out["questions"] = list(self.questions)
        elif isinstance(self.answer, Command):
            given: Command[Any] = self.answer
            out["command"] = {"graph": given.graph, "update": given.update, "goto": given.goto}
        else:
            out["answer"] = self.answer
        return out

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> CallRecord:
        """Return a stored call."""
        answer = stored.get("answer")
        if "command" in stored:
            answer = Command(**stored["command"])
        error = stored.get("error")
        return cls(
            stored["kind"],
            stored["name"],
            stored["parts"],
            answer,
            None if error is None else (error[0], error[1]),
            stored.get("missing"),
            is_over=True,
            questions=stored.get("questions"),
        )

    def without_answer(self) -> CallRecord:
        """Return the call with only the type of its answer."""
        return CallRecord(self.kind, self.name, self.parts, missing=type(self.answer).__name__)


def digest(value: Any) -> str:
    """Return a short digest of a value, the same for equal values in every process."""
    try:
        text = _to_json(value)
    except (TypeError, ValueError, RecursionError):
        text = _to_json(_simplify(value, ()))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def digest_prompt(messages: Iterable[BaseMessage], settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the digests of a model's prompt and settings. Ids and metadata of messages do not count."""
    shown = [_describe_message(message) for message in messages]
    rest = {name: value for name, value in settings.items() if name != "tools"}
    return {
        "system": digest([each for each in shown if each["type"] == "system"]),
        "messages": digest([each for each in shown if each["type"] != "system"]),
        "tools": digest(settings.get("tools")),
        "settings": digest(rest),
    }


def _describe_message(message: BaseMessage) -> dict[str, Any]:
    calls = getattr(message, "tool_calls", None) or ()
    return {
        "type": message.type,
        "name": message.name,
        "content": message.content,
        "tool_calls": [[call["name"], call["args"], call["id"]] for call in calls],
        "tool_call_id": getattr(message, "tool_call_id", None),
    }


def _to_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_jsonable)


def _simplify(value: Any, above: tuple[int, ...]) -> Any:
    """Return a form of a value that JSON can hold: keys are text, and no value contains itself."""
    if id(value) in above or len(above) > _DEPTH_MAX:
        return _type_of(value)
    inside = (*above, id(value))
    if isinstance(value, Mapping):
        return {_to_key(key): _simplify(each, inside) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_simplify(each, inside) for each in value]
    if value is None or isinstance(value, str | int | float):
        return value
    try:
        shown = _jsonable(value)
    except (TypeError, ValueError, RecursionError):
        return _type_of(value)
    return _simplify(shown, inside)


def _to_key(key: Any) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, tuple):
        return f"({','.join(map(_to_key, key))})"
    if isinstance(key, int | float | None):
        return f"{type(key).__name__}:{key}"
    return _type_of(key)


def _type_of(value: Any) -> str:
    # Addresses in memory, as in the text of many objects, differ between processes.
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


def _jsonable(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        return dump()
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if isinstance(value, Mapping):
        return dict(value)
    return _type_of(value)


@dataclass(slots=True)
class CallRecorder(BaseCallbackHandler):
    """Collects the calls of running tasks until a checkpointer takes them. Calls that a tool makes belong to
    the tool's answer and are left out."""

    calls: OrderedDict[str, list[CallRecord]] = field(default_factory=OrderedDict[str, list[CallRecord]])
    open: dict[UUID, CallRecord] = field(default_factory=dict[UUID, CallRecord])
    _inside: set[UUID] = field(default_factory=set[UUID])
    _lock: Lock = field(default_factory=Lock)
    run_inline = True

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def take(self, task_id: str) -> list[CallRecord]:
        """Return the finished calls of a task, and of tasks of its subgraphs that have not taken theirs, and
        forget them."""
        with self._lock:
            places = [
                place
                for place in self.calls
                if task_id in [part.rpartition(":")[2] for part in place.split("|") if ":" in part]
            ]
            taken = [call for place in places for call in self.calls.pop(place)]
        return [call for call in taken if call.is_over]

    def with_calls(
        self, writes: Sequence[tuple[str, Any]], task_id: str, serde: Serde
    ) -> Sequence[tuple[str, Any]]:
        """Return a task's writes with the records of its calls, if it made any. An answer that cannot be
        stored must not fail the step: only its type is recorded."""
        calls = self.take(task_id)
        if not calls:
            return writes
        stored = [_make_storable(call, serde).dump() for call in calls]
        return [*writes, (channel_of(writes), stored)]

    # Callbacks of LangChain

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        settings = kwargs.get("invocation_params") or {}
        named = (metadata or {}).get("ls_model_name") or settings.get("model") or settings.get("model_name")
        name = str(named or kwargs.get("name") or (serialized or {}).get("name") or "model")
        parts = digest_prompt(messages[0] if messages else (), settings)
        self._start(CallRecord(MODEL, name, parts), run_id, parent_run_id, metadata)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        if response.generations:
            generations = response.generations[0]
        else:
            generations = []
        first = generations[0] if generations else None
        self._end(run_id, first.message if isinstance(first, ChatGeneration) else None)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._fail(run_id, error)

    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        inputs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        name = str((serialized or {}).get("name") or kwargs.get("name") or "tool")
        parts = digest_tool_input(input_str if inputs is None else inputs)
        self._start(CallRecord(TOOL, name, parts), run_id, parent_run_id, metadata)
        self._inside.add(run_id)

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._inside.discard(run_id)
        self._end(run_id, output)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._inside.discard(run_id)
        self._fail(run_id, error)

    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **_: Any,
    ) -> None:
        if parent_run_id in self._inside:
            self._inside.add(run_id)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._inside.discard(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._inside.discard(run_id)

    def _start(
        self, call: CallRecord, run_id: UUID, parent: UUID | None, metadata: Mapping[str, Any] | None
    ) -> None:
        call.place = str((metadata or {}).get(_NAMESPACE) or "")
        if not call.place or parent in self._inside:
            return
        with self._lock:
            self.open[run_id] = call
            self.calls.setdefault(call.place, []).append(call)
            while len(self.calls) > _TASKS_MAX:
                # Left by tasks that were cancelled.
                for left in self.calls.popitem(last=False)[1]:
                    left.place = ""

    def _end(self, run_id: UUID, answer: Any) -> None:
        call = self.open.pop(run_id, None)
        if call is not None:
            call.answer, call.is_over = answer, True

    def _fail(self, run_id: UUID, error: BaseException) -> None:
        call = self.open.pop(run_id, None)
        if call is None:
            return
        if isinstance(error, GraphInterrupt):
            if error.args:
                call.questions = [each.value for each in error.args[0]]
            else:
                call.questions = []
        elif isinstance(error, GraphBubbleUp):
            call.missing = type(error).__name__
        else:
            kind = type(error)
            call.error = (f"{kind.__module__}:{kind.__qualname__}", str(error))
        call.is_over = True


def _make_storable(call: CallRecord, serde: Serde) -> CallRecord:
    try:
        serde.payload(call.dump())
    except (TypeNotAllowed, Unserialisable):
        return call.without_answer()
    return call


def digest_tool_input(given: Any) -> dict[str, str]:
    """Return the digest of a tool's input."""
    return {"input": digest(given)}


# Slots


def channel_of(writes: Sequence[tuple[str, Any]]) -> str:
    """Return the channel for the records of a task that stores these writes."""
    # The value is a list of all answers that the task has taken so far.
    given = [len(value) if isinstance(value, list) else 1 for name, value in writes if name == RESUME]
    return f"{CALLS}{min(max(given, default=0), _MOST_ANSWERS)}"


def slot_of(channel: str, position: int) -> int:
    """Return the index of a write: that of its special channel, else its position."""
    if is_of_calls(channel):
        return _SLOT - count_answers(channel)
    return WRITES_IDX_MAP.get(channel, position)
