"""A database of many threads with all that one looks for, and one with a thread of many steps.

Some threads are made by a runtime with a real graph. Their records are copied in bulk under other names, each
copy with a title, a user and a time of its own, as tens of thousands of real runs would take an hour.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

import perdure
from perdure.database.asynchronous import Database
from perdure.database.base import handle_of
from perdure.database.handle import DatabaseHandle
from perdure.model.ops import Commit, Expect, Fetch, Put, Range
from perdure.model.records import DOCUMENT, KINDS, LISTED, OF_THREAD, RUN, Partition, Record
from perdure.model.runs.messages import decode_object, encode
from perdure.runtime import Runtime, Settings
from tests.inspector.staging import HOSTILE

LONG, TALK = "zz-long", "zz-talk"
"""Threads of many steps, and of as many messages."""
MODEL = "model-4"
PRICES = f'[prices.models."{MODEL}"]\ninput = 2.0\noutput = 8.0\n'
LONG_WORD = "Donaudampfschifffahrtsgesellschaftskapitänsmützenabzeichen" * 6
USERS = 997
TAGS = 40
FILES = 300

_USAGE = {"input_tokens": 1000, "output_tokens": 500, "total_tokens": 1500}
_AT_ONCE = 200
_WINDOW = 50
_LISTED_AT_ONCE = 1000
_COPIED = tuple(kind for kind in KINDS if kind.name not in ("item", "seal", "event"))


def said(text: str, **more: Any) -> AIMessage:
    """Return what a model answered, with its tokens counted."""
    about = {"model_name": MODEL}
    return AIMessage(text, usage_metadata=_USAGE, response_metadata=about, **more)


def agent() -> StateGraph[Any, Any, Any, Any]:
    """A graph that calls a tool, asks, or fails, by what it is told."""

    def model(state: MessagesState) -> dict[str, Any]:
        last = state["messages"][-1]
        if isinstance(last, ToolMessage):
            return {"messages": [said(f"That is what I found: {last.text}")]}
        if last.text.startswith("fail"):
            raise ValueError(f"{HOSTILE} the provider said: {last.text[5:]}")
        if last.text.startswith("ask"):
            return {"messages": [said(str(interrupt({"question": last.text[4:], "options": ["yes", "no"]})))]}
        call = {"name": "look_up", "args": {"about": last.text}, "id": f"call-{len(state['messages'])}"}
        return {"messages": [said("", tool_calls=[call])]}

    def tools(state: MessagesState) -> dict[str, Any]:
        (call,) = state["messages"][-1].tool_calls  # type: ignore[union-attr]
        return {"messages": [ToolMessage(f"found {call['args']['about']}", tool_call_id=call["id"])]}

    def route(state: MessagesState) -> str:
        last = state["messages"][-1]
        return "tools" if isinstance(last, AIMessage) and last.tool_calls else "__end__"

    built = StateGraph(MessagesState).add_node("model", model).add_node("tools", tools)
    built.add_edge(START, "model").add_conditional_edges("model", route, ["tools", "__end__"])
    return built.add_edge("tools", "model")


class Kind(NamedTuple):
    """A kind of thread: what was said in it, how many of a thousand threads are of it, and its title, in
    which ``{}`` is the thread's number."""

    said: Sequence[str]
    share: int
    title: str


KINDS_OF_THREADS: Mapping[str, Kind] = {
    "plain": Kind(("the tides", "the moon and its craters", "cats"), 850, "About the tides, no. {}"),
    "failed": Kind(("the moon", f"fail {LONG_WORD} {'no luck ' * 300}"), 60, "Failed {}"),
    "asking": Kind((f"ask May I send {HOSTILE} to {LONG_WORD}?",), 40, "Minutes {}"),
    "tagged": Kind(("harvest", "ploughs"), 20, "Approved many times {}"),
    "titled": Kind(("pears",), 20, f"A long title {{}} {LONG_WORD} {'and so on ' * 40}"),
    "hostile": Kind((HOSTILE,), 10, f"{HOSTILE} {{}}"),
}
"""Kinds by their names, which begin those of their threads."""
RARE = "aardvark"
"""Word that one thread alone has."""


def fill(url: str, threads: int, steps: int) -> None:
    """Fill an empty database with this number of threads, and one more of this number of steps."""
    asyncio.run(_fill(url, threads, steps))


def names(threads: int) -> Iterator[tuple[str, int, str]]:
    """Yield the name, number and kind of each of the threads."""
    kinds = [name for name, kind in KINDS_OF_THREADS.items() for _ in range(kind.share)]
    for number in range(threads):
        kind = kinds[number * 37 % len(kinds)]  # 37 has no factor in common with their number
        yield f"{kind}-{number:06d}", number, kind


