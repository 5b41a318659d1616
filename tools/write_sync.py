"""Writes ``SyncDatabase`` from the source of ``Database``: ``python -m tools.write_sync``.

Each operation is written once, as a coroutine; its blocking variant has the same name, signature and
docstring. A test compares the file with the output of ``make_blocking``.
"""

import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "src" / "perdure" / "database"
SOURCE, TARGET = FOLDER / "asynchronous.py", FOLDER / "blocking.py"

HEAD = '''"""Operations of an open database, for programs without an event loop.

Generated from ``perdure.database.asynchronous`` by ``python -m tools.write_sync``; do not edit.
"""
'''

REPLACEMENTS = [
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\.a(run|examine|trust|close)\(", r".\1("),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\bclass Database\b", "class SyncDatabase"),
    (r"\bstore_for_event_loops\b", "store"),
    (r"\bAsyncPerdureStore\b", "PerdureStore"),
    (r"\bHistories\b", "SyncHistories"),
    (r"\bperdure\.connect\b", "perdure.connect_sync"),
]


def make_blocking(source: str) -> str:
    """Return the blocking variant of the asynchronous module."""
    _, body = source.split('\n"""\n', 1)
    for pattern, replacement in REPLACEMENTS:
        body = re.sub(pattern, replacement, body)
    # Other names may come in another order.
    return HEAD + re.sub(r"(?m)^(from \S+ import )([\w, ]+)$", _in_order, body)


def _in_order(line: re.Match[str]) -> str:
    # Constants come first.
    return line[1] + ", ".join(sorted(line[2].split(", "), key=lambda name: (not name.isupper(), name)))


def main() -> None:
    """Write the module, formatted."""
    TARGET.write_text(make_blocking(SOURCE.read_text(encoding="utf-8")), encoding="utf-8")
    command = [sys.executable, "-m", "ruff", "format", "--quiet", str(TARGET)]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
