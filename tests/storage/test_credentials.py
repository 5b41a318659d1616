"""Passwords that are calls: renewed before they end, and replaced when a server refuses them."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from redis.credentials import CredentialProvider

import perdure
from perdure.errors import BadUrl, Unavailable
from perdure.model.ops import Commit, Committed, Expect, Fetch, Get
from perdure.model.records import TAG, Partition
from perdure.storage.credentials import Endpoint, PasswordSource, source_of
from perdure.storage.port import Driver
from perdure.storage.url import open_driver
from perdure.testing.conformance import rows
from tests.servers import pgbouncer, postgres, valkey
from tests.storage.climbers import eventually

SECONDS = 60.0 if os.environ.get("PERDURE_CHAOS") == "full" else 6.0
CHANGED_EVERY_S = 1.0
AT = Endpoint("postgresql://app@db", "db", 5432, "app")


class Passwords:
    """A provider whose password is changed; it knows of half of the changes too early, of others too late."""

    def __init__(self, change: Callable[[str], None]) -> None:
        self._change = change
        self._numbers = itertools.count(1)
        self.calls = 0
        self.value = ""
        self.next()

    def __call__(self) -> tuple[str, datetime]:
        self.calls += 1
        return self.value, datetime.now(UTC) + timedelta(seconds=2 * CHANGED_EVERY_S)

    def next(self) -> None:
        number = next(self._numbers)
        new = f"token-{number}-{'x' * 1500}"
        if number % 2:
            self.value = new
            time.sleep(0.1)
        self._change(new)
        if not number % 2:
            time.sleep(0.1)
        self.value = new


def under_load(driver: Driver, passwords: Passwords) -> int:
    """Write and read by eight threads while the password changes; return the number of changes."""
    stop, changes = threading.Event(), 0

    def work(number: int) -> int:
        at, done = Partition("", f"t{number}"), 0
        while not stop.is_set():
            outcome = driver.perform(Commit(at, (rows.tag("a", done or Expect.ABSENT, done + 1),)))
            assert isinstance(outcome, Committed), "a lone writer was refused: its own write came twice"
            done += 1
            ((found,),) = driver.perform(Fetch(at, (Get(TAG, ("a",)),)))
            assert found.version == done
        return done

    with ThreadPoolExecutor(8) as pool:
        workers = [pool.submit(work, number) for number in range(8)]
        until = time.monotonic() + SECONDS
        while time.monotonic() < until and not any(worker.done() for worker in workers):
            time.sleep(CHANGED_EVERY_S)
            passwords.next()
            changes += 1
        stop.set()
        assert all(worker.result() > changes for worker in workers)
    return changes


@pytest.fixture
def role() -> Iterator[tuple[str, str, Callable[[str], None]]]:
    """A role that needs a password, a URL of an empty schema for it, and what changes the password and ends
    the connections that were made with the old one."""
    server = postgres.shared()
    name = f"app_{os.getpid()}_{time.monotonic_ns()}"

    def change(password: str) -> None:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute(f"ALTER ROLE {name} PASSWORD '{password}'".encode())
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", (name,)
            )

    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN SUPERUSER".encode())
    server.demand_password(name)
    with postgres.empty(server) as url:
        yield name, url.replace("postgres@", f"{name}@", 1), change
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"REASSIGN OWNED BY {name} TO postgres".encode())
        connection.execute(f"DROP ROLE {name}".encode())


def test_no_request_fails_while_the_password_of_postgresql_changes(
    role: tuple[str, str, Callable[[str], None]],
) -> None:
    _, url, change = role
    passwords = Passwords(change)
    with closing(open_driver(url, migrate=True, password=passwords)) as driver:
        changes = under_load(driver, passwords)
    assert changes >= 3
    # One call for all connections: a few for each change, not one for each connection and attempt.
    assert passwords.calls <= 10 * changes + 10


def test_notifications_come_back_after_the_password_of_postgresql_changed(
    role: tuple[str, str, Callable[[str], None]],
) -> None:
    _, url, change = role
    passwords = Passwords(change)
    with closing(open_driver(url, migrate=True, password=passwords)) as one:
        bell = one.capabilities.bell
        assert bell is not None
        heard: list[str] = []
        bell.listen(heard.append)
        with closing(open_driver(url, password=passwords)) as other:
            ringing = other.capabilities.bell
            assert ringing is not None

            def arrives(word: str) -> bool:
                ringing.notify([word])
                time.sleep(0.05)
                return word in heard

            ringing.listen(lambda word: None)
            eventually(lambda: arrives("before"))
            passwords.next()
            eventually(lambda: arrives("after"))


@pytest.fixture
def acl() -> Iterator[tuple[valkey.Server, str, Callable[[str], None]]]:
    """A user of a server of its own, its URL, and what changes the password and, every other time, ends the
    connections that were made with the old one."""
    server = valkey.started(*valkey.DURABLE)
    ends = itertools.cycle((True, False))

    def change(password: str) -> None:
        with server.client() as client:
            client.execute_command(
                "ACL", "SETUSER", "app", "on", "resetpass", f">{password}", "~*", "&*", "+@all"
            )
            if next(ends):
                client.execute_command("CLIENT", "KILL", "USER", "app")

    yield server, server.url.replace("127.0.0.1", "app@127.0.0.1"), change
    server.stop()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_no_request_fails_while_the_password_of_redis_changes(
    acl: tuple[valkey.Server, str, Callable[[str], None]],
) -> None:
    _, url, change = acl
    passwords = Passwords(change)
    with closing(open_driver(url, migrate=True, password=passwords)) as driver:
        changes = under_load(driver, passwords)
    assert changes >= 3
    assert passwords.calls <= 10 * changes + 10


def test_connections_of_redis_sign_in_again_before_the_password_ends(
    acl: tuple[valkey.Server, str, Callable[[str], None]],
) -> None:
    server, url, change = acl
    change("only")
    ends: list[float] = []

    def password() -> tuple[str, float]:
        ends.append(time.time() + 1.0)
        return "only", ends[-1]

    def stats(client: Any) -> tuple[int, int]:
        found = client.info("commandstats").get("cmdstat_auth", {"calls": 0})["calls"]
        return found, client.info("stats")["total_connections_received"]

    heard: list[str] = []
    with closing(open_driver(url, migrate=True, password=password)) as driver, server.client() as client:
        bell = driver.capabilities.bell
        assert bell is not None
        driver.perform(Commit(Partition("", "t"), (rows.tag("a"),)))
        auths, connections = stats(client)
        for _ in range(30):
            driver.perform(Commit(Partition("", "t"), (rows.tag("a"),)))
            time.sleep(0.1)
        assert len(ends) >= 3, "the password is renewed while it is used"
        again, more = stats(client)
        assert again > auths
        assert more == connections, "no connection is made anew for a renewal"
        bell.listen(heard.append)

        def arrives(word: str) -> bool:
            bell.notify([word])
            time.sleep(0.05)
            return word in heard

        eventually(lambda: arrives("before"))
        known = len(ends)
        eventually(lambda: len(ends) >= known + 2 and arrives(f"after{len(ends)}"))


def test_a_provider_of_redis_py_is_taken(acl: tuple[valkey.Server, str, Callable[[str], None]]) -> None:
    _, url, change = acl
    change("secret")

    class Provider(CredentialProvider):
        def get_credentials(self) -> tuple[str, str]:
            return "app", "secret"

    with closing(open_driver(url, migrate=True, password=Provider())) as driver:
        driver.perform(Commit(Partition("", "t"), (rows.tag("a"),)))


@pytest.mark.slow
def test_a_cluster_of_redis_takes_passwords_that_change() -> None:
    with valkey.empty_on_cluster() as whole:
        servers = valkey.cluster()

        def change(password: str) -> None:
            for server in servers:
                with server.client() as client:
                    client.execute_command(
                        "ACL", "SETUSER", "app", "on", "resetpass", f">{password}", "~*", "&*", "+@all"
                    )
                    client.execute_command("CLIENT", "KILL", "USER", "app")

        passwords = Passwords(change)
        url = whole.replace("://", "://app@", 1)
        with closing(open_driver(url, migrate=True, password=passwords)) as driver:
            assert under_load(driver, passwords) >= 3
        for server in servers:
            with server.client() as client:
                client.execute_command("ACL", "DELUSER", "app")


@pytest.mark.slow
def test_a_pooler_is_signed_in_to_with_the_newest_password(
    role: tuple[str, str, Callable[[str], None]],
) -> None:
    _, url, change = role
    server = postgres.shared()
    with pgbouncer.pooled() as pooler:
        passwords = Passwords(change)
        # Notifications go to the server itself, by a URL without a password.
        direct = url.partition("?")[0].replace(":", "%3A").replace("/", "%2F").replace("@", "%40")
        pooled = url.replace(f":{server.port}/", f":{pooler.port}/") + f"&notify={direct}"
        with closing(open_driver(pooled, migrate=True, password=passwords)) as driver:
            bell = driver.capabilities.bell
            assert bell is not None
            heard: list[str] = []
            bell.listen(heard.append)

            def arrives() -> bool:
                bell.notify(["word"])
                time.sleep(0.05)
                return "word" in heard

            eventually(arrives)
            driver.perform(Commit(Partition("", "t"), (rows.tag("a"),)))


def test_connect_takes_an_async_function(role: tuple[str, str, Callable[[str], None]]) -> None:
    _, url, change = role
    change("secret")

    async def password() -> str:
        await asyncio.sleep(0.01)
        return "secret"

    async def main() -> None:
        async with perdure.connect(url, migrate=True, password=password) as db:
            assert await db.tags("none") == {}

    asyncio.run(main())
    with perdure.connect_sync(url, password=password) as db:
        assert db.tags("none") == {}


def test_a_password_that_stays_wrong_is_an_error_that_names_the_provider(
    role: tuple[str, str, Callable[[str], None]],
    acl: tuple[valkey.Server, str, Callable[[str], None]],
) -> None:
    def secret_words() -> str:
        return "hunter-two"

    for url, change in ((role[1], role[2]), (acl[1], acl[2])):
        change("another")
        patient = f"{url}{'&' if '?' in url else '?'}patience=1"
        with pytest.raises(Unavailable, match=r"secret_words.*sign in") as raised:
            open_driver(patient, migrate=True, password=secret_words)
        shown = "".join(traceback.format_exception(raised.value))
        assert "hunter-two" not in shown


def test_one_call_serves_all_that_wait_and_no_repr_shows_it() -> None:
    calls: list[int] = []

    def slow() -> tuple[str, float]:
        calls.append(1)
        time.sleep(0.2)
        return "hunter-two", time.time() + 60

    source = source_of(slow, AT)
    assert source is not None
    with ThreadPoolExecutor(20) as pool:
        tokens = set(pool.map(lambda _: source.current(5), range(20)))
    assert len(calls) == len(tokens) == 1
    (token,) = tokens
    assert token.value == "hunter-two"
    assert "hunter" not in repr(token) + repr(source)


def test_a_token_is_renewed_in_the_background_and_used_until_it_ends_if_that_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = itertools.count(1)

    def fails_later() -> tuple[str, float]:
        if (number := next(calls)) > 1:
            raise ConnectionError("hunter-two")
        return f"token{number}", time.time() + 1.0

    source = PasswordSource(fails_later, "the provider", AT)
    first = source.current(5)
    with caplog.at_level(logging.WARNING):
        began = time.monotonic()
        while time.monotonic() < began + 0.95:
            asked = time.monotonic()
            assert source.current(0) is first
            assert time.monotonic() - asked < 0.05, "who has a token does not wait for the next one"
            time.sleep(0.02)
    eventually(lambda: first.is_over)
    with pytest.raises(Unavailable, match="no password from the provider: it failed") as raised:
        source.current(0)
    assert isinstance(raised.value.__cause__, ConnectionError)
    assert any("the provider failed" in record.getMessage() for record in caplog.records)
    assert "hunter" not in caplog.text + str(raised.value)
    assert next(calls) <= 6, "a provider that fails is asked less and less often"


def test_a_provider_that_fails_for_a_moment_is_waited_for() -> None:
    calls = itertools.count(1)

    def recovers() -> str:
        if next(calls) < 3:
            raise OSError
        return "token"

    assert PasswordSource(recovers, "it", AT).current(10).value == "token"


@pytest.mark.parametrize(
    "answer",
    [b"bytes", "", "with\0nul", 7, None, ("token", datetime(2030, 1, 1)), ("token", 1.0)],
)
def test_what_is_not_a_password_is_an_error(answer: Any) -> None:
    with pytest.raises(Unavailable, match=r"no password from .*; see that it can be called"):
        PasswordSource(lambda: answer, "it", AT).current(0)


def test_a_refused_token_is_replaced_and_others_stay() -> None:
    numbers = itertools.count(1)
    source = PasswordSource(lambda: f"token{next(numbers)}", "it", AT)
    first = source.current(5)
    source.refuse(first)
    second = source.current(5)
    source.refuse(first)
    assert source.current(5) is second


@pytest.mark.parametrize("url", ["sqlite:///x.db", "memory://", "dynamodb://table?region=eu-west-1"])
def test_databases_without_passwords_say_so(url: str) -> None:
    with pytest.raises(BadUrl, match="password= is for PostgreSQL and Redis"):
        perdure.connect_sync(url, password="x").__enter__()


def test_what_cannot_be_combined_is_refused() -> None:
    with pytest.raises(BadUrl, match="the URL has a password"):
        open_driver("postgresql://app:secret@127.0.0.1/x", password=lambda: "x")
    with pytest.raises(BadUrl, match="password= is int"):
        open_driver("redis://app@127.0.0.1/0", password=7)  # type: ignore[arg-type]
