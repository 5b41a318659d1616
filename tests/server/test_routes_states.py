"""Updates of a state over HTTP: values that do not fit the graph are refused, and change nothing."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.runtime.failures.unfit_updates import describe_unfitness
from tests.server.acceptance.saying import detail, said
from tests.server.hosting import run, serving


@pytest.mark.parametrize(
    "message", [5, 1.5, True, None, ["ai"], ["x", "y", "z"], [], {}, {"role": "nobody", "content": "x"}, "ok"]
)
@run
async def test_values_that_are_no_messages_are_refused(near: str, message: Any) -> None:
    async with serving(near) as server:
        client, http = await server.client(), await server.http()
        await client.threads.create(thread_id="t", graph_id="aware")
        await client.threads.update_state("t", said("first"), as_node="answer")
        answer = await http.post("/threads/t/state", json={"values": {"messages": [message]}})
        is_taken = message == "ok"
        assert answer.status_code == (200 if is_taken else 400), answer.text
        assert is_taken or detail(answer)
        assert len(await client.threads.get_history("t")) == 1 + is_taken


def test_an_error_without_a_sentence_is_named() -> None:
    assert describe_unfitness(KeyError("a")) == "KeyError: 'a'"
    assert describe_unfitness(ValueError("one sentence")) == "one sentence"
