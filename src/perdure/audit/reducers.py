"""Checks of reducers by property tests: associative, batching-invariant, stable, no change to arguments."""

from __future__ import annotations

import copy
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from langchain_core.messages import AnyMessage, BaseMessage, HumanMessage
from langgraph.graph.message import add_messages

from perdure.audit import checks
from perdure.audit.checks import AuditCheck
from perdure.audit.sample_values import NoSample, Samples, format_value, write_type
from perdure.langgraph.graph_facts import ChannelFacts, ChannelKind, strip_annotations, unwrap
from perdure.langgraph.values.roundtrip import is_same

_TRIES = 48
_FAILED: Any = object()
_Make = Callable[[Samples], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class ReducerFailure:
    """A check that a reducer fails, and the values that show it."""

    check: AuditCheck
    detail: str
    example: str = ""


class Unexamined(Exception):
    """A reducer cannot be examined; the message is the reason."""


def failures(channel: ChannelFacts) -> Iterator[ReducerFailure]:
    """Yield the checks that the reducer of a channel fails, each once.

    Raises:
        Unexamined: No values can be made for the reducer.
    """
    if channel.reducer is None:
        return
    examined = _Reducer(channel)
    if channel.kind is ChannelKind.DELTA:
        yield from examined.check_delta()
    else:
        yield from examined.check_binary()


def growth(channel: ChannelFacts) -> str | None:
    """Return an example in which the reducer of a channel adds a value that the channel already has; ``None``
    if there is no such example, or no values can be made."""
    if channel.reducer is None:
        return None
    try:
        return _Reducer(channel).growth(is_delta=channel.kind is ChannelKind.DELTA)
    except Unexamined:
        return None


class _Reducer:
    """A reducer with the types of its arguments."""

    def __init__(self, channel: ChannelFacts) -> None:
        assert channel.reducer is not None  # noqa: S101 - checked by the caller
        self.function: Callable[..., Any] = channel.reducer
        self.name = getattr(unwrap(channel.reducer), "__name__", "reducer")
        self.channel = channel
        self.type, self.update, self.is_uniform = channel.type, *_find_update_type(channel)
        is_of_langgraph = getattr(unwrap(self.function), "__module__", "") == add_messages.__module__
        if is_of_langgraph and not _holds_messages(self.type):
            # ``add_messages`` makes messages of any values, and gives them random ids: test it with messages.
            self.type, self.update, self.is_uniform = list[AnyMessage], list[AnyMessage], True

    def check_binary(self) -> Iterator[ReducerFailure]:
        """Check a reducer of a value and one update."""
        pair: _Make = lambda s: (s.make(self.type), s.make(self.update))  # noqa: E731
        if (failure := self._fails_always(pair)) is not None:
            yield failure
            return
        yield from _take_first(self._find_mutations(pair))
        # A result that differs each time differs for every grouping too: report only the former.
        yield from _take_first(
            self._find_instability(pair), self._find_regrouping_faults() if self.is_uniform else iter(())
        )
        if _holds_messages(self.type) and (failure := self._find_repeated_message()) is not None:
            yield failure

    def check_delta(self) -> Iterator[ReducerFailure]:
        """Check a reducer of a state and a list of writes."""
        kind = getattr(self.channel.channel, "typ", list)
        try:
            kind()
        except Exception as error:
            yield ReducerFailure(
                checks.UNUSABLE_REDUCER,
                f"a DeltaChannel starts from an empty value, and {write_type(kind)} cannot be made without "
                f"arguments ({type(error).__name__})",
            )
            return
        batch: _Make = lambda s: (s.make(self.type), self._make_writes(s, 1 + s.size % 3))  # noqa: E731
        if (failure := self._fails_always(batch)) is not None:
            yield failure
            return
        yield from _take_first(self._find_mutations(batch))
        yield from _take_first(self._find_instability(batch), self._find_batching_faults())
        if _holds_messages(self.type) and (failure := self._find_repeated_message(is_delta=True)) is not None:
            yield failure

    def _make_writes(self, samples: Samples, count: int) -> list[Any]:
        return [samples.make(self.update) for _ in range(count)]

    def _make_arguments(self, make: _Make) -> Iterator[tuple[Any, ...]]:
        """Yield arguments, small ones first.

        Raises:
            Unexamined: No arguments can be made.
        """
        failed: NoSample | None = None
        made = 0
        for attempt in range(_TRIES):
            samples = Samples(f"{self.channel.name} {attempt}", size=1 + attempt * 4 // _TRIES)
            try:
                given = make(samples)
            except NoSample as error:
                failed = error
                continue
            made += 1
            yield given
        if not made:
            raise Unexamined(f"no values of type {failed} can be made for {self.name}") from failed

    def _fails_always(self, make: _Make) -> ReducerFailure | None:
        """Return a failure if the reducer fails for all values."""
        failed: ReducerFailure | None = None
        for given in self._make_arguments(make):
            try:
                self.function(*copy.deepcopy(given))
            except Exception as error:
                failed = ReducerFailure(
                    checks.UNUSABLE_REDUCER,
                    f"{self.name} fails for values of the declared type {write_type(self.type)}",
                    f"{self._format_call(*given)} raises {type(error).__name__}: {error}",
                )
            else:
                return None
        return failed

    def _find_mutations(self, make: _Make) -> Iterator[ReducerFailure]:
        for given in self._make_arguments(make):
            kept = copy.deepcopy(given)
            self._call_reducer(*given)
            for name, before, after in zip(("first", "second"), kept, given, strict=True):
                if not _are_equal(before, after):
                    yield ReducerFailure(
                        checks.MUTATING_REDUCER,
                        f"{self.name} changes its {name} argument",
                        f"after {self._format_call(*kept)} the {name} argument is {format_value(after)}",
                    )

    def _find_instability(self, make: _Make) -> Iterator[ReducerFailure]:
        for given in self._make_arguments(make):
            first, second = self._apply(*given), self._apply(*given)
            if _differ(first, second):
                yield ReducerFailure(
                    checks.UNSTABLE_REDUCER,
                    f"{self.name} returns something else each time",
                    f"{self._format_call(*given)} is {format_value(first)}, then {format_value(second)}",
                )

    def _find_regrouping_faults(self) -> Iterator[ReducerFailure]:
        for a, b, c in self._make_arguments(
            lambda s: (s.make(self.type), s.make(self.type), s.make(self.type))
        ):
            left = self._apply(self._apply(a, b), c)
            right = self._apply(a, self._apply(b, c))
            if _differ(left, right):
                name = self.name
                yield ReducerFailure(
                    checks.NOT_ASSOCIATIVE,
                    f"the result of {name} depends on how updates are grouped",
                    f"with a = {format_value(a)}, b = {format_value(b)}, c = {format_value(c)}:\n"
                    f"{name}({name}(a, b), c) is {format_value(left)}\n"
                    f"{name}(a, {name}(b, c)) is {format_value(right)}",
                )

    def _find_batching_faults(self) -> Iterator[ReducerFailure]:
        def make(s: Samples) -> tuple[Any, ...]:
            return (
                s.make(self.type),
                self._make_writes(s, 1 + s.size % 2),
                self._make_writes(s, 1 + s.size // 3),
            )

        for state, xs, ys in self._make_arguments(make):
            apart = self._apply(self._apply(state, xs), ys)
            whole = self._apply(state, [*xs, *ys])
            if _differ(apart, whole):
                name = self.name
                yield ReducerFailure(
                    checks.NOT_BATCHING_INVARIANT,
                    f"the result of {name} depends on how writes are batched",
                    f"with state = {format_value(state)}, xs = {format_value(xs)}, ys = {format_value(ys)}:\n"
                    f"{name}({name}(state, xs), ys) is {format_value(apart)}\n"
                    f"{name}(state, xs + ys) is {format_value(whole)}",
                )

    def growth(self, *, is_delta: bool) -> str | None:
        """Return an example of a value that changes when it is merged with itself, if there is one."""
        # Messages that were stored have ids.
        message: _Make = lambda _: ([HumanMessage("first", id="m1")],)  # noqa: E731
        for (value,) in self._make_arguments(
            message if _holds_messages(self.type) else lambda s: (s.make(self.type),)
        ):
            update = [value] if is_delta else value
            merged = self._apply(value, update)
            if _differ(merged, value):
                return f"{self._format_call(value, update)} is {format_value(merged)}"
        return None

    def _find_repeated_message(self, *, is_delta: bool = False) -> ReducerFailure | None:
        """Return a failure if two versions of one message end up as two messages."""
        first, second = [HumanMessage("first", id="m1")], [HumanMessage("edited", id="m1")]
        given = (first, [second]) if is_delta else (first, second)
        merged = self._apply(*given)
        if not isinstance(merged, Sequence) or sum(getattr(m, "id", None) == "m1" for m in merged) < 2:
            return None
        call = self._format_call(*given)
        return ReducerFailure(
            checks.DUPLICATED_MESSAGES,
            f"{self.name} keeps two messages of the same id",
            f"{call} is {format_value(merged)}",
        )

    def _apply(self, *given: Any) -> Any:
        """Return the result for copies of the arguments; ``_FAILED`` if it or an argument failed."""
        if any(each is _FAILED for each in given):
            return _FAILED
        return self._call_reducer(*copy.deepcopy(given))

    def _call_reducer(self, *given: Any) -> Any:
        try:
            return self.function(*given)
        except Exception:
            # A reducer may refuse some values of its type; ``_fails_always`` is about those that refuse all.
            return _FAILED

    def _format_call(self, *given: Any) -> str:
        return f"{self.name}({', '.join(map(format_value, given))})"


def _differ(left: Any, right: Any) -> bool:
    return left is not _FAILED and right is not _FAILED and not _are_equal(left, right)


def _take_first(*kinds: Iterator[ReducerFailure]) -> Iterator[ReducerFailure]:
    """Yield the first failure of all iterators, if any."""
    yield from islice(chain.from_iterable(kinds), 1)


def _are_equal(left: Any, right: Any) -> bool:
    if is_same(left, right):
        return True
    # Objects whose class defines no equality are equal if their attributes are.
    has_own = getattr(type(left), "__eq__", None) is not getattr(object, "__eq__", None)
    if type(left) is not type(right) or has_own or not hasattr(left, "__dict__"):
        return False
    return bool(vars(left) == vars(right))


def _find_update_type(channel: ChannelFacts) -> tuple[Any, bool]:
    """Return the declared type of a reducer's updates, and whether its values have this type, too."""
    declared = _get_second_parameter(channel)
    if declared is None or _covers(declared, channel.type):
        return channel.type, True
    return declared, False


def _get_second_parameter(channel: ChannelFacts) -> Any:
    function = unwrap(channel.reducer)
    try:
        names = list(inspect.signature(function).parameters)
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, ValueError):
        return None
    hint = next((hints.get(name) for name in names[1:2]), None)
    if channel.kind is ChannelKind.DELTA and hint is not None:
        return next(iter(typing.get_args(strip_annotations(hint))), None)
    return hint


def _covers(hint: Any, declared: Any) -> bool:
    """Return True if a parameter of type ``hint`` may take values of the declared type."""
    hint, declared = strip_annotations(hint), strip_annotations(declared)
    if hint in (Any, object) or isinstance(hint, typing.TypeVar) or hint == declared:
        return True
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(_covers(option, declared) for option in typing.get_args(hint))
    if typing.get_origin(declared) in (typing.Union, types.UnionType):
        return all(_covers(hint, option) for option in typing.get_args(declared) if option is not type(None))
    left, right = typing.get_origin(hint) or hint, typing.get_origin(declared) or declared
    if isinstance(left, type) and isinstance(right, type):
        return issubclass(right, left) or issubclass(left, right)
    return False


def _holds_messages(annotation: Any) -> bool:
    """Return True for a list of messages."""
    origin = typing.get_origin(annotation)
    if not (isinstance(origin, type) and issubclass(origin, Sequence)):
        return False
    return any(_is_message(argument) for argument in typing.get_args(annotation))


def _is_message(annotation: Any) -> bool:
    annotation = strip_annotations(annotation)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return any(_is_message(option) for option in typing.get_args(annotation))
    return isinstance(annotation, type) and issubclass(annotation, BaseMessage)
