"""A supervisor behind WhatsApp: fragments, a thin state, a summary, leaks that are named, and a kill in a
worker."""

from __future__ import annotations

import operator
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, StateGraph

import perdure
from perdure.audit import audit
from perdure.channels import ChatAddress, ChatOptions, WhatsAppPhone
from perdure.langgraph.migration.fingerprint import fingerprint
from perdure.supervisor import Usage
from perdure.testing.channels.whatsapp import APP_SECRET, PHONE_ID, TOKEN, WhatsAppDouble
from tests.channels.serving import WINDOW, at_work
from tests.runtime.graphs import Heard, Storage, advance, go, spoken, stored, values, working
from tests.systems import whatsapp_supervisor as program
from tests.systems.whatsapp_supervisor import KEEP, THREAD, AgentState, build, graph

ROOT = Path(__file__).resolve().parents[2]
ADA = "491"
FOUND = "order 4711 left on Monday"


@pytest.fixture
def memory() -> Iterator[Storage]:
    with stored("memory") as storage:
        yield storage


def phone(double: WhatsAppDouble, options: ChatOptions) -> WhatsAppPhone:
    return WhatsAppPhone(
        PHONE_ID,
        token=TOKEN,
        app_secret=APP_SECRET,
        verify_token="v",
        options=options,
        api_url=f"{double.url}/v1",
    )


def test_two_fragments_are_one_invocation_and_one_reply(memory: Storage) -> None:
    usage = Usage()

    async def main() -> None:
        async with WhatsAppDouble() as double:
            at = at_work(memory.database(), graph, phone(double, WINDOW), observers=[usage])
            async with at as line:
                double.webhook = line.webhook
                for text in ("where is", "my order?"):
                    update = double.text(ADA, text)
                    assert [await double.post(update) for _ in range(2)] == [200, 200]
                advance(line.runtime)
                await double.until_shown(1)
                assert double.texts(ADA) == [f"To 'where is my order?': {FOUND}"]
                thread = ChatAddress("whatsapp", ADA).thread_id
                assert len(await line.runtime.messages(thread)) == 2
                said = await spoken(memory.database(), graph, thread)
                assert said == ["where is", "my order?", double.texts(ADA)[0]]

    go(main())
    assert {hop: spent.calls for hop, spent in usage.by_hop().items()} == {"router": 1, "writer": 1}


async def chat(storage: Storage, talking: Any, texts: list[str], *observers: Any) -> None:
    async with working(storage.database(), talking, observers=observers) as runtime:
        for text in texts:
            run = await runtime.wait(await runtime.accept("ada", text), 60)
            assert run.state == "done", run.note


def test_the_summary_takes_over_what_is_long_ago_and_the_state_stays_thin(memory: Storage) -> None:
    texts = [f"hi {n}" if n % 3 == 0 else f"where is order {n}?" for n in range(30)]
    heard = Heard()

    async def main() -> None:
        await chat(memory, graph, texts, heard)
        state = await values(memory.database(), graph, "ada")
        assert len(state["messages"]) <= 2 * KEEP + 2
        kept = [message.text for message in state["messages"] if message.type == "human"]
        assert [*state["summary"].split(" | "), *kept] == texts, "each is in one of both, once, in order"
        assert memory.database().fsck("ada") == []

    go(main())
    sizes = [fields["bytes"] for name, fields in heard.events if name == "checkpoint.stored"]
    assert 0 < max(sizes) < 10_000, "rows of a few KB"
    assert heard.count("checkpoint.large") == 0


def test_a_leak_of_a_worker_into_the_state_is_named_by_channel(memory: Storage) -> None:
    class Leaky(AgentState):
        raw: Annotated[list[str], operator.add]

    async def leak(state: Leaky) -> dict[str, Any]:
        return {"raw": ["x" * 60_000], "messages": [AIMessage("found")]}

    leaky = StateGraph(Leaky).add_node(leak).add_edge(START, "leak").compile()
    heard = Heard()
    go(chat(memory, leaky, ["where is my order?"], heard))
    large = [fields for name, fields in heard.events if name == "checkpoint.large"]
    assert [fields["channel"] for fields in large] == ["raw"]
    assert large[0]["bytes"] > 50_000


def test_the_schema_is_sound_and_a_bare_list_is_a_finding() -> None:
    class Bare(TypedDict):
        messages: list[Any]
        summary: str

    def answer(state: Bare) -> dict[str, Any]:
        return {"messages": []}

    assert not audit(graph).findings
    found = {
        each.place
        for each in audit(StateGraph(Bare).add_node(answer).add_edge(START, "answer").compile()).findings
    }
    assert any("messages" in place for place in found)


def test_a_rewritten_worker_leaves_what_is_stored_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(graph)

    class Other(TypedDict):
        messages: list[Any]
        rows: list[str]
        pages: dict[str, int]

    async def all_at_once(state: Other) -> dict[str, Any]:
        return {"messages": [AIMessage("another way")]}

    rewritten = (
        StateGraph(Other).add_node(all_at_once).add_edge(START, "all_at_once").compile(checkpointer=False)
    )
    monkeypatch.setattr(program, "orders_worker", rewritten)
    assert fingerprint(build().compile()) == before


@pytest.mark.slow
def test_a_kill_in_the_worker_is_one_retry_under_the_same_effect_key(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    with perdure.connect_sync(url, migrate=True):
        """Only its schema is wanted."""
    shop = tmp_path / "shop"

    def start(**variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tests.systems.whatsapp_supervisor", url],
            env={**os.environ, "PYTHONPATH": str(ROOT), "SHOP": str(shop), **variables},
            cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    killed = start(DIES="yes")
    assert killed.returncode == 9, killed.stderr
    first = shop.read_text().splitlines()
    assert len(first) == 1
    done = start()
    assert done.stdout.split() == ["done", "2"], done.stdout + done.stderr
    assert shop.read_text().splitlines() == first, "the shop was asked once"
    with perdure.connect_sync(url) as database:
        listed = list(database.checkpointer().list({"configurable": {"thread_id": THREAD}}))
        assert {one.config["configurable"]["checkpoint_ns"] for one in listed} == {""}
        texts = [m.text for m in listed[0].checkpoint["channel_values"]["messages"]]
        assert texts == ["where is my order?", f"To 'where is my order?': {FOUND}"]
        assert database.fsck(THREAD) == []
