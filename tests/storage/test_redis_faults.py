"""Redis when the server is killed, paused, full, foreign or out of reach, and when answers are lost.

Covers perdure.storage.redis.errors.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import count, islice
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from redis.crc import key_slot

import perdure
from perdure.model.ops import (
    Check,
    Commit,
    Committed,
    Delete,
    Drop,
    Expect,
    Fetch,
    FindDue,
    FindRuns,
    FindThreads,
    Get,
    IndexHit,
    Now,
    Range,
    Refused,
)
from perdure.model.program import Effect
from perdure.model.records import CHUNK, GC, TAG, Partition
from perdure.storage.batching import PendingRequest
from perdure.storage.redis import cluster
from perdure.storage.redis import driver as backend
from perdure.storage.redis.driver import RedisDriver
from perdure.testing.conformance import rows
from tests.servers import valkey
from tests.servers.lossy import Lossy
from tests.servers.ports import free_port
from tests.servers.valkey import Server
from tests.storage.climbers import climb, eventually, height, step
from tests.storage.next_layout import next_layout

ROOT = Path(__file__).resolve().parents[2]
FULL = os.environ.get("PERDURE_CHAOS") == "full"
RARE = "PERDURE_CHAOS=full is for the rare moments of a cluster"
AT = Partition("", "thread")


@pytest.fixture
def url() -> Iterator[str]:
    with valkey.empty() as url:
        backend.migrate(url)
        yield url


@pytest.fixture
def driver(url: str) -> Iterator[RedisDriver]:
    with closing(backend.open_driver(url)) as driver:
        yield driver


@pytest.fixture
def server() -> Iterator[Server]:
    """A durable server of the test's own."""
    server = Server(*valkey.DURABLE)
    yield server
    server.stop()


# Killed, paused


def test_nothing_acknowledged_is_lost_when_the_server_is_killed_and_the_driver_recovers(
    server: Server,
) -> None:
    backend.migrate(server.url)
    stop = Event()
    threads = [Partition("", f"t{n}") for n in range(8)]
    reached = dict.fromkeys(threads, 0)
    with closing(backend.open_driver(server.url)) as driver, ThreadPoolExecutor(8) as pool:
        climbers = [pool.submit(climb, driver, at, stop, reached) for at in threads]
        try:
            for kills in range(6):
                eventually(lambda higher=5 * (kills + 1): min(reached.values()) >= higher)  # type: ignore[misc]
                if kills < 5:
                    server.kill()
                    time.sleep(0.05)
                    server.start()
        finally:
            stop.set()
        told = [climber.result(timeout=60) for climber in climbers]
        heights = [height(driver, at) for at in threads]
    assert heights == [n for n, _ in told]
    assert sum(unknown for _, unknown in told) == 0, "the server was back in time for every request"


def test_a_paused_server_is_waited_for(server: Server) -> None:
    backend.migrate(server.url)
    with closing(backend.open_driver(f"{server.url}?socket_timeout=0.2")) as driver:
        assert driver.perform(Commit(AT, step(1))) == Committed()
        server.signal(signal.SIGSTOP)
        with ThreadPoolExecutor(1) as pool:
            late = pool.submit(driver.perform, Commit(AT, step(2)))
            time.sleep(1)
            server.signal(signal.SIGCONT)
            assert late.result(timeout=30) == Committed()
        assert height(driver, AT) == 2


def test_a_server_that_stays_away_is_unavailable_and_used_again_when_it_is_back(server: Server) -> None:
    backend.migrate(server.url)
    with closing(backend.open_driver(f"{server.url}?patience=0.3")) as driver:
        assert driver.perform(Commit(AT, step(1))) == Committed()
        server.kill()
        with pytest.raises(perdure.Unavailable):
            driver.perform(Commit(AT, step(2)))
        read = Fetch(AT, (Get(GC, ()),))
        for effect in (Commit(AT, step(2)), read, FindThreads(None), FindDue(None, 1), Now(), Drop(AT)):
            with pytest.raises(perdure.Unavailable, match="cannot be reached; check host and port"):
                driver.perform(effect)
            with pytest.raises(perdure.Unavailable, match="cannot be reached"):
                asyncio.run(driver.aperform(effect))
        server.start()
        assert height(driver, AT) == 1
        assert driver.perform(Commit(AT, step(2))) == Committed()


