"""Calls of models in stored answers: what counts as one, and what it costs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.model.model_calls import (
    NO_PRICES,
    ModelCall,
    Price,
    Prices,
    calls_in,
    dedupe_calls,
    total,
    with_inner,
)

COUNTS = st.integers(0, 10**6)
CALLS = st.builds(ModelCall, st.none() | st.sampled_from("abcd"), st.just("m"), COUNTS, COUNTS)


def answer(name: str | None, into: Any = 10, out: Any = 5, **more: Any) -> dict[str, Any]:
    usage = {"input_tokens": into, "output_tokens": out, **more}
    fields = {"content": "", "type": "ai", "id": name, "usage_metadata": usage}
    return {"type": "langchain_core.messages.ai.AIMessage", "value": {**fields, "response_metadata": {}}}


def test_an_answer_is_found_at_any_depth_with_its_details() -> None:
    details = {"input_token_details": {"cache_read": 4, "cache_creation": 1}}
    found = answer("a", **details, output_token_details={"reasoning": 3})
    found["value"]["response_metadata"] = {"model_name": "gpt-x"}
    assert calls_in({"messages": [{"update": [found, "text", None]}]}) == [
        ModelCall("a", "gpt-x", 10, 5, 4, 1, 3)
    ]


@pytest.mark.parametrize("usage", [None, "10", [], {}, {"input_tokens": "ten"}, {"input_tokens": -1}])
def test_a_message_without_counts_is_no_call(usage: Any) -> None:
    found = answer("a")
    found["value"]["usage_metadata"] = usage
    assert calls_in([found]) == []


@pytest.mark.parametrize("count", [True, 1.5, 10**40, float("inf"), None, {"a": 1}])
def test_a_count_that_is_none_counts_nothing(count: Any) -> None:
    (call,) = calls_in(answer("a", count))
    assert (call.input, call.output) == (0, 5)


def test_a_value_may_be_nested_deeply() -> None:
    value: Any = answer("a")
    for _ in range(5000):
        value = [value]
    assert calls_in(value) == []


@given(st.lists(CALLS))
def test_each_id_counts_once_and_order_stays(calls: list[ModelCall]) -> None:
    found = dedupe_calls(calls)
    names = [call.id for call in found if call.id is not None]
    assert sorted(names) == sorted({call.id for call in calls if call.id is not None})
    assert [call for call in calls if any(call is each for each in found)] == found
    assert total(found, NO_PRICES)["calls"] <= len(calls)


def test_an_answer_that_gets_its_id_above_its_subgraph_counts_once() -> None:
    named, unnamed = ModelCall("a", "m", 1, 2), ModelCall(None, "m", 1, 2)
    assert with_inner([named], [unnamed]) == [named]
    assert with_inner([named], [named, unnamed]) == [named, unnamed]
    assert with_inner([named], [unnamed, unnamed]) == [unnamed, named]
    assert with_inner([named], [ModelCall(None, "m", 1, 3)]) == [ModelCall(None, "m", 1, 3), named]
    assert dedupe_calls([unnamed, unnamed, named, named]) == [unnamed, unnamed, named]


def test_a_cost_is_that_of_each_kind_of_token() -> None:
    call = ModelCall("a", "m", 1_000_000, 500_000, cache_read=400_000, cache_write=100_000)
    assert Price(2.0, 10.0).cost(call) == pytest.approx(2.0 + 5.0)
    assert Price(2.0, 10.0, 0.5, 3.0).cost(call) == pytest.approx(1.0 + 5.0 + 0.2 + 0.3)


def test_the_longest_pattern_gives_the_price() -> None:
    cheap, dear, exact = Price(1, 1), Price(2, 2), Price(3, 3)
    prices = Prices({"gpt-*": cheap, "gpt-4o*": dear, "gpt-4o-[x]": exact})
    assert prices.of("gpt-4o-2026") == dear
    assert prices.of("gpt-5") == cheap
    assert prices.of("gpt-4o-[x]") == exact
    assert prices.of("other") is None
    assert prices.of(None) is None


def test_without_a_table_there_are_tokens_only() -> None:
    found = total([ModelCall("a", "m", 1, 2)], NO_PRICES)
    assert (found["input"], found["output"], found["cost"], found["currency"]) == (1, 2, None, None)
    assert found["unpriced"] == []


def test_models_without_a_price_are_named() -> None:
    calls = [ModelCall("a", "m", 10**6, 0), ModelCall("b", "n", 1, 2), ModelCall("c", None, 1, 2)]
    found = total(calls, Prices({"m": Price(2.0, 1.0)}, "EUR"))
    assert (found["cost"], found["currency"], found["unpriced"]) == (2.0, "EUR", ["n", "unknown"])
