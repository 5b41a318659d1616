"""Whole states through a saver: what is loaded is what was put, whatever a caller does to it."""

from __future__ import annotations

import operator
import random
import warnings
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph
from langgraph.types import Send
from typing_extensions import TypedDict

import perdure
from perdure.database.opening import open_database
from perdure.errors import Unserialisable
from perdure.storage.port import CommitLimits
from perdure.testing.conformance.backend import Narrow
from tests.langgraph.savers import DRIVERS, opened
from tests.langgraph.specimens import LISTS, OBJECTS, OWN, VALUES, change, likeness

STOCK = JsonPlusSerializer(allowed_msgpack_modules=OWN)
STATES = st.fixed_dictionaries(
    {
        "messages": LISTS,
        "other": VALUES,
        "inner": st.fixed_dictionaries({"messages": LISTS, "facts": OBJECTS}),
    }
)
QUICK = settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
SEEDS = st.integers(0, 2**32)


def stock(value: Any) -> Any:
    """The value as the stock serializer would hand it back: the model of what is stored."""
    return STOCK.loads_typed(STOCK.dumps_typed(value))


def config(thread: str, **more: Any) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": "", **more}}


def put(saver: perdure.PerdureSaver, at: Any, values: dict[str, Any], step: int) -> Any:
    """Store values under a new version each; the config to put the next on."""
    versions: ChannelVersions = dict.fromkeys(values, step)
    checkpoint: Checkpoint = {
        **empty_checkpoint(),
        "id": f"{step:06d}",
        "channel_values": values,
        "channel_versions": versions,
    }
    stored = saver.put(at, checkpoint, {"source": "loop", "step": step, "parents": {}}, versions)
    return {"configurable": {**at["configurable"], **stored["configurable"]}}


def load(saver: perdure.PerdureSaver, thread: str, **more: Any) -> Any:
    found = saver.get_tuple(config(thread, **more))
    assert found is not None
    return found


def values_of(saver: perdure.PerdureSaver, thread: str) -> Any:
    return load(saver, thread).checkpoint["channel_values"]


