"""Behind PgBouncer in transaction mode every statement may go through another session of the server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

import perdure
from perdure.errors import BadUrl, Unavailable
from perdure.model.ops import Commit, Committed, Expect, Fetch, Get, Put
from perdure.model.records import TAG, Partition
from perdure.storage.port import Driver
from perdure.storage.url import open_driver
from perdure.testing.conformance import Blocking, DriverContract
from tests.langgraph.graphs import chain
from tests.langgraph.session import config
from tests.servers import pgbouncer, postgres
from tests.servers.pgbouncer import PgBouncer


@pytest.fixture(scope="module")
def bouncer() -> Iterator[PgBouncer]:
    with pgbouncer.pooled() as pooler:
        yield pooler


@pytest.fixture
def url(bouncer: PgBouncer) -> Iterator[str]:
    """A schema that nobody has used, by way of the pooler."""
    server = postgres.shared()
    with postgres.empty(server, notify="off", pool=8) as direct:
        yield direct.replace(f":{server.port}/", f":{bouncer.port}/")


@pytest.mark.slow
class TestPooled(DriverContract):
    @pytest.fixture
    def driver(self, url: str) -> Iterator[Driver]:
        with closing(open_driver(url, migrate=True)) as driver:
            yield Blocking(driver)


def test_threads_that_share_three_sessions_keep_their_conversations(url: str) -> None:
    with perdure.connect_sync(url, migrate=True) as db:
        graph = chain(db.checkpointer())

        def talk(thread: int) -> None:
            for turn in range(5):
                graph.invoke({"said": [f"{thread}.{turn}"]}, config(f"t{thread}"))

        with ThreadPoolExecutor(12) as pool:
            list(pool.map(talk, range(12)))
        fresh = chain(db.checkpointer())
        for thread in range(12):
            said = fresh.get_state(config(f"t{thread}")).values["said"]
            assert [s for s in said if "saw" not in s] == [f"{thread}.{turn}" for turn in range(5)]
        assert db.fsck() == []


def test_a_pooler_that_is_killed_under_load_loses_nothing_that_was_acknowledged() -> None:
    """Each writer counts up a record of its own; what was acknowledged last is what is stored, or one less
    than what was sent when the line was cut."""
    server = postgres.shared()
    with pgbouncer.pooled(server) as bouncer, postgres.empty(server, notify="off", pool=8) as direct:
        url = direct.replace(f":{server.port}/", f":{bouncer.port}/")
        stop = threading.Event()
        counts = dict.fromkeys(range(6), 0)
        with closing(open_driver(url, migrate=True)) as driver:

            def count(writer: int) -> None:
                at, held = Partition("", f"t{writer}"), 0
                while not stop.is_set():
                    put = _tag(str(held + 1), expect=held or Expect.ABSENT, version=held + 1)
                    try:
                        answer = driver.perform(Commit(at, (put,)))
                    except Unavailable:
                        (found,) = driver.perform(Fetch(at, (Get(TAG, ("n",)),)))
                        stored = found[0].version if found else 0
                        assert stored in (held, held + 1)
                        counts[writer] = held = stored
                        continue
                    assert answer == Committed()
                    held += 1
                    counts[writer] = held

            def go_on() -> None:
                """Wait until every writer has written once more."""
                before, until = dict(counts), time.monotonic() + 60
                while any(counts[writer] <= before[writer] for writer in before):
                    assert time.monotonic() < until, "writes do not go on"
                    time.sleep(0.01)

            with ThreadPoolExecutor(6) as pool:
                writers = [pool.submit(count, n) for n in range(6)]
                try:
                    for _ in range(4):
                        go_on()
                        bouncer.stop()
                        bouncer.start()
                    go_on()
                finally:
                    stop.set()
                for writer in writers:
                    writer.result(60)
            for number, held in counts.items():
                (found,) = driver.perform(Fetch(Partition("", f"t{number}"), (Get(TAG, ("n",)),)))
                assert (found[0].version, found[0].fields["checkpoint_id"]) == (held, str(held))
        assert min(counts.values()) > 0


def test_statements_prepared_by_name_are_refused_behind_it(url: str) -> None:
    """Another session of the server does not have them, or has another client's."""
    open_driver(url, migrate=True).close()
    prepared = f"{url}&prepare=1"
    with (
        closing(open_driver(prepared)) as driver,
        closing(open_driver(prepared)) as other,
        ThreadPoolExecutor(8) as pool,
    ):

        def ask(n: int) -> None:
            one = driver if n % 2 else other
            one.perform(Commit(Partition("", f"t{n}"), (_tag("c", version=1),)))
            one.perform(Fetch(Partition("", f"t{n}"), (Get(TAG, ("n",)),)))

        with pytest.raises(BadUrl, match="remove prepare=1"):
            list(pool.map(ask, range(200)))


def _tag(checkpoint: str, *, version: int, expect: Expect | int = Expect.ANY) -> Put:
    return Put(TAG, ("n",), {"namespace": "", "checkpoint_id": checkpoint}, expect=expect, version=version)
