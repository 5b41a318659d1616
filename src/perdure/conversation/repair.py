"""Repair of messages that no provider accepts: calls without results, results without calls, and empty
messages. It adds results, and nothing else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)

from perdure.conversation.provider_blocks import find_answered_call, results_of, with_calls, without_results
from perdure.conversation.tool_calls import (
    calls_of,
    find_server_call,
    find_server_result,
    is_call,
    type_of,
    with_ids,
)

NO_RESULT = (
    "No result: the call was interrupted before its result was stored. It may have taken effect or not."
)
"""Content of the results that a repair adds."""

_SYNTHETIC = "no-result-"

AnyMessage = TypeVar("AnyMessage", bound=BaseMessage)

_REASONING = frozenset({"thinking", "redacted_thinking", "reasoning", "reasoning_content"})

ChangeKind = Literal[
    "result_added",
    "result_moved",
    "result_removed",
    "result_converted",
    "call_converted",
    "call_removed",
    "call_renamed",
    "text_removed",
    "reasoning_removed",
    "id_removed",
    "message_removed",
    "message_replaced",
    "system_moved",
]
"""Kinds of changes: a result was added after its call, moved to it, or removed because it has no call or the
call has another one; a result, or a call, that was a content block of Anthropic's became a message, or a
tool call; a call was removed that has no name, that only the content of its message held, or that
the provider did not answer; a call whose id is empty or taken got another one; blank text was removed beside
other content; reasoning was removed from the end of a message; an empty id was removed; an empty message was
removed; a message was replaced by a later one of the same id; a system message was moved to the front."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a list of messages: its kind, and the ids of the message and of the call, if any."""

    kind: ChangeKind
    message_id: str | None = None
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class RepairedMessages:
    """A repaired list of messages. ``changes`` is empty if nothing was wrong with it."""

    messages: list[BaseMessage]
    changes: tuple[Change, ...] = ()


@dataclass(slots=True)
class _ToolCall:
    """A call for a tool: its place, its ids before and after, and its result if one was found."""

    place: int
    old: str
    id: str
    name: str
    result: int | None = None


@dataclass(slots=True)
class _Ledger:
    """Calls and results of a list, and which belong together."""

    messages: list[BaseMessage]
    changes: list[Change]
    calls: dict[int, list[_ToolCall]] = field(default_factory=dict[int, list[_ToolCall]])
    results: set[int] = field(default_factory=set[int])

    def note(self, kind: ChangeKind, message: BaseMessage, call_id: str | None = None) -> None:
        self.changes.append(Change(kind, message.id, call_id))


def is_synthetic(message: BaseMessage) -> bool:
    """Return True if a message is a result that a repair added."""
    return isinstance(message, ToolMessage) and (message.id or "").startswith(_SYNTHETIC)


def repair(messages: Sequence[BaseMessage]) -> RepairedMessages:
    """Make a list of messages one that a provider takes, as far as calls, results and ids are concerned.

    - A call without a result gets one with the status ``error`` and the content ``NO_RESULT``.
    - Results stand right after the message with their call, in their order. If a call has several results,
      the first one counts, and a real one before one that a repair added. Results without a call are removed.
    - Calls and results that are content blocks of Anthropic's become tool calls and messages.
    - Calls for tools that the provider runs, and their results, are blocks of an answer. Those without the
      other are removed, except calls at the end of the list: the provider continues them.
    - Ids of calls are unique in the list, and those of messages. If several messages have one id, the last
      one counts, in place of the first, as in LangGraph's ``add_messages``.
    - Blank text is removed, and messages in which nothing is left to send; reasoning alone is nothing.
    - Reasoning at the end of a message is removed; an answer that was cut off ends with it.

    Repeating it changes nothing more. The given messages are not changed.

    Raises:
        ValueError: The list contains what is not a message, or a ``RemoveMessage``.
    """
    ledger = _Ledger(*_by_id(messages))
    _convert_blocks(ledger)
    _pair_server_calls(ledger)
    _number_calls(ledger)
    _match(ledger)
    return RepairedMessages(_arrange(ledger), tuple(ledger.changes))