# Lost answers


def test_a_commit_whose_answer_is_lost_is_applied_once_and_acknowledged(url: str) -> None:
    relay = Lossy(valkey.shared().port)
    with closing(relay), closing(backend.open_driver(_through(url, relay))) as driver:
        for n, losses in enumerate((1, 0, 2, 1, 3), start=1):
            relay.losing = losses
            assert driver.perform(Commit(AT, step(n))) == Committed()
            relay.losing = 0
            assert height(driver, AT) == n
        assert relay.lost == 7


def test_a_refusal_whose_answer_is_lost_stays_a_refusal(url: str) -> None:
    relay = Lossy(valkey.shared().port)
    with closing(relay), closing(backend.open_driver(_through(url, relay))) as driver:
        assert driver.perform(Commit(AT, step(1))) == Committed()
        relay.losing = 1
        other = (rows.gc(7, Expect.ABSENT), rows.checkpoint("x", 9))
        assert driver.perform(Commit(AT, other)) == Refused(GC, ())
        assert relay.lost == 1
        assert height(driver, AT) == 1


def test_what_anybody_may_have_written_acknowledges_nothing_when_its_answer_is_lost(url: str) -> None:
    relay = Lossy(valkey.shared().port)
    with closing(relay), closing(backend.open_driver(_through(url, relay))) as driver:
        chunk = rows.chunk(b"d" * 16)
        assert driver.perform(Commit(AT, (*step(1), chunk))) == Committed()
        fence = Check(GC, (), 7)
        relay.losing = 1
        assert driver.perform(Commit(AT, (fence,))) == Refused(GC, ())
        for op in (chunk, Delete(TAG, ("none",))):
            relay.losing = 1
            with pytest.raises(perdure.Unavailable, match="could not be found out"):
                driver.perform(Commit(AT, (fence, op)))
        assert relay.lost == 3


def test_many_writers_behind_a_bad_line_lose_and_double_nothing(url: str) -> None:
    relay = Lossy(valkey.shared().port)
    stop = Event()
    threads = [Partition("", f"t{n}") for n in range(8)]
    reached = dict.fromkeys(threads, 0)
    with closing(relay), closing(backend.open_driver(_through(url, relay))) as driver:
        with ThreadPoolExecutor(8) as pool:
            climbers = [pool.submit(climb, driver, at, stop, reached) for at in threads]
            try:
                for _ in range(40):
                    time.sleep(0.01)
                    relay.losing = 1
                    eventually(lambda: not relay.losing)
            finally:
                stop.set()
            told = [climber.result(timeout=60) for climber in climbers]
        assert relay.lost == 40
        assert [(height(driver, at), 0) for at in threads] == told


def test_requests_wait_for_company_only_where_the_server_is_near(url: str) -> None:
    relay = Lossy(valkey.shared().port)
    with closing(relay), closing(backend.open_driver(_through(url, relay))) as driver:

        def waits() -> bool:
            driver.perform(Now())
            return driver._batcher.wait_s > 0

        assert any(waits() for _ in range(1000))
        relay.delay_s = 0.004
        assert waits(), "one slow trip is not distance"
        relay.losing = 1
        driver.perform(Now())
        assert not any(waits() for _ in range(20)), "what breaks may come back elsewhere"
        relay.delay_s = 0
        assert any(waits() for _ in range(1000))


def _through(url: str, relay: Lossy) -> str:
    return url.replace(f":{valkey.shared().port}/", f":{relay.port}/")


# What the server refuses


