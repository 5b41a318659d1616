"""The promises of every import, checked for a source and the saver that made its threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import perdure
from perdure.imports.importer import Importer, ImportOptions, ThreadReport
from perdure.imports.source import Source
from tests.imports import threads

FULL = os.environ.get("PERDURE_CHAOS") == "full"
THREADS = 200 if FULL else 6


def imported(
    source: Any, db: perdure.SyncDatabase, options: ImportOptions | None = None
) -> list[ThreadReport]:
    importer = Importer(source, db, options or ImportOptions())
    return [importer.import_thread(thread) for thread in source.threads()]


def check(stock: Any, opened: Callable[[], Source], db: perdure.SyncDatabase, *, forks: bool = True) -> None:
    """Import threads of every shape; compare them, repeat, go on at the source, import again, go on here.

    ``forks`` is false for a saver in which the branches of a thread overwrite each other's values.
    """
    made = threads.fill(stock, THREADS)
    source = opened()
    saver = db.checkpointer()
    try:
        reports = {r.thread: r for r in imported(source, db)}
        assert {t: r.state for t, r in reports.items()} == dict.fromkeys(reports, "imported"), reports
        assert set(made) <= set(reports)
        assert all(r.verified == r.checkpoints > 0 for r in reports.values())
        _same(stock, saver, made)
        before = {thread: db.digest(thread) for thread in made}
        assert {r.state for r in imported(source, db)} == {"unchanged"}
        assert {thread: db.digest(thread) for thread in made} == before
        if not forks:
            made = {thread: shape for thread, shape in made.items() if not thread.startswith("forked")}
        for thread, shape in made.items():
            threads.go_on(stock, thread, shape)
            if forks:
                threads.fork(stock, thread, shape)
        states = {r.thread: (r.state, r.why) for r in imported(source, db)}
        assert {states[thread] for thread in made} == {("extended", "")}
        _same(stock, saver, made)
        for thread, shape in made.items():
            assert db.fsck(thread) == []
            assert threads.go_on(saver, thread, shape) == threads.go_on(stock, thread, shape), thread
            assert threads.fork(saver, thread, shape) == threads.fork(stock, thread, shape), thread
            assert db.fsck(thread) == []
        skipped = {r.thread: r.why for r in imported(source, db) if r.thread in made}
        assert all("went on at the target" in why for why in skipped.values()), skipped
    finally:
        source.close()


def _same(stock: Any, saver: Any, made: dict[str, threads.Shape]) -> None:
    for thread, shape in made.items():
        assert threads.seen(saver, thread, shape) == threads.seen(stock, thread, shape), thread
        assert threads.raw(saver, thread) == threads.raw(stock, thread), thread
