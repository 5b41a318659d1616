"""The tutorial, as a reader would do it: its files are written, its commands run in one shell, in order, and
each says what the page shows."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
WITHIN_S = 400
_BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = "----- block"


class Block(NamedTuple):
    """A block of the page, and where it stands."""

    line: int
    language: str
    info: str
    text: str


BLOCKS = [
    Block(PAGE.count("\n", 0, found.start()) + 1, found[1], found[2].strip(), found[3])
    for found in _BLOCK.finditer(PAGE)
]


def shows(said: str, shown: str) -> str | None:
    """The first line shown that was not said, in order; ``…`` stands for anything."""
    at = 0
    for line in shown.splitlines():
        pattern = ".*?".join(re.escape(part.strip()) for part in line.split("…"))
        if not (found := re.search(pattern, said[at:])):
            return line
        at += found.end()
    return None


def script(port: int) -> str:
    """All that is to be run, as one program of the shell that says where it is."""
    parts = ["set -euo pipefail"]
    for block in BLOCKS:
        if ".run" in block.info:
            parts += [f"echo '{_MARK} {block.line}'", block.text]
    return "\n".join(parts).replace("localhost:2024", f"127.0.0.1:{port}")


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.mark.timeout(WITHIN_S + 60)
@pytest.mark.slow
def test_the_tutorial_works(tmp_path: Path) -> None:
    port = free_port()
    for block in BLOCKS:
        if titled := re.search(r'title="([\w.]+)"', block.info):
            (tmp_path / titled[1]).write_text(block.text.replace("localhost:2024", f"127.0.0.1:{port}"))
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PERDURE_", "DATABASE_", "LANGGRAPH_"))}
    binaries = str(Path(sys.executable).parent)
    process = subprocess.Popen(
        ["bash", "-c", script(port)],
        cwd=tmp_path,
        env={**clean, "PATH": f"{binaries}:{clean['PATH']}", "PERDURE_HTTP_PORT": str(port)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=WITHIN_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        pytest.fail(f"it hangs\n{said}", pytrace=False)
    finally:
        # A server that a failed block left behind.
        if process.returncode:
            os.killpg(process.pid, signal.SIGKILL)
    log = tmp_path / "server.log"
    if process.returncode:
        pytest.fail(f"exit status {process.returncode}\n{said}\n{log.read_text()}", pytrace=False)
    by_line = {int(part.split("\n", 1)[0]): part.split("\n", 1)[1] for part in said.split(f"{_MARK} ")[1:]}
    assert not _went_wrong(by_line), said


def _went_wrong(by_line: dict[int, str]) -> list[str]:
    wrong: list[str] = []
    for before, block in pairwise(BLOCKS):
        if ".output" in block.info:
            missing = shows(by_line[before.line], block.text)
            if missing is not None:
                wrong.append(f"docs/tutorial.md:{block.line} shows {missing!r}, and that was not said")
    return wrong


def test_every_output_follows_what_says_it() -> None:
    for before, block in pairwise(BLOCKS):
        if ".output" in block.info:
            assert ".run" in before.info, block.line
    assert sum(".run" in block.info for block in BLOCKS) >= 10
    assert sum(".output" in block.info for block in BLOCKS) >= 8


def test_what_is_shown_is_looked_for_in_order() -> None:
    said = 'one {"a": 1, "b": 2}\ntwo\n'
    assert shows(said, 'one {…"b": 2}\ntwo\n') is None
    assert shows(said, "two\none\n") == "one"
    assert shows(said, "three\n") == "three"
