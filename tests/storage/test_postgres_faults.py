"""PostgreSQL when its server is stopped hard, ends connections, loses answers, or is paused: what was
acknowledged is there, nothing is applied twice, and the driver goes on by itself."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from perdure.errors import Unavailable
from perdure.model.ops import (
    Check,
    Commit,
    Committed,
    Delete,
    Drop,
    Expect,
    Fetch,
    FindThreads,
    Get,
    Put,
    Range,
    Stage,
)
from perdure.model.program import Effect
from perdure.model.records import CHUNK, GC, TAG, Partition
from perdure.storage.batching import PendingRequest
from perdure.storage.encryption import DataKeys, EncryptedDriver, Keyring
from perdure.storage.port import Driver
from perdure.storage.postgres import connection as link
from perdure.storage.postgres.codec import Write
from perdure.storage.postgres.opening import PostgresDriver
from perdure.storage.url import open_driver
from tests.servers import postgres
from tests.servers.lossy import Lossy
from tests.storage.climbers import eventually

FULL = os.environ.get("PERDURE_CHAOS") == "full"
ROOT = Path(__file__).resolve().parents[2]
AT = Partition("", "thread")


@pytest.fixture
def url() -> Iterator[str]:
    with postgres.empty(postgres.durable(), pool=8) as url:
        open_driver(url, migrate=True).close()
        yield url


class Writers:
    """Threads that write as fast as they can and remember what they were told. Each commit makes one record
    that must not be there and raises the version of another from what it was."""

    def __init__(self, driver: Driver, count: int = 8) -> None:
        self.driver = driver
        self.told: dict[Partition, list[int]] = {Partition("", f"t{n}"): [] for n in range(count)}
        self.unknown: dict[Partition, set[int]] = {at: set() for at in self.told}
        self.errors: list[Exception] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(at,)) for at in self.told]
        for thread in self._threads:
            thread.start()

    def _write(self, at: Partition) -> None:
        number = version = 0
        while not self._stop.is_set():
            number += 1
            tag = Put(TAG, (f"{number}",), {"namespace": "", "checkpoint_id": "c"}, expect=Expect.ABSENT)
            gc = Put(GC, (), expect=version or Expect.ABSENT, version=number)
            try:
                outcome = self.driver.perform(Commit(at, (tag, gc)))
            except Unavailable:
                self.unknown[at].add(number)
                version = self._version(at)
            except Exception as error:
                self.errors.append(error)
                return
            else:
                if isinstance(outcome, Committed):
                    self.told[at].append(number)
                    version = number
                else:
                    self.errors.append(RuntimeError(f"{at.thread}: {number} on {version} was refused"))
                    return

    def _version(self, at: Partition) -> int:
        while not self._stop.is_set():
            try:
                ((record, *_),) = self.driver.perform(Fetch(at, (Get(GC, ()),))) or ((),)
            except Unavailable:
                continue
            except ValueError:
                return 0
            return record.version
        return 0

    @property
    def count(self) -> int:
        return sum(len(told) for told in self.told.values())

    def more(self, count: int = 20) -> None:
        """Wait until so many more writes were acknowledged."""
        target, deadline = self.count + count, time.monotonic() + 30
        while self.count < target:
            assert not self.errors, self.errors
            assert time.monotonic() < deadline, "writes do not go on"
            time.sleep(0.002)

    def verify(self) -> None:
        """Every acknowledged write is there, once; and nothing is that nobody wrote."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self.errors, self.errors
        for at, told in self.told.items():
            (found,) = self.driver.perform(Fetch(at, (Range(TAG),)))
            stored = {int(record.key[0]) for record in found}
            assert set(told) <= stored, f"acknowledged and not stored: {sorted(set(told) - stored)[:5]}"
            assert stored <= set(told) | self.unknown[at]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_server_stopped_hard_loses_nothing_that_was_acknowledged(url: str) -> None:
    server = postgres.durable()
    with closing(open_driver(url)) as driver:
        writers = Writers(driver)
        try:
            for n in range(20):
                writers.more()
                server.stop(signal.SIGQUIT if n % 4 else signal.SIGINT)
                server.start()
            writers.more()
        finally:
            if server.process is None or server.process.poll() is not None:
                server.start()
            writers.verify()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_hundred_connections_are_ended_and_nobody_notices(url: str) -> None:
    with closing(open_driver(url)) as driver, psycopg.connect(url_of(url), autocommit=True) as other:
        writers = Writers(driver)
        ended = 0
        try:
            while ended < 200:
                writers.more(5)
                ended += len(
                    other.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE application_name = 'perdure' ORDER BY random() LIMIT 3"
                    ).fetchall()
                )
                driver.perform(Fetch(AT, (Get(GC, ()),)))
                driver.perform(FindThreads(""))
            writers.more()
        finally:
            writers.verify()
        # Every attempt at one commit can meet an ended connection; its outcome is then reported as unknown.
        assert sum(map(len, writers.unknown.values())) <= 2, "a server that is there leaves outcomes unknown"