def test_scripts_that_the_server_forgot_are_loaded_again(driver: RedisDriver) -> None:
    assert driver.perform(Commit(AT, step(1))) == Committed()
    for n in range(2, 5):
        with valkey.shared().client() as client:
            client.script_flush()
        assert driver.perform(Commit(AT, step(n))) == Committed()
        with valkey.shared().client() as client:
            client.script_flush()
        assert height(driver, AT) == n


def test_a_server_without_memory_says_so_and_works_on_when_there_is_some(server: Server) -> None:
    backend.migrate(server.url)
    with closing(backend.open_driver(server.url)) as driver, server.client() as client:
        assert driver.perform(Commit(AT, step(1))) == Committed()
        client.config_set("maxmemory", "1")
        with pytest.raises(perdure.Unavailable, match="out of memory"):
            driver.perform(Commit(AT, step(2)))
        assert height(driver, AT) == 1
        driver.perform(Drop(Partition("", "nothing")))
        client.config_set("maxmemory", "0")
        assert driver.perform(Commit(AT, step(2))) == Committed()


@pytest.mark.parametrize(
    ("what", "connected"),
    [("commits", True), ("commits", False), ("fetches", False), ("fetches", True)],
)
def test_all_calls_of_a_moment_hear_within_one_patience_that_the_server_is_away(
    server: Server, what: str, connected: bool
) -> None:
    ats = [Partition("", f"t{n}") for n in range(20)]
    effects: list[Effect[Any]] = [
        Commit(at, step(1)) if what == "commits" else Fetch(at, (Get(GC, ()),)) for at in ats
    ]
    backend.migrate(server.url)
    relay = Lossy(server.port)
    url = f"redis://127.0.0.1:{relay.port}/0?patience=1.5&pool=1"
    with closing(backend.open_driver(url)) as driver, ThreadPoolExecutor(20) as pool:
        if connected:
            driver.perform(effects[0])
        relay.close()
        began = time.monotonic()
        outcomes = [pool.submit(driver.perform, effect) for effect in effects]
        assert all(isinstance(outcome.exception(60), perdure.Unavailable) for outcome in outcomes)
        assert 0.9 < time.monotonic() - began < 3, "callers wait one after the other"


def test_a_replica_is_told_apart(server: Server) -> None:
    backend.migrate(server.url)
    with closing(backend.open_driver(f"{server.url}?patience=0.5")) as driver, server.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", free_port())
        with pytest.raises(perdure.Unavailable, match="give the address of the primary"):
            driver.perform(Commit(AT, step(1)))
        client.execute_command("REPLICAOF", "NO", "ONE")
        assert driver.perform(Commit(AT, step(1))) == Committed()


def test_a_request_that_nobody_foresaw_fails_alone(driver: RedisDriver) -> None:
    odd = Fetch(AT, (Range(TAG, limit=1 << 32),))
    group = [PendingRequest(effect) for effect in (Commit(AT, step(1)), odd, Fetch(AT, (Get(GC, ()),)))]
    driver._execute(group)
    assert group[0].answer == Committed()
    assert isinstance(group[1].error, struct.error)
    assert group[2].error is None
    assert height(driver, AT) == 1


def test_64_threads_share_a_few_connections(server: Server) -> None:
    backend.migrate(server.url)
    with closing(backend.open_driver(f"{server.url}?pool=3")) as driver:

        def work(n: int) -> int:
            at = Partition("", f"t{n}")
            for i in range(1, 11):
                assert driver.perform(Commit(at, step(i))) == Committed()
            return height(driver, at)

        with ThreadPoolExecutor(64) as pool:
            assert list(pool.map(work, range(64))) == [10] * 64
        with server.client() as client:
            assert len(client.client_list()) <= 3 + 1
    with server.client() as client:
        assert len(client.client_list()) == 1, "a closed driver left connections behind"


