"""``perdure`` commands as they stand in files, read by the command line's own parser: nothing is run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from perdure.cli.app import app

ROOT = Path(__file__).resolve().parent.parent.parent
_SHELL = re.compile(r"^(`{3,})(?:sh|bash|console)\b[^\n]*\n(.*?)^\1", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"(?:^|\s)perdure\s")
_ENDS = {"&", "&&", "||", "|", ";", ">", "2>", ">>", "<"}


def parsed(words: Sequence[str]) -> dict[str, Any]:
    """What the options of a command were read as; ``ValueError`` for what does not exist."""
    command: Any = typer.main.get_command(app)
    rest = list(words)
    while hasattr(command, "commands"):
        if not rest or rest[0] not in command.commands:
            raise ValueError(f"there is no command {' '.join(words)!r}")
        name = rest.pop(0)
        command = command.commands[name]
    try:
        return dict(command.make_context("perdure", rest).params)
    except Exception as error:
        # The parser's errors are its own, wherever it comes from.
        raise ValueError(f"perdure {shlex.join(words)}: {error}") from error


def in_shell(text: str) -> Iterator[list[str]]:
    """The words after ``perdure`` of each command in a shell's text."""
    for line in text.replace("\\\n", " ").splitlines():
        # Other commands have quotes that go on over lines.
        words = shlex.split(line, comments=True) if _NAMED.search(line) else []
        while "perdure" in words:
            words = words[words.index("perdure") + 1 :]
            end = next((n for n, word in enumerate(words) if word in _ENDS), len(words))
            yield words[:end]
            words = words[end:]


def in_document(path: Path) -> list[list[str]]:
    """The commands in the shell blocks of a page."""
    blocks = _SHELL.findall(path.read_text(encoding="utf-8"))
    return [words for _, block in blocks for words in in_shell(block)]
