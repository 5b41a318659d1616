"""A checkpointer without a runtime names the channel that grows, once a thread, and nothing that it holds."""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

import perdure
from perdure.langgraph.values import large_channel_warning
from perdure.langgraph.values.large_channel_warning import LargeChannels, path_of
from perdure.model.records import Partition

SECRET = "what a user wrote "


class Documents(TypedDict):
    documents: Annotated[list[str], operator.add]
    note: str


@pytest.fixture
def db() -> Iterator[perdure.SyncDatabase]:
    with perdure.connect_sync("memory://") as db:
        yield db


def graph(db: perdure.SyncDatabase, **options: Any) -> Any:
    def read(state: Documents) -> Any:
        return {"documents": [SECRET * 1500], "note": "n"}

    builder = StateGraph(Documents).add_node(read).add_edge(START, "read")
    return builder.compile(checkpointer=db.checkpointer(**options))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "perdure.langgraph"]


def test_checkpointers_of_one_database_name_a_channel_once(
    db: perdure.SyncDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(3):
        graph(db).invoke({"documents": []}, {"configurable": {"thread_id": "ada"}})
    assert len(warnings(caplog)) == 1


def test_a_channel_that_grows_is_named_once_a_thread(
    db: perdure.SyncDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    runs = graph(db)
    for thread in ("ada", "bob"):
        for _ in range(4):
            runs.invoke({"documents": []}, {"configurable": {"thread_id": thread}})
    found = warnings(caplog)
    assert [line.partition(" has ")[0] for line in found] == [
        "channel 'documents' of thread 'ada'",
        "channel 'documents' of thread 'bob'",
    ]
    assert not any(SECRET in line for line in found)


def test_another_size_can_be_given_and_none_warns_of_nothing(
    db: perdure.SyncDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for thread, warn_bytes in (("none", None), ("large", 1_000_000)):
        graph(db, warn_bytes=warn_bytes).invoke({"documents": []}, {"configurable": {"thread_id": thread}})
    assert warnings(caplog) == []
    graph(db, warn_bytes=20_000).invoke({"documents": []}, {"configurable": {"thread_id": "small"}})
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize("size", [0, -1, True, "50 KB"])
def test_a_size_that_cannot_be_is_refused(db: perdure.SyncDatabase, size: Any) -> None:
    with pytest.raises(ValueError, match="warn_bytes"):
        db.checkpointer(warn_bytes=size)


def test_the_threads_that_it_knows_are_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(large_channel_warning, "_THREADS_MOST", 2)
    watched = LargeChannels(10)
    for thread in ("a", "b", "c", "a"):
        watched.check(Partition("", thread), "", {"x": 11, "y": 10, START: 99})
    assert len(warnings(caplog)) == 4


def test_a_subgraph_is_named_by_its_nodes() -> None:
    assert path_of("") == ""
    assert path_of("work:1f0|inner:2|3") == "work/inner/"


def test_a_state_of_many_middling_channels_is_named_once_with_the_largest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    large = LargeChannels(10_000)
    sizes = {f"note_{number}": 1000 + number for number in range(12)}
    partition = Partition("", "ada")
    for _ in range(3):
        large.check(partition, "research:1", sizes)
    (warning,) = warnings(caplog)
    assert "12,066 bytes" in warning
    assert [f"research/note_{number} " in warning for number in (11, 7, 6)] == [True, True, False]
    large.check(Partition("", "bob"), "", {"small": 10, "other": 20})
    large.check(Partition("", "bob"), "", {"one": 11_000, "other": 20})
    assert len(warnings(caplog)) == 2
    assert "'one'" in warnings(caplog)[1]