def test_the_documented_rights_are_enough(server: Server) -> None:
    page = (ROOT / "docs" / "backends" / "redis.md").read_text()
    rule = page.partition("ACL SETUSER perdure on >secret ")[2].partition("\n")[0]
    backend.migrate(f"{server.url}?prefix=other")
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "perdure", "on", ">secret", *rule.split())
    url = server.url.replace("//", "//perdure:secret@")
    with pytest.raises(perdure.Unavailable, match="lacks a right"):
        backend.open_driver(f"{url}?prefix=other")
    assert backend.migrate(url) == 0
    with closing(backend.open_driver(f"{url}?ttl=1d")) as driver:
        for n in range(1, 4):
            assert driver.perform(Commit(AT, (*step(n), rows.chunk(b"%d" % n)))) == Committed()
        assert len(rows.keys(driver, Range(CHUNK), AT)) == 3
        assert height(driver, AT) == 3
        assert driver.perform(FindRuns(None, "run")) == ()
        rows.store_ops(driver, rows.lane("inbox", driver.perform(Now())), at=AT)
        assert [f.partition for f in driver.perform(FindDue(None, until=1 << 60))] == [AT]
        driver.perform(Drop(AT))
        assert driver.perform(FindThreads(None)) == ()
    before = backend.SCHEMA_VERSION
    with next_layout():
        assert backend.migrate(url) == before


# Opening


def test_a_wrong_password_is_said_without_showing_it() -> None:
    server = Server(*valkey.DURABLE, "--requirepass", "sesame")
    try:
        for secret in (":open", "nobody:open", ""):
            url = f"redis://{secret}@127.0.0.1:{server.port}/0" if secret else server.url
            for act in (backend.migrate, backend.open_driver, backend.schema_version, backend.plan_migration):
                with pytest.raises(perdure.Unavailable, match="refused the user name or password") as caught:
                    act(url)
                assert ":open" not in str(caught.value)
        right = f"redis://:sesame@127.0.0.1:{server.port}/0"
        assert backend.migrate(right) == 0
        backend.open_driver(right).close()
    finally:
        server.stop()


def test_a_host_out_of_reach_is_said_at_once() -> None:
    # Whoever waits this out is ended by the time limit of the test.
    for scheme in ("redis", "redis+cluster"):
        with pytest.raises(perdure.Unavailable, match="cannot be reached; check host and port"):
            backend.open_driver(f"{scheme}://127.0.0.1:{free_port()}/0?patience=3600")


def test_a_database_is_migrated_once_and_newer_ones_are_left_alone() -> None:
    with valkey.empty() as url, valkey.shared().client() as client:
        with pytest.raises(perdure.MigrationRequired, match="run `perdure migrate`"):
            backend.open_driver(url)
        assert backend.schema_version(url) == 0
        assert len(backend.plan_migration(url)) == 1
        with ThreadPoolExecutor(16) as pool:
            assert set(pool.map(backend.migrate, [url] * 16)) <= {0, backend.SCHEMA_VERSION}
        assert backend.schema_version(url) == backend.SCHEMA_VERSION
        assert backend.plan_migration(url) == []
        key = f"{url.partition('prefix=')[2]}:layout"
        client.set(key, "9 16")
        for act in (backend.migrate, backend.open_driver, backend.plan_migration):
            with pytest.raises(perdure.MigrationRequired, match="upgrade perdure"):
                act(url)
        client.set(key, "something else")
        with pytest.raises(perdure.Unavailable, match="another program"):
            backend.open_driver(url)


def test_a_database_keeps_its_number_of_buckets() -> None:
    with valkey.empty() as url, valkey.shared().client() as client:
        client.set(f"{url.partition('prefix=')[2]}:layout", f"{backend.SCHEMA_VERSION} 3")
        assert backend.migrate(url) == backend.SCHEMA_VERSION
        with closing(backend.open_driver(url)) as driver:
            for n in range(20):
                driver.perform(Commit(Partition("", f"t{n}"), step(1)))
            assert len(driver.perform(FindThreads(""))) == 20
        tags = {key.partition(b"{")[2].partition(b"}")[0] for key in client.scan_iter("*{*", count=1000)}
        assert tags >= {b"0", b"1", b"2"}


