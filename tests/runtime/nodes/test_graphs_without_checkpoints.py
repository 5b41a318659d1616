"""Graphs that store no checkpoints, LangMem's extractors among them, in runs whose steps wait for theirs."""

from __future__ import annotations

import asyncio
import operator
import warnings
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel

import perdure
from perdure.runtime import Options, Runtime, Settings, isolated_subgraph
from perdure.testing.conformance.backend import Backend
from tests.backends import BACKENDS, fresh
from tests.conversation.models import Scripted

QUICK = Settings(backoff=0.05, max_backoff=0.1, poll=0.2)


class Told(TypedDict, total=False):
    notes: Annotated[list[str], operator.add]


class Notes(Told, total=False):
    item: int


Build = StateGraph[Any, Any, Any, Any]


def in_a_row(*nodes: Any) -> Build:
    builder: Build = StateGraph(Notes, output_schema=Told)
    names = [f"{getattr(node, '__name__', 'graph')}{number}" for number, node in enumerate(nodes)]
    for name, node, before in zip(names, nodes, (START, *names), strict=False):
        builder.add_node(name, node).add_edge(before, name)
    return builder


def note(state: Notes) -> Notes:
    return {"notes": [f"seen {len(state.get('notes', []))} of {state.get('item', 0)}"]}


def asking(state: Notes) -> Notes:
    return {"notes": [f"told {interrupt('which?')}"]}


def spread(state: Notes) -> list[Send]:
    return [Send("graph0", {"item": item, "notes": []}) for item in range(3)]


def unsaved(*nodes: Any) -> Any:
    return in_a_row(*(nodes or (note, note))).compile(checkpointer=False)


def calling(graph: Any, times: int = 1) -> Any:
    def call(state: Notes) -> Notes:
        return {"notes": [n for _ in range(times) for n in graph.invoke({"item": 7, "notes": []})["notes"]]}

    return call


def awaiting(graph: Any, times: int = 1) -> Any:
    async def call(state: Notes, config: RunnableConfig) -> Notes:
        given = {"item": 7, "notes": []}
        ended = await asyncio.gather(*(graph.ainvoke(given, config) for _ in range(times)))
        return {"notes": [n for state in ended for n in state["notes"]]}

    return call


def streaming(graph: Any) -> Any:
    async def call(state: Notes) -> Notes:
        return {"notes": [str(part) async for part in graph.astream({"item": 7}, stream_mode="updates")]}

    return call


def functional() -> Any:
    none: Any = False

    @task
    async def half(number: int) -> str:
        return f"half of {number}"

    @entrypoint(checkpointer=none)
    async def work(number: int) -> list[str]:
        return list(await asyncio.gather(half(number), half(number + 1)))

    async def call(state: Notes) -> Notes:
        notes: Any = await work.ainvoke(4)
        return {"notes": notes}

    return call


def within_itself(depth: int) -> Any:
    return unsaved(note) if depth == 0 else unsaved(calling(within_itself(depth - 1)), note)


def isolated(graph: Any) -> Any:
    def give(state: Notes) -> Notes:
        return {"item": 1, "notes": []}

    return isolated_subgraph(graph, give, lambda ended: {"notes": ended["notes"]}, name="isolated")


