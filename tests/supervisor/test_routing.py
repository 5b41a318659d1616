"""A model routes by names that there are, and sees the end of the conversation."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import HumanMessage

from perdure.supervisor import Route, route_with
from tests.supervisor.models import scripted


def test_the_model_is_shown_the_workers_and_the_last_messages() -> None:
    model, asked = scripted("small", lambda _: json.dumps({"kind": "question", "worker": "orders"}))
    policy: Any = route_with(model, {"orders": "the state of orders"}, last=2)
    route = asyncio.run(policy([HumanMessage(str(number)) for number in range(5)]))
    assert route == Route(kind="question", worker="orders")
    ((prompt, *shown),) = asked
    assert "orders: the state of orders" in prompt.text
    assert [message.text for message in shown] == ["3", "4"]


@pytest.mark.parametrize("workers", [{}, {"orders": "the state of orders"}])
def test_a_worker_that_there_is_not_is_no_answer(workers: dict[str, str]) -> None:
    model, _ = scripted("small", lambda _: json.dumps({"kind": "question", "worker": "nobody"}))
    policy: Any = route_with(model, workers)
    with pytest.raises(OutputParserException):
        asyncio.run(policy([HumanMessage("hi")]))