@pytest.mark.parametrize(
    ("tail", "says"),
    [
        ("/0?ttl=soon", "ttl='soon'"),
        ("/0?ttl=0d", "ttl='0d'"),
        ("/0?ttl=200000000000d", "more than a hundred years"),
        ("/0?pool=none", "pool='none'"),
        ("/0?pool=0", "pool='0'"),
        ("/0?pool=²", "pool='²'"),
        ("/0?prefix={x}", "prefix='{x}'"),
        ("/zero", "the number of a database"),
        ("/0?colour=red", "a parameter that the Redis client does not know"),
        ("/0?socket_timeout=long", "socket_timeout"),
    ],
)
def test_a_url_that_says_nothing_is_refused(tail: str, says: str) -> None:
    with pytest.raises(perdure.BadUrl) as caught:
        backend.open_driver(f"redis://:secret@127.0.0.1:1{tail}")
    assert says in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_cluster_and_a_server_are_not_mixed_up() -> None:
    plain = f"redis+cluster://127.0.0.1:{valkey.shared().port}"
    with pytest.raises(perdure.Unavailable, match="write redis:// for redis"):
        backend.open_driver(plain)
    elsewhere = next(node for node in valkey.cluster() if not valkey.owns(node, key_slot(b"mixed:layout")))
    with pytest.raises(perdure.Unavailable, match=r"write redis\+cluster://"):
        backend.migrate(f"{elsewhere.url}?prefix=mixed")
    with pytest.raises(perdure.BadUrl, match="one database"):
        backend.open_driver(f"{plain}/3")


