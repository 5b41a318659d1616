"""Choice of the messages that a model is sent: a valid list within a limit, with a stable beginning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from perdure.conversation.counting import Counter, approximate, count_tools
from perdure.conversation.repair import Change, repair
from perdure.conversation.summary import SUMMARY_ID, Summary
from perdure.conversation.tool_calls import find_server_call, find_server_result
from perdure.errors import MessageTooLong, NoWindow


@dataclass(frozen=True, slots=True)
class Limit:
    """Size of a window.

    Args:
        tokens: Maximum number of tokens that are sent to a model, tools and system messages included.
        keep: The share of the messages' room that is filled after the window has moved. The rest is the room
            for new messages until it moves again.
        begins: The role of the first message after the system messages. ``human`` is what all providers take,
            ``any`` leaves it open.
        summary: Tokens that are kept free for a summary, so that the window does not move when the summary
            grows.

    Raises:
        ValueError: A value is out of range.
    """

    tokens: int
    keep: float = 0.5
    begins: Literal["human", "any"] = "human"
    summary: int = 0

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ValueError(f"the limit is {self.tokens} tokens; it has to be at least 1")
        if not 0 < self.keep <= 1:
            raise ValueError(f"keep is {self.keep}; it is a share, above 0 and at most 1")
        if not 0 <= self.summary < self.tokens:
            raise ValueError(
                f"{self.summary} tokens for the summary leave none of {self.tokens} for messages"
            )
        if self.begins not in ("human", "any"):
            raise ValueError(f"begins is 'human' or 'any', not {self.begins!r}")

    @classmethod
    def of(cls, limit: int | Limit) -> Limit:
        """Return a limit that is given as one, or as its number of tokens."""
        if isinstance(limit, Limit):
            return limit
        return cls(limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensByPart:
    """Number of tokens of a window by part. ``system`` counts the system messages and the given prompt."""

    system: int
    tools: int
    summary: int
    messages: int

    @property
    def total(self) -> int:
        """Number of tokens of all parts."""
        return self.system + self.tools + self.summary + self.messages


@dataclass(frozen=True, slots=True)
class Window:
    """Messages to send, messages left out, both in order, the tokens by part, and the changes of a repair. If
    some messages of the first turn are left out, ``cut`` has the ids of the user's messages of that turn,
    which are sent."""

    messages: list[BaseMessage]
    left_out: list[BaseMessage]
    tokens: TokensByPart
    changes: tuple[Change, ...] = ()
    cut: tuple[str, ...] = ()


@dataclass(slots=True)
class _Unit:
    """Messages that stay together: calls with their results, messages of the user in a row, or any other one.

    ``is_turn`` is True if a turn begins with it, ``counts`` are the tokens of each message, and ``waits`` are
    the ids of calls for tools of the provider whose results are still to come, in a later message.
    """

    messages: list[BaseMessage]
    is_turn: bool
    counts: list[int] = field(default_factory=list[int])
    waits: set[str] = field(default_factory=set[str])

    def add(self, message: BaseMessage, count: int) -> None:
        self.messages.append(message)
        self.counts.append(count)
        for block in () if isinstance(message.content, str) else message.content:
            if (call := find_server_call(block)) is not None:
                self.waits.add(call)
            elif (result := find_server_result(block)) is not None:
                self.waits.discard(result)

    @property
    def tokens(self) -> int:
        return sum(self.counts)


@dataclass(slots=True)
class _View:
    """Position of a window in the units: the unit that it begins with (``turn``), and the next unit that is
    sent (``rest``).

    The units between the two are left out. ``total`` counts the tokens of the window up to the latest unit.
    """

    units: list[_Unit]
    nexts: list[int]
    turn: int = -1
    rest: int = 0
    total: int = 0

    def begin(self, turn: int) -> None:
        self.turn, self.rest = turn, turn + 1

    def advance(self, latest: int) -> bool:
        """Leave out one more unit. Return False if all units that are left have to stay."""
        following = self.nexts[self.turn]
        if self.rest < latest and self.rest + 1 < following:
            self.total -= self.units[self.rest].tokens
            self.rest += 1
            return True
        if following > latest:
            return False
        self.total -= self.units[self.turn].tokens
        self.total -= sum(unit.tokens for unit in self.units[self.rest : following])
        self.begin(following)
        return True


def window(
    messages: Sequence[BaseMessage],
    limit: int | Limit,
    *,
    counter: Counter = approximate,
    tools: Sequence[object] = (),
    system: str | SystemMessage | None = None,
    summary: Summary | None = None,
) -> Window:
    """Choose the messages of a conversation that a model is sent.

    The list is one that all providers take: it is repaired as by ``repair``, its system messages come first
    and all stay, it begins with a message of the user, and calls stay with their results. The latest message
    is always part of it. If a turn does not fit as a whole, the user's message and the latest calls stay.

    The window moves in steps: it grows with the conversation until the limit is reached, then it moves so far
    that ``Limit.keep`` of the room is filled. In between its beginning stays the same, as caches of prompts
    need it. The same messages always give the same window; nothing is remembered between calls.

    Args:
        messages: The whole conversation, in order.
        limit: Maximum number of tokens, or a ``Limit``.
        counter: Counts the tokens of a message.
        tools: Tools that the model is given, which count.
        system: A system prompt that is sent beside the messages: it counts, and is not part of the result.
        summary: Replaces the messages up to the last one that it covers.

    Raises:
        MessageTooLong: A message that has to be sent exceeds the limit together with the system messages and
            tools; the error has its id.
        NoWindow: There is no message of the user to begin with.
        ValueError: The list contains something that is not a message.
    """
    bounds = Limit.of(limit)
    repaired = repair(messages)
    changes = list(repaired.changes)
    system_messages, rest = _split_system(repaired.messages, changes)
    summaries: list[BaseMessage] = []
    covered = None
    if summary is not None:
        system_messages = [message for message in system_messages if message.id != SUMMARY_ID]
        summaries.append(summary.message())
        covered = summary.covers
    instructions = [*system_messages, *_make_prompt(system)]
    fixed = TokensByPart(
        system=sum(counter([message]) for message in instructions),
        tools=count_tools(counter, tools),
        summary=max(bounds.summary, sum(counter([message]) for message in summaries)),
        messages=0,
    )
    if not rest:
        raise NoWindow("there is no message to send, apart from system messages")
    units = _group_units(rest, counter, begins_with_any=bounds.begins == "any")
    room = bounds.tokens - fixed.total
    if room <= 0:
        raise _too_long_error(bounds, fixed, instructions, counter, fixed.total)
    view = _follow_window(units, room, bounds.keep, covered)
    if view.turn < 0:
        raise NoWindow(
            f"none of the {len(rest)} messages is the user's, and a list has to begin with one; use "
            "Limit(…, begins='any') for a model that takes others"
        )
    kept = [view.units[view.turn], *view.units[view.rest :]]
    chosen = [message for unit in kept for message in unit.messages]
    if view.total > room:
        raise _too_long_error(bounds, fixed, [*instructions, *chosen], counter, fixed.total + view.total)
    cut: tuple[str, ...] = ()
    if view.rest > view.turn + 1:
        cut = tuple(str(each.id) for each in kept[0].messages)
    left_out = [*units[: view.turn], *units[view.turn + 1 : view.rest]]
    return Window(
        [*system_messages, *summaries, *chosen],
        [message for unit in left_out for message in unit.messages],
        replace(fixed, messages=view.total),
        tuple(changes),
        cut,
    )


def is_system(message: BaseMessage) -> bool:
    """Return True if a message instructs the model, in whichever class."""
    return isinstance(message, SystemMessage) or (
        isinstance(message, ChatMessage) and message.role in ("system", "developer")
    )


def is_users(message: BaseMessage) -> bool:
    """Return True if a message is the user's."""
    return isinstance(message, HumanMessage) or (
        isinstance(message, ChatMessage) and message.role in ("user", "human")
    )


