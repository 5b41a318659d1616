"""Bytes: what a process has written, and what lies on disk once the write-ahead log is folded in.

Written bytes are those handed to write calls (`wchar` of the operating system's account of the process),
not those that reached the device: the device's account is in pages, merges rewrites of one page, and
depends on when the kernel flushes. Work put off is billed to the turns that caused it: the log is folded in
before a window of turns and after it, and the second folding counts. That runs in a process of its own,
because two copies of SQLite in one process would drop each other's locks on the file.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_FOLDING_TIMEOUT_S = 120


@dataclass(frozen=True)
class Folded:
    """`complete` is false when a reader or another lock kept part of the log from being folded in."""

    stored: int
    written: int
    complete: bool


def count_written() -> int | None:
    """None where the operating system keeps no such account."""
    import psutil

    counters = getattr(psutil.Process(), "io_counters", None)
    if counters is None:
        return None
    value = getattr(counters(), "write_chars", None)
    return None if value is None else int(value)


def fold(folder: Path, *, compact: bool = False) -> Folded:
    """Fold the logs of a folder's databases in; ``compact`` gives what is free in the files back first."""
    run = subprocess.run(
        [sys.executable, "-m", "bench.disk", str(folder), *(["compact"] if compact else [])],
        capture_output=True,
        text=True,
        timeout=_FOLDING_TIMEOUT_S,
        check=False,
    )
    if run.returncode:
        raise RuntimeError(f"folding the write-ahead log in failed: {run.stderr.strip()[-500:]}")
    return Folded(**json.loads(run.stdout))


def _fold_here(folder: Path, *, compact: bool) -> Folded:
    before = count_written() or 0
    complete = True
    for database in sorted(folder.glob("*.db")):
        connection = sqlite3.connect(database, timeout=10)
        try:
            if compact:
                connection.execute("VACUUM")
            (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
            complete = complete and not busy
        except sqlite3.OperationalError:
            complete = False
        finally:
            connection.close()
    after = count_written() or 0
    return Folded(_size(folder, with_log=not complete), after - before, complete)


def _size(folder: Path, *, with_log: bool) -> int:
    """A log that is folded in counts as empty, as a truncated one is. It is not truncated, because writing a
    file longer costs more than writing over it, and the turns that follow would pay for our curiosity.

    The wal-index (`-shm`) is shared memory with a name, not data.
    """
    skipped = ("-shm",) if with_log else ("-shm", "-wal")
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(skipped))
    return sum(path.stat().st_size for path in files)


if __name__ == "__main__":
    result = _fold_here(Path(sys.argv[1]), compact="compact" in sys.argv[2:])
    print(json.dumps(vars(result)))
