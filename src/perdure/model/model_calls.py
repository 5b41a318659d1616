"""Model calls: the tokens that their providers counted, and their cost by a table of prices."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, cast

_PER = 1_000_000
"""Number of tokens that a price is for."""
_NEST_MAX = 12
_INT_MAX = 1 << 53
"""Largest count that is believed, which JSON holds exactly."""


class ModelCall(NamedTuple):
    """Answer of a model with its counted tokens.

    Attributes:
        id: Id of the message, ``None`` if it has none.
        model: Name of the model as its provider gives it, ``None`` if the message has none.
        input: Tokens of the prompt, those from a cache and those written to one included.
        output: Tokens of the answer, those of its reasoning included.
        cache_read: Tokens of the prompt that came from a cache.
        cache_write: Tokens of the prompt that were written to a cache.
        reasoning: Tokens of the answer that are its reasoning.
    """

    id: str | None
    model: str | None
    input: int
    output: int
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class Price:
    """Price of a model for a million tokens, in the currency of the table. Tokens that a provider bills apart
    have a price of their own; without one they cost as much as other input.

    Attributes:
        input: Price of tokens of prompts.
        output: Price of tokens of answers.
        cache_read: Price of tokens of prompts that came from a cache.
        cache_write: Price of tokens of prompts that were written to a cache.

    Raises:
        ValueError: A price is negative or not finite.
    """

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if (price := getattr(self, name)) is not None and not 0 <= price < math.inf:
                raise ValueError(f"a price is a number from 0 on, for a million tokens; {name} is {price}")

    def cost(self, call: ModelCall) -> float:
        """Return the cost of a call."""
        read, written = min(call.cache_read, call.input), min(call.cache_write, call.input)
        fresh = max(0, call.input - read - written)
        cost = fresh * self.input + call.output * self.output
        for tokens, price in ((read, self.cache_read), (written, self.cache_write)):
            if price is None:
                price = self.input
            cost += tokens * price
        return cost / _PER


class Prices(NamedTuple):
    """Table of prices by the name of a model, or by a pattern such as ``gpt-4o*``; the longest matching
    pattern applies."""

    models: Mapping[str, Price]
    currency: str = "USD"

    def of(self, *names: str | None) -> Price | None:
        """Return the price of a model by the first of its names that has one, ``None`` if none has."""
        for name in names:
            if name is None:
                continue
            if (exact := self.models.get(name)) is not None:
                return exact
            if fitting := [pattern for pattern in self.models if fnmatchcase(name, pattern)]:
                return self.models[max(fitting, key=len)]
        return None

    def override(self, models: Mapping[str, Price]) -> Prices:
        """Return the table with prices in place of those of the same names."""
        return self._replace(models={**self.models, **models})


NO_PRICES = Prices({})
"""The table of users who have set none."""


def calls_in(value: object, depth: int = 0) -> list[ModelCall]:
    """Return the calls whose answers are in a value of plain data, at any depth."""
    if depth > _NEST_MAX:
        return []
    if isinstance(value, list):
        return [call for each in cast("list[object]", value) for call in calls_in(each, depth + 1)]
    if not isinstance(value, dict):
        return []
    fields: dict[Any, Any] = value
    if isinstance(fields.get("usage_metadata"), dict):
        return _read_call(fields)
    return [call for each in fields.values() for call in calls_in(each, depth + 1)]


def _read_call(message: Mapping[Any, Any]) -> list[ModelCall]:
    """Return the call of a message with counted tokens, none if it took no tokens."""
    usage = message["usage_metadata"]
    prompt, answer = _read_count(usage.get("input_tokens")), _read_count(usage.get("output_tokens"))
    if not prompt and not answer:
        return []
    names = _read_dict(message, "response_metadata")
    model = names.get("model_name") or names.get("model") or names.get("model_id")
    input_details = _read_dict(usage, "input_token_details")
    cached, written = input_details.get("cache_read"), input_details.get("cache_creation")
    reasoning = _read_dict(usage, "output_token_details").get("reasoning")
    counts = map(_read_count, (cached, written, reasoning))
    return [ModelCall(_read_name(message.get("id")), _read_name(model), prompt, answer, *counts)]


def _read_dict(fields: Mapping[Any, Any], name: str) -> dict[Any, Any]:
    found = fields.get(name)
    if isinstance(found, dict):
        return found
    return {}


def _read_name(value: object) -> str | None:
    if isinstance(value, str):
        return value
    return None


def _read_count(value: object) -> int:
    if type(value) is int and 0 <= value < _INT_MAX:
        return value
    return 0


def dedupe_calls(calls: Iterable[ModelCall]) -> list[ModelCall]:
    """Return the calls, each once: an answer may be stored by the task of a subgraph and by the task above
    it. A call without an id (calls of chat models have one) cannot be distinguished from others: it counts
    each time."""
    seen: set[str] = set()
    out: list[ModelCall] = []
    for call in calls:
        if call.id is None or call.id not in seen:
            out.append(call)
        if call.id is not None:
            seen.add(call.id)
    return out


def with_inner(calls: Iterable[ModelCall], inner: Iterable[ModelCall]) -> list[ModelCall]:
    """Return the calls of a task with those of its subgraphs, each once. A call that has no id in a subgraph
    may have got one in the task above: a call of the task with an id and the same counts is taken for it."""
    own, inner = list(calls), list(inner)
    all_calls = dedupe_calls((*inner, *own))
    unmatched = Counter(call[1:] for call in own if call.id is not None)
    unmatched.subtract(Counter(call[1:] for call in dedupe_calls(inner) if call.id is not None))
    distinct: list[ModelCall] = []
    for call in all_calls:
        if call.id is None and call not in own and unmatched[call[1:]] > 0:
            unmatched[call[1:]] -= 1
        else:
            distinct.append(call)
    return distinct


def show_call(call: ModelCall, prices: Prices) -> dict[str, Any]:
    """Return a call as JSON data, with its cost, ``None`` without a price."""
    price = prices.of(call.model)
    if price is None:
        return {**call._asdict(), "cost": None, "currency": None}
    return {**call._asdict(), "cost": price.cost(call), "currency": prices.currency}


def total(calls: Sequence[ModelCall], prices: Prices) -> dict[str, Any]:
    """Return the sums of the tokens and of the cost of calls as JSON data.

    Returns:
        ``calls``, ``input``, ``output``, ``cache_read``, ``cache_write`` and ``reasoning`` are counts.
        ``cost`` is the cost of the calls whose models have prices, ``None`` if no model has one; ``unpriced``
        are the names of the models without a price.
    """
    priced = [(call, prices.of(call.model)) for call in calls]
    costs = [price.cost(call) for call, price in priced if price is not None]
    counts = {name: sum(getattr(call, name) for call in calls) for name in ModelCall._fields[2:]}
    without = {call.model or "unknown" for call, price in priced if price is None and prices.models}
    sums: dict[str, Any] = {
        "calls": len(calls),
        **counts,
        "cost": None,
        "currency": None,
        "unpriced": sorted(without),
    }
    if costs:
        sums |= {"cost": sum(costs), "currency": prices.currency}
    return sums
