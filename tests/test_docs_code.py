"""Code in the documentation runs: every marked block, each as a program of its own in an empty directory.

A block is marked by `{.run}` after the language, or by an HTML comment `<!-- run -->` on the line before it.
The processes are forks of one that has imported what most blocks import, which takes longer than to run them.
"""

import multiprocessing
import os
import re
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
IMPORTED = ["langgraph.graph", "langchain_core.messages", "perdure.runtime", "perdure.langgraph", __name__]
WITHIN_S = 100.0

BLOCK = re.compile(
    r"^(?P<comment><!--\s*run\s*-->\s*\n)?"
    r"^(?P<fence>`{3,})\s*python(?P<info>[^\n]*)\n"
    r"(?P<code>.*?)"
    r"^(?P=fence)[ \t]*$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    line: int
    code: str


def runnable(text: str) -> list[Block]:
    return [
        Block(line=text.count("\n", 0, match.start("code")) + 1, code=match["code"])
        for match in BLOCK.finditer(text)
        if match["comment"] or ".run" in match["info"].strip(" {}").split()
    ]


def documents() -> list[Path]:
    return [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if path.exists()]


CASES = [
    pytest.param(block, id=f"{path.relative_to(ROOT)}:{block.line}")
    for path in documents()
    for block in runnable(path.read_text(encoding="utf-8"))
]


def run(program: str, output: str) -> None:
    """Run a program in this process as ``python`` would in the program's folder, without input."""
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
    process = context.Process(target=run, args=(str(program), str(output)))
    process.start()
    try:
        process.join(WITHIN_S)
        return process.exitcode, output.read_text(encoding="utf-8")
    finally:
        process.kill()
        process.join()
        process.close()


@pytest.mark.parametrize("block", CASES)
def test_block_runs(block: Block, tmp_path: Path) -> None:
    code, printed = outcome(block.code, tmp_path)
    if code != 0:
        pytest.fail(f"exit status {code}\n{printed}", pytrace=False)


def test_a_block_that_fails_is_noticed(tmp_path: Path) -> None:
    assert outcome("import examples", tmp_path)[0] == 1, "the root of the project is on its path"
    code, printed = outcome("print('before')\nraise ValueError('the block fails')", tmp_path)
    assert code == 1
    assert "before\n" in printed
    assert "ValueError: the block fails" in printed
    assert outcome("raise SystemExit(3)", tmp_path)[0] == 3


def test_the_readme_shows_code_that_runs() -> None:
    assert runnable((ROOT / "README.md").read_text(encoding="utf-8"))


def test_only_marked_blocks_are_taken() -> None:
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
            "```bash {.run}",
            "ls",
            "```",
        ]
    )
    assert runnable(text) == [Block(5, "braced = 1\n"), Block(9, "commented = 1\n")]