SHAPES: dict[str, Callable[[], Build]] = {
    "added as a node": lambda: in_a_row(note, unsaved(), note),
    "called by a node": lambda: in_a_row(note, calling(unsaved()), note),
    "awaited by a node": lambda: in_a_row(note, awaiting(unsaved()), note),
    "called twice by a node": lambda: in_a_row(calling(unsaved(), 2), note),
    "awaited twice at once": lambda: in_a_row(awaiting(unsaved(), 2), note),
    "streamed by a node": lambda: in_a_row(streaming(unsaved()), note),
    "a step of a chain": lambda: in_a_row(RunnableLambda(lambda s: {"item": 2}) | unsaved(), note),
    "functional": lambda: in_a_row(functional(), note),
    "one within another": lambda: in_a_row(calling(within_itself(3)), note),
    "one added to another": lambda: in_a_row(unsaved(unsaved(unsaved()), note), note),
    "with a plain graph within": lambda: in_a_row(calling(unsaved(in_a_row(note, note).compile())), note),
    "with a plain graph called within": lambda: in_a_row(
        calling(unsaved(calling(in_a_row(note, note).compile()))), note
    ),
    "within a plain graph": lambda: in_a_row(in_a_row(calling(unsaved()), note).compile(), note),
    "within a graph with a memory": lambda: in_a_row(
        in_a_row(calling(unsaved()), note).compile(checkpointer=True), note
    ),
    "within an isolated graph": lambda: in_a_row(
        isolated(in_a_row(awaiting(unsaved()), note).compile()), note
    ),
    "within an isolated graph, twice": lambda: in_a_row(
        isolated(in_a_row(isolated(in_a_row(unsaved(), note).compile())).compile()), note
    ),
    "sent to": lambda: in_a_row(unsaved()).add_conditional_edges(START, spread, ["graph0"]),
    "with parallel sends within": lambda: in_a_row(
        calling(
            StateGraph(Notes, output_schema=Told)
            .add_node("graph0", unsaved())
            .add_conditional_edges(START, spread, ["graph0"])
            .compile(checkpointer=False)
        ),
        note,
    ),
    "before a question": lambda: in_a_row(calling(unsaved()), asking, note),
    "after a question": lambda: in_a_row(asking, awaiting(unsaved()), note),
    "in a node that asks": lambda: in_a_row(
        lambda state: {**calling(unsaved())(state), "item": interrupt("which?")}, note
    ),
    "beside a question": lambda: in_a_row(calling(unsaved())).add_node("ask", asking).add_edge(START, "ask"),
    "asking itself": lambda: in_a_row(calling(unsaved(note, asking, note)), note),
    "asking itself, as a node": lambda: in_a_row(unsaved(note, asking, note), note),
}


async def by_itself(builder: Build, durability: Any = "async") -> list[str]:
    """Return what LangGraph makes of a graph alone, on its own saver, with which it asks at most once."""
    graph = builder.compile(checkpointer=InMemorySaver())
    at: RunnableConfig = {"configurable": {"thread_id": "t"}}
    ended = await graph.ainvoke({"item": 0, "notes": []}, at, durability=durability)
    if "__interrupt__" in ended:
        ended = await graph.ainvoke(Command(resume=5), at, durability=durability)
    return sorted(ended["notes"])


async def in_the_runtime(
    database: perdure.Database | perdure.SyncDatabase, builder: Build, **options: Any
) -> list[str]:
    async with asyncio.timeout(60), Runtime(database, builder.compile(), settings=QUICK, observers=()) as app:
        run = await app.wait(await app.submit("t", {"item": 0, "notes": []}, options=Options(**options)))
        if run.state == "waiting":
            run = await app.wait(await app.answer("t", 5))
        assert run.state == "done", run.note
    found = await database.checkpointer().aget_tuple({"configurable": {"thread_id": "t"}})
    assert found is not None
    return sorted(found.checkpoint["channel_values"]["notes"])


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("shape", list(SHAPES))
def test_a_graph_without_checkpoints_runs_as_in_langgraph_alone(shape: str, durability: Any) -> None:
    async def main() -> None:
        async with perdure.connect("memory://") as db:
            notes = await in_the_runtime(db, SHAPES[shape](), durability=durability)
        assert notes == await by_itself(SHAPES[shape]())

    asyncio.run(main())


# ---------------------------------------------------------------- LangMem's extractors


class Fact(BaseModel):
    """What a user said of themselves."""

    content: str
    times: int = 1


