"""Python in the documentation runs: each block of each page is a program of its own in an empty directory.

A block is marked by `{.run}` after the language, or by an HTML comment `<!-- run -->` on the line before it.
The comment may hold the program around a block that is a part of one; readers do not see it. Where a block
names a database or a server of this machine, it gets a real one. Blocks that cannot run have a reason.
The processes are forks of one that has imported what most blocks import, which takes longer than to run them.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import httpx
import pytest

from perdure.storage.url import open_driver
from tests.backends import EMPTY
from tests.docs_pages import ROOT, TUTORIALS, Block, all_blocks, blocks_of
from tests.server.served_processes import process_of

IMPORTED = ["langgraph.graph", "langchain_core.messages", "perdure.runtime", "perdure.langgraph", __name__]
WITHIN_S = 100.0

NOT_RUN = {
    ("docs/backends/d1.md", "from workers import WorkerEntrypoint"): "a module of Cloudflare's runtime alone",
    ("docs/deployment.md", "import json"): "a program for release 0.2.0, whose interface was another one",
}
"""Pages and the first lines of their blocks that cannot run here, with the reason. They are compiled."""

CELLS = ("docs/notebooks.md",)
"""Pages whose blocks are the cells of a notebook, which ``tests/database/test_notebooks.py`` runs in a
kernel."""

PLACES: dict[str, str] = {
    "dynamodb://threads?region=eu-central-1": "dynamodb",
    "redis://localhost:6379/0": "redis",
    "d1://ACCOUNT_ID/DATABASE_ID": "d1",
}
"""URLs of databases as the pages write them, and the backend of which a block gets one in their place."""
SERVERS = {
    "server": re.compile(r"http://(?:localhost|127\.0\.0\.1):2024"),
    "another_server": re.compile(r"http://localhost:2025"),
}
AGENT = """
from langgraph.graph import START, MessagesState, StateGraph


def answer(state: MessagesState) -> dict:
    return {"messages": [("ai", f"{len(state['messages'])} message(s)")]}


graph = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").compile()
"""

BLOCKS = all_blocks("python")
CASES = [
    pytest.param(
        block,
        id=block.name,
        marks=[pytest.mark.slow] if any(url in block.program for url in PLACES) else [],
    )
    for block in BLOCKS
    if block.is_marked
]


def run(program: str, output: str, environ: dict[str, str]) -> None:
    """Run a program in this process as ``python`` would in the program's folder, without input."""
    os.environ.clear()
    os.environ.update(environ)
    folder = str(Path(program).parent)
    os.chdir(folder)
    for number, opened in (
        (0, os.open(os.devnull, os.O_RDONLY)),
        (1, os.open(output, os.O_CREAT | os.O_WRONLY)),
    ):
        os.dup2(opened, number)
    os.dup2(1, 2)
    sys.argv = [program]
    sys.path[:] = [folder, *(each for each in sys.path if Path(each).resolve() not in (Path(folder), ROOT))]
    runpy.run_path(program, run_name="__main__")


def outcome(code: str, folder: Path) -> tuple[int | None, str]:
    """Run code as a program; return its exit status, None if it did not end in time, and what it printed."""
    program, output = folder / "block.py", folder.parent / f"{folder.name}.txt"
    program.write_text(code, encoding="utf-8")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    process = context.Process(target=run, args=(str(program), str(output), dict(os.environ)))
    process.start()
    try:
        process.join(WITHIN_S)
        return process.exitcode, output.read_text(encoding="utf-8")
    finally:
        process.kill()
        process.join()
        process.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server in development with the graph ``agent``."""
    yield from _served(tmp_path_factory.mktemp("server"))


@pytest.fixture(scope="module")
def another_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a second one, with a database of its own."""
    yield from _served(tmp_path_factory.mktemp("another"))


def _served(folder: Path) -> Iterator[str]:
    (folder / "agent.py").write_text(AGENT, encoding="utf-8")
    with process_of(folder, "./agent.py:graph", "--dev") as address:
        # The first request for a card imports what A2A needs; on a busy machine its client gives up.
        httpx.get(f"{address}/.well-known/agent-card.json", timeout=WITHIN_S).raise_for_status()
        yield address


def placed(program: str, opened: ExitStack) -> str:
    """Return a program over real, migrated databases in the place of those that it names."""
    for url, backend in PLACES.items():
        if url in program:
            empty: Callable[[], AbstractContextManager[str]] = EMPTY[backend]
            real = opened.enter_context(empty())
            open_driver(real, migrate=True).close()
            program = program.replace(url, real)
    return program


@pytest.mark.parametrize("block", CASES)
def test_block_runs(block: Block, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with ExitStack() as opened:
        program = placed(block.program, opened)
        for fixture, address in SERVERS.items():
            if address.search(program):
                program = address.sub(request.getfixturevalue(fixture), program)
        code, printed = outcome(program, tmp_path)
    if code != 0:
        pytest.fail(f"exit status {code}\n{printed}", pytrace=False)


def test_every_block_runs_or_is_listed_with_its_reason() -> None:
    left = [
        block
        for block in BLOCKS
        if not block.is_marked
        and block.page not in CELLS
        and not (block.page in TUTORIALS and "title=" in block.info)
    ]
    assert {(block.page, block.code.partition("\n")[0]) for block in left} == NOT_RUN.keys()
    assert len(left) == len(NOT_RUN)
    for block in left:
        compile(block.code, block.name, "exec")


def test_a_block_that_fails_is_noticed(tmp_path: Path) -> None:
    assert outcome("import examples", tmp_path)[0] == 1, "the root of the project is on its path"
    code, printed = outcome("print('before')\nraise ValueError('the block fails')", tmp_path)
    assert code == 1
    assert "before\n" in printed
    assert "ValueError: the block fails" in printed
    assert outcome("raise SystemExit(3)", tmp_path)[0] == 3


def test_only_marked_blocks_run_each_within_its_frame() -> None:
    text = "\n".join(
        [
            "```python",
            "unmarked = 1",
            "```",
            "```python {.run}",
            "braced = 1",
            "```",
            "<!-- run -->",
            "```python",
            "commented = 1",
            "```",
            "```python {.runs}",
            "other = 1",
            "```",
            "- a list",
            "  <!-- run",
            "  if True:",
            "      …",
            "  print(framed)",
            "  -->",
            "  ```python",
            "  framed = 1",
            "  ```",
            "<!-- run",
            "before = 1",
            "-->",
            "```python",
            "after = before",
            "```",
        ]
    )
    blocks = list(blocks_of(text))
    assert [block.line for block in blocks] == [2, 5, 9, 12, 21, 27]
    assert [block.program for block in blocks if block.is_marked] == [
        "braced = 1\n",
        "commented = 1\n",
        "if True:\n    framed = 1\nprint(framed)\n",
        "before = 1\nafter = before\n",
    ]
