"""Repair of messages that no provider accepts: calls without results, results without calls, and empty
messages. The only messages that it adds are results."""

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
"""Kinds of changes:

- ``result_added``: a call without a result got one;
- ``result_moved``: a result was moved to its call;
- ``result_removed``: a result has no call, or its call has another result;
- ``result_converted``: results in content blocks of Anthropic's became messages;
- ``call_converted``: calls in content blocks of Anthropic's became tool calls;
- ``call_removed``: a call has no name, is only in the content of its message, or was not answered by the
  provider;
- ``call_renamed``: a call whose id was empty or taken got another id;
- ``text_removed``: blank text was removed beside other content;
- ``reasoning_removed``: reasoning was removed from the end of a message;
- ``id_removed``: an empty id of a message was removed;
- ``message_removed``: an empty message was removed;
- ``message_replaced``: a message was replaced by a later one of the same id;
- ``system_moved``: a system message was moved to the front.
"""


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
    """A call for a tool: the place of its message, its id before the repair (``old``) and after it, its
    tool's name, and the place of its result, if it has one."""

    place: int
    old: str
    id: str
    name: str
    result: int | None = None


@dataclass(slots=True)
class _Ledger:
    """Messages of a list, the changes, the calls by the place of their message, and the places of the results
    that belong to a call."""

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
    """Change a list of messages so that a provider takes it, as far as calls, results and ids are concerned.

    - A call without a result gets one with the status ``error`` and the content ``NO_RESULT``.
    - Results follow right after the message with their call, in their order. If a call has several results,
      the first one stays, or the first real one if a repair added the others. Results without a call are
      removed.
    - Calls and results that are content blocks of Anthropic's become tool calls and messages.
    - Calls for tools that the provider runs, and their results, are blocks of an answer. Such calls without a
      result and results without a call are removed, except calls at the end of the list: the provider
      continues them.
    - Ids of calls and of messages are unique in the list. If several messages have the same id, the last one
      takes the place of the first, as in LangGraph's ``add_messages``.
    - Blank text is removed, and messages in which nothing is left to send; reasoning alone is not sent.
    - Reasoning at the end of a message is removed: an answer that was cut off may end with it.

    A second repair changes nothing more. The given messages are not changed.

    Raises:
        ValueError: The list contains a ``RemoveMessage``, or something that is not a message.
    """
    ledger = _Ledger(*_replace_by_id(messages))
    _convert_blocks(ledger)
    _pair_server_calls(ledger)
    _number_calls(ledger)
    _match_results(ledger)
    return RepairedMessages(_arrange(ledger), tuple(ledger.changes))


def _replace_by_id(messages: Iterable[Any]) -> tuple[list[BaseMessage], list[Change]]:
    """Return the messages, a later one of the same id in place of the earlier one, and the changes."""
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
    """Convert the results that are blocks of users' messages, and the calls that these results answer."""
    answered = {find_answered_call(block) for each in ledger.messages for block in results_of(each)}
    if not answered:
        return
    converted: list[BaseMessage] = []
    for message in ledger.messages:
        if isinstance(message, AIMessage):
            with_tool_calls = with_calls(message, answered)
            if with_tool_calls is not message:
                ledger.note("call_converted", message)
            converted.append(with_tool_calls)
        elif isinstance(message, HumanMessage) and (results := results_of(message)):
            ledger.note("result_converted", message)
            converted += without_results(message, results)
        else:
            converted.append(message)
    ledger.messages = converted


def _pair_server_calls(ledger: _Ledger) -> None:
    """Remove, within each answer, calls for tools of the provider that lack their result, and results that
    lack their call. An answer goes on after the results of the caller's own tools."""
    answer_places: list[int] = []
    for place, message in enumerate(ledger.messages):
        if isinstance(message, AIMessage):
            answer_places.append(place)
        elif not isinstance(message, ToolMessage | SystemMessage):
            _pair_within(ledger, answer_places, is_open=False)
            answer_places = []
    _pair_within(ledger, answer_places, is_open=True)


def _pair_within(ledger: _Ledger, places: Sequence[int], *, is_open: bool) -> None:
    blocks = [
        (place, block)
        for place in places
        if not isinstance(ledger.messages[place].content, str)
        for block in ledger.messages[place].content
    ]
    last_results = {find_server_result(block): number for number, (_, block) in enumerate(blocks)}
    called: set[str] = set()
    removed: list[int] = []
    for number, (place, block) in enumerate(blocks):
        call, result = find_server_call(block), find_server_result(block)
        if call is not None and (is_open or last_results.get(call, -1) > number):
            called.add(call)
        elif call is not None:
            ledger.note("call_removed", ledger.messages[place], call)
            removed.append(number)
        elif result is not None and result not in called:
            ledger.note("result_removed", ledger.messages[place], result)
            removed.append(number)
    for place in {blocks[number][0] for number in removed}:
        kept = [b for n, (block_place, b) in enumerate(blocks) if block_place == place and n not in removed]
        ledger.messages[place] = ledger.messages[place].model_copy(update={"content": kept})