class Extracting(Scripted):
    """A model that calls the tool whose schema it is given. Its first call of ``Fact`` is faulty, and then it
    patches that call."""

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        names = [convert_to_openai_tool(tool)["function"]["name"] for tool in tools]
        return RunnableLambda(lambda messages: self.answer(names))

    def answer(self, names: list[str]) -> AIMessage:
        number = len(self.sent)
        self.sent.append([])
        if "PatchFunctionErrors" in names:
            patches = [{"op": "replace", "path": "/times", "value": 2}]
            args: dict[str, Any] = {"json_doc_id": "call0", "planned_edits": "mend it", "patches": patches}
            return AIMessage(
                "", tool_calls=[{"name": "PatchFunctionErrors", "args": args, "id": f"call{number}"}]
            )
        (name,) = [name for name in names if name in ("Fact", "Memory", "SummarizeThread")]
        args = (
            {"title": "tea", "summary": "likes tea"}
            if name == "SummarizeThread"
            else {"content": "likes tea"}
        )
        if name == "Fact" and number == 0:
            args["times"] = "many"
        return AIMessage("", tool_calls=[{"name": name, "args": args, "id": f"call{number}"}])


@pytest.fixture(scope="module")
def langmem() -> Any:
    with warnings.catch_warnings():
        # A dependency of LangMem's imports `Send` from where LangGraph had it before.
        warnings.filterwarnings("ignore", "Importing Send from langgraph.constants", DeprecationWarning)
        return pytest.importorskip("langmem")


SAID = {"messages": [HumanMessage("I like tea")]}


def facts(found: Any) -> list[str]:
    return [fact.content for fact in found["responses"]]


def memories(found: Any) -> list[str]:
    return [memory.content.content for memory in found]


def summary(found: Any) -> list[str]:
    return [found.summary]


def kept(found: Any) -> list[str]:
    return [each["value"]["content"]["content"] for each in found]


EXTRACTORS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], list[str]]]] = {
    "trustcall, with a repair": (
        lambda langmem, model: langmem.knowledge.extraction.create_extractor(
            model, tools=[Fact], tool_choice="Fact"
        ),
        facts,
    ),
    "memories": (lambda langmem, model: langmem.create_memory_manager(model), memories),
    "memories, with a repair": (
        lambda langmem, model: langmem.create_memory_manager(model, schemas=[Fact]),
        memories,
    ),
    "a thread": (lambda langmem, model: langmem.create_thread_extractor(model), summary),
    "memories in the store": (
        lambda langmem, model: langmem.create_memory_store_manager(model, namespace=("memories", "ada")),
        kept,
    ),
}


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:PendingDeprecationWarning")
@pytest.mark.parametrize("awaited", [True, False], ids=["awaited", "blocking"])
@pytest.mark.parametrize("name", list(EXTRACTORS))
def test_an_extractor_of_langmem_runs_in_a_node(name: str, awaited: bool, langmem: Any) -> None:
    make, read = EXTRACTORS[name]
    extractor = make(langmem, Extracting())

    async def awaiting(state: Notes) -> Notes:
        return {"notes": read(await extractor.ainvoke(SAID))}

    def blocking(state: Notes) -> Notes:
        return {"notes": read(extractor.invoke(SAID))}

    async def main() -> None:
        async with perdure.connect("memory://") as db:
            notes = await in_the_runtime(db, in_a_row(note, awaiting if awaited else blocking))
            stored = await db.store().asearch(("memories",))
            assert await db.fsck() == []
        assert notes == ["likes tea", "seen 0 of 0"]
        assert len(stored) == (name == "memories in the store")

    asyncio.run(main())


@pytest.mark.parametrize("backend", list(BACKENDS))
def test_only_the_graph_around_it_stores_its_steps(backend: str) -> None:
    async def main() -> None:
        with fresh(backend) as driver:
            database = Backend(driver).database()
            assert await in_the_runtime(database, SHAPES["called by a node"]())
            at: RunnableConfig = {"configurable": {"thread_id": "t"}}
            found = [each async for each in database.checkpointer().alist(at)]
        assert {each.config["configurable"]["checkpoint_ns"] for each in found} == {""}

    asyncio.run(main())
