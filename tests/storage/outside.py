"""What happens to a database file in another process: limits and rights that a test cannot take on itself.

``python -m tests.storage.outside SCENARIO PATH`` prints what the scenario returns, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import secrets
import sqlite3
import sys
from pathlib import Path
from typing import Any

import perdure
from perdure.database.base import handle_of
from perdure.database.opening import connect_sync
from perdure.model.ops import Commit, Committed, Expect, Fetch, Get, Put, Range
from perdure.model.records import CHUNK, GC, Partition
from perdure.storage.port import Driver
from perdure.storage.sqlite.driver import SqliteDriver

THREAD = Partition("", "thread")
NOBODY = 65534


def fat(version: int, chunks: int = 8) -> Commit:
    """A commit of a version and some incompressible chunks: all of it is stored, or none."""
    bodies = [secrets.token_bytes(16_384) for _ in range(chunks)]
    return Commit(
        THREAD,
        (
            Put(GC, (), expect=version - 1 or Expect.ABSENT, version=version),
            *(Put(CHUNK, (body[:16],), {"generation": version}, body) for body in bodies),
        ),
    )


def state(driver: Driver) -> list[Any]:
    """The version, and the name and generation of every chunk."""
    gc, chunks = driver.perform(Fetch(THREAD, (Get(GC, ()), Range(CHUNK))))
    return [[r.version for r in gc], [[r.key[0].hex(), r.fields["generation"]] for r in chunks]]


def write_until_refused(driver: Driver, version: int = 1) -> tuple[int, perdure.PerdureError]:
    """Commit until it fails: the version that failed, and the error. Nothing of the failed one is stored."""
    while version < 10_000:
        before = state(driver)
        try:
            answer = driver.perform(fat(version))
        except perdure.PerdureError as error:
            assert state(driver) == before, "a failed commit left something behind"
            return version, error
        assert answer == Committed()
        version += 1
    raise AssertionError("nothing stopped the writes")


def file_size_limit(path: Path) -> dict[str, Any]:
    """The file may not grow any more, then it may again."""
    driver = SqliteDriver(path)
    for version in range(1, 6):
        driver.perform(fat(version))
    limit = path.with_name(f"{path.name}-wal").stat().st_size + 300_000
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    failed, error = write_until_refused(driver, 6)
    refused = state(driver)
    try:
        asyncio.run(driver.aperform(fat(failed)))
        awaited = "stored"
    except perdure.PerdureError as again:
        awaited = type(again).__name__
    assert state(driver) == refused
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert driver.perform(fat(failed)) == Committed()
    driver.close()
    with sqlite3.connect(path) as connection:
        (verdict,) = connection.execute("PRAGMA integrity_check").fetchone()
    return {
        "error": type(error).__name__,
        "message": str(error),
        "cause": type(error.__cause__).__name__,
        "awaited": awaited,
        "failed": failed,
        "versions": state(SqliteDriver(path))[0],
        "integrity": verdict,
    }


def _attempts(path: Path) -> dict[str, Any]:
    """What opening, reading and writing bring."""
    out: dict[str, Any] = {}
    try:
        with connect_sync(f"sqlite:///{path}") as database:
            out["open"] = "ok"
            driver = handle_of(database).driver
            for name, act in (("read", lambda: state(driver)), ("write", lambda: driver.perform(fat(2)))):
                try:
                    act()
                    out[name] = "ok"
                except perdure.PerdureError as error:
                    out[name] = [type(error).__name__, str(error)]
    except perdure.PerdureError as error:
        out["open"] = [type(error).__name__, str(error)]
    return out


def without_rights(path: Path) -> dict[str, Any]:
    """Open, read and write as a user who owns nothing; root first becomes nobody."""
    driver = SqliteDriver(path)  # warm before the rights go, as everything is imported by then
    state(driver)
    driver.close()
    if os.getuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    return _attempts(path)


def hold(path: Path) -> dict[str, Any]:
    """Lock the file for writing until standard input ends."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    print("held", flush=True)
    sys.stdin.read()
    connection.execute("ROLLBACK")
    return {}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](Path(sys.argv[2]))))