def _number_calls(ledger: _Ledger) -> None:
    """Find the calls, and give each an id that no other call has."""
    taken: set[str] = set()
    all_ids = {
        old for message in ledger.messages if isinstance(message, AIMessage) for old, _ in calls_of(message)
    }
    for place, message in enumerate(ledger.messages):
        if not isinstance(message, AIMessage):
            continue
        changes_before = len(ledger.changes)
        count_by_id: dict[str, int] = defaultdict(int)
        calls: list[_ToolCall] = []
        new_ids: dict[tuple[str, int], str] = {}
        for old, name in calls_of(message):
            number = count_by_id[old]
            count_by_id[old] += 1
            if not name:
                ledger.note("call_removed", message, old)
                continue
            call_id = old
            attempt = 1
            while not call_id or call_id in taken or (attempt > 1 and call_id in all_ids):
                attempt += 1
                call_id = f"{old or 'call'}_{attempt}"
            taken.add(call_id)
            if call_id != old:
                ledger.note("call_renamed", message, call_id)
            calls.append(_ToolCall(place, old, call_id, name))
            new_ids[old, number] = call_id
        if calls:
            ledger.calls[place] = calls
        changed = with_ids(message, new_ids)
        if changed is not message and len(ledger.changes) == changes_before:
            ledger.note("call_removed", message)
        ledger.messages[place] = changed


def _match_results(ledger: _Ledger) -> None:
    """Give each result to a call of its id: the nearest one before it without a result, else the first one
    after it."""
    calls_by_id: dict[str, list[_ToolCall]] = defaultdict(list)
    unmatched: list[tuple[int, str]] = []
    for place, message in enumerate(ledger.messages):
        for call in ledger.calls.get(place, ()):
            calls_by_id[call.old].append(call)
        if isinstance(message, ToolMessage):
            call_id = message.tool_call_id or ""
            if not _answer_call(ledger, calls_by_id[call_id], place):
                unmatched.append((place, call_id))
    for place, call_id in unmatched:
        free = (call for call in calls_by_id[call_id] if call.place > place and call.result is None)
        first = next(free, None)
        if first is None:
            ledger.note("result_removed", ledger.messages[place], call_id)
        else:
            first.result = place


def _answer_call(ledger: _Ledger, calls: Sequence[_ToolCall], place: int) -> bool:
    """Give a result to one of the calls before it, also in place of a result that a repair added. Return
    False if all calls have a real one."""
    free = [call for call in calls if call.result is None]
    if free:
        nearest = free[-1].place
        next(call for call in free if call.place == nearest).result = place
        return True
    for call in reversed(calls):
        existing = ledger.messages[call.result or 0]
        if is_synthetic(existing) and not is_synthetic(ledger.messages[place]):
            ledger.note("result_removed", existing, call.id)
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
        arranged.append(_remove_late_reasoning(ledger, _remove_blank(ledger, message)))
        answered_calls = sorted(
            (call for call in calls if call.result is not None), key=lambda call: call.result or 0
        )
        arranged += [_take_result(ledger, call) for call in answered_calls]
        arranged += [_make_missing_result(ledger, call, message) for call in calls if call.result is None]
    return arranged


def _take_result(ledger: _Ledger, call: _ToolCall) -> BaseMessage:
    place = call.result or 0
    own = {each.result for each in ledger.calls[call.place]}
    between = range(call.place + 1, place)
    message = ledger.messages[place]
    if place < call.place or any(other not in own and _is_kept(ledger, other) for other in between):
        ledger.note("result_moved", message, call.id)
    if call.id != call.old:
        message = message.model_copy(update={"tool_call_id": call.id})
    if isinstance(message.content, list):
        return _remove_blank(ledger, message)
    return message


def _is_kept(ledger: _Ledger, place: int) -> bool:
    """Return True if a message is not removed. Only such messages between a call and its result make the
    result count as moved."""
    message = ledger.messages[place]
    if isinstance(message, ToolMessage):
        return place in ledger.results
    return place in ledger.calls or not _is_empty(message)


def _make_missing_result(ledger: _Ledger, call: _ToolCall, message: BaseMessage) -> ToolMessage:
    ledger.note("result_added", message, call.id)
    return ToolMessage(
        NO_RESULT, tool_call_id=call.id, name=call.name, status="error", id=f"{_SYNTHETIC}{call.id}"
    )


def _remove_blank(ledger: _Ledger, message: AnyMessage) -> AnyMessage:
    content = _drop_blank(message.content)
    if content == message.content:
        return message
    ledger.note("text_removed", message)
    return message.model_copy(update={"content": content or ""})


def _remove_late_reasoning(ledger: _Ledger, message: AnyMessage) -> AnyMessage:
    """Return a message without reasoning at its end. Calls that its content lacks are sent after the content,
    so that reasoning is not at the end then."""
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
