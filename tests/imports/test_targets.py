"""An import keeps its promises on every backend as its target."""

from __future__ import annotations

from pathlib import Path

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.sqlite import SqliteStore

import perdure
from perdure.database.opening import open_database
from perdure.errors import Unavailable
from perdure.imports.importer import Importer, ImportOptions
from perdure.imports.items import ItemImporter
from perdure.imports.sqlite import SqliteSource
from perdure.testing.faults import WRITES, Fault, FaultyDriver, fail
from tests.backends import BACKENDS, EMPTY
from tests.imports import parity, threads
from tests.imports.test_again import answer, asking
from tests.imports.test_items import now

DISTANT = sorted(set(BACKENDS) - {"memory", "sqlite"})


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, threads.Shape]]:
    path = tmp_path_factory.mktemp("stock") / "old.db"
    with SqliteSaver.from_conn_string(str(path)) as saver:
        made = threads.fill(saver, len(threads.SHAPES))
        asking(saver, fails=False).invoke({}, threads.config("ada"))
    with SqliteStore.from_conn_string(str(path)) as store:
        store.setup()
        for n in range(60):
            store.put(("users", "ž", str(n % 2)), f"key {n}", {"n": n})
    return path, made


@pytest.mark.slow
@pytest.mark.parametrize("backend", DISTANT)
def test_a_target_holds_what_the_source_has_and_goes_on(
    backend: str, old: tuple[Path, dict[str, threads.Shape]], tmp_path: Path
) -> None:
    path, made = old
    copy = tmp_path / "copy.db"
    copy.write_bytes(path.read_bytes())
    source = SqliteSource(copy)
    with (
        SqliteSaver.from_conn_string(str(copy)) as stock,
        EMPTY[backend]() as url,
        perdure.connect_sync(url, migrate=True) as db,
    ):
        faulty = open_database(
            url, wrap=lambda own: FaultyDriver(own, Fault(3, fail("unavailable"), "after"), counts=WRITES)
        )
        with pytest.raises(Unavailable):
            parity.imported(source, faulty)
        faulty.close()
        options = ImportOptions(origin=b"old")
        reports = parity.imported(source, db, options)
        assert {r.why for r in reports} == {""}
        assert set(Importer(source, db, options).find_removed(["ada"])) == set(made)
        assert Importer(source, db, ImportOptions(origin=b"other")).find_removed(["ada"]) == []
        assert all(r.verified == r.checkpoints for r in reports)
        saver = db.checkpointer()
        for thread, shape in made.items():
            assert threads.seen(saver, thread, shape) == threads.seen(stock, thread, shape), thread
            assert threads.raw(saver, thread) == threads.raw(stock, thread), thread
            assert db.fsck(thread) == []
        assert {r.state for r in parity.imported(source, db)} == {"unchanged"}
        counts = ItemImporter(db, ImportOptions(), now()).run(source.items())
        assert (counts.written, counts.skipped) == (60, [])
        assert ItemImporter(db, ImportOptions(), now()).run(source.items()).unchanged == 60
        # An answer that was given here stays, and a prune is not a difference.
        answer(saver, "mine", fails=True)
        answer(stock, "theirs", fails=True)
        saver.prune(list(made), keep_last=1)
        states = {r.thread: (r.state, r.why) for r in parity.imported(source, db)}
        assert {states[thread][0] for thread in made} == {"unchanged"}, states
        assert "went on at the target (task" in states["ada"][1]
        # The next turn works as at the source, and what came since there is brought.
        for thread, shape in list(made.items())[:3]:
            threads.go_on(stock, thread, shape)
        again = {r.thread: (r.state, r.why) for r in parity.imported(source, db)}
        assert {again[thread] for thread in list(made)[:3]} == {("extended", "")}, again
        for thread, shape in made.items():
            assert threads.go_on(saver, thread, shape) == threads.go_on(stock, thread, shape), thread
            assert db.fsck(thread) == []
    source.close()


@pytest.mark.slow
@pytest.mark.parametrize("backend", DISTANT)
def test_a_thread_begun_after_a_killed_import_is_its_own(
    backend: str, old: tuple[Path, dict[str, threads.Shape]]
) -> None:
    source = SqliteSource(old[0])
    with EMPTY[backend]() as url, perdure.connect_sync(url, migrate=True) as db:
        faulty = open_database(
            url, wrap=lambda own: FaultyDriver(own, Fault(2, fail("unavailable"), "after"), counts=WRITES)
        )
        with pytest.raises(Unavailable):
            parity.imported(source, faulty)
        faulty.close()
        first = next(iter(source.threads()))
        assert db.checkpointer().get_tuple(threads.config(first)) is None
        threads.talk(db.checkpointer()).invoke({"messages": [("user", "mine")]}, threads.config(first))
        state = threads.talk(db.checkpointer()).get_state(threads.config(first))
        assert state.values["messages"][0].content == "mine"
        assert state.values["turns"] == 1
        assert db.fsck(first) == []
    source.close()
