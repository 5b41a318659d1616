"""Migration of what is more than a channel: types, subgraphs that wait, DeltaChannels, pinned threads."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import Checkpoint
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from pydantic import BaseModel, ValidationError
from typing_extensions import TypedDict

import perdure
from perdure.database.base import handle_of
from perdure.engine.threads import schema_pin
from perdure.errors import Conflict, MigrationFailed, NotFound, ThreadPinned
from perdure.model.records import Partition
from perdure.schema import Schema, convert, rename_channel, rename_node, rename_type
from perdure.schema.steps import Step
from tests.langgraph.savers import opened

CONFIG: RunnableConfig = {"configurable": {"thread_id": "t"}}


@pytest.fixture
def db(tmp_path: Path) -> Any:
    with opened("memory", tmp_path) as database:
        yield database


class Words(TypedDict, total=False):
    said: str
    done: int


def nested(db: perdure.SyncDatabase, schema: Schema | None, *, is_kept: bool, names: tuple[str, str]) -> Any:
    """A graph whose subgraph counts a step, then asks; ``names`` are those of the node and the inner one."""
    steps: list[str] = []

    def count(state: Words) -> Words:
        steps.append("count")
        return {"done": state.get("done", 0) + 1}

    def ask(state: Words) -> Words:
        return {"said": interrupt("why?")}

    outer, inner = names
    within = StateGraph(Words).add_node("count", count).add_node(inner, ask)
    within.add_edge(START, "count").add_edge("count", inner)
    builder = StateGraph(Words).add_node(outer, within.compile(checkpointer=True if is_kept else None))
    builder.add_edge(START, outer)
    graph = builder.compile(checkpointer=db.checkpointer(schema=schema))
    graph.__dict__["steps_taken"] = steps
    return graph


@pytest.mark.parametrize("is_kept", [False, True], ids=["per-run", "kept"])
@pytest.mark.parametrize("names", [("worker", "ask"), ("agent", "ask"), ("worker", "inquire")], ids=str)
@pytest.mark.parametrize("by_id", [False, True], ids=["value", "id"])
@pytest.mark.parametrize("is_cold", [False, True], ids=["warm", "cold"])
def test_an_answer_arrives_in_a_subgraph_of_a_renamed_node(
    db: perdure.SyncDatabase, is_kept: bool, names: tuple[str, str], by_id: bool, is_cold: bool
) -> None:
    before = nested(db, None, is_kept=is_kept, names=("agent", "inquire"))
    before.invoke({"said": ""}, CONFIG)
    renames = [("agent", names[0]), ("inquire", names[1])]
    schema = Schema(2, [rename_node(2, old, new) for old, new in renames if old != new])
    graph = nested(db, schema, is_kept=is_kept, names=names)
    state = graph.get_state(CONFIG, subgraphs=True)
    assert state.next == (names[0],)
    assert state.tasks[0].state.next == (names[1],)
    (asked,) = state.interrupts
    assert asked.value == "why?"
    if is_cold:
        graph = nested(db, schema, is_kept=is_kept, names=names)
    answer: Any = {asked.id: "so"} if by_id else "so"
    assert graph.invoke(Command(resume=answer), CONFIG) == {"said": "so", "done": 1}
    # The step that the subgraph had taken is not taken again.
    assert graph.__dict__["steps_taken"] == []
    assert graph.get_state(CONFIG).next == ()
    after = graph.invoke({"said": "again"}, CONFIG)
    assert after["__interrupt__"][0].value == "why?"
    assert graph.invoke(Command(resume="then"), CONFIG)["done"] == 2
    assert db.fsck("t") == []


class Memory(TypedDict, total=False):
    said: str
    heard: Annotated[list[str], operator.add]


def listeners(db: perdure.SyncDatabase, schema: Schema | None, **names: str) -> Any:
    """A graph of subgraphs that remember what each was given, by node: each notes it with its own mark."""
    builder = StateGraph(Words)
    last = START
    for node, mark in names.items():

        def listen(state: Memory, mark: str = mark) -> Memory:
            return {"heard": [f"{mark}:{state['said']}"]}

        within = StateGraph(Memory).add_node("listen", listen).add_edge(START, "listen")
        builder.add_node(node, within.compile(checkpointer=True))
        builder.add_edge(last, node)
        last = node
    return builder.compile(checkpointer=db.checkpointer(schema=schema))


def memory_of(graph: Any, node: str, thread_id: str = "t") -> list[str]:
    """What a subgraph remembers of earlier runs."""
    found = graph.checkpointer.get_tuple({"configurable": {"thread_id": thread_id, "checkpoint_ns": node}})
    return [] if found is None else found.checkpoint["channel_values"].get("heard", [])


@pytest.mark.parametrize("is_cold", [False, True], ids=["warm", "cold"])
def test_subgraphs_that_swap_names_keep_their_own_memory(db: perdure.SyncDatabase, is_cold: bool) -> None:
    listeners(db, None, a="A", b="B").invoke({"said": "1"}, CONFIG)
    swap = [rename_node(2, "a", "x"), rename_node(2, "b", "a"), rename_node(2, "x", "b")]
    schema = Schema(2, swap)
    graph = listeners(db, schema, a="B", b="A")
    assert (memory_of(graph, "a"), memory_of(graph, "b")) == (["B:1"], ["A:1"])
    graph.invoke({"said": "2"}, CONFIG)
    if is_cold:
        graph = listeners(db, schema, a="B", b="A")
    assert (memory_of(graph, "a"), memory_of(graph, "b")) == (["B:1", "B:2"], ["A:1", "A:2"])
    # In a thread that began later too.
    other: RunnableConfig = {"configurable": {"thread_id": "t2"}}
    graph.invoke({"said": "3"}, other)
    graph.invoke({"said": "4"}, other)
    assert memory_of(graph, "a", "t2") == ["B:3", "B:4"]
    assert db.fsck("t") == []


def test_a_new_node_does_not_find_the_memory_of_one_that_had_its_name(db: perdure.SyncDatabase) -> None:
    listeners(db, None, a="A").invoke({"said": "1"}, CONFIG)
    schema = Schema(3, [rename_node(2, "a", "b")])
    graph = listeners(db, schema, a="N", b="A")
    assert memory_of(graph, "a") == []
    graph.invoke({"said": "2"}, CONFIG)
    again = listeners(db, schema, a="N", b="A")
    assert (memory_of(again, "a"), memory_of(again, "b")) == (["N:2"], ["A:1", "A:2"])
    stored = {each.config["configurable"]["checkpoint_ns"] for each in again.checkpointer.list(CONFIG)}
    assert stored == {"", "a", "b"}
    assert db.fsck("t") == []


@dataclass
class Order:
    item: str


def test_a_value_of_a_renamed_type_is_found(db: perdure.SyncDatabase) -> None:
    class Cart(TypedDict, total=False):
        orders: list[Any]
        note: str

    def graph(schema: Schema | None) -> Any:
        builder = StateGraph(Cart).add_node("n", lambda _: {"note": "n"}).add_edge(START, "n")
        return builder.compile(checkpointer=db.checkpointer(schema=schema))

    module = ModuleType("shop_of_yesterday")
    old_type: Any = dataclass(
        type("Purchase", (), {"__annotations__": {"item": str}, "__module__": module.__name__})
    )
    module.__dict__["Purchase"] = old_type
    sys.modules[module.__name__] = module
    try:
        graph(None).invoke({"orders": [old_type("tea")]}, CONFIG)
    finally:
        del sys.modules[module.__name__]
    with pytest.raises(perdure.TypeNotFound):
        graph(None).get_state(CONFIG)
    present = f"{__name__}.Order"
    new = graph(Schema(2, [rename_type(2, "shop_of_yesterday.Purchase", present)]))
    assert new.get_state(CONFIG).values["orders"] == [Order("tea")]
    new.invoke({"note": "m"}, CONFIG)
    # What the new version left as it was is still found after that.
    cold = graph(Schema(2, [rename_type(2, "shop_of_yesterday.Purchase", present)]))
    assert cold.get_state(CONFIG).values["orders"] == [Order("tea")]
    steps: list[Step] = [
        rename_type(3, "shop_of_yesterday.Purchase", present),
        convert(3, "orders", lambda o: o),
    ]
    plain = graph(Schema(3, steps))
    assert plain.get_state(CONFIG).values["orders"] == [{"item": "tea"}]


def joined(held: list[str], updates: Sequence[Any]) -> list[str]:
    return [*held, *(word for update in updates for word in update)]


def talk(db: perdure.SyncDatabase, channel: str, schema: Schema | None = None, every: int = 1000) -> Any:
    reducer = DeltaChannel(joined, list, snapshot_frequency=every)
    state = TypedDict("state", {channel: Annotated[list[str], reducer], "n": int}, total=False)  # type: ignore[misc]

    def node(held: Any) -> Any:
        return {channel: [f"re {held[channel][-1]}"], "n": held.get("n", 0) + 1}

    builder: Any = StateGraph(state)
    builder.add_node("node", node).add_edge(START, "node")
    return builder.compile(checkpointer=db.checkpointer(schema=schema))


@pytest.mark.parametrize("every", [1000, 2])
@pytest.mark.parametrize("is_pruned", [False, True])
def test_a_delta_channel_is_replayed_across_versions(
    db: perdure.SyncDatabase, every: int, is_pruned: bool
) -> None:
    old = talk(db, "lines", every=every)
    for word in ("a", "b"):
        old.invoke({"lines": [word]}, CONFIG)
    schema = Schema(
        3, [rename_channel(2, "lines", "words"), convert(3, "words", lambda ws: [w.upper() for w in ws])]
    )
    graph = talk(db, "words", schema, every)
    migrated = ["A", "RE A", "B", "RE B"]
    assert graph.get_state(CONFIG).values["words"] == migrated
    histories = [s.values.get("words") for s in graph.get_state_history(CONFIG)]
    assert migrated[:2] in histories
    for word in ("c", "d"):
        graph.invoke({"words": [word]}, CONFIG)
    if is_pruned:
        graph.checkpointer.prune(["t"])
    cold = talk(db, "words", schema, every)
    assert cold.get_state(CONFIG).values["words"] == [*migrated, "c", "re c", "d", "re d"]
    assert db.fsck("t") == []


def test_a_pinned_thread_is_not_migrated(db: perdure.SyncDatabase) -> None:
    old = talk(db, "lines")
    old.invoke({"lines": ["a"]}, CONFIG)
    schema = Schema(2, [rename_channel(2, "lines", "words")])
    handle_of(db).run(schema_pin.pin(Partition("", "t"), 1, now=1))
    before = db.digest("t")
    graph = talk(db, "words", schema)
    calls: list[Callable[[], Any]] = [
        lambda: graph.get_state(CONFIG),
        lambda: graph.invoke({"words": ["b"]}, CONFIG),
    ]
    for refused in calls:
        with pytest.raises(ThreadPinned, match="version 1"):
            refused()
    assert db.digest("t") == before
    assert talk(db, "lines", schema.at(1)).invoke({"lines": ["b"]}, CONFIG)["n"] == 2
    handle_of(db).run(schema_pin.pin(Partition("", "t"), None, now=2))
    assert graph.invoke({"words": ["c"]}, CONFIG)["words"] == ["a", "re a", "b", "re b", "c", "re c"]
    with pytest.raises(NotFound):
        handle_of(db).run(schema_pin.pin(Partition("", "none"), 1, now=1))


def test_a_copy_of_a_pinned_thread_is_pinned(db: perdure.SyncDatabase) -> None:
    talk(db, "lines").invoke({"lines": ["a"]}, CONFIG)
    handle_of(db).run(schema_pin.pin(Partition("", "t"), 1, now=1))
    db.checkpointer().copy_thread("t", "copy")
    handle_of(db).run(schema_pin.pin(Partition("", "t"), None, now=2))
    graph = talk(db, "words", Schema(2, [rename_channel(2, "lines", "words")]))
    there: Any = {"configurable": {"thread_id": "copy"}}
    with pytest.raises(ThreadPinned, match="thread 'copy' is pinned to schema version 1"):
        graph.invoke({"words": ["b"]}, there)
    handle_of(db).run(schema_pin.pin(Partition("", "copy"), None, now=3))
    assert graph.invoke({"words": ["b"]}, there)["words"] == ["a", "re a", "b", "re b"]
    db.checkpointer().copy_thread("t", "second")
    assert handle_of(db).run(schema_pin.read_pin(Partition("", "second"))) is None
    assert db.fsck("copy") == []


def test_a_pin_set_meanwhile_stops_a_run_that_would_migrate(db: perdure.SyncDatabase) -> None:
    talk(db, "lines").invoke({"lines": ["a"]}, CONFIG)
    saver = db.checkpointer(schema=Schema(2))
    found = saver.get_tuple(CONFIG)
    assert found is not None
    handle_of(db).run(schema_pin.pin(Partition("", "t"), 1, now=1))
    checkpoint: Checkpoint = {**found.checkpoint, "id": "1f000000-0000-6000-8000-000000000000"}
    with pytest.raises(ThreadPinned):
        saver.put(found.config, checkpoint, {"source": "loop", "step": 9}, {})


def test_a_step_that_fails_names_itself_and_changes_nothing(db: perdure.SyncDatabase) -> None:
    talk(db, "lines").invoke({"lines": ["secret text"]}, CONFIG)
    before = db.digest("t")
    graph = talk(db, "lines", Schema(2, [convert(2, "lines", lambda _: 1 / 0)]))
    with pytest.raises(
        MigrationFailed, match=r"thread 't'.*convert\(2, 'lines'\).*ZeroDivisionError"
    ) as caught:
        graph.invoke({"lines": ["x"]}, CONFIG)
    assert "secret" not in str(caught.value)
    assert db.digest("t") == before


def test_a_step_that_changes_its_argument_and_returns_nothing_is_refused(db: perdure.SyncDatabase) -> None:
    talk(db, "lines").invoke({"lines": ["tea"]}, CONFIG)
    before = db.digest("t")

    def in_place(value: list[str]) -> None:
        value.append("more")

    graph = talk(db, "lines", Schema(2, [convert(2, "lines", in_place)]))
    with pytest.raises(MigrationFailed, match=r"convert\(2, 'lines'\).*returned None.*allow_none=True"):
        graph.get_state(CONFIG)
    with pytest.raises(MigrationFailed, match="returned None"):
        graph.invoke({"lines": ["x"]}, CONFIG)
    assert db.digest("t") == before


def test_a_step_may_return_none_on_purpose(db: perdure.SyncDatabase) -> None:
    class Note(TypedDict, total=False):
        text: str | None

    def graph(schema: Schema | None) -> Any:
        builder = StateGraph(Note).add_node("n", lambda _: {}).add_edge(START, "n")
        return builder.compile(checkpointer=db.checkpointer(schema=schema))

    graph(None).invoke({"text": "-"}, CONFIG)
    step = convert(2, "text", lambda text: None if text == "-" else text, allow_none=True)
    assert graph(Schema(2, [step])).get_state(CONFIG).values == {"text": None}


class Order1(BaseModel):
    items: list[str] = []
    total: str = "0"


class Order2(BaseModel):
    items: dict[str, int] = {}
    total: int = 0


def test_a_pydantic_state_whose_fields_change_goes_on(db: perdure.SyncDatabase) -> None:
    def graph(state: Any, schema: Schema | None = None) -> Any:
        builder = StateGraph(state).add_node("n", lambda held: {"total": held.total}).add_edge(START, "n")
        return builder.compile(checkpointer=db.checkpointer(schema=schema))

    graph(Order1).invoke({"items": ["tea", "milk"], "total": "12"}, CONFIG)
    # Without a step every message raises, as with the stock savers.
    with pytest.raises(ValidationError):
        graph(Order2).invoke({}, CONFIG)
    steps = [convert(2, "items", lambda names: dict.fromkeys(names, 1)), convert(2, "total", int)]
    migrated = graph(Order2, Schema(2, steps))
    assert migrated.invoke({"items": {"tea": 2}}, CONFIG) == {"items": {"tea": 2}, "total": 12}


def test_an_input_that_was_accepted_before_a_deploy_runs_under_the_present_names(
    db: perdure.SyncDatabase,
) -> None:
    def failing(state: Words) -> Words:
        raise ConnectionError("no model")

    def fine(state: Any) -> Any:
        return {"done": len(state["heard"])}

    before = StateGraph(Words).add_node("n", failing).add_edge(START, "n")
    graph = before.compile(checkpointer=db.checkpointer(), interrupt_before=["n"])
    graph.invoke({"said": "hello"}, CONFIG, durability="sync")

    class Heard(TypedDict, total=False):
        heard: list[str]
        done: int

    after = StateGraph(Heard).add_node("m", fine).add_edge(START, "m")
    doubled = convert(2, "heard", lambda word: [word, word])
    steps: list[Step] = [rename_channel(2, "said", "heard"), doubled, rename_node(2, "n", "m")]
    new = after.compile(checkpointer=db.checkpointer(schema=Schema(2, steps)))
    first = list(new.get_state_history(CONFIG))[-1]
    # The oldest checkpoint holds the input itself.
    assert first.next == ("__start__",)
    assert new.invoke(None, CONFIG) == {"heard": ["hello", "hello"], "done": 2}
    assert new.invoke(None, first.config) == {"heard": ["hello", "hello"], "done": 2}
    assert db.fsck("t") == []


def test_a_thread_with_a_part_of_a_newer_step_is_not_pinned_below_it(db: perdure.SyncDatabase) -> None:
    talk(db, "lines").invoke({"lines": ["a"]}, CONFIG)
    saver = db.checkpointer(schema=Schema(2))
    found = saver.get_tuple(CONFIG)
    assert found is not None
    saver.put_writes(found.config, [("lines", ["half"])], "a task")
    for earlier in (None, 3):
        if earlier is not None:
            handle_of(db).run(schema_pin.pin(Partition("", "t"), earlier, now=1))
        with pytest.raises(Conflict, match="schema version 2; it was not pinned to version 1"):
            handle_of(db).run(schema_pin.pin(Partition("", "t"), 1, now=2))
        assert handle_of(db).run(schema_pin.read_pin(Partition("", "t"))) == earlier
    assert saver.get_tuple(CONFIG) is not None, "the newer version goes on"
    handle_of(db).run(schema_pin.pin(Partition("", "t"), 2, now=3))


def test_a_thread_is_not_pinned_below_the_version_that_has_stored_it(db: perdure.SyncDatabase) -> None:
    talk(db, "words", Schema(3)).invoke({"words": ["a"]}, CONFIG)
    for version in (1, 2):
        refused = f"at schema version 3, which version {version} cannot read; .* Pin it to version 3"
        with pytest.raises(Conflict, match=refused):
            handle_of(db).run(schema_pin.pin(Partition("", "t"), version, now=1))
    assert handle_of(db).run(schema_pin.read_pin(Partition("", "t"))) is None
    handle_of(db).run(schema_pin.pin(Partition("", "t"), 3, now=1))
    assert talk(db, "words", Schema(3)).invoke({"words": ["b"]}, CONFIG)["n"] == 2
