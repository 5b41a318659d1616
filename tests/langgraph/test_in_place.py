"""State that is changed in place: while a put runs, and by nodes that do not return what they changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

import perdure
from perdure.database.opening import open_database
from perdure.langgraph.values.serde import Serde
from perdure.model.ops import Commit, Committed, Fetch, Put
from perdure.model.program import Effect
from perdure.model.records import GC
from perdure.storage.port import Driver
from perdure.testing.faults import FaultyDriver
from tests.langgraph.files import THREAD, config, put

ACT: list[Callable[[], object]] = []


@dataclass
class Acting:
    """A value whose serialisation runs code: what another thread may do at that moment."""

    name: str = "acting"


def acted(value: Acting) -> dict[str, Any]:
    for act in ACT:
        act()
    return {"name": value.name}


CODECS = [perdure.Codec(Acting, acted, lambda stored: Acting(stored["name"]))]


@pytest.fixture
def db() -> Any:
    ACT.clear()
    with perdure.connect_sync("memory://") as database:
        yield database
    ACT.clear()


def values(db: Any, thread: str = THREAD) -> Any:
    """What another process reads."""
    return db.checkpointer(codecs=CODECS).get_tuple(config(thread)).checkpoint["channel_values"]


@pytest.mark.parametrize(
    "nest",
    [
        lambda facts: facts,
        lambda facts: {"inside": facts},
        lambda facts: {"long": ["x" * 5000], "inside": {"deeper": facts}},
        lambda facts: [facts, "x" * 5000],
        lambda facts: {"inside": [facts] * 2},
    ],
)
@pytest.mark.parametrize("size", [1, 3000])
def test_a_dict_that_grows_while_it_is_put_is_stored_as_it_was_at_a_moment(
    db: Any, nest: Callable[[Any], Any], size: int
) -> None:
    facts: dict[str, Any] = {"a": Acting(), "b": "b" * size, "c": Acting()}
    ACT.append(lambda: facts.update({f"new {len(facts)}": "n" * size}))
    saver = db.checkpointer(codecs=CODECS)
    state = {"facts": nest(facts), "more": [1]}
    put(saver, state)
    ACT.clear()
    stored = values(db)
    assert stored == saver.get_tuple(config()).checkpoint["channel_values"]
    text = repr(stored["facts"])
    assert "acting" in text
    assert stored["more"] == [1]
    assert set(stored) == {"facts", "more"}


@pytest.mark.parametrize("how", ["put", "write"])
def test_a_dict_that_loses_items_while_it_is_put_can_be_read(db: Any, how: str) -> None:
    facts: dict[str, Any] = {"a": Acting(), **{f"k{n}": n for n in range(40)}}
    ACT.append(lambda: facts.pop(next(reversed(facts)), None))
    saver = db.checkpointer(codecs=CODECS)
    if how == "put":
        put(saver, {"facts": facts, "listed": [{"in": facts}]})
    else:
        at = put(saver, {"other": 1})
        saver.put_writes(at, [("facts", facts), ("listed", [{"in": facts}])], "task")
    ACT.clear()
    found = db.checkpointer(codecs=CODECS).get_tuple(config())
    stored = found.checkpoint["channel_values"]
    if how == "write":
        stored = {name: value for _, name, value in found.pending_writes}
    for one in (stored["facts"], stored["listed"][0]["in"]):
        assert one["a"] == Acting()
        assert all(one[f"k{n}"] == n for n in range(len(one) - 1))


@dataclass
class Walking:
    """An object whose own code walks a dict that another thread changes."""

    facts: dict[str, int]


def walked(value: Walking) -> dict[str, int]:
    out: dict[str, int] = {}
    for key, number in value.facts.items():
        if ACT:
            ACT.pop()()
        out[key] = number
    return out


def test_an_object_that_cannot_be_walked_at_first_is_packed_again() -> None:
    walking = Walking({"a": 1})
    ACT[:] = [lambda: walking.facts.update(b=2), lambda: walking.facts.update(c=3)]
    serde = Serde(codecs=[perdure.Codec(Walking, walked, Walking)])
    assert serde.unpack(serde.pack({"in": [walking]})) == {"in": [Walking({"a": 1, "b": 2, "c": 3})]}
    assert not ACT


@pytest.mark.parametrize("change", ["element", "inside"])
@pytest.mark.parametrize("step", ["pack", "unpack_plain", "pack_key"])
def test_a_large_element_that_changes_while_it_is_put_is_read_as_it_is_stored(
    db: Any, monkeypatch: pytest.MonkeyPatch, change: str, step: str
) -> None:
    element: dict[str, Any] = {"text": "x" * 5000, "inner": {"n": 0, "long": "y" * 5000}}
    method = getattr(Serde, step)

    def changing(self: Serde, *args: Any) -> Any:
        answer = method(self, *args)
        target = element if change == "element" else element["inner"]
        target["n"] = target.get("n", 0) + 1
        return answer

    saver = db.checkpointer()
    monkeypatch.setattr(Serde, step, changing)
    put(saver, {"elements": [element]})
    monkeypatch.undo()
    mine = saver.get_tuple(config()).checkpoint["channel_values"]
    assert mine == values(db)


class State(TypedDict):
    facts: dict[str, Any]
    notes: list[Any]
    messages: Annotated[list[Any], add_messages]
    other: int


def spoil(state: Any, mark: str) -> None:
    """Change everything in place."""
    state["facts"]["changed"] = mark
    state["facts"].setdefault("deep", {})["changed"] = mark
    state["notes"].append(mark)
    for note in state["notes"]:
        if isinstance(note, dict):
            note["changed"] = mark
    for message in state["messages"]:
        message.additional_kwargs["changed"] = mark


def spoiling(saver: Any, *, between: Callable[[], object] = lambda: None, nested: bool = False) -> Any:
    """Nodes that change the state in place and return something else."""

    def node(name: str) -> Any:
        def act(state: State) -> Any:
            spoil(state, name)
            between()
            return {"other": state.get("other", 0) + 1}

        return act

    graph: Any = StateGraph(State)
    for name in ("one", "two", "three"):
        graph.add_node(name, node(name))
    graph.add_edge(START, "one")
    graph.add_edge("one", "two")
    graph.add_edge("two", "three")
    graph.add_edge("three", END)
    if not nested:
        return graph.compile(checkpointer=saver)
    inner = graph.compile(checkpointer=True)
    outer: Any = StateGraph(State)
    outer.add_node("inner", inner)
    outer.add_edge(START, "inner")
    outer.add_edge("inner", END)
    return outer.compile(checkpointer=saver)


def given() -> dict[str, Any]:
    return {
        "facts": {"deep": {"a": 1}, "long": "x" * 5000},
        "notes": [{"a": 1}, {"long": "y" * 5000}],
        "messages": [HumanMessage("hello", id="h1")],
        "other": 0,
    }


def plain(state: Any) -> Any:
    return {
        **{name: value for name, value in state.values.items() if name != "messages"},
        "messages": [(m.id, m.content, m.additional_kwargs) for m in state.values.get("messages", [])],
    }


def story(saver: Any, kind: str, prune: Callable[[], object], others: Callable[[], Any]) -> list[Any]:
    """The states of a thread in every checkpoint after nodes changed what they do not return."""
    between = prune if kind == "pruned" else lambda: None
    graph = spoiling(saver, between=between, nested=kind == "subgraph")
    at: Any = {"configurable": {"thread_id": "t"}}
    mode = "exit" if kind == "exit" else "sync"
    graph.invoke(given(), at, durability=mode)
    if kind in ("second", "pruned", "subgraph", "exit"):
        graph.invoke({"other": 5}, at, durability=mode)
    elif kind == "fork":
        old = list(graph.get_state_history(at))[2]
        graph.invoke(None, old.config, durability=mode)
        graph.update_state(old.config, {"other": 7}, as_node="two")
    elif kind == "copy":
        head = graph.get_state(at)
        spoil(head.values, "copy")
        graph.update_state(head.config, None, as_node="__copy__")
    elif kind == "update":
        graph.update_state(at, {"other": 8}, as_node="two")
        graph.invoke(None, at, durability=mode)
    elif kind == "other process":
        stored = graph.get_state(at).config
        graph.checkpointer = others()
        graph.update_state(stored, {"other": 8}, as_node="two")
        graph.checkpointer = saver
        graph.invoke(None, at, durability=mode)
    graph.checkpointer = others()
    states = [plain(state) for state in graph.get_state_history(at)]
    if kind == "subgraph":
        deep = graph.get_state(at, subgraphs=True)
        states += [plain(task.state) for task in deep.tasks if task.state is not None]
    return states[:1] if kind == "pruned" else states


KINDS = ["first", "second", "fork", "copy", "update", "other process", "pruned", "subgraph", "exit"]


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{}/f.db"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_node_changes_and_does_not_return_keeps_its_stored_value(
    tmp_path: Path, url: str, kind: str
) -> None:
    stock = InMemorySaver()
    wanted = story(stock, kind, lambda: None, lambda: stock)
    with perdure.connect_sync(url.format(tmp_path), migrate=True) as db:
        others = db.checkpointer
        found = story(db.checkpointer(), kind, lambda: others().prune(["t"]), others)
    assert found == wanted
    # One put at the end stores what is there then; a subgraph's whole state is its node's result.
    assert ("changed" in wanted[0]["facts"]) == (kind in ("exit", "subgraph"))


def test_a_put_on_what_another_process_stored_keeps_its_references(db: Any) -> None:
    """The parent's record is looked up where this process has not loaded it."""
    facts: dict[str, Any] = {"a": 1}
    at = put(db.checkpointer(), {"facts": facts}, name="c1")
    facts["a"] = 2
    saver = db.checkpointer()
    checkpoint: Any = {
        "v": 1, "id": "c2", "ts": "", "channel_values": {"facts": facts, "new": facts},
        "channel_versions": {"facts": 1, "new": 1}, "versions_seen": {}, "updated_channels": None,
    }  # fmt: skip
    of_a_run: Any = {"configurable": {**at["configurable"], "__pregel_runtime": None}}
    saver.put(of_a_run, checkpoint, {"source": "loop", "step": 2, "parents": {}}, {"new": 1})
    assert values(db) == {"facts": {"a": 1}, "new": {"a": 2}}


