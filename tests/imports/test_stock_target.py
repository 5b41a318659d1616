"""Threads of every shape leave for LangGraph's own savers, and the same graph goes on there.

Covers perdure.imports.stock_target, perdure.cli.data.export_to.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver

import perdure
from perdure.database.base import handle_of
from perdure.errors import BadUrl, Conflict, NotFound
from perdure.imports.postgres import PostgresSource
from perdure.imports.sqlite import SqliteSource
from perdure.imports.stock_target import export_thread, open_stock_saver
from perdure.model.records import Partition
from tests.imports import parity, threads
from tests.imports.langgraph_server import agent, servers
from tests.imports.stocks import postgres_url
from tests.langgraph import graphs
from tests.langgraph.graphs import STATES


@pytest.fixture
def db(tmp_path: Path) -> Iterator[perdure.SyncDatabase]:
    with SqliteSaver.from_conn_string(str(tmp_path / "old.db")) as saver:
        threads.fill(saver, 3)
    with perdure.connect_sync("memory://") as opened:
        source = SqliteSource(tmp_path / "old.db")
        try:
            parity.imported(source, opened)
        finally:
            source.close()
        yield opened


def names(db: perdure.SyncDatabase) -> list[str]:
    return [thread.thread_id for thread in db.threads()]


def test_what_came_from_a_stock_saver_is_the_same_in_another_one(
    db: perdure.SyncDatabase, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'left.db'}"
    for _ in range(2):  # again changes nothing
        with open_stock_saver(url) as saver:
            counts = [export_thread(handle_of(db), Partition("", name), saver) for name in names(db)]
        assert sum(count.checkpoints for count in counts) > 10
        with perdure.connect_sync("memory://") as back:
            source = SqliteSource(tmp_path / "left.db")
            try:
                reports = parity.imported(source, back)
            finally:
                source.close()
            assert {report.state for report in reports} == {"imported"}
            assert sum(report.checkpoints for report in reports) == sum(c.checkpoints for c in counts)


def test_questions_are_answered_and_turns_go_on_at_the_stock_saver(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'left.db'}"
    with perdure.connect_sync("memory://") as db:
        ours = agent.builder.compile(checkpointer=db.checkpointer())
        for word in servers.WORDS:
            ours.invoke(servers.said(word), threads.config(word))
        with open_stock_saver(url) as saver:
            for word in servers.WORDS:
                export_thread(handle_of(db), Partition("", word), saver)
        with SqliteSaver.from_conn_string(str(tmp_path / "left.db")) as stock:
            theirs = agent.builder.compile(checkpointer=stock)
            for word in servers.WORDS:
                config = threads.config(word)
                assert list(ours.get_state_history(config)) == [
                    here._replace(config=there.config, parent_config=there.parent_config)
                    for here, there in zip(
                        theirs.get_state_history(config), ours.get_state_history(config), strict=True
                    )
                ]
                is_asked = bool(theirs.get_state(config).interrupts)
                given: Any = threads.RESUME if is_asked else servers.said("hello")
                before, after = ours.invoke(given, config), theirs.invoke(given, config)
                assert [m.content for m in before["messages"]] == [m.content for m in after["messages"]]
                assert before["notes"] == after["notes"]


def test_postgres_gets_every_checkpoint_as_the_threads_have_it(db: perdure.SyncDatabase) -> None:
    url = postgres_url()
    with open_stock_saver(url) as saver:
        counts = [export_thread(handle_of(db), Partition("", name), saver) for name in names(db)]
    with perdure.connect_sync("memory://") as back:
        source = PostgresSource(url)
        try:
            reports = parity.imported(source, back)
        finally:
            source.close()
        assert sum(report.checkpoints for report in reports) == sum(c.checkpoints for c in counts) > 10


@pytest.mark.parametrize("place", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["delta", "delta-often"])
def test_a_pruned_thread_leaves_with_the_past_of_its_delta_channels(
    name: str, place: str, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'left.db'}" if place == "sqlite" else postgres_url()
    with perdure.connect_sync("memory://") as db:
        ours = graphs.chain(db.checkpointer(), STATES[name])
        for n in range(5):
            ours.invoke({"said": [f"turn {n}"]}, threads.config("ada"))
        tagged = list(ours.get_state_history(threads.config("ada")))[6].config
        db.tag("ada", "kept", tagged["configurable"]["checkpoint_id"])
        db.checkpointer().prune(["ada"], keep_last=2)
        for _ in range(2):  # again changes nothing
            with open_stock_saver(url) as saver:
                count = export_thread(handle_of(db), Partition("", "ada"), saver)
        assert count.checkpoints == 3
        with open_stock_saver(url) as saver:
            theirs = graphs.chain(saver, STATES[name])
            for found in ours.get_state_history(threads.config("ada")):
                assert theirs.get_state(found.config).values == found.values
            for _ in range(2):
                after = [each.invoke({"said": ["more"]}, threads.config("ada")) for each in (ours, theirs)]
                assert after[0] == after[1]
            states = [each.get_state(threads.config("ada")).values for each in (ours, theirs)]
            assert states[0] == states[1] == after[0]


def test_another_thread_of_the_same_name_is_left_alone(db: perdure.SyncDatabase, tmp_path: Path) -> None:
    name = names(db)[0]
    with SqliteSaver.from_conn_string(str(tmp_path / "left.db")) as stock:
        agent.builder.compile(checkpointer=stock).invoke(servers.said("hello"), threads.config(name))
        before = list(stock.list(threads.config(name)))
    with open_stock_saver(f"sqlite:///{tmp_path / 'left.db'}") as saver:
        with pytest.raises(Conflict, match="delete it there"):
            export_thread(handle_of(db), Partition("", name), saver)
        with pytest.raises(NotFound):
            export_thread(handle_of(db), Partition("", "nobody"), saver)
    with SqliteSaver.from_conn_string(str(tmp_path / "left.db")) as stock:
        assert list(stock.list(threads.config(name))) == before
    with pytest.raises(BadUrl, match=r"sqlite:///FILE"), open_stock_saver("redis://localhost"):
        pass
