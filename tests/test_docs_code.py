"""Code in the documentation runs: every marked block, each as a program of its own in an empty directory.

A block is marked by `{.run}` after the language, or by an HTML comment `<!-- run -->` on the line before it.
"""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

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


@pytest.mark.parametrize("block", CASES)
def test_block_runs(block: Block, tmp_path: Path) -> None:
    program = tmp_path / "block.py"
    program.write_text(block.code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, program.name],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}", pytrace=False)


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
