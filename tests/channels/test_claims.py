"""Who the payload of a channel states a user to be: nothing of it reaches the graph or the database.

Every object of a delivery states another user of its own, as do a header and the query, so that a leak names
its place. The deliveries are signed: not even their provider says who a user of the application is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph

from perdure.storage.memory import MemoryDriver
from perdure.testing.channels.provider import WebhookCall
from tests.channels.serving import at_work
from tests.channels.test_battery import KINDS, Kind
from tests.runtime.graphs import Storage, go, stored

NAMES = ("user_id", "user_email", "User_Id", "langgraph_auth_user")


@dataclass(frozen=True)
class Given:
    """How a delivery with a text is made, and how a changed one is signed."""

    made: Callable[[Any], WebhookCall]
    signed: Callable[[Any, bytes, WebhookCall], WebhookCall]
    places: int


GIVEN = {
    "telegram": Given(
        lambda double: double.update(message=double.message(1, "hi")),
        lambda double, body, call: call._replace(body=body),
        4,
    ),
    "whatsapp": Given(
        lambda double: double.text("49001", "hi"), lambda double, body, call: double.sign(body), 9
    ),
    "slack": Given(
        lambda double: double.event("D1", "hi"),
        lambda double, body, call: double.sign(body, "application/json"),
        3,
    ),
}


@pytest.fixture
def memory() -> Iterator[Storage]:
    with stored("memory") as storage:
        yield storage


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All that the database is asked to store, as text."""
    texts: list[str] = []
    perform = MemoryDriver.perform

    def recorded(self: MemoryDriver, effect: Any) -> Any:
        texts.append(repr(effect))
        return perform(self, effect)

    monkeypatch.setattr(MemoryDriver, "perform", recorded)
    return texts


def others(place: str) -> dict[str, Any]:
    return {name: f"root {place} {name}" for name in NAMES}


def claiming(held: Any, place: str, places: list[str]) -> Any:
    """A payload whose objects state another user each."""
    if isinstance(held, list):
        return [claiming(each, f"{place}.{number}", places) for number, each in enumerate(held)]
    if not isinstance(held, dict):
        return held
    places.append(place)
    inner = {name: claiming(each, f"{place}.{name}", places) for name, each in held.items()}
    return {**others(place), **inner}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.name in GIVEN], ids=lambda kind: kind.name)
def test_no_payload_states_a_user(kind: Kind, memory: Storage, asked: list[str]) -> None:
    configs: list[str] = []

    async def seen(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        configs.append(str(config))
        return {"messages": [AIMessage("seen")]}

    graph = StateGraph(MessagesState).add_node(seen).add_edge(START, "seen").compile()
    given = GIVEN[kind.name]

    async def main() -> None:
        async with kind.double() as double, at_work(memory.database(), graph, kind.bot(double)) as line:
            double.webhook = line.webhook
            call, places = given.made(double), list[str]()
            body = claiming(json.loads(call.body), kind.name, places)
            assert len(places) >= given.places
            call = given.signed(double, json.dumps(body).encode(), call)
            async with httpx.AsyncClient() as http:
                answer = await http.post(
                    line.webhook,
                    content=call.body,
                    headers={**call.headers, **others("headers")},
                    params=others("query"),
                )
            assert answer.status_code == 200, answer.text
            await double.until_shown(1)

    go(main())
    (config,) = configs
    for where, text in {"the graph": config, "the database": " ".join(asked)}.items():
        assert "root " not in text, f"{where}: {text[max(0, text.index('root ') - 80) :][:200]}"
    assert "'hi'" in " ".join(asked) or '"hi"' in " ".join(asked), "what is stored can be read here"
