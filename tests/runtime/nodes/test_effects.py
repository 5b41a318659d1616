"""Side effects in nodes: noted once, repeated under the same key, refused to who lost the run.

Covers perdure.runtime.nodes.repeatable_task_names, perdure.runtime.nodes.isolated_subgraphs.
"""

from __future__ import annotations

import asyncio
import operator
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.func import task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.pregel import Pregel
from langgraph.types import RetryPolicy, Send

import perdure
from perdure.database.base import handle_of
from perdure.engine.queue import effect_journal
from perdure.errors import Fenced, NotAllowed, Unserialisable
from perdure.runtime import (
    Agent,
    Runtime,
    Settings,
    Ticket,
    effect,
    effect_key,
    effects,
    effects_sync,
    isolated_subgraph,
)
from perdure.storage.memory import MemoryDriver
from perdure.testing.conformance.backend import AT, Backend
from tests.backends import BACKENDS, fresh

QUICK = Settings(backoff=0.05, max_backoff=0.1, poll=0.2)


def graph(*nodes: Any) -> Pregel[Any, Any, Any, Any]:
    builder = StateGraph(MessagesState)
    last = START
    for node in nodes:
        builder.add_node(node)
        builder.add_edge(last, node.__name__)
        last = node.__name__
    return builder.compile()


@asynccontextmanager
async def working(
    database: perdure.Database | perdure.SyncDatabase, agent: Agent | Pregel[Any, Any, Any, Any]
) -> AsyncIterator[Runtime]:
    async with asyncio.timeout(60), Runtime(database, agent, settings=QUICK, observers=()) as app:
        yield app


@pytest.mark.parametrize("on", list(BACKENDS))
def test_an_effect_happens_once_however_often_its_step_is_tried(on: str) -> None:
    calls: list[int] = []
    keys: list[str] = []

    async def charge(amount: int) -> dict[str, int]:
        calls.append(amount)
        return {"receipt": len(calls)}

    async def pay(state: MessagesState) -> dict[str, Any]:
        keys.append(effect_key("charge"))
        first = await effect(charge, 5)
        second = await effects(charge, number=1)(7)
        if len(keys) < 3:
            raise RuntimeError("the step fails after its effects")
        return {"messages": [AIMessage(f"{first['receipt']} {second['receipt']}")]}

    async def main() -> list[Any]:
        with fresh(on) as driver:
            database = Backend(driver).database()
            async with (
                asyncio.timeout(60),
                Runtime(database, graph(pay), settings=QUICK, observers=()) as app,
            ):
                run = await app.wait(await app.accept("t", "pay"))
                assert run.state == "done", run.note
                again = await app.wait(await app.accept("t", "pay"))
                assert again.state == "done"
            found = await database.checkpointer().aget_tuple({"configurable": {"thread_id": "t"}})
            assert found is not None
            return [m.text for m in found.checkpoint["channel_values"]["messages"]]

    texts = asyncio.run(main())
    assert calls == [5, 7, 5, 7], "another message is another effect"
    assert texts == ["pay", "1 2", "pay", "3 4"]
    assert len(set(keys[:3])) == 1, "the key of a step changed between its attempts"
    assert keys[3] != keys[0]


def test_effects_of_plain_functions_and_of_equal_steps_are_told_apart() -> None:
    calls: list[str] = []

    def work(what: str) -> str:
        calls.append(what)
        return what.upper()

    def one(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(effects_sync(work)("one"))]}

    def two(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(effects_sync(work)("two"))]}

    async def main() -> list[str]:
        async with perdure.connect("memory://") as db:
            async with working(db, graph(one, two)) as app:
                assert (await app.wait(await app.accept("t", "go"))).state == "done"
            found = await db.checkpointer().aget_tuple({"configurable": {"thread_id": "t"}})
            assert found is not None
            return [m.text for m in found.checkpoint["channel_values"]["messages"]]

    assert asyncio.run(main()) == ["go", "ONE", "TWO"]
    assert calls == ["one", "two"]


