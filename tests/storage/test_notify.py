"""Bells on real servers: what is rung is heard elsewhere, and nothing that a server does hurts who rings."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from itertools import pairwise
from pathlib import Path
from queue import Empty, Queue
from typing import Any
from urllib.parse import quote, urlsplit

import psycopg
import pytest

from perdure.errors import BadUrl
from perdure.model.ops import Now
from perdure.storage import notify as bells
from perdure.storage.encryption import EncryptedDriver
from perdure.storage.notify import ServerNotifier, wait
from perdure.storage.port import Driver, Notifier
from perdure.storage.url import open_driver
from perdure.testing.faults import FaultyDriver
from tests.servers import postgres, valkey
from tests.servers.lossy import Lossy

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 60.0
NAME = f"bell{os.getpid()}"

EMPTY: dict[str, Callable[[], AbstractContextManager[str]]] = {
    "postgresql": postgres.empty,
    "redis": valkey.empty,
    "redis-cluster": valkey.empty_on_cluster,
}


@pytest.fixture(params=EMPTY)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with EMPTY[request.param]() as url:
        open_driver(url, migrate=True).close()
        yield url


def of(driver: Driver) -> Notifier:
    bell = driver.capabilities.bell
    assert bell is not None
    return bell


@contextmanager
def opened(url: str, **parameters: str) -> Iterator[Driver]:
    query = "".join(f"&{name}={value}" for name, value in parameters.items())
    with closing(open_driver(url + query)) as driver:
        yield driver


def named(url: str) -> dict[str, str]:
    """The parameter that names the connections of a driver."""
    return {"application_name" if url.startswith("postgresql") else "client_name": NAME}


def connections(url: str) -> int:
    """How many connections the server has of that name."""
    if url.startswith("postgresql"):
        with psycopg.connect(postgres.shared().url()) as connection:
            row = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", (NAME,)
            ).fetchone()
            assert row is not None
            return int(row[0])
    servers = valkey.cluster() if url.startswith("redis+cluster") else (valkey.shared(),)
    count = 0
    for server in servers:
        with server.client() as client:
            count += sum(client["name"] == NAME for client in client.client_list())
    return count


def end_listeners(url: str) -> int:
    """End every connection that listens, from the server's side; how many there were."""
    if url.startswith("postgresql"):
        with psycopg.connect(postgres.shared().url(), autocommit=True) as connection:
            done = connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = %s AND query ~ '^(LISTEN|SELECT pg_notify)'",
                (NAME,),
            )
            return len(done.fetchall())
    servers = valkey.cluster() if url.startswith("redis+cluster") else (valkey.shared(),)
    count = 0
    for server in servers:
        with server.client() as client:
            count += int(client.execute_command("CLIENT", "KILL", "TYPE", "pubsub"))
    return count


def eventually(what: Callable[[], object]) -> None:
    until = time.monotonic() + WITHIN_S
    while not what():
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0.02)


def until_heard(ringer: Notifier, heard: Queue[str], word: str) -> None:
    """Ring, again and again as long as the word may be lost, until it is heard."""
    until = time.monotonic() + WITHIN_S
    while time.monotonic() < until:
        ringer.notify([word])
        try:
            while heard.get(timeout=0.2) != word:
                pass
        except Empty:
            continue
        return
    raise AssertionError(f"{word} was not heard")


def test_a_word_is_heard_wherever_somebody_listens(url: str) -> None:
    with opened(url) as one, opened(url) as two:
        heard: Queue[str] = Queue()
        own: Queue[str] = Queue()
        of(two).listen(heard.put)
        until_heard(of(one), heard, "first")
        of(one).listen(own.put)
        until_heard(of(one), own, "second")
        for n in range(20):
            of(one).notify([f"w{n}", f"v{n}"])
            assert {_next(heard, "w", "v"), _next(heard, "w", "v")} == {f"w{n}", f"v{n}"}


def _next(heard: Queue[str], *begin: str) -> str:
    while not (word := heard.get(timeout=WITHIN_S)).startswith(begin):
        pass
    return word


