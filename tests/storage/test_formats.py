"""A database that an earlier release wrote opens, keeps everything and goes on.

``format1.sql`` is the dump of a file as the first release of the format wrote it: on plain and on Delta
channels, a thread of six turns with a tag and a fork, and one that waits for an answer.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from langgraph.types import Command

import perdure
from perdure.storage.sqlite import driver
from tests.langgraph.racing import talking
from tests.langgraph.session import config

FORMAT_1 = Path(__file__).with_name("format1.sql")


@pytest.fixture
def url(tmp_path: Path) -> str:
    path = tmp_path / "threads.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(FORMAT_1.read_text())
    return f"sqlite:///{path}"


def test_an_older_schema_is_refused_with_the_command_to_run(url: str) -> None:
    with (
        pytest.raises(perdure.MigrationRequired, match=f"perdure migrate --db {url}"),
        perdure.connect_sync(url),
    ):
        pass
    assert driver.schema_version(url) == 1
    assert driver.pending(url)
    assert driver.migrate(url) == 1
    assert driver.pending(url) == []
    assert driver.migrate(url) == driver.schema_version(url) == driver.SCHEMA_VERSION


def test_what_an_upgrade_makes_is_what_a_new_database_has(url: str, tmp_path: Path) -> None:
    new = tmp_path / "new.db"
    driver.migrate(url)
    driver.migrate(f"sqlite:///{new}")

    def columns(path: Path) -> dict[str, list[tuple[object, ...]]]:
        with closing(sqlite3.connect(path)) as connection:
            names = [
                name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
            ]
            indexes = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'index'")
            # A column that was added stands last; statements name their columns.
            table = "SELECT name, type, \"notnull\", pk FROM pragma_table_info('{}') ORDER BY name"
            out = {name: connection.execute(table.format(name)).fetchall() for name in names}
            return {**out, "indexes": sorted(name for (name,) in indexes)}

    assert columns(driver.file_of(url)) == columns(new)


@pytest.mark.parametrize("state", ["plain", "delta"])
def test_threads_of_the_first_format_are_all_there_and_go_on(url: str, state: str) -> None:
    with perdure.connect_sync(url, migrate=True) as db:
        talk, asks = f"{state} talk", f"{state} asks"
        assert {t.thread_id for t in db.threads()} >= {talk, asks}
        assert db.fsck() == []
        graph = talking(db.checkpointer(), state, asks=False)
        turns = [n for n in range(6) for _ in range(4)]
        history = list(graph.get_state_history(config(talk)))
        assert history[0].values["said"][-4:] == ["another branch", "ready", "think", "speak"]
        anchor = next(
            s for s in history if s.config["configurable"]["checkpoint_id"] == db.tags(talk)["anchor"]
        )
        assert len(anchor.values["said"]) == len(turns)
        assert [said for said in anchor.values["said"] if said.startswith("turn")] == [
            f"turn {n} " + "word " * n for n in range(6)
        ]
        graph.invoke({"said": ["more"]}, config(talk))
        assert "more" in graph.get_state(config(talk)).values["said"]
        asking = talking(db.checkpointer(), state, asks=True)
        answered = asking.invoke(Command(resume="yes"), config(asks))
        assert answered["said"] == ["hello", "heard yes", "think", "speak"]
        assert db.fsck() == []
