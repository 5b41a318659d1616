"""Pages of the repository and their code blocks, for the tests that run or check each of them."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("docs", "examples", "deploy")
SHELL = ("sh", "bash", "console", "crontab")
"""Languages of blocks that hold commands."""
TUTORIALS = ("docs/tutorial.md", "docs/tutorial-care.md")
"""Pages whose files and commands are one program, which ``test_tutorial`` runs from top to bottom."""

_BLOCK = re.compile(
    r"^(?:[ ]*<!--\s*run\s*(?P<frame>\n.*?)?-->[ ]*\n)?"
    r"^(?P<indent>[ ]*)(?P<fence>`{3,})[ ]*(?P<info>[^`\n]*)\n"
    r"(?P<code>.*?)"
    r"^(?P=indent)(?P=fence)[ ]*$",
    re.MULTILINE | re.DOTALL,
)
_OUTPUT = re.compile(r"^(?!\$ ).*\n?", re.MULTILINE)
_COMMENT = re.compile(r"(^|\s)#\s.*$", re.MULTILINE)
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_OPERATORS = set(";&|()<>\n")
_GAP = re.compile(r"^([ ]*)…$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """Code block of a page. ``frame`` is the hidden program around it, from the comment before the block; the
    block takes the place of its line ``…``, else it follows."""

    page: str
    line: int
    info: str
    code: str
    is_marked: bool = False
    frame: str = ""

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def language(self) -> str:
        return self.info.split("{")[0].split(" ")[0].strip()

    @property
    def program(self) -> str:
        """The code, within its frame."""
        gap = _GAP.search(self.frame)
        if gap is None:
            return f"{self.frame}{self.code}"
        code = textwrap.indent(self.code, gap[1])
        return f"{self.frame[: gap.start()]}{code}{self.frame[gap.end() + 1 :]}"


def pages() -> list[Path]:
    """Return every page of the repository that a user reads."""
    found = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))]
    return sorted(found)


def blocks_of(text: str, page: str = "") -> Iterator[Block]:
    """Yield the fenced blocks of a page; those in lists are dedented."""
    for match in _BLOCK.finditer(text):
        info = match["info"].strip()
        marked = (
            bool(re.match(r"[ ]*<!--\s*run", match[0]))
            or ".run" in info.replace("{", " ").replace("}", " ").split()
        )
        yield Block(
            page=page,
            line=text.count("\n", 0, match.start("code")) + 1,
            info=info,
            code=textwrap.dedent(match["code"]),
            is_marked=marked,
            frame=textwrap.dedent((match["frame"] or "").lstrip("\n")),
        )


def all_blocks(*languages: str) -> list[Block]:
    """Return the blocks of all pages, those of some languages if these are named."""
    return [
        block
        for path in pages()
        for block in blocks_of(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix())
        if not languages or block.language in languages
    ]


def script(block: Block) -> str:
    """Return the commands of a block; those of a console come after ``$``."""
    if block.language == "crontab":
        return re.sub(r"^(?:\S+ ){5}", "", block.code, flags=re.MULTILINE)
    if block.language != "console":
        return block.code
    return re.sub(r"^\$ ", "", _OUTPUT.sub("", block.code), flags=re.MULTILINE)


def commands(text: str) -> Iterator[list[str]]:
    """Yield the simple commands of a script, each as its words, without the variables that are set before."""
    lexer = shlex.shlex(
        _COMMENT.sub("", text).replace("\\\n", " "), posix=True, punctuation_chars="".join(_OPERATORS)
    )
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    words: list[str] = []
    skips = False
    for token in [*lexer, "\n"]:
        if set(token) <= {">", "<"}:
            skips = True
        elif skips:
            skips = False
        elif set(token) <= _OPERATORS:
            if words:
                yield words
            words = []
        elif words or not _ASSIGNED.fullmatch(token):
            words.append(token)