def test_who_stopped_listening_hears_nothing(url: str) -> None:
    with opened(url) as one, opened(url) as two:
        heard: Queue[str] = Queue()
        others: Queue[str] = Queue()
        stop = of(two).listen(heard.put)
        of(two).listen(others.put)
        until_heard(of(one), heard, "first")
        stop()
        until_heard(of(one), others, "second")
        assert "second" not in _all(heard)


def _all(heard: Queue[str]) -> list[str]:
    return [heard.get() for _ in range(heard.qsize())]


def test_a_listener_whose_connection_was_ended_hears_again(url: str) -> None:
    with opened(url) as one, opened(url, **named(url)) as two:
        heard: Queue[str] = Queue()
        of(two).listen(heard.put)
        until_heard(of(one), heard, "before")
        assert end_listeners(url) == 1
        until_heard(of(one), heard, "after")


def test_one_who_rings_does_so_again_when_his_connections_were_ended(url: str) -> None:
    with opened(url) as listener, opened(url, **named(url)) as ringer:
        heard: Queue[str] = Queue()
        of(listener).listen(heard.put)
        until_heard(of(ringer), heard, "before")
        if url.startswith("postgresql"):
            assert end_listeners(url) == 1
        else:
            _kill_named(url)
        until_heard(of(ringer), heard, "after")


def _kill_named(url: str) -> None:
    servers = valkey.cluster() if url.startswith("redis+cluster") else (valkey.shared(),)
    for server in servers:
        with server.client() as client:
            for found in client.client_list():
                if found["name"] == NAME:
                    client.client_kill_filter(_id=found["id"])