def test_who_lost_the_run_notes_nothing() -> None:
    backend = Backend(MemoryDriver())
    database = backend.database()
    epoch = backend.open_run("run")
    assert handle_of(database).run(effect_journal.note(AT, "run", "task:charge", 0, b"1", epoch)) == b"1"
    assert handle_of(database).run(effect_journal.note(AT, "run", "task:charge", 0, b"2", epoch)) == b"1", (
        "the first counts"
    )
    later = backend.open_run("run")
    with pytest.raises(Fenced, match="not held under epoch"):
        handle_of(database).run(effect_journal.note(AT, "run", "task:other", 0, b"1", epoch))
    assert handle_of(database).run(effect_journal.recall(AT, "run", "task:other", 0)) is None
    assert handle_of(database).run(effect_journal.note(AT, "run", "task:other", 0, b"3", later)) == b"3"


def test_outside_of_a_runtime_an_effect_is_just_called() -> None:
    async def now() -> int:
        return 7

    async def ask(state: MessagesState) -> dict[str, Any]:
        assert effect_key("now").endswith(":now:0")
        return {"messages": [AIMessage(str(await effect(now)))]}

    out = asyncio.run(graph(ask).ainvoke({"messages": [("user", "hi")]}))
    assert out["messages"][-1].text == "7"
    with pytest.raises(NotAllowed, match="inside a node"):
        effect_key("now")


def test_a_result_that_cannot_be_noted_is_an_error_of_the_step() -> None:
    async def odd() -> object:
        return object()

    async def ask(state: MessagesState) -> dict[str, Any]:
        with pytest.raises(Unserialisable, match="side effect's result"):
            await effect(odd)
        return {"messages": [AIMessage("refused")]}

    async def main() -> str:
        async with perdure.connect("memory://") as db, working(db, graph(ask)) as app:
            return (await app.wait(await app.accept("t", "go"))).state

    assert asyncio.run(main()) == "done"


def test_a_subagent_leaves_only_its_result() -> None:
    async def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"thought {len(state['messages'])}")]}

    async def conclude(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("concluded")]}

    inner = graph(think, conclude)

    def result(out: Any) -> dict[str, Any]:
        return {"messages": out["messages"][-1:]}

    builder = StateGraph(MessagesState)
    builder.add_node(
        "work", isolated_subgraph(inner, lambda state: {"messages": state["messages"][-1:]}, result)
    )
    builder.add_edge(START, "work")

    async def main() -> tuple[list[str], set[str]]:
        async with perdure.connect("memory://") as db:
            async with working(db, builder.compile()) as app:
                assert (await app.wait(await app.accept("t", "go"))).state == "done"
            saver = db.checkpointer()
            at: RunnableConfig = {"configurable": {"thread_id": "t"}}
            found = await saver.aget_tuple(at)
            assert found is not None
            spaces = {c.config["configurable"]["checkpoint_ns"] async for c in saver.alist(at)}
            return [m.text for m in found.checkpoint["channel_values"]["messages"]], spaces

    texts, spaces = asyncio.run(main())
    assert texts == ["go", "concluded"]
    assert spaces == {""}, "the subagent left checkpoints of its own"


# ---------------------------------------------------------------- inside isolated graphs


class Seen(TypedDict, total=False):
    seen: Annotated[list[str], operator.add]


class Items(Seen, total=False):
    item: int
    rounds: int


def isolated(inner: Any) -> Any:
    """``inner`` as a step that hands back what was seen in it."""

    def give(state: Items) -> Items:
        return {"item": state.get("item", 0), "rounds": 0, "seen": []}

    return isolated_subgraph(inner, give, lambda out: {"seen": out["seen"]})


def one_step(node: Any, name: str = "work") -> StateGraph[Any, Any, Any, Any]:
    return StateGraph(Items, output_schema=Seen).add_node(name, node).add_edge(START, name)


def looped(node: Any, times: int = 2) -> StateGraph[Any, Any, Any, Any]:
    async def again(state: Items) -> dict[str, Any]:
        return {"rounds": state["rounds"] + 1}

    builder = one_step(node).add_node(again).add_edge("work", "again")
    return builder.add_conditional_edges("again", lambda s: "work" if s["rounds"] < times else END)


