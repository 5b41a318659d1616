"""A message that steers an open run: taken up between its steps or by a node that asks, or else run next.

Covers perdure.engine.threads.steering.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.channels import UntrackedValue
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.pregel import Pregel

from perdure.model.ops import Commit, Put
from perdure.model.program import Effect
from perdure.model.records import CHECKPOINT, INBOX, RUN, WRITE, Kind
from perdure.runtime import Agent, Event, Options, Standing, StreamOptions
from perdure.runtime.nodes.steering import Steering
from tests.runtime.graphs import (
    Heard,
    Storage,
    eventually,
    go,
    settings,
    spoken,
    working,
)


@dataclass(eq=False)
class Tools:
    """An agent whose model calls a tool ``rounds`` times and then answers. ``gates`` holds its nodes: each
    waits at its visit of that number, e.g. ``("tool", 1)``. It records what the model sees."""

    rounds: int = 2
    gates: dict[tuple[str, int], asyncio.Event] = field(default_factory=dict[tuple[str, int], asyncio.Event])
    visits: list[str] = field(default_factory=list[str])
    seen: list[list[str]] = field(default_factory=list[list[str]])

    def hold(self, node: str, visit: int) -> asyncio.Event:
        return self.gates.setdefault((node, visit), asyncio.Event())

    def at(self, node: str, visit: int) -> bool:
        return self.visits.count(node) >= visit

    async def _visit(self, node: str) -> None:
        self.visits.append(node)
        gate = self.gates.get((node, self.visits.count(node)))
        if gate is not None:
            await gate.wait()

    async def _model(self, state: MessagesState) -> dict[str, Any]:
        self.seen.append([f"{message.type} {message.text}".strip() for message in state["messages"]])
        await self._visit("model")
        calls = sum(bool(isinstance(m, AIMessage) and m.tool_calls) for m in state["messages"])
        if calls < self.rounds:
            call = {"name": "look", "args": {}, "id": f"call {calls}"}
            return {"messages": [AIMessage("", tool_calls=[call])]}
        return {"messages": [AIMessage("done")]}

    async def _tool(self, state: MessagesState) -> dict[str, Any]:
        await self._visit("tool")
        last = state["messages"][-1]
        assert isinstance(last, AIMessage), "a tool finds its call last"
        return {"messages": [ToolMessage("found", tool_call_id=last.tool_calls[0]["id"])]}

    @property
    def graph(self) -> Pregel[Any, Any, Any, Any]:
        builder = StateGraph(MessagesState)
        builder.add_node("model", self._model)
        builder.add_node("tool", self._tool)
        builder.add_edge(START, "model")
        builder.add_conditional_edges(
            "model", lambda state: "tool" if state["messages"][-1].tool_calls else END, ["tool", END]
        )
        builder.add_edge("tool", "model")
        return builder.compile()


def test_an_open_run_takes_it_up_after_the_step(storage: Storage) -> None:
    async def main() -> None:
        tools = Tools()
        gate = tools.hold("tool", 1)
        database = storage.database()
        async with working(database, tools.graph) as runtime:
            first = await runtime.accept("ada", "one")
            await eventually(lambda: tools.at("tool", 1))
            second = await runtime.accept("ada", "two", strategy="steer")
            standing = await runtime.find("ada", second.id)
            assert standing is not None
            assert standing.run is None, "it waits"
            third = await runtime.accept("ada", "three", strategy="steer")
            await eventually(lambda: wanted(runtime, "ada"))
            gate.set()
            runs = [await runtime.wait(ticket, 30) for ticket in (first, second, third)]
            assert [(run.id, run.first, run.last, run.state) for run in runs] == [
                (first.id, 1, 3, "done")
            ] * 3
            standing = await runtime.find("ada", second.id)
            assert standing is not None
            assert standing.run is not None
            assert standing.run.id == first.id, "it is found by its own id, with the run that took it"
        assert tools.seen[1] == ["human one", "ai", "tool found", "human two", "human three"]
        assert await spoken(database, tools.graph, "ada") == [
            "one", "", "found", "two", "three", "", "found", "done",
        ]  # fmt: skip
        assert tools.visits == ["model", "tool", "model", "tool", "model"], "no step ran twice"
        assert database.fsck("ada") == []

    go(main())


def wanted(runtime: Any, thread: str) -> bool:
    """Whether the open run of a thread has been notified."""
    return any(
        working.steering.control.is_wanted
        for partition, working in runtime._worker.runner.leases.working.items()
        if partition.thread == thread
    )


@pytest.mark.packs_late
def test_a_run_that_takes_nothing_up_stores_each_step_by_one_commit(storage: Storage) -> None:
    """Commits as pairs: the checkpoints in it, and whether it has writes of tasks."""
    asked: list[Commit] = []

    async def note(effect: Effect[Any]) -> None:
        if isinstance(effect, Commit) and effect.partition.thread == "ada":
            asked.append(effect)

    def puts(commit: Commit, kind: Kind) -> int:
        return sum(isinstance(op, Put) and op.kind is kind for op in commit.ops)

    async def main() -> None:
        database, line = storage.open()
        tools = Tools(rounds=1)
        async with working(database, tools.graph, settings=settings(lease=3600.0)) as runtime:
            await runtime.wait(await runtime.accept("ada", "one"))
            line.before, tools.rounds = note, 2
            await runtime.wait(await runtime.accept("ada", "two"))
        accepted, *_, ended = asked
        found = [(puts(commit, CHECKPOINT), puts(commit, WRITE) > 0) for commit in asked]
        assert found == [(0, False), (2, True), *[(1, True)] * 3, (0, False)]
        assert (puts(accepted, RUN), puts(ended, RUN)) == (1, 1)
        assert database.fsck("ada") == []

    go(main())


def test_it_waits_until_open_calls_have_their_results(near: Storage) -> None:
    async def main() -> None:
        tools = Tools(rounds=1)
        gate = tools.hold("model", 1)
        database = near.database()
        async with working(database, tools.graph) as runtime:
            first = await runtime.accept("ada", "one")
            await eventually(lambda: tools.at("model", 1))
            second = await runtime.accept("ada", "two", strategy="steer")
            await eventually(lambda: wanted(runtime, "ada"))
            gate.set()
            assert (await runtime.wait(second, 30)).id == first.id
        assert await spoken(database, tools.graph, "ada") == ["one", "", "found", "two", "done"]

    go(main())


def test_what_comes_while_the_answer_is_written_is_the_next_run(near: Storage) -> None:
    async def main() -> None:
        tools = Tools(rounds=0)
        gate = tools.hold("model", 1)
        database = near.database()
        async with working(database, tools.graph) as runtime:
            first = await runtime.accept("ada", "one")
            await eventually(lambda: tools.at("model", 1))
            second = await runtime.accept("ada", "two", strategy="steer")
            third = await runtime.accept("ada", "three", strategy="steer")
            gate.set()
            runs = [await runtime.wait(ticket, 30) for ticket in (first, second, third)]
            assert [(run.first, run.last) for run in runs] == [(1, 1), (2, 3), (2, 3)]
        assert await spoken(database, tools.graph, "ada") == ["one", "done", "two", "three", "done"]

    go(main())


def test_without_an_open_run_it_begins_one(near: Storage) -> None:
    async def main() -> None:
        tools = Tools(rounds=0)
        async with working(near.database(), tools.graph) as runtime:
            run = await runtime.wait(await runtime.accept("ada", "one", strategy="steer"), 30)
            assert (run.state, run.first, run.last) == ("done", 1, 1)

    go(main())


def test_it_does_not_pass_what_waits_before_it(near: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    look = Steering.check_for_messages

    async def slow_look(steering: Steering) -> None:
        await asyncio.sleep(0.2)
        await look(steering)

    async def main() -> None:
        monkeypatch.setattr(Steering, "check_for_messages", slow_look)
        tools = Tools(rounds=1)
        gate = tools.hold("tool", 1)
        database = near.database()
        async with working(database, tools.graph) as runtime:
            await runtime.accept("ada", "one")
            await eventually(lambda: tools.at("tool", 1))
            await runtime.accept("ada", "two", coalesce=False)
            last = await runtime.accept("ada", "three", strategy="steer")
            gate.set()
            run = await runtime.wait(last, 30)
            assert (run.first, run.last) == (2, 3), "the run of the message before it takes it up"
        texts = await spoken(database, tools.graph, "ada")
        assert [text for text in texts if text not in ("", "found")] == [
            "one",
            "done",
            "two",
            "three",
            "done",
        ]

    go(main())


def test_another_process_accepts_it(storage: Storage) -> None:
    async def main() -> None:
        tools = Tools(rounds=1)
        gate = tools.hold("tool", 1)
        settled = settings(lease=1.5)
        async with (
            working(storage.database(), tools.graph, settings=settled) as runtime,
            working(storage.database(), tools.graph, works=False) as front,
        ):
            first = await front.accept("ada", "one")
            await eventually(lambda: tools.at("tool", 1))
            second = await front.accept("ada", "two", strategy="steer")
            await eventually(lambda: wanted(runtime, "ada"))
            gate.set()
            assert (await front.wait(second, 30)).id == first.id

    go(main())


def test_it_is_taken_back_while_it_waits(near: Storage) -> None:
    async def main() -> None:
        tools = Tools(rounds=1)
        gate = tools.hold("tool", 1)
        database = near.database()
        async with working(database, tools.graph) as runtime:
            first = await runtime.accept("ada", "one")
            await eventually(lambda: tools.at("tool", 1))
            second = await runtime.accept("ada", "two", strategy="steer")
            await eventually(lambda: wanted(runtime, "ada"))
            assert await runtime.cancel("ada", second.id)
            gate.set()
            assert (await runtime.wait(first, 30)).last == 1
            assert (await runtime.wait(second, 30)).state == "interrupted"
        assert await spoken(database, tools.graph, "ada") == ["one", "", "found", "done"]
        assert database.fsck("ada") == []

    go(main())


def test_those_behind_a_withdrawn_one_are_taken_up(near: Storage) -> None:
    async def main() -> None:
        tools = Tools(rounds=1)
        gate, later = tools.hold("tool", 1), tools.hold("model", 2)
        database = near.database()
        async with working(database, tools.graph, settings=settings(max_batch=1)) as runtime:
            first = await runtime.accept("ada", "one")
            await eventually(lambda: tools.at("tool", 1))
            unwanted = await runtime.accept("ada", "two", strategy="steer", dedupe_key="two")
            third = await runtime.accept("ada", "three", strategy="steer")
            await eventually(lambda: wanted(runtime, "ada"))
            assert await runtime.cancel("ada", unwanted.id)
            gate.set()
            await eventually(lambda: tools.at("model", 2))
            # The open run covers its number by now, and neither ends nor is stopped by it.
            assert (await runtime.wait(unwanted, 30)).id == unwanted.id
            found = await runtime.find("ada", unwanted.id)
            assert found is not None
            assert found.run is not None
            assert (found.run.state, found.run.note) == ("interrupted", {"begun": False})
            assert await runtime.run_id(await runtime.accept("ada", "two", dedupe_key="two")) == unwanted.id
            assert not await runtime.cancel("ada", unwanted.id)
            later.set()
            run = await runtime.wait(first, 30)
            assert (run.id, run.state, run.last) == (first.id, "done", 3)
            assert (await runtime.wait(third, 30)).id == first.id
            states = [each.run.state for each in await runtime.messages("ada") if each.run is not None]
            assert states == ["done", "interrupted", "done"]
        assert await spoken(database, tools.graph, "ada") == ["one", "", "found", "three", "done"]
        assert database.fsck("ada") == []

    go(main())


@pytest.mark.parametrize("before", [("tool",), ()])
def test_an_agent_says_before_which_nodes(memory: Storage, before: tuple[str, ...]) -> None:
    async def main() -> None:
        tools = Tools(rounds=1)
        gate = tools.hold("tool", 1)
        database = memory.database()
        async with working(database, Agent(tools.graph, steer_before=before)) as runtime:
            first = await runtime.accept("ada", "one")
            await eventually(lambda: tools.at("tool", 1))
            second = await runtime.accept("ada", "two", strategy="steer")
            gate.set()
            assert (await runtime.wait(first, 30)).last == 1
            assert (await runtime.wait(second, 30)).first == 2

    go(main())


def test_an_agent_that_names_unknown_nodes_is_refused() -> None:
    with pytest.raises(ValueError, match="steer_before names"):
        Agent(Tools().graph, steer_before=["modle"])
    with pytest.raises(ValueError, match="collection"):
        Agent(Tools().graph, steer_before="model")


def test_messages_of_other_terms_are_runs_of_their_own(memory: Storage) -> None:
    async def main() -> None:
        tools = Tools(rounds=1)
        gate = tools.hold("tool", 1)
        async with working(memory.database(), tools.graph) as runtime:
            mine = {"configurable": {"user": "ada"}}
            first = await runtime.accept("ada", "one", config=mine)
            await eventually(lambda: tools.at("tool", 1))
            foreign = {"configurable": {"user": "bob"}}
            second = await runtime.accept("ada", "two", strategy="steer", config=foreign)
            gate.set()
            assert (await runtime.wait(first, 30)).last == 1
            assert (await runtime.wait(second, 30)).first == 2

    go(main())


def test_a_command_cannot_steer(memory: Storage) -> None:
    async def main() -> None:
        async with working(memory.database(), Tools().graph) as runtime:
            with pytest.raises(ValueError, match="cannot steer"):
                await runtime.submit("ada", None, command={"goto": "tool"}, strategy="steer")
            with pytest.raises(ValueError, match="cannot steer"):
                await runtime.submit("ada", {}, options=Options(checkpoint_id="c"), strategy="steer")
            assert memory.rows("ada", INBOX) == []

    go(main())


def test_what_the_graph_does_not_take_is_a_run_of_its_own(memory: Storage) -> None:
    async def main() -> None:
        tools = Tools(rounds=1)
        gate = tools.hold("tool", 1)
        heard = Heard()
        async with working(memory.database(), tools.graph, observers=[heard]) as runtime:
            first = await runtime.submit("ada", {"messages": [{"role": "user", "content": "one"}]})
            await eventually(lambda: tools.at("tool", 1))
            odd = await runtime.submit("ada", {"messages": [{"role": "no one"}]}, strategy="steer")
            gate.set()
            assert (await runtime.wait(first, 30)).state == "done"
            assert (await runtime.wait(odd, 30)).state == "failed"
            assert heard.count("run.steered") == 0

    go(main())


def test_a_breakpoint_is_kept(memory: Storage) -> None:
    async def main() -> None:
        tools = Tools(rounds=2)
        gate = tools.hold("tool", 1)
        stops = Options(interrupt_before=["model"])
        async with working(memory.database(), tools.graph) as runtime:
            first = await runtime.accept("ada", "one", options=stops)
            assert (await runtime.wait(first, 30)).state == "waiting"
            answer = await runtime.answer("ada", "go on", options=stops)
            await eventually(lambda: tools.at("tool", 1))
            second = await runtime.accept("ada", "two", strategy="steer")
            await eventually(lambda: wanted(runtime, "ada"))
            gate.set()
            run = await runtime.wait(answer, 30)
            assert (run.state, run.last) == ("waiting", answer.number), "it stopped before the model"
            assert (await runtime.wait(second, 30)).first == second.number

    go(main())


def test_the_recursion_limit_stays_the_runs(memory: Storage) -> None:
    async def main() -> None:
        tools = Tools(rounds=50)
        gate = tools.hold("tool", 2)
        async with working(memory.database(), tools.graph) as runtime:
            options = Options(config={"recursion_limit": 9}, attempts=1)
            first = await runtime.accept("ada", "one", options=options)
            await eventually(lambda: tools.at("tool", 2))
            await runtime.accept("ada", "two", strategy="steer", options=Options(attempts=1))
            await eventually(lambda: wanted(runtime, "ada"))
            gate.set()
            run = await runtime.wait(first, 30)
            assert (run.state, run.last) == ("failed", 2)
            assert "GraphRecursionError" in run.note["kind"]
            assert "Recursion limit of 9 reached" in run.note["error"], "not the rest of it"
        assert len(tools.visits) <= 10

    go(main())


def test_a_run_without_a_recursion_limit_gets_none(memory: Storage) -> None:
    async def main() -> None:
        tools = Tools(rounds=15)
        gate = tools.hold("tool", 2)
        async with working(memory.database(), tools.graph) as runtime:
            first = await runtime.accept("ada", "one", options=Options(attempts=1))
            await eventually(lambda: tools.at("tool", 2))
            await runtime.accept("ada", "two", strategy="steer", options=Options(attempts=1))
            await eventually(lambda: wanted(runtime, "ada"))
            gate.set()
            run = await runtime.wait(first, 30)
            assert (run.state, run.last) == ("done", 2)
        # LangChain's default, 25, is not the one of LangGraph.
        assert len(tools.visits) > 30

    go(main())


class Connected(MessagesState, total=False):
    """A conversation with what is kept for one call of the graph alone."""

    client: Annotated[Any, UntrackedValue]
    tries: Annotated[Any, UntrackedValue(int, guard=False)]


def test_an_untracked_value_lasts_for_the_whole_run_and_no_longer(near: Storage) -> None:
    async def main() -> None:
        gate, begun = asyncio.Event(), asyncio.Event()
        seen: list[tuple[Any, Any, int]] = []

        async def connect(state: Connected) -> dict[str, Any]:
            begun.set()
            await gate.wait()
            return {"client": object(), "tries": state.get("tries", 0) + 1}

        def use(state: Connected) -> dict[str, Any]:
            seen.append((state.get("client"), state.get("tries"), len(state["messages"])))
            return {"tries": state.get("tries", 0) + 1}

        builder = StateGraph(Connected).add_sequence([("connect", connect), ("use", use), ("end", use)])
        graph = builder.add_edge(START, "connect").compile()
        async with working(near.database(), graph) as runtime:
            first = await runtime.accept("ada", "one")
            await begun.wait()
            await runtime.accept("ada", "two", strategy="steer")
            await eventually(lambda: wanted(runtime, "ada"))
            gate.set()
            assert (await runtime.wait(first, 30)).last == 2
            await runtime.wait(await runtime.accept("ada", "three"), 30)
        clients, tries, messages = zip(*seen, strict=True)
        assert messages == (2, 2, 3, 3)
        assert tries == (1, 2, 1, 2), "the next run begins without it"
        assert None not in clients
        assert clients[0] is clients[1]
        assert clients[1] is not clients[2]

    go(main())


# ---------------------------------------------------------------- streams


def test_a_stream_shows_what_was_taken_up(near: Storage) -> None:
    async def main() -> None:
        tools = Tools(rounds=1)
        gate = tools.hold("tool", 1)
        stream = Options(stream=StreamOptions(modes=("values",)))
        async with working(near.database(), tools.graph) as runtime:
            first = await runtime.accept("ada", "one", options=stream)
            await eventually(lambda: tools.at("tool", 1))
            second = await runtime.accept("ada", "two", strategy="steer", options=stream)
            await eventually(lambda: wanted(runtime, "ada"))
            gate.set()
            items = [item async for item in runtime.follow("ada", second.id)]
            ending = items.pop()
            assert isinstance(ending, Standing)
            assert ending.run is not None
            assert ending.run.id == first.id
            data = [item.data for item in items if isinstance(item, Event)]
            assert any("two" in text for text in data), "its own stream is that of the run"
            assert "done" in data[-1]

    go(main())
