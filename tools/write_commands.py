"""Writes the page of the command line from the commands themselves: ``python -m tools.write_commands``.

A test compares the page with the code.
"""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from perdure.cli.app import app

TARGET = Path(__file__).resolve().parents[1] / "docs" / "commands.md"
COMMON_FROM = 15
"""An option that so many commands have is explained once, at the head of the page."""

_HEAD = """\
# The command line

<!-- Written by `python -m tools.write_commands`; change the help of the commands instead. -->

All commands of `perdure`, as `--help` explains them. `python -m perdure` is the same program, and
`perdure --install-completion` adds completion to your shell. A value in brackets may be left out; `…` may be
repeated. An unknown command or option names the one that was probably meant.
"""


def page() -> str:
    """Return the page."""
    commands = list(_leaves(get_command(app), ["perdure"]))
    counted = Counter(_row(option) for _, command, _ in commands for option in _options(command))
    common = {row for row, count in counted.items() if count >= COMMON_FROM}
    parts = [_HEAD, "## Options of many commands\n", _table("option", sorted(common))]
    group = ""
    for words, command, about in commands:
        heading = " ".join(words)
        if len(words) > 2 and group != words[1]:
            group = words[1]
            parts += [f"## perdure {group}\n", f"{about}\n"]
        parts.append(f"{'###' if len(words) > 2 else '##'} {heading}\n")
        parts += _command(heading, command, common)
    return "\n".join(parts)


def main() -> None:
    """Write the page."""
    TARGET.write_text(page(), encoding="utf-8")


def _leaves(command: Any, words: list[str], about: str = "") -> Iterator[tuple[list[str], Any, str]]:
    """Yield the commands that are not hidden, those without a group first, each with its group's help."""
    each = [(name, found) for name, found in command.commands.items() if not found.hidden]
    for name, found in sorted(each, key=lambda named: hasattr(named[1], "commands")):
        if hasattr(found, "commands"):
            yield from _leaves(found, [*words, name], found.help or "")
        else:
            yield [*words, name], found, about


def _command(heading: str, command: Any, common: set[tuple[str, str]]) -> Iterator[str]:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    rows = [_row(option) for option in _options(command)]
    usage = " ".join([heading, *(["[OPTIONS]"] if rows else []), *(_usage(each) for each in arguments)])
    yield f"```text\n{usage}\n```\n"
    yield from _paragraphs(command.help or "")
    if arguments:
        yield _table("argument", [(f"`{_value(each)}`", _text(each)) for each in arguments])
    if own := [row for row in rows if row not in common]:
        yield _table("option", own)
    if shared := [option.opts[0] for option in _options(command) if _row(option) in common]:
        names = ", ".join(f"`{name}`" for name in shared)
        yield f"[Also](#options-of-many-commands): {names}.\n"


def _options(command: Any) -> list[Any]:
    return [param for param in command.params if param.param_type_name == "option" and not param.hidden]


def _paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text; indented ones are commands."""
    for paragraph in text.replace("\b\n", "").split("\n\n"):
        if paragraph.startswith("  "):
            lines = "\n".join(line.removeprefix("  ") for line in paragraph.splitlines())
            yield f"```sh\n{lines}\n```\n"
        else:
            yield f"{_escape(paragraph)}\n"


def _row(option: Any) -> tuple[str, str]:
    """Return an option's names, with what it takes, and its meaning."""
    names = [*option.opts, *option.secondary_opts]
    takes = "" if option.is_flag or option.count else f" {_value(option)}"
    return f"`{names[0]}{takes}`" + "".join(f", `{name}`" for name in names[1:]), _text(option)


def _usage(argument: Any) -> str:
    return _value(argument) if argument.required else f"[{_value(argument)}]"


def _value(param: Any) -> str:
    name = param.metavar or param.name.strip("_").upper().replace("_IDS", "_ID")
    return f"{name.rstrip('…')}…" if param.nargs == -1 or param.multiple else str(name)


def _text(param: Any) -> str:
    variables = [param.envvar] if isinstance(param.envvar, str) else (param.envvar or [])
    value = param.default.value if isinstance(param.default, enum.Enum) else param.default
    if isinstance(param.show_default, str):
        value = param.show_default
    parts = [_escape(" ".join((param.help or "").split()))]
    if value not in (None, "", False, True, (), []):
        parts.append(f"Default: {value}" if isinstance(param.show_default, str) else f"Default: `{value}`")
    if value is True and param.secondary_opts:
        parts.append(f"Default: `{param.opts[0]}`")
    if variables:
        parts.append("Variable: " + ", ".join(f"`{name}`" for name in variables))
    return ". ".join(part.rstrip(".") for part in parts if part)


def _table(kind: str, rows: list[tuple[str, str]]) -> str:
    lines = [f"| {kind} | meaning |", "|---|---|"]
    lines += [
        f"| {name.replace('|', chr(92) + '|')} | {text.replace('|', chr(92) + '|')} |" for name, text in rows
    ]
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    """Return a text whose signs mean nothing to Markdown, but for code in backticks."""
    return "".join(
        part if part.startswith("`") else re.sub(r"([<*\[])", r"\\\1", part)
        for part in re.split(r"(`[^`]*`)", text)
    )


if __name__ == "__main__":
    main()
