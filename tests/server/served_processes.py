"""A server of its own process, as ``perdure serve`` starts it in a project's folder."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.forking import fork_server

WITHIN_S = 120.0
_ADDRESS = re.compile(r" at (http://\S+)")


@contextmanager
def process_of(folder: Path, *flags: str, environ: Mapping[str, str] | None = None) -> Iterator[str]:
    """Serve the project in a folder for as long as the block lasts; the address that the process tells."""
    log = folder / "log"
    with open(log, "wb") as written:
        process = fork_server().start(
            ["serve", "--port", "0", *flags],
            cwd=folder,
            environ={**os.environ, **(environ or {})},
            stdout=written.fileno(),
            stderr=written.fileno(),
        )
    try:
        end = time.monotonic() + WITHIN_S
        while (found := _ADDRESS.search(log.read_text())) is None:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        yield found[1]
    finally:
        process.terminate()
        assert process.wait(WITHIN_S) == 0
