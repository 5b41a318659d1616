"""How large a run's state is: told by channel, a warning once a run for what is too large, and no value.

Covers perdure.runtime.state_sizes.
"""

from __future__ import annotations

import asyncio
import logging
import operator
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from prometheus_client import CollectorRegistry
from typing_extensions import TypedDict

from perdure.langgraph.values.serde import Serde
from perdure.runtime import Agent, Logs
from perdure.runtime.metrics import Metrics
from tests.runtime.graphs import Heard, Storage, go, settings, values, working

SECRET = "the-word-that-nobody-logs"
PAGE = SECRET + " " * 20_000


class Research(MessagesState):
    documents: Annotated[list[str], operator.add]
    notes: dict[str, str]


def find(state: Research) -> dict[str, Any]:
    return {"documents": [PAGE]}


def answer(state: Research) -> dict[str, Any]:
    return {"messages": [AIMessage("found it", id=f"a{len(state['messages'])}")], "notes": {"last": SECRET}}


def research() -> StateGraph[Any, Any, Any, Any]:
    """Every turn adds a document of 20 kB and clears none."""
    builder = StateGraph(Research)
    builder.add_node(find)
    builder.add_node(answer)
    builder.add_edge(START, "find")
    builder.add_edge("find", "answer")
    return builder


GRAPH = research().compile()


async def turns(storage: Storage, graph: Any, count: int, *observers: Any, **options: Any) -> None:
    options = {"settings": settings(**options)}
    async with working(storage.database(), graph, observers=observers, **options) as runtime:
        for number in range(count):
            run = await runtime.wait(await runtime.accept("ada", f"question {number} {SECRET}"))
            assert run.state == "done", run


def large(heard: Heard) -> list[tuple[str, int]]:
    return [
        (fields["channel"], fields["bytes"]) for name, fields in heard.events if name == "checkpoint.large"
    ]


def stored(heard: Heard) -> list[dict[str, Any]]:
    return [fields for name, fields in heard.events if name == "checkpoint.stored"]


def test_a_channel_that_grows_is_named_once_a_run(memory: Storage) -> None:
    heard = Heard()
    go(turns(memory, GRAPH, 4, heard))
    # The third run comes to it, and the fourth begins with it.
    assert [channel for channel, _ in large(heard)] == ["documents", "documents"]
    assert all(0 < size - 3 * len(PAGE) < 20 for _, size in large(heard))
    runs = {fields["run"] for name, fields in heard.events if name == "checkpoint.large"}
    assert len(runs) == 2


def test_a_small_state_warns_of_nothing(memory: Storage) -> None:
    heard = Heard()
    go(turns(memory, GRAPH, 2, heard))
    assert stored(heard)
    assert not large(heard)


def test_the_limit_is_a_setting(memory: Storage) -> None:
    heard = Heard()
    go(turns(memory, GRAPH, 1, heard, warn_bytes=1000))
    assert [channel for channel, _ in large(heard)] == ["documents"]
    with pytest.raises(ValueError, match="warn_bytes is 0; it has to be at least 1"):
        settings(warn_bytes=0)


@pytest.mark.parametrize("processes", [1, 3])
def test_sizes_are_those_of_the_serialised_values(processes: int, near: Storage) -> None:
    """Whatever was read, put, kept or copied before: the last event of each run is the state that is loaded
    then, packed by the serializer itself."""
    heard = Heard()

    async def main() -> None:
        for process in range(processes):
            async with working(near.database(), GRAPH, observers=[heard]) as runtime:
                for number in range(3):
                    await runtime.wait(await runtime.accept("ada", f"question {process} {number}"))
                    state = await values(near.database(), GRAPH, "ada")
                    channels = {name: len(Serde().pack(value)) for name, value in state.items()}
                    assert stored(heard)[-1]["channels"] == channels
                    assert stored(heard)[-1]["bytes"] == sum(channels.values())

    go(main())
    fields = stored(heard)[0]
    assert (fields["tenant"], fields["thread"], fields["graph"]) == ("", "ada", "agent")
    assert not [f for f in stored(heard) if any(name.startswith(("__", "branch:")) for name in f["channels"])]


def test_a_list_that_is_cut_and_turned_round_is_sized_anew(memory: Storage) -> None:
    """Elements that moved have the sizes that they had."""

    class State(MessagesState):
        pages: list[dict[str, str]]

    def turn(state: State) -> dict[str, Any]:
        pages = state.get("pages") or [{"text": "x" * size} for size in (10, 300, 5000, 70)]
        return {"pages": [*reversed(pages[1:]), {"text": "new" * len(pages)}]}

    builder = StateGraph(State)
    builder.add_node(turn)
    builder.add_edge(START, "turn")
    heard, graph = Heard(), builder.compile()

    async def main() -> None:
        async with working(memory.database(), graph, observers=[heard]) as runtime:
            for _ in range(4):
                await runtime.wait(await runtime.accept("ada", "go on"))
                state = await runtime.graph("agent").aget_state({"configurable": {"thread_id": "ada"}})
                assert stored(heard)[-1]["channels"]["pages"] == len(Serde().pack(state.values["pages"]))

    go(main())


def test_values_that_are_put_outside_of_a_run_are_measured(memory: Storage) -> None:
    """Such a put stores all that it is given; the saver remembers none of an older checkpoint's values."""
    saver = memory.database().checkpointer()
    app = GRAPH.copy(update={"checkpointer": saver})
    config: Any = {"configurable": {"thread_id": "ada"}}
    for number in range(2):
        app.invoke({"messages": [("user", f"question {number}")]}, config)
    old = list(app.get_state_history(config))[4].config
    told: list[dict[str, int]] = []
    saver.on_stored = lambda partition, namespace, sizes: told.append(dict(sizes))
    app.update_state(old, {"notes": {"edited": "yes"}})
    (sizes,) = told
    assert sizes["notes"] == len(Serde().pack({"edited": "yes"}))
    kept = app.get_state(config).values["documents"]
    assert sizes["documents"] == len(Serde().pack(kept))