def spread(node: Any, times: int = 3) -> StateGraph[Any, Any, Any, Any]:
    builder = StateGraph(Items, output_schema=Seen).add_node("work", node)
    return builder.add_conditional_edges(START, lambda _: [Send("work", {"item": n}) for n in range(times)])


def by_tasks(node: Any) -> StateGraph[Any, Any, Any, Any]:
    call = task(node)

    async def caller(state: Items) -> dict[str, Any]:
        found = await asyncio.gather(call(state), call(state))
        return {"seen": [text for one in found for text in one["seen"]]}

    return one_step(caller, "caller")


def called_twice(node: Any) -> StateGraph[Any, Any, Any, Any]:
    step = isolated(one_step(node).compile())

    async def caller(state: Items, config: RunnableConfig) -> dict[str, Any]:
        return {"seen": [text for _ in range(2) for text in (await step.ainvoke(state, config))["seen"]]}

    return one_step(caller, "caller")


ISOLATED: dict[str, tuple[int, Callable[[Any], StateGraph[Any, Any, Any, Any]]]] = {
    "one step": (1, lambda node: one_step(isolated(one_step(node).compile()))),
    "loop": (2, lambda node: one_step(isolated(looped(node).compile()))),
    "parallel sends": (3, lambda node: one_step(isolated(spread(node).compile()))),
    "functional tasks": (2, lambda node: one_step(isolated(by_tasks(node).compile()))),
    "two in a row": (
        2,
        lambda node: (
            one_step(isolated(one_step(node).compile()), "first")
            .add_node("second", isolated(one_step(node).compile()))
            .add_edge("first", "second")
        ),
    ),
    "two at once": (
        2,
        lambda node: (
            one_step(isolated(one_step(node).compile()), "first")
            .add_node("second", isolated(one_step(node).compile()))
            .add_edge(START, "second")
        ),
    ),
    "called twice by one node": (2, called_twice),
    "sent to": (3, lambda node: spread(isolated(one_step(node).compile()))),
    "nested, in a loop": (
        4,
        lambda node: one_step(isolated(looped(isolated(looped(node).compile())).compile())),
    ),
    "nested, sent to": (
        9,
        lambda node: one_step(isolated(spread(isolated(spread(node).compile())).compile())),
    ),
    "a plain graph within, in a loop": (
        6,
        lambda node: one_step(isolated(looped(spread(node).compile()).compile())),
    ),
    "a plain graph within, sent to": (
        9,
        lambda node: one_step(isolated(spread(spread(node).compile()).compile())),
    ),
    "a plain graph": (3, lambda node: one_step(one_step(spread(node).compile()).compile())),
    "a plain graph, sent to": (3, lambda node: spread(one_step(node).compile())),
    "a graph without checkpoints": (
        2,
        lambda node: one_step(looped(node).compile(checkpointer=False)),
    ),
    "two calls of a plain graph": (2, lambda node: one_step(twice(one_step(node).compile()), "caller")),
}


def twice(inner: Any) -> Any:
    """Return a node that calls a graph twice without passing on its config."""

    async def caller(state: Items) -> dict[str, Any]:
        called = [await inner.ainvoke({"item": 0, "rounds": 0, "seen": []}) for _ in range(2)]
        return {"seen": [text for one in called for text in one["seen"]]}

    return caller


