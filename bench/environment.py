"""What the numbers depend on, without naming the machine they came from."""

from __future__ import annotations

import os
import platform
import sqlite3
import time
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from bench.corpus import compressibility, text
from bench.figures import median

_PACKAGES = (
    "perdure",
    "langgraph",
    "langgraph-checkpoint",
    "langgraph-checkpoint-aws",
    "langgraph-checkpoint-plainredis",
    "langgraph-checkpoint-postgres",
    "langgraph-checkpoint-sqlite",
    "langchain-core",
    "aiosqlite",
    "apsw",
    "boto3",
    "ormsgpack",
    "cryptography",
    "httpx",
    "psycopg",
    "psycopg-pool",
    "redis",
)
_FLOOR_COMMITS = 200


def describe(scratch: Path) -> dict[str, Any]:
    versions = {name: _version(name) for name in _PACKAGES}
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "filesystem": _filesystem(scratch),
        "packages": {name: version for name, version in versions.items() if version is not None},
        "sqlite_of_python": sqlite3.sqlite_version,
        "sqlite_of_apsw": _sqlite_of_apsw(),
        "commit_floor_ms": round(_commit_floor_ms(scratch), 3),
        "text_left_by_zlib": round(compressibility(), 3),
        "message_left_by_zlib": round(compressibility(samples=1), 3),
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _sqlite_of_apsw() -> str | None:
    try:
        apsw: Any = import_module("apsw")
    except ImportError:
        return None
    return str(apsw.sqlite_lib_version())


def _filesystem(scratch: Path) -> str:
    """The kind only. On a file system in memory a commit waits for nothing, which flatters small commits."""
    import psutil

    here = str(scratch.resolve())
    mounts = [part for part in psutil.disk_partitions(all=True) if here.startswith(part.mountpoint)]
    return max(mounts, key=lambda part: len(part.mountpoint)).fstype if mounts else "unknown"


def _commit_floor_ms(scratch: Path) -> float:
    """One insert of one turn's bytes in one durable commit: nothing that stores a turn can be faster."""
    database = scratch / "floor.db"
    connection = sqlite3.connect(database, isolation_level=None)
    took: list[float] = []
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE turn (body BLOB)")
        for number in range(_FLOOR_COMMITS):
            body = text(f"floor {number}", 1190).encode()
            start = time.perf_counter()
            connection.execute("INSERT INTO turn VALUES (?)", (body,))
            took.append((time.perf_counter() - start) * 1000)
    finally:
        connection.close()
    for path in scratch.glob("floor.db*"):
        path.unlink()
    return median(took)
