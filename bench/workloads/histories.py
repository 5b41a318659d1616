"""A turn of `db.history()` beside a table of one's own, on SQLite: one read and one conditional write."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import perdure
from bench.desk import Desk

Results = dict[str, Any]

PLAIN, OURS = "plain", "perdure"
SESSION = "session"
WINDOW = 10
"""Turns that are timed at the start of a session, and again at its end."""


def units(desk: Desk) -> int:
    return 2 * desk.plan.history_repeats


def run(desk: Desk) -> Results:
    seen: dict[str, list[Results]] = {PLAIN: [], OURS: []}
    for number in range(desk.plan.history_repeats):
        for name in (PLAIN, OURS) if number % 2 else (OURS, PLAIN):
            folder = Path(mkdtemp(dir=desk.scratch, prefix=f"history-{name}-"))
            seen[name].append(_measure(name, folder, desk.plan.history_turns))
            desk.step(f"histories, {name}")
    return {"turns": desk.plan.history_turns, "rounds": seen}


def turn(number: int) -> list[dict[str, str]]:
    """Return the messages of a turn, some 400 bytes."""
    return [
        {"role": "user", "content": f"question {number} " * 8},
        {"role": "assistant", "content": f"answer {number} " * 16},
    ]


def _measure(name: str, folder: Path, turns: int) -> Results:
    timed = asyncio.run(_ours(folder, turns)) if name == OURS else _plain(folder, turns)
    stored = sum(file.stat().st_size for file in folder.iterdir() if file.suffix == ".db")
    return {"start": timed[:WINDOW], "end": timed[-WINDOW:], "stored": stored}


async def _ours(folder: Path, turns: int) -> list[tuple[float, float]]:
    timed: list[tuple[float, float]] = []
    async with perdure.connect(f"sqlite:///{folder / 'history.db'}", migrate=True) as db:
        histories = db.history()
        for number in range(turns):
            begun = time.perf_counter()
            history = await histories.load(SESSION)
            read = time.perf_counter()
            assert len(history.messages) == 2 * number
            written = time.perf_counter()
            await histories.commit(history, turn(number))
            timed.append((read - begun, time.perf_counter() - written))
    return timed


def _plain(folder: Path, turns: int) -> list[tuple[float, float]]:
    """A row a message, and a version on which each write is conditional, with the same durability."""
    timed: list[tuple[float, float]] = []
    with closing(sqlite3.connect(folder / "history.db", isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("CREATE TABLE sessions (id TEXT PRIMARY KEY, version INTEGER) WITHOUT ROWID")
        db.execute("CREATE TABLE messages (id TEXT, n INTEGER, body TEXT, PRIMARY KEY (id, n)) WITHOUT ROWID")
        db.execute("INSERT INTO sessions VALUES (?, 0)", (SESSION,))
        for number in range(turns):
            begun = time.perf_counter()
            (version,) = db.execute("SELECT version FROM sessions WHERE id = ?", (SESSION,)).fetchone()
            rows = db.execute("SELECT body FROM messages WHERE id = ? ORDER BY n", (SESSION,)).fetchall()
            messages = [json.loads(body) for (body,) in rows]
            read = time.perf_counter()
            assert len(messages) == 2 * number
            written = time.perf_counter()
            db.execute("BEGIN IMMEDIATE")
            changed = db.execute(
                "UPDATE sessions SET version = version + 1 WHERE id = ? AND version = ?", (SESSION, version)
            )
            assert changed.rowcount == 1
            db.executemany(
                "INSERT INTO messages VALUES (?, ?, ?)",
                [(SESSION, len(messages) + n, json.dumps(each)) for n, each in enumerate(turn(number))],
            )
            db.execute("COMMIT")
            timed.append((read - begun, time.perf_counter() - written))
    return timed
