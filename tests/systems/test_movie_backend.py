"""A backend whose lifespan owns the saver, as processes on PostgreSQL: replicas, kills, and an outage."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

import perdure
from tests.servers import postgres
from tests.servers.ports import free_port
from tests.servers.postgres import Postgres

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 60.0


@contextmanager
def database(server: Postgres) -> Iterator[str]:
    """A database of its own with Perdure's tables."""
    name = f"movies_{uuid.uuid4().hex}"
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
    url = server.url(name)
    with perdure.connect_sync(url, migrate=True):
        yield url


class Replica:
    """A process of the application that can be killed and started again."""

    def __init__(self, url: str, log: Path, **variables: str) -> None:
        self._environ = {**os.environ, "DATABASE_URL": url, "PYTHONPATH": str(ROOT), **variables}
        self._log = log
        self.port = free_port()
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=WITHIN_S, trust_env=False)
        self.start()

    def start(self) -> None:
        words = ("-m", "uvicorn", "tests.systems.movie_backend:app", "--port", str(self.port))
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *words], env=self._environ, cwd=ROOT, stdout=log, stderr=log
            )

    def ready(self) -> None:
        until = time.monotonic() + WITHIN_S
        while True:
            try:
                if self.http.get("/health/ready").status_code == 200:
                    return
            except httpx.TransportError:
                assert self.process.poll() is None, self._log.read_text()
            assert time.monotonic() < until, "the replica does not become ready"
            time.sleep(0.05)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.http.close()
        self.kill()


def said(n: int) -> dict[str, str]:
    return {"session_id": "ada", "message_id": f"m{n}", "text": f"question {n}"}


def answered(n: int) -> str:
    return f"{n + 1}: a movie for question {n}"


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[list[Replica]]:
    with ExitStack() as stack:
        url = stack.enter_context(database(postgres.shared()))
        made = [
            stack.enter_context(closing(Replica(url, tmp_path / f"{n}.log", THINKS_S="0.5")))
            for n in range(2)
        ]
        for replica in made:
            replica.ready()
        yield made


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_conversation_goes_on_though_a_replica_is_killed_in_each_turn(replicas: list[Replica]) -> None:
    assert replicas[0].http.post("/sessions/ada").status_code == 201
    for n in range(6):
        victim, other = replicas[n % 2], replicas[1 - n % 2]
        asking = threading.Thread(target=_ask_in_vain, args=(victim, n))
        asking.start()
        time.sleep(0.1 + 0.15 * n)
        victim.kill()
        asking.join()
        victim.start()
        answer = other.http.post("/chat", json=said(n))
        assert (answer.status_code, answer.json()) == (200, {"answer": answered(n)})
        again = other.http.post("/chat", json=said(n))
        assert again.json() == answer.json()
        victim.ready()
    shown = replicas[0].http.get("/sessions/ada/messages").json()
    assert shown["rows"] == [[f"question {n}", answered(n)] for n in range(6)]
    assert shown["thread"] == [text for n in range(6) for text in (f"question {n}", answered(n))]


def _ask_in_vain(victim: Replica, n: int) -> None:
    try:
        victim.http.post("/chat", json=said(n))
    except httpx.TransportError:
        return  # it was killed before it answered


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_outage_is_a_503_within_the_patience_and_ends_without_a_restart(tmp_path: Path) -> None:
    server = Postgres(durable=True)
    with ExitStack() as stack:
        stack.callback(server.close)
        url = stack.enter_context(database(server))
        replica = stack.enter_context(closing(Replica(url, tmp_path / "log")))
        replica.ready()
        replica.http.post("/sessions/ada")
        assert replica.http.post("/chat", json=said(0)).status_code == 200
        server.stop(signal.SIGQUIT)
        for path in ("/health/ready", "/chat"):
            began = time.monotonic()
            answer = replica.http.get(path) if path != "/chat" else replica.http.post(path, json=said(1))
            took = time.monotonic() - began
            assert answer.status_code == 503, answer.text
            assert answer.headers["retry-after"]
            assert took < 8, f"{path} was answered after {took:.1f} s; the patience is 5 s"
        assert replica.http.get("/health/live").status_code == 200
        server.start()
        replica.ready()
        assert replica.http.post("/chat", json=said(1)).json() == {"answer": answered(1)}
        shown = replica.http.get("/sessions/ada/messages").json()
        assert shown["thread"] == [text for n in range(2) for text in (f"question {n}", answered(n))]
        assert replica.process.poll() is None


def test_both_kinds_of_tables_are_in_one_database(tmp_path: Path) -> None:
    with database(postgres.shared()) as url, closing(Replica(url, tmp_path / "log")) as replica:
        replica.ready()
        replica.http.post("/sessions/ada")
        assert replica.http.post("/chat", json=said(0)).json() == {"answer": answered(0)}
        with psycopg.connect(url) as connection:
            rows: Any = connection.execute(
                "SELECT table_schema, table_name FROM information_schema.tables WHERE table_name IN"
                " ('app_messages', 'app_revoked_tokens', 'checkpoint')"
            ).fetchall()
        assert sorted(rows) == [
            ("perdure", "checkpoint"),
            ("public", "app_messages"),
            ("public", "app_revoked_tokens"),
        ]