@pytest.mark.parametrize("shape", list(ISOLATED))
@pytest.mark.parametrize("again", ["the runtime", "a retry policy"])
def test_an_effect_inside_an_isolated_graph_happens_once_however_often_it_is_tried(
    shape: str, again: str
) -> None:
    expected, build = ISOLATED[shape]
    calls: list[int] = []
    keys: list[str] = []

    async def charge(item: int) -> str:
        calls.append(item)
        return f"receipt {len(calls)}"

    async def work(state: Items) -> dict[str, Any]:
        keys.append(effect_key("charge"))
        receipt = await effect(charge, state.get("item", 0))
        if len(keys) <= expected:
            raise ConnectionError("the step fails after its effect")
        return {"seen": [receipt]}

    outer = build(work).compile()
    if again == "a retry policy":
        outer.retry_policy = [
            RetryPolicy(max_attempts=20, initial_interval=0.001, jitter=False, backoff_factor=1)
        ]
    agent = Agent(
        outer,
        to_input=lambda messages: {"item": 0, "rounds": 0},
        to_replies=lambda values, messages: [],
    )
    settings = Settings(backoff=0.01, max_backoff=0.01, poll=0.2, attempts=20)

    async def main() -> list[str]:
        async with perdure.connect("memory://") as db:
            async with asyncio.timeout(60), Runtime(db, agent, settings=settings, observers=()) as app:
                run = await app.wait(await app.accept("t", "go"))
                assert (run.state, run.attempts > 1) == ("done", again == "the runtime"), run.note
            found = await db.checkpointer().aget_tuple({"configurable": {"thread_id": "t"}})
            assert found is not None
            return list(found.checkpoint["channel_values"]["seen"])

    seen = asyncio.run(main())
    assert len(keys) > expected, "nothing was tried again"
    assert len(set(keys)) == expected, "a key changed between attempts, or two effects shared one"
    assert len(calls) == expected
    assert len(set(seen)) == expected


def test_keys_inside_an_isolated_graph_of_plain_functions_stay_the_same_without_a_runtime() -> None:
    keys: list[str] = []

    def work(state: Items) -> dict[str, Any]:
        keys.append(effect_key("charge"))
        if len(keys) == 2:
            raise ConnectionError("the second round fails")
        return {}

    def again(state: Items) -> dict[str, Any]:
        return {"rounds": state["rounds"] + 1}

    inner = one_step(work).add_node(again).add_edge("work", "again")
    inner.add_conditional_edges("again", lambda state: "work" if state["rounds"] < 2 else END)
    outer = one_step(isolated(inner.compile())).compile()
    outer.retry_policy = [RetryPolicy(initial_interval=0.001, jitter=False)]
    outer.invoke({"item": 0, "seen": []})
    assert keys[:2] == keys[2:]
    assert keys[0] != keys[1]


def test_a_graph_inside_a_subagent_stores_no_checkpoints_either() -> None:
    inner = one_step(one_step(lambda state: {"seen": ["here"]}).compile()).compile()
    builder = one_step(isolated(inner))
    agent = Agent(
        builder.compile(), to_input=lambda messages: {"item": 0}, to_replies=lambda values, messages: []
    )

    async def main() -> set[str]:
        async with perdure.connect("memory://") as db:
            async with working(db, agent) as app:
                assert (await app.wait(await app.accept("t", "go"))).state == "done"
            saver = db.checkpointer()
            return {
                c.config["configurable"]["checkpoint_ns"]
                async for c in saver.alist({"configurable": {"thread_id": "t"}})
            }

    assert asyncio.run(main()) == {""}


def test_a_level_that_an_isolated_graph_cannot_know_is_refused() -> None:
    keys: list[str] = []

    def near(state: Items) -> dict[str, Any]:
        keys.append(effect_key("charge"))
        return {}

    def far(state: Items) -> dict[str, Any]:
        with pytest.raises(NotAllowed, match=r"inside node 'between' .*without the callbacks"):
            effect_key("charge")
        return {"seen": ["refused"]}

    deep = one_step(one_step(far).compile(), "between").add_node(near).add_edge(START, "near").compile()

    async def caller(state: Items, config: RunnableConfig) -> dict[str, Any]:
        part: RunnableConfig = {"configurable": config.get("configurable", {})}
        loop = asyncio.get_running_loop()  # a thread that has not the node's context either
        return {"seen": (await loop.run_in_executor(None, deep.invoke, {"seen": []}, part))["seen"]}

    outer = one_step(isolated(one_step(caller, "caller").compile())).compile()
    out = asyncio.run(outer.ainvoke({"item": 0, "seen": []}))
    assert out["seen"] == ["refused"]
    assert len(keys) == 1, "the last level is known by the node's own config"


