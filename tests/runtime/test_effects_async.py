"""Side effects with the durability "async": none before the checkpoint is stored that its key is made of.

Covers perdure.langgraph.awaited_checkpoints.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure.errors import NotAllowed, Unavailable
from perdure.langgraph.saver import PerdureSaver
from perdure.runtime import (
    Agent,
    Runtime,
    Settings,
    Ticket,
    effect,
    effect_key,
    effects_sync,
    isolated_subgraph,
)

BRIEF = Settings(lease=0.6, backoff=0.02, max_backoff=0.05, poll=0.1, attempts=100)
SHAPES = ("an async node", "a plain node", "an isolated graph", "a subgraph")


def agent_of(shape: str, charged: Callable[[str], None]) -> Agent:
    def call(key: str) -> str:
        charged(key)
        return key

    async def acall(key: str) -> str:
        return call(key)

    async def pay(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(await effect(acall, effect_key("charge")))]}

    def pay_plainly(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(effects_sync(call)(effect_key("charge")))]}

    inner = StateGraph(MessagesState).add_node(pay).add_edge(START, "pay").compile()
    node: Any = {
        "an async node": pay,
        "a plain node": pay_plainly,
        "an isolated graph": isolated_subgraph(
            inner, lambda state: {"messages": []}, lambda out: {"messages": out["messages"]}
        ),
        "a subgraph": inner,
    }[shape]

    async def first(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("first")]}

    builder = StateGraph(MessagesState).add_node(first).add_node("pay", node)
    builder.add_edge(START, "first").add_edge("first", "pay")
    return Agent(builder.compile(), durability="async")


def before_the_second_step(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Awaitable[None]]) -> None:
    """Call ``act`` before the checkpoint is stored with which the node ``pay`` begins."""
    aput = PerdureSaver._aput  # pyright: ignore[reportPrivateUsage]

    async def later(self: PerdureSaver, at: Any, step: Any, config: Any, *new: Any) -> Any:
        if new[1]["step"] == 1 and not config["configurable"].get("checkpoint_ns"):
            await act()
        return await aput(self, at, step, config, *new)

    monkeypatch.setattr(PerdureSaver, "_aput", later)


def note(folder: str, key: str) -> None:
    with Path(folder, "charges").open("a") as file:
        file.write(key + "\n")


def killed_in_the_call(url: str, folder: str, shape: str) -> None:
    def charged(key: str) -> None:
        note(folder, key)
        os.kill(os.getpid(), signal.SIGKILL)

    async def act() -> None:
        await asyncio.sleep(1)  # a call that does not wait ends this process meanwhile

    async def main() -> None:
        async with (
            perdure.connect(url) as db,
            Runtime(db, agent_of(shape, charged), settings=BRIEF, observers=()),
        ):
            await asyncio.sleep(60)

    with pytest.MonkeyPatch.context() as patch:
        before_the_second_step(patch, act)
        asyncio.run(main())


@pytest.mark.parametrize("shape", SHAPES)
def test_a_kill_in_an_effect_leaves_its_key_to_the_next_attempt(shape: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    folder = str(tmp_path)

    async def accept() -> Ticket:
        async with perdure.connect(url, migrate=True) as db:
            return await Runtime(db, agent_of(shape, lambda key: note(folder, key))).accept("t", "go")

    async def go_on(ticket: Ticket) -> None:
        async with perdure.connect(url) as db:
            agent = agent_of(shape, lambda key: note(folder, key))
            async with asyncio.timeout(60), Runtime(db, agent, settings=BRIEF, observers=()) as app:
                run = await app.wait(ticket)
                assert (run.state, run.attempts) == ("done", 2), run.note

    ticket = asyncio.run(accept())
    processes = get_context("forkserver")
    processes.set_forkserver_preload([__name__])
    worker = processes.Process(target=killed_in_the_call, args=(url, folder, shape))
    worker.start()
    worker.join(60)
    assert worker.exitcode == -signal.SIGKILL
    asyncio.run(go_on(ticket))
    charges = (tmp_path / "charges").read_text().splitlines()
    assert len(charges) == 2
    assert len(set(charges)) == 1, "the call was repeated under another key"


@pytest.mark.parametrize("shape", SHAPES)
def test_a_checkpoint_that_cannot_be_stored_has_no_effect_after_it(
    shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    charges: list[str] = []
    failures: list[int] = []

    async def act() -> None:
        await asyncio.sleep(0.05)
        if not failures:
            failures.append(len(charges))
            raise Unavailable("the database is away")

    before_the_second_step(monkeypatch, act)

    async def main() -> None:
        async with perdure.connect("memory://") as db:
            agent = agent_of(shape, charges.append)
            async with asyncio.timeout(60), Runtime(db, agent, settings=BRIEF, observers=()) as app:
                run = await app.wait(await app.accept("t", "go"))
                assert run.state == "done", run.note

    asyncio.run(main())
    assert failures == [0]
    assert len(charges) == 1


def test_a_plain_effect_on_the_event_loop_is_refused() -> None:
    async def pay(state: MessagesState) -> dict[str, Any]:
        with pytest.raises(NotAllowed, match="in an async node use effects"):
            effects_sync(str)(1)
        return {"messages": [AIMessage("refused")]}

    graph = StateGraph(MessagesState).add_node(pay).add_edge(START, "pay").compile()

    async def main() -> None:
        async with perdure.connect("memory://") as db:
            agent = Agent(graph, durability="async")
            async with asyncio.timeout(60), Runtime(db, agent, settings=BRIEF, observers=()) as app:
                run = await app.wait(await app.accept("t", "go"))
                assert run.state == "done", run.note

    asyncio.run(main())