def _by_id(messages: Iterable[Any]) -> tuple[list[BaseMessage], list[Change]]:
    """Return the messages without those whose id occurs again, and the changes."""
    kept: list[BaseMessage] = []
    changes: list[Change] = []
    places: dict[str, int] = {}
    for place, message in enumerate(messages):
        if not isinstance(message, BaseMessage) or isinstance(message, RemoveMessage):
            raise ValueError(
                f"number {place} of the list is a {type(message).__name__}, which no model can be sent; "
                "convert it with langchain_core.messages.convert_to_messages, or apply removals first"
            )
        if message.id and message.id in places:
            changes.append(Change("message_replaced", message.id))
            kept[places[message.id]] = message
            continue
        if message.id:
            places[message.id] = len(kept)
        if message.id == "":
            changes.append(Change("id_removed"))
            message = message.model_copy(update={"id": None})
        kept.append(message)
    return kept, changes


def _convert_blocks(ledger: _Ledger) -> None:
    """Convert the results that are blocks of users' messages, and the calls that these answer."""
    answered = {find_answered_call(block) for each in ledger.messages for block in results_of(each)}
    if not answered:
        return
    converted: list[BaseMessage] = []
    for message in ledger.messages:
        if isinstance(message, AIMessage):
            asked = with_calls(message, answered)
            if asked is not message:
                ledger.note("call_converted", message)
            converted.append(asked)
        elif isinstance(message, HumanMessage) and (results := results_of(message)):
            ledger.note("result_converted", message)
            converted += without_results(message, results)
        else:
            converted.append(message)
    ledger.messages = converted


def _pair_server_calls(ledger: _Ledger) -> None:
    """Remove calls for tools of the provider, and results of these, that lack the other in one answer. An
    answer goes on after the results of the caller's own tools."""
    answer: list[int] = []
    for place, message in enumerate(ledger.messages):
        if isinstance(message, AIMessage):
            answer.append(place)
        elif not isinstance(message, ToolMessage | SystemMessage):
            _pair_within(ledger, answer, is_open=False)
            answer = []
    _pair_within(ledger, answer, is_open=True)


def _pair_within(ledger: _Ledger, answer: Sequence[int], *, is_open: bool) -> None:
    blocks = [
        (place, block)
        for place in answer
        if not isinstance(ledger.messages[place].content, str)
        for block in ledger.messages[place].content
    ]
    latest = {find_server_result(block): number for number, (_, block) in enumerate(blocks)}
    called: set[str] = set()
    removed: list[int] = []
    for number, (place, block) in enumerate(blocks):
        call, result = find_server_call(block), find_server_result(block)
        if call is not None and (is_open or latest.get(call, -1) > number):
            called.add(call)
        elif call is not None:
            ledger.note("call_removed", ledger.messages[place], call)
            removed.append(number)
        elif result is not None and result not in called:
            ledger.note("result_removed", ledger.messages[place], result)
            removed.append(number)
    for place in {blocks[number][0] for number in removed}:
        kept = [b for n, (at, b) in enumerate(blocks) if at == place and n not in removed]
        ledger.messages[place] = ledger.messages[place].model_copy(update={"content": kept})


def _number_calls(ledger: _Ledger) -> None:
    """Find the calls, and give each its own id."""
    taken: set[str] = set()
    asked = {
        old for message in ledger.messages if isinstance(message, AIMessage) for old, _ in calls_of(message)
    }
    for place, message in enumerate(ledger.messages):
        if not isinstance(message, AIMessage):
            continue
        noted = len(ledger.changes)
        counted: dict[str, int] = defaultdict(int)
        calls: list[_ToolCall] = []
        ids: dict[tuple[str, int], str] = {}
        for old, name in calls_of(message):
            number = counted[old]
            counted[old] += 1
            if not name:
                ledger.note("call_removed", message, old)
                continue
            call_id = old
            again = 1
            while not call_id or call_id in taken or (again > 1 and call_id in asked):
                again += 1
                call_id = f"{old or 'call'}_{again}"
            taken.add(call_id)
            if call_id != old:
                ledger.note("call_renamed", message, call_id)
            calls.append(_ToolCall(place, old, call_id, name))
            ids[old, number] = call_id
        if calls:
            ledger.calls[place] = calls
        changed = with_ids(message, ids)
        if changed is not message and len(ledger.changes) == noted:
            ledger.note("call_removed", message)
        ledger.messages[place] = changed


def _match(ledger: _Ledger) -> None:
    """Give each call its result: of the calls before a result the nearest without one, else the first
    after it."""
    before: dict[str, list[_ToolCall]] = defaultdict(list)
    left: list[tuple[int, str]] = []
    for place, message in enumerate(ledger.messages):
        for call in ledger.calls.get(place, ()):
            before[call.old].append(call)
        if isinstance(message, ToolMessage):
            call_id = message.tool_call_id or ""
            if not _answer(ledger, before[call_id], place):
                left.append((place, call_id))
    for place, call_id in left:
        free = (call for call in before[call_id] if call.place > place and call.result is None)
        first = next(free, None)
        if first is None:
            ledger.note("result_removed", ledger.messages[place], call_id)
        else:
            first.result = place