@pytest.fixture(scope="module", params=DRIVERS)
def db(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("values")
    with opened(request.param, folder) as database:
        yield database


_threads = iter(range(10**9))


def new_thread() -> str:
    return f"t{next(_threads)}"


@QUICK
@given(state=STATES)
def test_cold_and_warm_reads_give_what_the_stock_saver_would(db: perdure.SyncDatabase, state: Any) -> None:
    thread, warm = new_thread(), db.checkpointer(allow=OWN)
    put(warm, config(thread), state, 1)
    wanted = {name: likeness(stock(value)) for name, value in state.items()}
    cold = db.checkpointer(allow=OWN)
    for saver in (warm, warm, cold, cold, warm):
        found = values_of(saver, thread)
        assert {name: likeness(value) for name, value in found.items()} == wanted
    (listed,) = cold.list(config(thread))
    assert {n: likeness(v) for n, v in listed.checkpoint["channel_values"].items()} == wanted


@QUICK
@given(state=STATES, seed=SEEDS)
def test_what_a_caller_does_to_a_loaded_value_stays_with_the_caller(
    db: perdure.SyncDatabase, state: Any, seed: int
) -> None:
    rng, thread, warm = random.Random(seed), new_thread(), db.checkpointer(allow=OWN)
    put(warm, config(thread), state, 1)
    wanted = {name: likeness(stock(value)) for name, value in state.items()}
    for _ in range(4):
        found = values_of(warm, thread)
        assert {name: likeness(value) for name, value in found.items()} == wanted
        for _ in range(rng.randrange(1, 6)):
            change(found, rng)
    cold = values_of(db.checkpointer(allow=OWN), thread)
    assert {name: likeness(value) for name, value in cold.items()} == wanted


@QUICK
@given(state=STATES, seed=SEEDS, steps=st.integers(1, 5))
def test_a_change_made_before_a_put_is_stored(
    db: perdure.SyncDatabase, state: Any, seed: int, steps: int
) -> None:
    """Objects that were loaded or put before are changed in place, moved and doubled; each put says so."""
    rng, thread, warm = random.Random(seed), new_thread(), db.checkpointer(allow=OWN)
    at = put(warm, config(thread), state, 1)
    live: Any = state
    for step in range(2, 2 + steps):
        if rng.random() < 0.4:
            found = load(warm, thread)
            live, at = found.checkpoint["channel_values"], found.config
        if rng.random() < 0.3:
            warm.put_writes(at, [("messages", live["messages"])], f"task{step}")
        for _ in range(rng.randrange(4)):
            change(live if rng.random() < 0.2 else live.setdefault("messages", []), rng)
        live.setdefault("messages", [])
        if rng.random() < 0.3:
            live["messages"] = [*(live["messages"] or []), HumanMessage("more", id=str(step))]
        try:
            # The stock saver keeps no type of what is inside a model that was changed to something invalid.
            wanted = {name: (likeness(stock(value)), likeness(value)) for name, value in live.items()}
        except TypeError:
            # Too deep for the stock saver, which packs whole values; elements may be a bit deeper.
            try:
                put(warm, at, live, step)
            except perdure.PerdureError:
                return
            assert values_of(db.checkpointer(allow=OWN), thread).keys() == live.keys()
            return
        at = put(warm, at, live, step)
        for saver in (db.checkpointer(allow=OWN), warm) if rng.random() < 0.5 else ():
            got = saver.get_tuple(config(thread, checkpoint_id=at["configurable"]["checkpoint_id"]))
            assert got is not None
            assert is_one_of(got.checkpoint["channel_values"], wanted)
    cold = values_of(db.checkpointer(allow=OWN), thread)
    assert is_one_of(cold, wanted)


def is_one_of(values: dict[str, Any], wanted: dict[str, tuple[Any, ...]]) -> bool:
    """Whether each value is like one of those that are wanted for its name."""
    return values.keys() == wanted.keys() and all(likeness(v) in wanted[n] for n, v in values.items())


@QUICK
@given(written=LISTS, seed=SEEDS)
def test_pending_writes_give_what_was_written(
    db: perdure.SyncDatabase, written: list[Any], seed: int
) -> None:
    rng, thread, warm = random.Random(seed), new_thread(), db.checkpointer(allow=OWN)
    at = put(warm, config(thread), {"messages": written}, 1)
    wanted = [likeness(stock(written)), *(likeness(stock(value)) for value in written)]
    warm.put_writes(at, [("messages", written), *(("one", value) for value in written)], "task")
    change(written, rng)
    for saver in (warm, db.checkpointer(allow=OWN)):
        writes = load(saver, thread).pending_writes
        assert [likeness(value) for _, _, value in writes] == wanted
        change(writes[0][2], rng)


# Changes that a quick look at an element does not show.


def swap_items(left: dict[str, Any], right: dict[str, Any]) -> None:
    key, value = left.popitem()
    rest = dict(right)
    right.clear()
    right.update({key: value, **rest})


def replace_inside(message: Any) -> None:
    object.__setattr__(message, "__dict__", {**message.__dict__, "content": "other"})


def other_class(message: Any) -> None:
    message.__class__ = AIMessage
    message.__dict__.update(type="ai", tool_calls=[], invalid_tool_calls=[], usage_metadata=None)


MESSAGE_CHANGES: dict[str, Any] = {
    "content": lambda m: setattr(m, "content", "other"),
    "content in place": lambda m: m.content.append("more"),
    "deep metadata": lambda m: m.response_metadata["a"]["b"].append(2),
    "equal and not the same": lambda m: m.response_metadata["a"].update(n=True),
    "an empty dict filled": lambda m: m.additional_kwargs.update(x=1),
    "an extra": lambda m: setattr(m, "odd", 1),
    "__dict__ replaced": replace_inside,
    "an item put last": lambda m: m.response_metadata.update(a=m.response_metadata.pop("a")),
    "a key of another type": lambda m: m.response_metadata.update({1: m.response_metadata.pop("one")}),
    "the class": other_class,
    "the class alone": lambda m: setattr(m, "__class__", SystemMessage),
}


@pytest.mark.parametrize("loaded", [True, False], ids=["loaded", "put"])
@pytest.mark.parametrize("name", MESSAGE_CHANGES)
def test_a_message_changed_in_place_is_stored_as_it_is_now(
    db: perdure.SyncDatabase, name: str, loaded: bool
) -> None:
    thread, warm = new_thread(), db.checkpointer()
    meta = {"a": {"b": [1], "n": 1}, "one": 1, "last": 0}
    messages = [
        HumanMessage(["x"], id=str(i), response_metadata={**meta, "a": {"b": [1], "n": 1}}) for i in range(3)
    ]
    at = put(warm, config(thread), {"messages": messages}, 1)
    if loaded:
        found = load(warm, thread)
        messages, at = found.checkpoint["channel_values"]["messages"], found.config
    MESSAGE_CHANGES[name](messages[1])
    wanted = likeness(stock(messages))
    put(warm, at, {"messages": messages}, 2)
    assert likeness(values_of(db.checkpointer(), thread)["messages"]) == wanted
    assert likeness(values_of(warm, thread)["messages"]) == wanted


@pytest.mark.parametrize("loaded", [True, False], ids=["loaded", "put"])
@pytest.mark.parametrize("left", [{"a": 1, "b": 2}, {"b": 2}, {"b": [1]}])
@pytest.mark.parametrize("right", [{"c": 3}, {}])
def test_an_item_that_wanders_to_the_next_element_is_seen(
    db: perdure.SyncDatabase, left: dict[str, Any], right: dict[str, Any], loaded: bool
) -> None:
    thread, warm = new_thread(), db.checkpointer()
    documents = [dict(left), dict(right)]
    at = put(warm, config(thread), {"documents": documents}, 1)
    if loaded:
        found = load(warm, thread)
        documents, at = found.checkpoint["channel_values"]["documents"], found.config
    swap_items(*documents)
    wanted = likeness(documents)
    put(warm, at, {"documents": documents}, 2)
    assert likeness(values_of(db.checkpointer(), thread)["documents"]) == wanted
    assert likeness(values_of(warm, thread)["documents"]) == wanted


def test_one_object_in_many_places_is_stored_in_all_and_loaded_apart(db: perdure.SyncDatabase) -> None:
    thread, warm = new_thread(), db.checkpointer()
    shared: dict[str, Any] = {"list": [1]}
    message = HumanMessage("x", id="1", additional_kwargs=shared)
    elements = [message, message, {"in": shared}, shared]
    at = put(warm, config(thread), {"elements": elements, "again": elements}, 1)
    shared["list"].append(2)
    put(warm, at, {"elements": [*elements, message], "again": elements}, 2)
    for saver in (db.checkpointer(), warm):
        values_of(saver, thread)
        found, other = values_of(saver, thread), values_of(saver, thread)
        assert likeness(found["elements"]) == likeness(stock([*elements, message]))
        found["elements"][0].additional_kwargs["list"].append(3)
        assert found["elements"][1].additional_kwargs["list"] == [1, 2]
        assert found["again"][0].additional_kwargs["list"] == [1, 2]
        assert likeness(other["elements"]) == likeness(stock([*elements, message]))
        found["elements"][2]["in"]["list"].append(4)
        assert likeness(values_of(saver, thread)["elements"]) == likeness(stock([*elements, message]))


def test_the_fields_that_a_caller_marks_as_set_stay_with_the_caller(db: perdure.SyncDatabase) -> None:
    thread, warm = new_thread(), db.checkpointer()
    put(warm, config(thread), {"messages": [HumanMessage("x", id="1")]}, 1)
    wanted = likeness(values_of(warm, thread))
    values_of(warm, thread)["messages"][0].model_fields_set.clear()
    assert likeness(values_of(warm, thread)) == wanted


def test_a_thread_made_again_does_not_believe_what_its_predecessor_stored(db: perdure.SyncDatabase) -> None:
    """Two processes share a thread; one deletes it, and the other remembers its chunks."""
    thread, mine, theirs = new_thread(), db.checkpointer(), db.checkpointer()
    state = {"messages": [HumanMessage("long enough for a chunk " * 9, id="1")], "text": "and this " * 30}
    put(mine, config(thread), state, 1)
    theirs.delete_thread(thread)
    put(mine, config(thread), state, 2)
    assert likeness(values_of(db.checkpointer(), thread)) == likeness(stock(state))


@pytest.mark.parametrize(
    "value",
    [{"\ud800": 1}, {"a": {"\ud800": 1}}, [{"\ud800": "x" * 5000}], {"a" * 5000: {"\ud800": "x" * 5000}}],
)
def test_a_key_that_would_not_come_back_is_refused_before_it_is_stored(
    db: perdure.SyncDatabase, value: Any
) -> None:
    thread, saver = new_thread(), db.checkpointer()
    with pytest.raises(Unserialisable, match=f"{thread}.*surrogate"):
        put(saver, config(thread), {"state": value}, 1)
    assert saver.get_tuple(config(thread)) is None


def test_a_huge_key_comes_back(db: perdure.SyncDatabase) -> None:
    thread, value = new_thread(), {"k" * 700_000: 1, "state": {"l" * 300_000: ["x"]}}
    put(db.checkpointer(), config(thread), {"state": value}, 1)
    assert values_of(db.checkpointer(), thread) == {"state": value}


def test_a_message_that_would_not_pass_validation_comes_back_as_from_the_stock_saver(
    db: perdure.SyncDatabase,
) -> None:
    """Fields that were set after validation must not make the thread unreadable."""
    thread = new_thread()
    message = AIMessage("x", id="1")
    message.__dict__["invalid_tool_calls"] = [
        {"name": None, "args": None, "id": None, "error": None, "odd": 1},
        "x",
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pydantic says that the field holds what it ought not to
        wanted = likeness(stock([message]))
        put(db.checkpointer(), config(thread), {"messages": [message]}, 1)
    assert likeness(values_of(db.checkpointer(), thread)["messages"]) == wanted


def test_writes_on_a_thread_made_again_bring_their_chunks(db: perdure.SyncDatabase) -> None:
    thread, mine, theirs = new_thread(), db.checkpointer(), db.checkpointer()
    state = {"messages": [HumanMessage("long enough for a chunk " * 9, id="1")]}
    at = put(mine, config(thread), state, 1)
    theirs.delete_thread(thread)
    mine.put_writes(at, [("messages", state["messages"])], "task")
    put(theirs, config(thread), {"messages": []}, 1)
    ((_, _, value),) = load(db.checkpointer(), thread).pending_writes
    assert likeness(value) == likeness(stock(state["messages"]))


class Given(TypedDict, total=False):
    pages: list[Any]
    read: Annotated[list[str], operator.add]


def test_a_step_that_fills_a_commit_needs_no_room_for_proofs() -> None:
    pages = [{"page": n, "text": f"page {n} " * 40} for n in range(3)]
    graph = StateGraph(Given)
    graph.add_node("collect", lambda state: {"pages": pages})
    graph.add_node("read", lambda state: {"read": ["one page"]})
    graph.add_edge(START, "collect")
    graph.add_conditional_edges("collect", lambda _: [Send("read", {"pages": pages})] * 92, ["read"])
    with closing(
        open_database("memory://", wrap=lambda driver: Narrow(driver, CommitLimits(100, 1 << 20)))
    ) as db:
        runnable = graph.compile(checkpointer=db.checkpointer())
        at: RunnableConfig = {"configurable": {"thread_id": "t"}}
        for turn in (1, 2):
            state = runnable.invoke({"pages": pages}, at, durability="sync")
            assert len(state["read"]) == 92 * turn