def test_a_missing_client_names_the_install_command() -> None:
    code = (
        "import sys; sys.modules['redis'] = None\n"
        "from perdure.storage.url import open_driver\n"
        "try: open_driver('redis://127.0.0.1/0')\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("MissingExtra"), done.stderr
    assert 'pip install "perdure[redis]"' in done.stdout


# What the server promises


def test_a_server_that_keeps_nothing_is_warned_of() -> None:
    server = Server("--save", "", "--appendonly", "no")
    try:
        backend.migrate(server.url)
        with pytest.warns(RuntimeWarning, match="without an append-only file"):
            backend.open_driver(server.url).close()
    finally:
        server.stop()


def test_weaker_promises_are_logged_and_eviction_is_warned_of(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    backend.migrate(server.url)
    caplog.set_level(logging.WARNING)
    backend.open_driver(server.url).close()
    assert caplog.text == ""
    with server.client() as client:
        client.config_set("appendfsync", "everysec")
        backend.open_driver(server.url).close()
        assert "the writes of the last second or two" in caplog.text
        client.config_set("maxmemory", "1gb")
        client.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.warns(RuntimeWarning, match="evicts keys"):
            backend.open_driver(server.url).close()
        client.config_set("maxmemory-policy", "noeviction")
        client.execute_command("ACL", "SETUSER", "default", "-config")
        backend.open_driver(server.url).close()
    assert "does not show its settings" in caplog.text


# The cluster


def test_a_slot_that_moves_is_followed() -> None:
    nodes = valkey.cluster()
    with valkey.empty_on_cluster() as url:
        backend.migrate(url)
        stop = Event()
        with closing(backend.open_driver(url)) as driver, ThreadPoolExecutor(1) as pool:
            assert driver.perform(Commit(AT, step(1))) == Committed()
            slot = driver._space.place(AT).slot
            climber = pool.submit(climb, driver, AT, stop, {})
            for _ in range(3):
                valkey.move(slot, *_owner_and_other(nodes, slot))
                time.sleep(0.2)
            stop.set()
            n, unknown = climber.result(timeout=30)
            assert unknown == 0
            assert height(driver, AT) == n > 3


@pytest.mark.skipif(not FULL, reason=RARE)
def test_looking_for_threads_while_their_slot_moves_takes_none_from_the_catalogue() -> None:
    finds = (FindThreads(""), FindRuns("", "run"), FindDue("", until=1))
    with valkey.empty_on_cluster() as url:
        backend.migrate(url)
        with closing(backend.open_driver(f"{url}{'&' if '?' in url else '?'}patience=0.1")) as driver:

            def look() -> None:
                for find in finds:
                    with suppress(perdure.Unavailable):
                        driver.perform(find)

            slot, threads = _neighbours(driver)
            valkey.move(slot, *_owner_and_other(valkey.cluster(), slot), meanwhile=look)
            for find in finds:
                assert {f.partition for f in driver.perform(find)} == threads


@pytest.mark.skipif(not FULL, reason=RARE)
def test_looking_for_threads_waits_for_those_that_moved_before_their_catalogue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits, looks = Event(), list[Future[Sequence[IndexHit]]]()

    def sleep(seconds: float) -> None:
        waits.set()
        time.sleep(seconds)

    monkeypatch.setattr(cluster, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    with valkey.empty_on_cluster() as url:
        backend.migrate(url)
        with closing(backend.open_driver(url)) as driver, ThreadPoolExecutor(1) as pool:

            def look() -> None:
                if not looks:
                    looks.append(pool.submit(driver.perform, FindThreads("")))
                    looks[0].add_done_callback(lambda _: waits.set())
                    assert waits.wait(timeout=30)

            slot, threads = _neighbours(driver)
            nodes = _owner_and_other(valkey.cluster(), slot)
            valkey.move(slot, *nodes, meanwhile=look, threads_first=True)
            assert {f.partition for f in looks[0].result(timeout=30)} == threads


def _neighbours(driver: RedisDriver) -> tuple[int, set[Partition]]:
    """A slot, and three threads in it with a run each, and with something due."""
    slot = driver._space.place(AT).slot
    all_threads = (Partition("", f"t{n}") for n in count())
    threads = set(islice((at for at in all_threads if driver._space.place(at).slot == slot), 3))
    for at in threads:
        assert driver.perform(Commit(at, (rows.checkpoint("c", run_id="run"), rows.lane("inbox", 1)))) == (
            Committed()
        )
    return slot, threads


def test_nodes_that_keep_their_names_to_themselves_are_where_they_were_asked() -> None:
    nodes = valkey.cluster()
    with valkey.empty_on_cluster() as url:
        backend.migrate(url)
        try:
            for node in nodes:
                with node.client() as client:
                    client.config_set("cluster-preferred-endpoint-type", "unknown-endpoint")
            with closing(backend.open_driver(url)) as driver:
                assert driver.perform(Commit(AT, step(1))) == Committed()
        finally:
            for node in nodes:
                with node.client() as client:
                    client.config_set("cluster-preferred-endpoint-type", "ip")


def test_a_node_that_is_killed_comes_back_with_everything() -> None:
    nodes = valkey.cluster()
    threads = [Partition("", f"t{n}") for n in range(8)]
    with valkey.empty_on_cluster() as url:
        backend.migrate(url)
        stop = Event()
        reached = dict.fromkeys(threads, 0)
        with closing(backend.open_driver(url)) as driver, ThreadPoolExecutor(8) as pool:
            climbers = [pool.submit(climb, driver, at, stop, reached) for at in threads]
            try:
                for kills, node in enumerate(nodes[1:], 1):
                    eventually(lambda higher=5 * kills: min(reached.values()) >= higher)  # type: ignore[misc]
                    node.kill()
                    time.sleep(0.2)
                    node.start()
                after = dict(reached)
                eventually(lambda: all(reached[at] > n + 5 for at, n in after.items()))
            finally:
                stop.set()
            told = [climber.result(timeout=60) for climber in climbers]
            assert [height(driver, at) for at in threads] == [n for n, _ in told]
            assert sum(unknown for _, unknown in told) == 0


def _owner_and_other(nodes: tuple[Server, ...], slot: int) -> tuple[Server, Server]:
    owner = next(node for node in nodes if valkey.owns(node, slot))
    return owner, next(node for node in nodes if node is not owner)