def charging_agent(folder: str, shape: str, *, dies: bool) -> Agent:
    """An agent that charges within graphs of this shape. Its process dies before each call, between the call
    and its note, and after the note, once at each of these moments."""

    def line(name: str, text: str) -> None:
        with Path(folder, name).open("a") as file:
            file.write(text + "\n")

    def moment(text: str) -> None:
        died = Path(folder, "deaths").read_text().splitlines()
        if dies and text not in died:
            line("deaths", text)
            os.kill(os.getpid(), signal.SIGKILL)

    async def charge(key: str) -> str:
        moment(f"before {key}")
        line("charges", key)
        moment(f"between {key}")
        return key

    async def work(state: Items) -> dict[str, Any]:
        key = effect_key("charge")
        noted = await effect(charge, key)
        moment(f"after {key}")
        return {"seen": [noted]}

    return Agent(
        ISOLATED[shape][1](work).compile(),
        to_input=lambda messages: {"item": 0, "rounds": 0},
        to_replies=lambda values, messages: [],
    )


ONE_AFTER_ANOTHER = (
    "one step",
    "loop",
    "two in a row",
    "called twice by one node",
    "two calls of a plain graph",
)
"""Shapes whose effects are never under way at once."""

BRIEF = Settings(lease=0.6, backoff=0.02, max_backoff=0.05, poll=0.1, attempts=100)


def work_on(url: str, folder: str, shape: str) -> None:
    """What a worker does that is killed inside the subagent."""

    async def main() -> None:
        agent = charging_agent(folder, shape, dies=True)
        async with perdure.connect(url) as db, Runtime(db, agent, settings=BRIEF, observers=()):
            await asyncio.sleep(60)

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "shape",
    list(ISOLATED) if os.environ.get("PERDURE_CHAOS") == "full" else ["loop", "two calls of a plain graph"],
)
def test_a_worker_killed_inside_an_isolated_graph_leaves_its_effect_to_the_next(
    shape: str, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    effects_of_shape = ISOLATED[shape][0]
    (tmp_path / "deaths").touch()

    async def accept() -> Ticket:
        async with perdure.connect(url, migrate=True) as db:
            return await Runtime(db, charging_agent(str(tmp_path), shape, dies=False)).accept("t", "go")

    async def go_on(ticket: Ticket) -> list[str]:
        async with perdure.connect(url) as db:
            agent = charging_agent(str(tmp_path), shape, dies=False)
            async with asyncio.timeout(60), Runtime(db, agent, settings=BRIEF, observers=()) as app:
                run = await app.wait(ticket)
                assert run.state == "done", run.note
                assert run.attempts == 3 * effects_of_shape + 1
            found = await db.checkpointer().aget_tuple({"configurable": {"thread_id": "t"}})
            assert found is not None
            return list(found.checkpoint["channel_values"]["seen"])

    ticket = asyncio.run(accept())
    processes = get_context("forkserver")
    processes.set_forkserver_preload([__name__])
    for _ in range(3 * effects_of_shape):
        worker = processes.Process(target=work_on, args=(url, str(tmp_path), shape))
        worker.start()
        worker.join(60)
        assert worker.exitcode == -signal.SIGKILL
    seen = asyncio.run(go_on(ticket))
    charges = (tmp_path / "charges").read_text().splitlines()
    deaths = (tmp_path / "deaths").read_text().splitlines()
    assert len(deaths) == len(set(deaths)) == 3 * effects_of_shape, "a key changed with the attempt"
    # Where a graph returns what it was given, too, a result is seen twice.
    assert set(charges) == set(seen)
    assert len(set(seen)) == effects_of_shape, "two effects share a key"
    again = {charges.count(key) for key in seen}
    if shape in ONE_AFTER_ANOTHER:
        assert again == {2}, (
            "a receiver sees a call again, under its key, after a death between the call and its note, and "
            "never else"
        )
    else:
        # The death of one is also that of those beside it.
        assert 2 <= min(again) <= max(again) <= 1 + len(deaths)