def test_a_run_that_is_tried_again_warns_once(memory: Storage) -> None:
    tries: list[str] = []

    def fail(state: Research) -> dict[str, Any]:
        tries.append("")
        if len(tries) < 3:
            raise RuntimeError
        return {"notes": {"tries": "3"}}

    builder = research().add_node(fail).add_edge("answer", "fail")
    heard = Heard()
    go(turns(memory, builder.compile(), 1, heard, warn_bytes=1000))
    assert len(tries) == 3
    assert [channel for channel, _ in large(heard)] == ["documents"]


@pytest.mark.parametrize("invoked", ["as a node", "as a node that remembers", "by a plain function"])
def test_a_subgraphs_channel_is_named_after_its_node(invoked: str, memory: Storage) -> None:
    """By a plain function it is stored from another thread, and told on the event loop all the same."""
    inner = research().compile(checkpointer=None if invoked == "as a node" else True)

    def ask(state: Research) -> dict[str, Any]:
        inner.invoke({"messages": state["messages"], "documents": [], "notes": {}})
        return {}

    builder = StateGraph(MessagesState)
    builder.add_node("team", ask if invoked == "by a plain function" else inner)
    builder.add_edge(START, "team")
    heard = OnLoop()
    go(turns(memory, builder.compile(), 1, heard, warn_bytes=1000))
    assert [channel for channel, _ in large(heard)] == ["team/documents"]
    assert {name for fields in stored(heard) for name in fields["channels"]} >= {"messages", "team/messages"}


class OnLoop(Heard):
    """Hears only what is told on an event loop."""

    def event(self, name: str, fields: dict[str, Any]) -> None:
        asyncio.get_running_loop()
        super().event(name, fields)


def test_no_value_is_in_the_log(caplog: pytest.LogCaptureFixture, memory: Storage) -> None:
    with caplog.at_level(logging.DEBUG, logger="perdure.runtime"):
        go(turns(memory, GRAPH, 3, Logs()))
    ours = [record for record in caplog.records if record.name == "perdure.runtime"]
    assert not [record for record in ours if SECRET in repr(vars(record)) or SECRET in record.getMessage()]
    (warning,) = [record for record in ours if record.levelno == logging.WARNING]
    assert warning.getMessage().startswith("checkpoint.large thread=ada run=")
    assert " channel=documents bytes=6" in warning.getMessage()


def test_metrics_have_a_histogram_by_channel(memory: Storage) -> None:
    registry = CollectorRegistry()
    go(turns(memory, {"finder": Agent(GRAPH)}, 3, Metrics(registry)))

    def value(what: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"perdure_checkpoint_bytes_{what}", {"graph": "finder", **labels})

    documents = value("count", channel="documents") or 0
    # The last run of three had more than 50 KiB from its first step on: after it and after the second.
    assert documents - (value("bucket", channel="documents", le="51200.0") or 0) == 2
    assert value("bucket", channel="messages", le="51200.0") == value("count", channel="messages")
    channels = {
        s.labels["channel"] for f in registry.collect() for s in f.samples if "checkpoint_bytes" in s.name
    }
    assert channels == {"documents", "messages", "notes"}


def test_no_end_of_channels_is_an_end_of_series() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    for number in range(150):
        metrics.event("checkpoint.stored", {"graph": "g", "channels": {f"channel {number}": 1}})
    labels = {"graph": "g", "channel": "other"}
    assert registry.get_sample_value("perdure_checkpoint_bytes_count", labels) == 50


def test_a_large_state_of_many_middling_channels_is_told_once_a_run_and_counted(memory: Storage) -> None:
    fields: Any = {f"note_{number:02}": str for number in range(20)}
    builder: Any = StateGraph(TypedDict("Notes", {"messages": list, **fields}, total=False))  # type: ignore[operator]
    builder.add_node("note", lambda state: dict.fromkeys(fields, SECRET + "x" * 4000))
    builder.add_node("again", lambda state: {"note_07": "y" * 5_000})
    builder.add_edge(START, "note")
    builder.add_edge("note", "again")
    heard, registry = Heard(), CollectorRegistry()
    go(turns(memory, {"noting": builder.compile()}, 2, heard, Metrics(registry)))
    told = [fields for name, fields in heard.events if name == "state.large"]
    assert len({each["run"] for each in told}) == len(told) == 2
    assert all(each["bytes"] > 50 * 1024 and len(each["channels"]) == 5 for each in told)
    assert large(heard) == []
    assert registry.get_sample_value("perdure_states_large_total", {"graph": "noting"}) == 2
    assert SECRET not in str(told)


@pytest.mark.parametrize(
    ("event", "metric"),
    [
        ("memory.recalled", "perdure_memory_recalls_total"),
        ("memory.kept", "perdure_memory_turns_total"),
        ("conversation.summary_made", "perdure_summaries_total"),
        ("state.large", "perdure_states_large_total"),
    ],
)
def test_an_event_with_a_metric_of_its_own_is_counted(event: str, metric: str) -> None:
    registry = CollectorRegistry()
    Metrics(registry).event(event, {"graph": "g", "tenant": "", "thread": "t"})
    assert registry.get_sample_value(metric, {"graph": "g"}) == 1