@contextmanager
def through_lossy(url: str) -> Iterator[tuple[Driver, Lossy]]:
    relay = Lossy(postgres.durable().port)
    passed = url.replace(f":{postgres.durable().port}/", f":{relay.port}/")
    driver = open_driver(passed + "&sslmode=disable&gssencmode=disable")
    try:
        yield driver, relay
    finally:
        driver.close()
        relay.close()


def test_a_commit_whose_answer_was_lost_is_settled_and_not_repeated(url: str) -> None:
    with through_lossy(url) as (driver, relay):
        for version in range(1, 30):
            put = Put(GC, (), expect=version - 1 or Expect.ABSENT, version=version)
            relay.losing = 1 if version > 1 else 0
            assert driver.perform(Commit(AT, (put,))) == Committed()
        driver.perform(Fetch(AT, (Get(GC, ()),)))
        assert relay.lost > 20
        for effect in (Fetch(AT, (Get(GC, ()),)), FindThreads(""), Stage(AT, ()), Drop(AT)):
            relay.losing = 1
            driver.perform(effect)
        assert driver.perform(FindThreads("")) == ()


class Uncommitted(Lossy):
    """A relay that, once it is ``armed``, asks for a statement's result but not for its commit, and ends the
    connection when the result has passed."""

    armed = False
    ended = 0
    _is_ending = False

    def _pump(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        rest = b""
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if answers:
                    target.sendall(data)
                    if self._is_ending:
                        # What has passed is still read; the server forgets what it did not commit.
                        self._is_ending = False
                        source.shutdown(socket.SHUT_RDWR)
                        target.shutdown(socket.SHUT_WR)
                        return
                elif not self.armed:
                    target.sendall(data)
                else:
                    rest += data
                    at = _sync_at(rest)
                    if at is not None:
                        self.armed, self._is_ending, self.ended = False, True, self.ended + 1
                        target.sendall(rest[:at] + b"H\0\0\0\4")
                        while source.recv(1 << 16):
                            pass
        for peer in (source, target):
            with suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
            peer.close()


def _sync_at(messages: bytes) -> int | None:
    """Return the place of the first message that ends a transaction."""
    at = 0
    while at + 5 <= len(messages):
        if messages[at : at + 1] == b"S":
            return at
        at += 1 + int.from_bytes(messages[at + 1 : at + 5], "big")
    return None


@pytest.mark.parametrize("reads", [False, True], ids=["alone", "with a read after it"])
def test_a_commit_is_no_success_before_its_transaction_has_ended(single: str, reads: bool) -> None:
    relay = Uncommitted(postgres.durable().port)
    passed = single.replace(f":{postgres.durable().port}/", f":{relay.port}/")
    fetch = Fetch(AT, (Get(GC, ()),))

    async def write(driver: PostgresDriver, version: int) -> None:
        commit = Commit(AT, (Put(GC, (), expect=version - 1 or Expect.ABSENT, version=version),))
        if reads:
            outcome, _ = await driver.acommit_and_fetch(commit, fetch)
        else:
            outcome = await driver.aperform(commit)
        assert outcome == Committed()

    async def main(driver: PostgresDriver) -> None:
        await write(driver, 1)
        for version in (2, 3):
            relay.armed = True
            await write(driver, version)
            ((stored,),) = await driver.aperform(fetch)
            assert stored.version == version
            assert relay.ended == version - 1

    with closing(relay), closing(open_driver(passed + "&sslmode=disable&gssencmode=disable")) as driver:
        assert isinstance(driver, PostgresDriver)
        asyncio.run(main(driver))


def test_a_lost_answer_of_a_group_is_settled_for_each(url: str) -> None:
    with through_lossy(url) as (driver, relay), ThreadPoolExecutor(48) as pool:
        for n in range(5):
            relay.losing = 3
            ats = [Partition(f"{n}", f"t{i % 24}") for i in range(48)]
            puts = [
                Put(TAG, (f"{i % 2}",), {"namespace": "", "checkpoint_id": ""}, expect=Expect.ABSENT)
                for i in range(48)
            ]
            commits = [Commit(at, (put,)) for at, put in zip(ats, puts, strict=True)]
            won = [isinstance(o, Committed) for o in pool.map(driver.perform, commits)]
            assert len(won) == 48
            keys = {(at, put.key) for at, put in zip(ats, puts, strict=True)}
            assert sum(won) >= len(keys), "a write was stored and its caller was told that it was refused"


@pytest.fixture
def single(url: str) -> str:
    """The URL with one connection that writes and one that reads, so that it is known which one is lost."""
    return url.replace("pool=8", "pool=2")


def together(driver: Driver, effects: Sequence[Effect[Any]]) -> list[Any]:
    """The outcomes of requests that leave in one trip, in this order; an error stands for itself."""
    assert isinstance(driver, PostgresDriver)
    batcher = driver._batcher(effects[0])
    futures: list[Future[Any]] = [Future() for _ in effects]
    with batcher._lock:
        for effect, future in zip(effects, futures, strict=True):
            batcher._submit(PendingRequest(effect, future=future))
    return [future.exception(60) or future.result() for future in futures]


def lose_once(
    monkeypatch: pytest.MonkeyPatch, driver: Driver, meanwhile: Callable[[], object], *, arrives: bool
) -> None:
    """The next write loses its connection, before it arrives or after; others do something meanwhile."""
    assert isinstance(driver, PostgresDriver)
    plain, lost = driver._commit_with_vectors, threading.Event()

    def commit(writes: Sequence[Write], readers: Sequence[PendingRequest] = ()) -> list[Any]:
        if lost.is_set():
            return plain(writes, readers)
        lost.set()
        if arrives:
            plain(writes)
        meanwhile()
        raise link.ConnectionLost

    monkeypatch.setattr(driver, "_commit_with_vectors", commit)


def tagged(name: str, checkpoint: str, version: int = 1, expect: Expect = Expect.ANY) -> Put:
    return Put(TAG, (name,), {"namespace": "", "checkpoint_id": checkpoint}, expect=expect, version=version)


def test_a_lost_answer_is_settled_although_a_chunk_is_stored_as_another_sealed_it(single: str) -> None:
    pytest.importorskip("cryptography", reason='pip install "perdure[encryption]"')
    chunk = Put(CHUNK, (b"digest",), {"generation": 1}, b"body")
    with through_lossy(single) as (driver, relay):
        sealed = EncryptedDriver(driver, Keyring(DataKeys.create(0)))
        assert sealed.perform(Commit(AT, (Put(GC, (), version=1), chunk))) == Committed()
        relay.losing = 1
        assert sealed.perform(Commit(AT, (Put(GC, (), expect=1, version=2), chunk))) == Committed()
        assert relay.lost == 1


def test_commits_of_one_trip_that_build_on_each_other_are_not_refused_for_a_lost_answer(single: str) -> None:
    with through_lossy(single) as (driver, relay):
        assert driver.perform(Commit(AT, (Put(GC, (), version=1),))) == Committed()
        relay.losing = 1
        first, second = together(
            driver, [Commit(AT, (Put(GC, (), expect=n, version=n + 1),)) for n in (1, 2)]
        )
        assert relay.lost == 1
        assert first == Committed() or "may be stored or not" in str(first)
        assert second == Committed()
        assert driver.perform(Fetch(AT, (Get(GC, ()),)))[0][0].version == 3


def test_an_earlier_write_of_a_lost_trip_is_not_made_again_over_a_part_of_a_later_one(single: str) -> None:
    with through_lossy(single) as (driver, relay):
        driver.perform(Commit(AT, (Put(GC, (), version=1),)))
        relay.losing = 1
        later = Commit(AT, (tagged("x", "later", 2), tagged("y", "later", 2, Expect.ABSENT)))
        outcomes = together(driver, [Commit(AT, (tagged("x", "earlier"),)), later])
        assert relay.lost == 1
        assert outcomes[1] == Committed()
        (tags,) = driver.perform(Fetch(AT, (Range(TAG),)))
        assert [(tag.key[0], tag.fields["checkpoint_id"]) for tag in tags] == [("x", "later"), ("y", "later")]


@pytest.mark.parametrize("op", [Delete(TAG, ("x",)), Put(CHUNK, (b"digest",), {"generation": 0}, b"x")])
def test_what_another_did_meanwhile_is_not_taken_for_a_write_that_never_arrived(
    single: str, monkeypatch: pytest.MonkeyPatch, op: Put | Delete
) -> None:
    with closing(open_driver(single)) as driver, closing(open_driver(single)) as other:
        driver.perform(Commit(AT, (tagged("x", "c"),)))
        lose_once(monkeypatch, driver, lambda: other.perform(Commit(AT, (op,))), arrives=False)
        with pytest.raises(Unavailable, match="may be stored or not"):
            driver.perform(Commit(AT, (Check(GC, (), Expect.PRESENT), op)))


def test_a_commit_that_others_wrote_over_before_it_was_settled_is_not_called_refused(
    single: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(open_driver(single)) as driver, closing(open_driver(single)) as other:
        driver.perform(Commit(AT, (Put(GC, (), version=1),)))
        over = Commit(AT, (Put(GC, (), expect=2, version=3),))
        lose_once(monkeypatch, driver, lambda: other.perform(over), arrives=True)
        with pytest.raises(Unavailable, match="may be stored or not"):
            driver.perform(Commit(AT, (Put(GC, (), expect=1, version=2), tagged("x", "c"))))


def test_without_a_server_an_error_comes_in_bounded_time_and_later_all_is_well(url: str) -> None:
    server = postgres.durable()
    with closing(open_driver(url + "&patience=0.4")) as driver:
        put = Put(GC, (), version=1)
        driver.perform(Commit(AT, (put,)))
        server.stop(signal.SIGQUIT)
        try:
            for effect in (Commit(AT, (put,)), Fetch(AT, (Get(GC, ()),)), FindThreads("")):
                with pytest.raises(Unavailable, match=r"no server answers|starting"):
                    driver.perform(effect)
        finally:
            server.start()

        def is_well() -> bool:
            with suppress(Unavailable):
                return driver.perform(Commit(AT, (put,))) == Committed()
            return False

        # A connection to a busy server may take longer than the patience that is asked for.
        eventually(is_well)
        assert len(driver.perform(Fetch(AT, (Get(GC, ()),)))[0]) == 1


def test_closing_does_not_wait_for_a_server_that_is_away(url: str) -> None:
    server = postgres.durable()
    driver = open_driver(url + "&patience=600")
    driver.perform(Commit(AT, (Put(GC, (), version=1),)))
    server.stop(signal.SIGQUIT)
    try:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(driver.perform, Commit(AT, (Put(GC, (), version=2),)))
            time.sleep(0.3)
            driver.close()
            assert isinstance(waiting.exception(20), Unavailable)
    finally:
        server.start()


def test_a_server_that_says_nothing_counts_as_lost(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes are stopped, so that they take what is sent and never answer."""
    with closing(open_driver(url)) as driver, psycopg.connect(url_of(url), autocommit=True) as other:
        driver.perform(Commit(AT, (Put(GC, (), version=1),)))
        monkeypatch.setattr(link, "ANSWER_TIMEOUT_S", 0.5)
        ours = [
            pid
            for (pid,) in other.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'perdure'"
            ).fetchall()
        ]
        for pid in ours:
            os.kill(pid, signal.SIGSTOP)
        try:
            for version in range(2, 12):
                step = Put(GC, (), expect=version - 1, version=version)
                assert driver.perform(Commit(AT, (step,))) == Committed()
        finally:
            for pid in ours:
                os.kill(pid, signal.SIGCONT)
        monkeypatch.undo()
        time.sleep(0.3)  # now they read what they were sent, and must not do it any more
        assert driver.perform(Fetch(AT, (Get(GC, ()),)))[0][0].version == 11


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "connected"), [("commits", True), ("commits", False), ("fetches", False), ("fetches", True)]
)
def test_all_who_share_a_trip_hear_after_one_wait_that_the_server_is_away(
    single: str, what: str, connected: bool
) -> None:
    ats = [Partition("", f"t{n}") for n in range(20)]
    commits = [Commit(at, (Put(GC, (), version=1),)) for at in ats]
    fetches = [Fetch(at, (Get(GC, ()),)) for at in ats]
    effects: list[Effect[Any]] = [*commits] if what == "commits" else [*fetches]
    with through_lossy(single + "&patience=2") as (driver, relay):
        if connected:
            driver.perform(effects[0])
        relay.close()
        began = time.monotonic()
        outcomes = together(driver, effects)
        # One after the other, they would wait for 40 seconds.
        assert time.monotonic() - began < 25, "callers wait one after the other"
        assert all(isinstance(outcome, Unavailable) for outcome in outcomes)


class Mute(Lossy):
    """A relay that lets connections be made and, while ``mute``, passes on no question."""

    mute = False

    def _pump(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        if answers:
            super()._pump(source, target, answers)
            return
        with suppress(OSError):
            while data := source.recv(1 << 16):
                # How a connection begins has no type of message, or one of a password.
                if not (self.mute and data[:1] in (b"Q", b"P", b"B")):
                    target.sendall(data)


def test_a_server_that_takes_connections_and_says_nothing_holds_up_neither_callers_nor_closing(
    single: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = Mute(postgres.durable().port)
    passed = single.replace(f":{postgres.durable().port}/", f":{relay.port}/") + "&patience=0"
    with ThreadPoolExecutor(3) as pool, closing(relay):
        driver = open_driver(passed + "&sslmode=disable&gssencmode=disable")
        monkeypatch.setattr(link, "ANSWER_TIMEOUT_S", 0.3)
        relay.mute = True
        for effect in (Fetch(AT, (Get(GC, ()),)), Commit(AT, (Put(GC, (), version=1),))):
            with pytest.raises(Unavailable, match="says nothing"):
                pool.submit(driver.perform, effect).result(20)
        pool.submit(driver.close).result(20)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_that_closes_leaves_its_parent_s_connections(single: str) -> None:
    with closing(open_driver(single)) as driver:
        assert isinstance(driver, PostgresDriver)
        commit, fetch = Commit(AT, (Put(GC, (), version=1),)), Fetch(AT, (Get(GC, ()),))
        driver.perform(commit), driver.perform(fetch)
        before = [each.require_connection().info.backend_pid for each in driver._links]
        child = os.fork()
        if child == 0:
            try:
                signal.alarm(20)  # ends the child should it hang
                driver.close()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        driver.perform(commit), driver.perform(fetch)
        assert [each.require_connection().info.backend_pid for each in driver._links] == before
        assert len(before) == 2


@pytest.mark.slow
def test_a_paused_client_holds_nothing(url: str) -> None:
    command = [sys.executable, "-m", "tests.storage.postgres_client", "write", url]
    with (
        closing(open_driver(url)) as driver,
        psycopg.connect(url_of(url), autocommit=True) as other,
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as client,
    ):
        try:
            assert client.stdout is not None
            assert client.stdout.readline() == "writing\n"
            for n in range(20):
                time.sleep(0.005 * n % 0.03)
                client.send_signal(signal.SIGSTOP)
                began = time.monotonic()
                put = Put(CHUNK, (b"%16d" % n,), {"generation": 0}, b"x")
                assert driver.perform(Commit(Partition("", "thread"), (put,))) == Committed()
                assert time.monotonic() - began < 5
                held = other.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'"
                ).fetchone()
                assert held == (0,)
                client.send_signal(signal.SIGCONT)
        finally:
            client.kill()


@pytest.mark.slow
def test_somebody_s_open_transaction_is_named_and_waited_for_only_so_long(url: str) -> None:
    with closing(open_driver(url)) as driver, psycopg.connect(url_of(url)) as other:
        driver.perform(Commit(AT, (Put(GC, (), version=1),)))
        schema = url.partition("schema=")[2].partition("&")[0]
        with other.transaction():
            other.execute(f"SELECT FROM {schema}.thread FOR UPDATE".encode())
            with pytest.raises(Unavailable, match="another session held rows"):
                driver.perform(Commit(AT, (Put(GC, (), version=2),)))
            assert driver.perform(Commit(Partition("", "other"), (Put(GC, (), version=2),))) == Committed()
            assert driver.perform(Fetch(AT, (Get(GC, ()),)))[0][0].version == 1
        assert driver.perform(Commit(AT, (Put(GC, (), version=2),))) == Committed()


def test_many_callers_share_few_connections(url: str) -> None:
    few = url.replace("pool=8", "pool=2")
    with closing(open_driver(few)) as driver, ThreadPoolExecutor(64) as pool:

        def work(n: int) -> int:
            at = Partition("", f"t{n}")
            for version in range(1, 11):
                put = Put(GC, (), expect=version - 1 or Expect.ABSENT, version=version)
                assert driver.perform(Commit(at, (put,))) == Committed()
            return driver.perform(Fetch(at, (Get(GC, ()),)))[0][0].version

        assert list(pool.map(work, range(64))) == [10] * 64


def url_of(url: str) -> str:
    """The same database for a client that knows only libpq's parameters."""
    return url.partition("?")[0]