async def _fill(url: str, threads: int, steps: int) -> None:
    async with perdure.connect(url, migrate=True) as database:
        settings = Settings(attempts=1, poll=0.1, on_failure="keep")
        graph = agent().compile()
        async with Runtime(database, {"agent": graph}, settings=settings, observers=()) as runtime:
            for name, kind in {**KINDS_OF_THREADS, "rare": Kind((RARE,), 0, "")}.items():
                await runtime.threads.create(name, {"title": kind.title, "owner": f"maker-{HOSTILE}"})
                for text in kind.said:
                    config = {"configurable": {"user_id": "maker"}}
                    await runtime.wait(await runtime.accept(name, text, config=config), 60)
            for number in range(TAGS):
                await database.tag("tagged", f"approved by the committee no. {number:02d}")
        handle = handle_of(database)
        templates = {name: await _records_of(handle, name) for name in KINDS_OF_THREADS}
        made = list(names(threads))
        for at in range(0, len(made), _AT_ONCE):
            await asyncio.gather(*(_copy(handle, templates, *each) for each in made[at : at + _AT_ONCE]))
        await _list(handle, templates, made)
        await lengthen(database, steps)


async def lengthen(database: Database, steps: int) -> None:
    """Make a thread of this number of checkpoints, and one of this number of messages."""
    talk = agent().compile(checkpointer=database.checkpointer(warn_bytes=1 << 30))
    many = [(HumanMessage, said)[n % 2](f"message {n}", id=f"m{n}") for n in range(steps)]
    await talk.ainvoke({"messages": [*many, HumanMessage("tides")]}, {"configurable": {"thread_id": TALK}})
    looped = loop().compile(checkpointer=database.checkpointer(warn_bytes=1 << 30))
    config: Any = {"configurable": {"thread_id": LONG}, "recursion_limit": steps + 1}
    files = {f"/notes/{number:03d}.md": {"content": f"note {number}\n" * 100} for number in range(FILES)}
    start: Any = {"messages": [HumanMessage("count", id="m")], "left": steps - 2, "files": files}
    await looped.ainvoke(start, config)


def window(messages: list[AnyMessage], new: list[AnyMessage]) -> list[AnyMessage]:
    """Return the newest messages: a state that grows at each of the steps takes long to make."""
    return [*messages, *new][-_WINDOW:]


class Count(TypedDict):
    messages: Annotated[list[AnyMessage], window]
    left: int
    files: dict[str, dict[str, str]]


def loop() -> StateGraph[Any, Any, Any, Any]:
    """A graph that calls a model once a step, as often as it is told."""

    def count(state: Count) -> dict[str, Any]:
        left = state["left"] - 1
        return {"messages": [said(f"{left} more", id=f"m{left}")], "left": left}

    def route(state: Count) -> str:
        return "count" if state["left"] > 0 else "__end__"

    built = StateGraph(Count).add_node("count", count).add_edge(START, "count")
    return built.add_conditional_edges("count", route, ["count", "__end__"])


async def _records_of(handle: DatabaseHandle, name: str) -> list[Record]:
    found = await handle.driver.aperform(Fetch(Partition("", name), tuple(Range(kind) for kind in _COPIED)))
    return [record for answer in found for record in answer]


def _document(template: Sequence[Record], number: int, kind: str) -> dict[str, Any]:
    (held,) = (each for each in template if each.kind is DOCUMENT and each.key == OF_THREAD)
    body = decode_object(held)
    metadata = {
        "title": KINDS_OF_THREADS[kind].title.format(number),
        "owner": f"user-{number % USERS}",
        "graph_id": "agent",
    }
    return {**body, "metadata": {**body["metadata"], **metadata}, "created_at": body["created_at"] + number}


async def _copy(
    handle: DatabaseHandle, templates: Mapping[str, Sequence[Record]], name: str, number: int, kind: str
) -> None:
    puts: list[Put] = []
    for each in templates[kind]:
        fields, body = dict(each.fields), each.body
        if each.kind is DOCUMENT and each.key == OF_THREAD:
            body = encode(_document(templates[kind], number, kind), "document")
        if each.kind in (DOCUMENT, RUN):
            fields["updated_at"] += number
        puts.append(Put(each.kind, each.key, fields, body, Expect.ABSENT, each.version))
    await handle.driver.aperform(Commit(Partition("", name), tuple(puts)))


async def _list(
    handle: DatabaseHandle,
    templates: Mapping[str, Sequence[Record]],
    made: Sequence[tuple[str, int, str]],
) -> None:
    """Add the threads to the index by which a server finds them."""
    for at in range(0, len(made), _LISTED_AT_ONCE):
        puts: list[Put] = []
        for name, number, kind in made[at : at + _LISTED_AT_ONCE]:
            body = _document(templates[kind], number, kind)
            (held,) = (each for each in templates[kind] if each.kind is DOCUMENT and each.key == OF_THREAD)
            copy = {key: body.get(key) for key in ("metadata", "created_at", "ttl")}
            copy |= {"version": held.version, "announced": 0}
            updated = {"updated_at": held.fields["updated_at"] + number}
            key = (LISTED[0], name)
            puts.append(Put(DOCUMENT, key, updated, encode(copy, "document"), Expect.ABSENT, held.version))
        await handle.driver.aperform(Commit(Partition("", *LISTED), tuple(puts)))