def _answer(ledger: _Ledger, calls: Sequence[_ToolCall], place: int) -> bool:
    """Give a result to one of the calls before it. Return False if all have one."""
    free = [call for call in calls if call.result is None]
    if free:
        nearest = free[-1].place
        next(call for call in free if call.place == nearest).result = place
        return True
    for call in reversed(calls):
        held = ledger.messages[call.result or 0]
        if is_synthetic(held) and not is_synthetic(ledger.messages[place]):
            ledger.note("result_removed", held, call.id)
            call.result = place
            return True
    return False


def _arrange(ledger: _Ledger) -> list[BaseMessage]:
    arranged: list[BaseMessage] = []
    ledger.results = {
        call.result for calls in ledger.calls.values() for call in calls if call.result is not None
    }
    for place, message in enumerate(ledger.messages):
        if isinstance(message, ToolMessage):
            continue
        calls = ledger.calls.get(place, ())
        if not calls and _is_empty(message):
            ledger.note("message_removed", message)
            continue
        arranged.append(_without_late_reasoning(ledger, _without_blank(ledger, message)))
        found = sorted((call for call in calls if call.result is not None), key=lambda call: call.result or 0)
        arranged += [_result(ledger, call) for call in found]
        arranged += [_make_missing_result(ledger, call, message) for call in calls if call.result is None]
    return arranged


def _result(ledger: _Ledger, call: _ToolCall) -> BaseMessage:
    place = call.result or 0
    own = {each.result for each in ledger.calls[call.place]}
    between = range(call.place + 1, place)
    message = ledger.messages[place]
    if place < call.place or any(other not in own and _stays(ledger, other) for other in between):
        ledger.note("result_moved", message, call.id)
    if call.id != call.old:
        message = message.model_copy(update={"tool_call_id": call.id})
    if isinstance(message.content, list):
        return _without_blank(ledger, message)
    return message


def _stays(ledger: _Ledger, place: int) -> bool:
    """Return True if a message is not removed: what stood beside a removed one is not moved."""
    message = ledger.messages[place]
    if isinstance(message, ToolMessage):
        return place in ledger.results
    return place in ledger.calls or not _is_empty(message)


def _make_missing_result(ledger: _Ledger, call: _ToolCall, message: BaseMessage) -> ToolMessage:
    ledger.note("result_added", message, call.id)
    return ToolMessage(
        NO_RESULT, tool_call_id=call.id, name=call.name, status="error", id=f"{_SYNTHETIC}{call.id}"
    )


def _without_blank(ledger: _Ledger, message: AnyMessage) -> AnyMessage:
    content = _drop_blank(message.content)
    if content == message.content:
        return message
    ledger.note("text_removed", message)
    return message.model_copy(update={"content": content or ""})


def _without_late_reasoning(ledger: _Ledger, message: AnyMessage) -> AnyMessage:
    """Return a message without the reasoning at its end. Calls that its content lacks are sent after it."""
    content = message.content
    if isinstance(content, str) or not isinstance(message, AIMessage):
        return message
    if sum(isinstance(block, dict) and is_call(block) for block in content) < len(calls_of(message)):
        return message
    end = len(content)
    while end and _is_reasoning(content[end - 1]):
        end -= 1
    if end == len(content):
        return message
    ledger.note("reasoning_removed", message)
    return message.model_copy(update={"content": content[:end]})


def _drop_blank(content: str | list[Any]) -> str | list[Any]:
    """Return content without blank text, which some providers refuse."""
    if isinstance(content, str):
        if content.strip():
            return content
        return ""
    kept = [block for block in content if not _is_blank(block)]
    if len(kept) == len(content):
        return content
    return kept


def _is_blank(block: Any) -> bool:
    if isinstance(block, str):
        return not block.strip()
    return block.get("type") == "text" and not str(block.get("text") or "").strip()


def _is_empty(message: BaseMessage) -> bool:
    """Return True if nothing of a message without calls would be sent."""
    if message.additional_kwargs.get("function_call") or message.additional_kwargs.get("audio"):
        return False
    if isinstance(message.content, str):
        return not message.content.strip()
    is_reply = isinstance(message, AIMessage)
    return all(_is_blank(block) or (is_reply and _is_reasoning(block)) for block in message.content)


def _is_reasoning(block: Any) -> bool:
    return isinstance(block, dict) and type_of(block) in _REASONING