@pytest.mark.parametrize("url", ["postgresql", "redis"], indirect=True)
def test_a_server_that_is_away_hurts_nobody(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Every way to the server goes through a relay, which goes away and comes back."""
    port = urlsplit(url).port
    assert port is not None
    caplog.set_level(logging.INFO, logger="perdure.storage.notify")
    relay = Lossy(port)
    with opened(url.replace(f":{port}", f":{relay.port}")) as driver:
        heard: Queue[str] = Queue()
        of(driver).listen(heard.put)
        until_heard(of(driver), heard, "before")
        relay.close()
        eventually(lambda: "notifications are unavailable" in caplog.text)
        began = time.monotonic()
        for n in range(2000):
            of(driver).notify([f"lost{n}"])
        # Each would wait for a connection to be refused, and for the pause after it.
        assert time.monotonic() - began < WITHIN_S, "whoever rings waits for the server"
        relay = Lossy(port, at=relay.port)
        until_heard(of(driver), heard, "after")
        assert "notifications are back" in caplog.text
        assert driver.perform(Now()) > 0
    relay.close()


def test_databases_beside_each_other_hear_only_their_own(url: str) -> None:
    kind = "redis-cluster" if url.startswith("redis+cluster") else urlsplit(url).scheme
    with EMPTY[kind]() as other:
        open_driver(other, migrate=True).close()
        with opened(url) as here, opened(other) as there:
            heard: Queue[str] = Queue()
            theirs: Queue[str] = Queue()
            of(here).listen(heard.put)
            of(there).listen(theirs.put)
            until_heard(of(here), heard, "here")
            until_heard(of(there), theirs, "there")
            of(there).notify(["last"])
            until_heard(of(there), theirs, "later")
            assert set(_all(heard)) <= {"here"}
            assert "here" not in _all(theirs)


def test_nothing_is_opened_before_it_is_used_and_nothing_is_left(url: str) -> None:
    others = set(threading.enumerate())

    def threads() -> list[str]:
        """Ours; servers of other tests may live on beside."""
        return [each.name for each in threading.enumerate() if each not in others and "perdure" in each.name]

    with opened(url, **named(url)) as driver:
        driver.perform(Now())
        # The connection that looked at the schema's version may take a moment to end.
        if url.startswith("postgresql"):
            eventually(lambda: connections(url) == 1)
        used = connections(url)
        assert "perdure-bell" not in threads()
        heard: Queue[str] = Queue()
        of(driver).listen(heard.put)
        until_heard(of(driver), heard, "hello")
        assert connections(url) > used
        assert "perdure-bell" in threads()
    assert threads() == []
    eventually(lambda: connections(url) == 0)
    of(driver).notify(["nobody"])
    of(driver).listen(heard.put)()
    driver.close()
    assert threads() == []


def test_a_forked_child_is_deaf_and_dumb(url: str) -> None:
    with opened(url) as driver:
        heard: Queue[str] = Queue()
        of(driver).listen(heard.put)
        until_heard(of(driver), heard, "before")
        bell = of(driver)
        assert isinstance(bell, ServerNotifier)
        with bell._lock:  # as if another thread had held it at the fork
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    signal.alarm(15)
                    bell.notify(["child"])
                    bell.listen(heard.put)()
                    driver.close()
                    code = 0
                finally:
                    os._exit(code)
        _, status = os.waitpid(child, 0)
        assert status == 0
        until_heard(bell, heard, "after")
        assert "child" not in _all(heard)


def test_whoever_stands_around_a_driver_passes_its_bell_on(url: str) -> None:
    with opened(url) as driver:
        assert FaultyDriver(EncryptedDriver(driver, None)).capabilities.bell is of(driver)
    with opened(url, notify="off") as driver:
        assert EncryptedDriver(driver, None).capabilities.bell is None
    with pytest.raises(BadUrl, match="notify="):
        open_driver(f"{url}&notify=maybe")


@pytest.mark.parametrize("near", ["memory://", "sqlite"])
def test_backends_in_one_process_have_none(near: str, tmp_path: Any) -> None:
    where = near if near == "memory://" else f"sqlite:///{tmp_path / 'threads.db'}"
    with closing(open_driver(where, migrate=True)) as driver:
        assert EncryptedDriver(driver, None).capabilities.bell is None


def test_notifications_may_take_another_way() -> None:
    with postgres.empty() as url:
        open_driver(url, migrate=True).close()
        direct = postgres.shared().url(application_name=NAME)
        with opened(url, notify=quote(direct, safe="")) as driver, opened(url) as other:
            heard: Queue[str] = Queue()
            of(other).listen(heard.put)
            driver.perform(Now())
            assert connections(url) == 0
            until_heard(of(driver), heard, "hello")
            assert connections(url) == 1
    with pytest.raises(BadUrl, match="notify: not a PostgreSQL URL"):
        open_driver(f"{url}&notify={quote('postgresql://host:port/x', safe='')}")


@pytest.mark.parametrize("may", [True, False], ids=["documented", "without"])
def test_a_user_needs_the_documented_rights_or_does_without(
    may: bool, caplog: pytest.LogCaptureFixture
) -> None:
    page = (ROOT / "docs" / "backends" / "redis.md").read_text()
    rule = page.partition("ACL SETUSER perdure on >secret ")[2].partition("\n")[0].split()
    left = [part for part in rule if may or part not in ("&perdure:*", "+publish", "+subscribe")]
    assert may or len(rule) - len(left) == 3
    server = valkey.Server(*valkey.DURABLE)
    try:
        with server.client() as client:
            client.execute_command("ACL", "SETUSER", "perdure", "on", ">secret", "resetchannels", *left)
        url = server.url.replace("//", "//perdure:secret@") + "?pool=2"
        open_driver(url, migrate=True).close()
        with opened(url) as driver:
            heard: Queue[str] = Queue()
            of(driver).listen(heard.put)
            if may:
                until_heard(of(driver), heard, "hello")
            else:
                eventually(lambda: "notifications are unavailable (NoPermissionError)" in caplog.text)
                of(driver).notify(["nobody"])
            assert driver.perform(Now()) > 0
        assert caplog.text.count("notifications are unavailable") == (not may)
        assert "secret" not in caplog.text
    finally:
        server.stop()


# ---------------------------------------------------------------- without a server


class Pipe:
    """A wire without a server: it counts what it is asked, and may fail, or carry nothing back."""

    def __init__(self, *, carries: bool = True) -> None:
        self.carries = carries
        self.ends = [self]
        self.broken = 0
        self.opened = 0
        self.said: list[tuple[float, str]] = []
        self._back: list[str] = []

    def open(self, *, listens: bool) -> None:
        self.opened += 1

    def send(self, text: str) -> None:
        if self.broken:
            self.broken -= 1
            raise OSError("broken")
        self.said.append((time.monotonic(), text))
        if self.carries:
            for end in self.ends:
                end._back.append(text)

    def receive(self, within: float, waker: int) -> list[str]:
        if not self._back:
            wait(within if len(self.ends) == 1 else min(within, 0.01), waker)
        back, self._back = self._back, []
        return back

    def close(self) -> None:
        """There is nothing to let go of."""


def test_words_that_are_rung_together_leave_together() -> None:
    pipe = Pipe()
    bell = ServerNotifier(pipe, name="a pipe")
    heard: Queue[str] = Queue()
    bell.listen(heard.put)
    # However long a busy machine takes to ring: what leaves leaves that long after what left before it.
    began = time.monotonic()
    for n in range(200):
        bell.notify([f"w{n % 50}"])
        time.sleep(0.001)
    eventually(lambda: set(heard.queue) == {f"w{n}" for n in range(50)})
    took = time.monotonic() - began
    moments = [at for at, _ in pipe.said]
    bell.close()
    assert len(moments) < 2 + took / 0.005
    assert all(later - at >= 0.005 for at, later in pairwise(moments))


def test_words_that_are_rung_while_one_leaves_leave_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bells, "_BETWEEN_S", 60.0)
    pipe = Pipe()
    bell = ServerNotifier(pipe, name="a pipe")
    bell.notify(["first"])
    eventually(lambda: pipe.said)
    for n in range(200):
        bell.notify([f"w{n % 50}"])
    bell.close()
    assert [set(text.split()) for _, text in pipe.said] == [{"first"}, {f"w{n}" for n in range(50)}]


def test_what_waits_is_said_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bells, "_BETWEEN_S", 60.0)
    pipe = Pipe()
    bell = ServerNotifier(pipe, name="a pipe")
    bell.notify(["first"])
    eventually(lambda: pipe.said)
    bell.notify(["last"])
    bell.close()
    assert [text for _, text in pipe.said] == ["first", "last"]


def test_a_statement_is_never_too_long_for_the_server() -> None:
    pipe = Pipe()
    bell = ServerNotifier(pipe, name="a pipe")
    heard: Queue[str] = Queue()
    bell.listen(heard.put)
    bell.notify([f"{n:020}" for n in range(1000)])
    eventually(lambda: heard.qsize() >= 1000)
    bell.close()
    assert max(len(text) for _, text in pipe.said) < 8000


def test_what_a_broken_connection_took_with_it_is_said_again() -> None:
    pipe = Pipe()
    bell = ServerNotifier(pipe, name="a pipe")
    heard: Queue[str] = Queue()
    bell.listen(heard.put)
    until_heard(bell, heard, "before")
    pipe.broken = 1
    bell.notify(["once"])
    assert _next(heard, "once") == "once"
    bell.close()
    assert pipe.opened == 2


def test_a_bell_that_hears_not_even_itself_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bells, "_ECHO_WITHIN_S", 0.05)
    monkeypatch.setattr(bells, "_ECHO_EVERY_S", 0.1)
    caplog.set_level(logging.INFO, logger="perdure.storage.notify")
    pipe = Pipe(carries=False)
    bell = ServerNotifier(pipe, name="a pipe")
    heard: Queue[str] = Queue()
    bell.listen(heard.put)
    eventually(lambda: pipe.opened > 3)
    assert caplog.text.count("perhaps because of a pooler") == 1
    bell.notify(["still"])
    eventually(lambda: any("still" in text for _, text in pipe.said))
    pipe.carries = True
    eventually(lambda: "received again" in caplog.text)
    until_heard(bell, heard, "hello")
    bell.close()


def test_words_do_not_leave_a_process_that_listens_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bells, "_ANSWERED_WITHIN_S", 0.0)
    pipe = Pipe()
    bell = ServerNotifier(pipe, name="a pipe")
    heard: Queue[str] = Queue()
    bell.notify(["unheard"])
    eventually(lambda: pipe.said)
    bell.listen(heard.put)
    eventually(lambda: bell._is_alone)
    said = len(pipe.said)
    for n in range(3):
        bell.notify([f"w{n}"])
        assert _next(heard, "w") == f"w{n}"
    assert len(pipe.said) == said
    bell.close()


def test_words_leave_as_soon_as_another_process_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bells, "_ANSWERED_WITHIN_S", 0.0)
    # However slow the machine is, no echo counts as lost.
    monkeypatch.setattr(bells, "_ECHO_WITHIN_S", 300.0)
    one, two = Pipe(), Pipe()
    one.ends = two.ends = [one, two]
    first, second = ServerNotifier(one, name="one"), ServerNotifier(two, name="two")
    own: Queue[str] = Queue()
    heard: Queue[str] = Queue()
    first.listen(own.put)
    eventually(lambda: first._is_alone)
    second.listen(heard.put)
    # The one that was there knows by the echo of the one that came, which knows by the answer.
    eventually(lambda: first._others and second._others)
    first.notify(["from-first"])
    assert _next(heard, "from") == "from-first"
    second.notify(["from-second"])
    assert [_next(own, "from"), _next(own, "from")] == ["from-first", "from-second"]
    echoes = sum(text.count("echo:") for _, text in (*one.said, *two.said))
    assert echoes <= 4, "an answer is not answered again"
    first.close()
    second.close()


def test_one_that_was_away_for_long_waits_for_the_others_before_it_takes_itself_for_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other one knows it still, so it does not answer."""
    monkeypatch.setattr(bells, "_ANSWERED_WITHIN_S", 0.0)
    # However slow the machine is, no echo counts as lost.
    monkeypatch.setattr(bells, "_ECHO_WITHIN_S", 300.0)
    one, two = Pipe(), Pipe()
    one.ends = two.ends = [one, two]
    first, second = ServerNotifier(one, name="one"), ServerNotifier(two, name="two")
    heard: Queue[str] = Queue()
    first.listen(lambda word: None)
    second.listen(heard.put)
    eventually(lambda: first._others and second._others)
    said = len(one.said)

    def back(*, listens: bool) -> None:
        first._others.clear()
        first._may_have_others_until = 0.0

    # When it is back, it has heard nothing of the other one for too long.
    monkeypatch.setattr(one, "open", back)
    one.broken = 1
    first.notify(["unsent"])
    eventually(lambda: any("echo:" in text for _, text in one.said[said:]) and first._is_echo_heard)
    first.notify(["back"])
    assert _next(heard, "back") == "back"
    first.close()
    second.close()


def test_one_that_ended_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"_ANSWERED_WITHIN_S": 0.0, "_ECHO_EVERY_S": 0.1, "_GONE_AFTER_S": 0.5}.items():
        monkeypatch.setattr(bells, name, seconds)
    one, two = Pipe(), Pipe()
    one.ends = two.ends = [one, two]
    first, second = ServerNotifier(one, name="one"), ServerNotifier(two, name="two")
    first.listen(lambda word: None)
    second.listen(lambda word: None)
    eventually(lambda: first._others and second._others)
    second.close()
    eventually(lambda: first._is_alone)
    first.close()


def test_a_listener_that_raises_costs_no_other_his_word(caplog: pytest.LogCaptureFixture) -> None:
    bell = ServerNotifier(Pipe(), name="a pipe")
    heard: Queue[str] = Queue()

    def fail(word: str) -> None:
        raise RuntimeError("a listener's")

    bell.listen(fail)
    bell.listen(heard.put)
    until_heard(bell, heard, "hello")
    until_heard(bell, heard, "again")
    bell.close()
    assert "a listener failed" in caplog.text


def test_ringing_does_not_hold_up_an_event_loop() -> None:
    """A wire that does not come back holds up its thread, and nobody else."""

    class Stuck(Pipe):
        def send(self, text: str) -> None:
            stuck.set()
            freed.wait(WITHIN_S / 2)
            left.set()

    stuck, freed, left = threading.Event(), threading.Event(), threading.Event()
    bell = ServerNotifier(Stuck(), name="a stuck pipe")

    bell.notify(["first"])
    assert stuck.wait(WITHIN_S)

    async def main() -> None:
        for n in range(1000):
            bell.notify([f"w{n}"])
        await asyncio.sleep(0)

    asyncio.run(main())
    assert not left.is_set(), "whoever rings waits until what was rung before has left"
    freed.set()
    bell.close()