def _make_prompt(system: str | SystemMessage | None) -> list[BaseMessage]:
    if system is None:
        return []
    return [SystemMessage(system) if isinstance(system, str) else system]


def _split_system(
    messages: Sequence[BaseMessage], changes: list[Change]
) -> tuple[list[BaseMessage], list[BaseMessage]]:
    """Return the system messages and the other messages; add the changes of the former to ``changes``."""
    system_messages = [message for message in messages if is_system(message)]
    changes += [
        Change("system_moved", message.id)
        for place, message in enumerate(system_messages)
        if messages[place] is not message
    ]
    return system_messages, [message for message in messages if not is_system(message)]


def _group_units(messages: Sequence[BaseMessage], counter: Counter, *, begins_with_any: bool) -> list[_Unit]:
    units: list[_Unit] = []
    for message in messages:
        count = counter([message])
        last = units[-1] if units else None
        is_turn = is_users(message)
        # A result belongs to the unit before it, which has its call: the list is repaired.
        if last is None or not (
            isinstance(message, ToolMessage)
            or (is_turn and is_users(last.messages[-1]))
            or (last.waits and isinstance(message, AIMessage))
        ):
            last = _Unit([], is_turn or (begins_with_any and not units))
            units.append(last)
        last.add(message, count)
    return units