def test_what_has_no_stored_value_is_stored_as_it_is(db: Any) -> None:
    checkpoint: Any = {
        "v": 1, "id": "c2", "ts": "", "channel_values": {"facts": {"a": 2}},
        "channel_versions": {"facts": 2}, "versions_seen": {}, "updated_channels": None,
    }  # fmt: skip
    at = put(db.checkpointer(), {"facts": {"a": 1}}, name="c1")
    db.checkpointer().put(at, checkpoint, {"source": "loop", "step": 2, "parents": {}}, {})
    assert values(db) == {"facts": {"a": 2}}


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("when", [Fetch, Commit], ids=["before it is planned", "before it is planned again"])
def test_what_is_stored_is_what_was_handed_in(when: type[Any], is_async: bool) -> None:
    """However long the put reads, or has to begin again: a node may change its state in the meantime."""
    facts: list[Any] = ["kept", {"is": "kept"}]
    note: dict[str, Any] = {"is": "kept"}
    moments: list[Effect[Any]] = []
    armed: list[bool] = []
    inner: list[Driver] = []

    def meanwhile(_: int, effect: Effect[Any]) -> None:
        if isinstance(effect, when) and armed and not moments:
            moments.append(effect)
            facts[1]["is"] = note["is"] = "changed"
            facts.append("new")
            if when is Commit:
                generation = Put(GC, (), version=1 << 40)
                assert inner[0].perform(Commit(effect.partition, (generation,))) == Committed()

    def wrap(driver: Driver) -> Driver:
        inner.append(driver)
        return FaultyDriver(driver, on_effect=meanwhile)

    with closing(open_database("memory://", migrate=True, wrap=wrap)) as database:
        saver = database.checkpointer()
        at = put(saver, {"facts": ["first"], "note": None}) if when is Commit else config()
        armed.append(True)
        checkpoint: Any = {**empty_checkpoint(), "channel_values": {"facts": facts, "note": note}}
        checkpoint["channel_versions"] = versions = {"facts": "2", "note": "2"}
        given: Any = (at, checkpoint, {"source": "loop", "step": 2, "parents": {}}, versions)
        stored = asyncio.run(saver.aput(*given)) if is_async else saver.put(*given)
        assert moments
        read = database.checkpointer().get_tuple(stored)
        assert read is not None
        assert read.checkpoint["channel_values"] == {
            "facts": ["kept", {"is": "kept"}],
            "note": {"is": "kept"},
        }


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_writes_are_stored_as_they_were_handed_in(is_async: bool) -> None:
    note: dict[str, Any] = {"is": "kept"}
    moments: list[Effect[Any]] = []
    armed: list[bool] = []

    def meanwhile(_: int, effect: Effect[Any]) -> None:
        if isinstance(effect, Fetch) and armed:
            moments.append(effect)
            note["is"] = "changed"

    def wrap(driver: Driver) -> Driver:
        return FaultyDriver(driver, on_effect=meanwhile)

    with closing(open_database("memory://", migrate=True, wrap=wrap)) as database:
        at = put(database.checkpointer(), {"note": None})
        armed.append(True)
        saver = database.checkpointer()
        given: Any = (at, [("note", note), ("notes", [note])], "task")
        asyncio.run(saver.aput_writes(*given)) if is_async else saver.put_writes(*given)
        assert moments
        read = database.checkpointer().get_tuple(at)
        assert read is not None
        assert read.pending_writes is not None
        assert [value for _, _, value in read.pending_writes] == [{"is": "kept"}, [{"is": "kept"}]]


class Facts(TypedDict):
    facts: Any
    other: int


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{}/f.db"])
def test_with_sync_durability_a_step_is_stored_before_the_next_node_changes_it(
    tmp_path: Path, url: str
) -> None:
    async def make(state: Any) -> Any:
        return {"facts": {"k": ["made"]}}

    async def change(state: Any) -> Any:
        state["facts"]["k"][0] = "changed"
        return {"other": 1}

    async def body() -> list[Any]:
        async with perdure.connect(url.format(tmp_path), migrate=True) as db:
            builder: Any = StateGraph(Facts)
            builder.add_node("make", make).add_node("change", change)
            builder.add_edge(START, "make").add_edge("make", "change")
            graph = builder.compile(checkpointer=db.checkpointer())
            at: Any = {"configurable": {"thread_id": "t"}}
            await graph.ainvoke({"other": 0}, at, durability="sync")
            return [state.values.get("facts") async for state in graph.aget_state_history(at)][:2]

    assert asyncio.run(body()) == [{"k": ["made"]}] * 2
