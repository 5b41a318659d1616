"""The tutorials, as a reader would do them: their files are written and their commands run, in order, in one
shell, and the commands print what the pages show."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.servers.ports import free_port

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["tutorial", "tutorial-care"]
WITHIN_S = 900
"""Seconds after which a page is taken to hang. It takes a tenth of that, unless the machine is busy."""

_BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = "----- block"
_END = "----- end of file"


class Block(NamedTuple):
    """A block of the page, and where it stands."""

    line: int
    language: str
    info: str
    text: str


def blocks_of(page: str) -> list[Block]:
    """The blocks of a page, in order."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    return [
        Block(text.count("\n", 0, found.start()) + 1, found[1], found[2].strip(), found[3])
        for found in _BLOCK.finditer(text)
    ]


BLOCKS = {page: blocks_of(page) for page in PAGES}


def shows(said: str, shown: str) -> str | None:
    """The first line shown that was not said, in order; ``…`` stands for anything."""
    at = 0
    for line in shown.splitlines():
        pattern = ".*?".join(re.escape(part.strip()) for part in line.split("…"))
        if not (found := re.search(pattern, said[at:])):
            return line
        at += found.end()
    return None


def script(page: str, port: int) -> str:
    """All that is to be written and run, as one program of the shell that prints where it is."""
    parts = ["set -euo pipefail", "exec 2>&1"]
    for block in BLOCKS[page]:
        if titled := re.search(r'title="([\w.]+)"', block.info):
            parts.append(f"cat > {titled[1]} <<'{_END}'\n{block.text}{_END}")
        elif ".run" in block.info:
            parts += [f"echo '{_MARK} {block.line}'", block.text]
    return "\n".join(parts).replace("localhost:2024", f"127.0.0.1:{port}")


@pytest.mark.timeout(WITHIN_S + 60)
@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_tutorial_works(page: str, tmp_path: Path) -> None:
    port = free_port()
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PERDURE_", "DATABASE_", "LANGGRAPH_"))}
    binaries = str(Path(sys.executable).parent)
    process = subprocess.Popen(
        ["bash", "-c", script(page, port)],
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
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    log = tmp_path / "server.log"
    if process.returncode:
        logged = log.read_text() if log.exists() else ""
        pytest.fail(f"exit status {process.returncode}\n{said}\n{logged}", pytrace=False)
    by_line = {int(part.split("\n", 1)[0]): part.split("\n", 1)[1] for part in said.split(f"{_MARK} ")[1:]}
    assert not _went_wrong(page, by_line), said


def _went_wrong(page: str, by_line: dict[int, str]) -> list[str]:
    wrong: list[str] = []
    for before, block in pairwise(BLOCKS[page]):
        if ".output" in block.info:
            missing = shows(by_line[before.line], block.text)
            if missing is not None:
                wrong.append(f"docs/{page}.md:{block.line} shows {missing!r}, and that was not said")
    return wrong


@pytest.mark.parametrize("page", PAGES)
def test_every_output_follows_what_says_it(page: str) -> None:
    for before, block in pairwise(BLOCKS[page]):
        if ".output" in block.info:
            assert ".run" in before.info, block.line
    assert sum(".run" in block.info for block in BLOCKS[page]) >= 10
    assert sum(".output" in block.info for block in BLOCKS[page]) >= 8


def test_what_is_shown_is_looked_for_in_order() -> None:
    said = 'one {"a": 1, "b": 2}\ntwo\n'
    assert shows(said, 'one {…"b": 2}\ntwo\n') is None
    assert shows(said, "two\none\n") == "one"
    assert shows(said, "three\n") == "three"