def _follow_window(units: list[_Unit], room: int, keep: float, covered: str | None) -> _View:
    """Follow the window through the conversation, as it moved with each message that arrived.

    So the window of a longer conversation begins where that of a shorter one did, until it has to move.
    """
    view = _View(units, _find_next_turns(units))
    target = int(room * keep)
    start, turn, rest = _find_uncovered(units, covered)
    if turn >= 0:
        view.turn, view.rest = turn, rest
        view.total = units[turn].tokens
    for place in range(start, len(units)):
        unit = units[place]
        if view.turn < 0:
            if not unit.is_turn:
                continue
            view.begin(place)
        # Messages of the user arrive one by one, calls together with all their results.
        for count in unit.counts if unit.is_turn else (unit.tokens,):
            view.total += count
            if view.total > room:
                while view.total > target and view.advance(place):
                    pass
    return view


def _find_next_turns(units: Sequence[_Unit]) -> list[int]:
    """Return for each unit the place of the next turn, or the number of units if there is none."""
    following = len(units)
    nexts = [0] * following
    for place in range(len(units) - 1, -1, -1):
        nexts[place] = following
        if units[place].is_turn:
            following = place
    return nexts


def _find_uncovered(units: Sequence[_Unit], covered: str | None) -> tuple[int, int, int]:
    """Return the first unit that a summary does not cover, the turn to which it belongs (-1 if it begins one
    or has none), and the first unit of that turn that is sent."""
    if covered is None:
        return 0, -1, 0
    turn = -1
    for place, unit in enumerate(units):
        if unit.is_turn:
            turn = place
        if any(message.id == covered for message in unit.messages):
            following = place + 1
            if following == len(units):
                break
            if units[following].is_turn or turn < 0:
                return following, -1, 0
            return following, turn, following
    return 0, -1, 0


def _too_long_error(
    bounds: Limit, fixed: TokensByPart, kept: Sequence[BaseMessage], counter: Counter, total: int
) -> MessageTooLong:
    named, longest_id = "the tools", None
    if kept:
        longest = max(kept, key=lambda message: counter([message]))
        size, longest_id = counter([longest]), longest.id
        if size >= fixed.tools:
            named = f"the {longest.type} message {longest.id or 'without an id'}, of {size} tokens,"
    error = MessageTooLong(
        f"{total} tokens have to be sent and the limit is {bounds.tokens}; the longest part is {named}: "
        f"shorten it, or raise the limit (system {fixed.system}, tools {fixed.tools}, "
        f"summary {fixed.summary})"
    )
    error.message_id = longest_id
    error.tokens, error.limit = total, bounds.tokens
    return error
