"""A server that is put back to an older state under load: what its clients acknowledge from then on can be
read.

The data of a server are copied, as a backup or a lagging replica would hold them; later it is ended at once
and started on the copy, while the processes that use it live on.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

import perdure
from perdure.errors import PerdureError
from tests.langgraph.session import config
from tests.langgraph.test_older_database import talking
from tests.servers import valkey
from tests.servers.postgres import Postgres

ROUNDS = 50 if os.environ.get("PERDURE_CHAOS") == "full" else 3
TALKERS = 4


class Restorable(ABC):
    """A server whose data can be copied, and put back."""

    url: str

    @abstractmethod
    def backup(self) -> None: ...

    @abstractmethod
    def restore(self) -> None: ...


class RestorablePostgres(Restorable):
    def __init__(self) -> None:
        self._server = Postgres(durable=True)
        self._copy = self._server.folder / "copy"
        self.url = self._server.url(pool=4, patience=20)

    def backup(self) -> None:
        """A cold copy: the server is ended in order for it, and its clients wait."""
        self._server.stop()
        self._replace(self._server.folder / "data", self._copy)
        self._server.start()

    def restore(self) -> None:
        self._server.stop(signal.SIGQUIT)
        self._replace(self._copy, self._server.folder / "data")
        self._server.start()

    def _replace(self, source: Path, target: Path) -> None:
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target, symlinks=True)
        owner = source.stat()
        for path in (target, *target.rglob("*")):
            os.chown(path, owner.st_uid, owner.st_gid)
        target.chmod(0o700)

    def close(self) -> None:
        self._server.close()


class RestorableRedis(Restorable):
    def __init__(self) -> None:
        self._server = valkey.Server(*valkey.DURABLE)
        self._copy = self._server.folder.with_suffix(".copy")
        self.url = self._server.url

    def backup(self) -> None:
        self._server.kill()
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self._server.folder, self._copy)
        self._server.start()

    def restore(self) -> None:
        self._server.kill()
        shutil.rmtree(self._server.folder)
        shutil.copytree(self._copy, self._server.folder)
        self._server.start()

    def close(self) -> None:
        self._server.stop()
        shutil.rmtree(self._copy, ignore_errors=True)


@contextmanager
def restorable(backend: str) -> Iterator[Restorable]:
    server = RestorablePostgres() if backend == "postgresql" else RestorableRedis()
    try:
        yield server
    finally:
        server.close()


def talk(
    db: perdure.SyncDatabase,
    thread: str,
    stop: threading.Event,
    count: Counter[str],
    bad: list[str],
    turns: list[tuple[float, float]],
) -> None:
    """Speak on a thread until ``stop``; whatever is acknowledged is read by a saver that knows nothing.
    ``turns`` gets the begin and the end of each that was acknowledged."""
    graph = talking(db.checkpointer())
    turn = 0
    while not stop.is_set():
        turn += 1
        began = time.time()
        try:
            given = HumanMessage("tell me more, please " * 20, id=f"question {turn % 3}")
            graph.invoke({"messages": [given]}, config(thread))
        except PerdureError as error:
            count[type(error).__name__] += 1
            time.sleep(0.01)
            continue
        count["acknowledged"] += 1
        turns.append((began, time.time()))
        try:
            talking(db.checkpointer()).get_state(config(thread))
        except PerdureError as error:
            if type(error).__name__ not in ("Unavailable", "InDoubt"):
                bad.append(f"{thread}, turn {turn}: {type(error).__name__}: {error}")


def _wait_for_turns(turns: dict[str, list[tuple[float, float]]], since: float) -> None:
    """Wait until each thread has had a turn that began after ``since``; fail after a minute."""
    until = time.time() + 60
    while late := [name for name, spoken in turns.items() if not spoken or spoken[-1][0] <= since]:
        assert time.time() < until, f"no turn since {since} on {late}"
        time.sleep(0.05)


def _is_lost(began: float, ended: float, restores: list[tuple[float, float, float]]) -> bool:
    """Whether a turn may have been lost in one of ``restores``: (before and after the copy, end of what it
    lacks), seconds."""
    return any(before < ended and began < until for before, _, until in restores)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", ["postgresql", "redis"])
def test_what_is_acknowledged_after_a_restore_can_be_read(
    backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    count: Counter[str] = Counter()
    bad: list[str] = []
    turns: dict[str, list[tuple[float, float]]] = {f"t{n}": [] for n in range(TALKERS)}
    lost: list[tuple[float, float, float]] = []
    back: list[float] = []
    with restorable(backend) as server, perdure.connect_sync(server.url, migrate=True) as db:
        stop = threading.Event()
        threads = [
            threading.Thread(target=talk, args=(db, name, stop, count, bad, turns[name])) for name in turns
        ]
        for thread in threads:
            thread.start()
        try:
            _wait_for_turns(turns, since=0)
            for _ in range(ROUNDS):
                before = time.time()
                server.backup()
                since = time.time()
                time.sleep(0.5)
                # Something is lost each time: clients may need a while to come back to the server.
                while not any(began > since for spoken in turns.values() for began, _ in spoken[-1:]):
                    assert time.time() < since + 60
                    time.sleep(0.05)
                lost.append((before, since, time.time()))
                server.restore()
                back.append(time.time())
                time.sleep(0.4)
            # Each thread is looked at once more after the last restore.
            _wait_for_turns(turns, since=time.time())
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)
        records = [r for r in caplog.records if r.name == "perdure.langgraph"]
        reports = [(r.args[0], r.created) for r in records if isinstance(r.args, tuple) and r.args]
        missed, losses = [], 0
        for restored, (before, since, until) in enumerate(lost):
            for name, spoken in turns.items():
                # It is reported by the first turn on the restored server, or on that of a later restore where
                # the thread comes to nothing before.
                over = next((ended for began, ended in spoken if began > back[restored]), time.time())
                if any(since < began and ended < until for began, ended in spoken):
                    losses += 1
                    # A thread that is gone as a whole is taken for deleted.
                    is_there = any(
                        ended < before and not _is_lost(began, ended, lost[:restored])
                        for began, ended in spoken
                    )
                    if is_there and not any(thread == name and until <= at <= over for thread, at in reports):
                        missed.append((restored, name))
        print(
            f"{backend}: {ROUNDS} restores, {losses} losses, {len(reports)} reports, {dict(count)}, bad {bad}"
        )
        assert bad == []
        assert missed == []
        assert reports
        assert losses >= ROUNDS
        assert count["acknowledged"] > ROUNDS
        assert [str(finding) for finding in db.fsck()] == []
        for n in range(TALKERS):
            state: Any = talking(db.checkpointer()).invoke(
                {"messages": [HumanMessage("at last")]}, config(f"t{n}")
            )
            assert state["messages"]
