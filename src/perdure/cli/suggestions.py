"""Suggests the intended name for an unknown command or option, in every group of commands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any

from typer.core import TyperGroup

from perdure.storage.url import SCHEMES, redact

_COMMANDS = (
    ("delete", "forget", "rm", "remove", "del", "drop", "erase", "destroy", "purge"),
    ("show", "get", "cat", "view", "read", "info", "describe", "state"),
    ("ls", "list", "dir", "all"),
    ("history", "log", "checkpoints"),
    ("copy", "fork", "cp", "clone", "move", "mv"),
    ("export", "dump", "backup", "save"),
    ("import", "load", "restore"),
    ("migrate", "upgrade", "setup"),
    ("fsck", "verify", "check", "repair", "doctor"),
    ("serve", "server", "start", "up", "dev"),
    ("inspect", "inspector", "ui", "console", "dashboard"),
    ("prune", "clean", "trim", "gc"),
    ("retry", "rerun", "redo"),
    ("runs", "run"),
    ("worker", "work", "run"),
    ("upcoming", "crons", "cron", "schedule", "schedules", "scheduled", "delayed", "next"),
)
"""Rows of synonyms; some of the words in a row are names of commands."""

_OPTIONS = (
    ("--yes", "-y", "--force", "-f", "--no-input", "--assume-yes"),
    ("--db", "--database", "--database-url", "--url", "--uri", "--dsn"),
    ("--json", "-j", "--as-json", "--format"),
    ("--dry-run", "--dryrun", "--simulate"),
    ("--output", "--out", "--file"),
    ("--limit", "--count", "--max"),
    ("--thread", "--thread-id", "--id"),
    ("--from", "--source", "--src", "--kind"),
    ("--to", "--target", "--dest", "--destination"),
)


_BEHIND = "; it belongs behind the command"


class Group(TyperGroup):
    """A group of commands that suggests the intended command for an unknown one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first word names; the usage error for another word has a suggestion."""
        word = args[0]
        if not (word.startswith("-") or ctx.resilient_parsing or self.get_command(ctx, word)):
            ctx.fail(f"No such command {word!r}. {_find_meant_command(ctx, word, args[1:2])}")
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options of the group itself."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            _suggest_option(error)
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command; the usage error for an unknown option has a suggestion."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            _suggest_option(error)
            raise


def _find_meant_command(ctx: Any, word: str, then: list[str]) -> str:
    here, root = _list_names(ctx.command), ctx.find_root()
    names = _find_synonyms(word, here, _COMMANDS)
    with_next = [name for name in names if {*then} & {*_list_names(ctx.command.commands[name])}]
    found = [f"{ctx.command_path} {name}" for name in with_next or names]
    found += [f"{root.command_path} {name}" for name in _list_names(root.command) if name == word]
    places = [(root.command_path, _list_names(root.command))]
    places += [
        (f"{root.command_path} {name}", _list_names(root.command.commands[name])) for name in places[0][1]
    ]
    for look in (_find_synonyms, _find_similar):
        for among in ([(ctx.command_path, here)], places):
            found = found or [
                f"{path} {name}" for path, names in among for name in look(word, names, _COMMANDS)
            ]
    if found:
        return _ask_which(found)
    return f"There are {', '.join(sorted(here))}."


def _list_names(command: Any) -> list[str]:
    return [name for name, each in getattr(command, "commands", {}).items() if not each.hidden]


def _ask_which(commands: Iterable[str]) -> str:
    *others, last = [f"`{command}`" for command in commands]
    return f"Did you mean {', '.join(others)} or {last}?" if others else f"Did you mean {last}?"


def _suggest_option(error: Any) -> None:
    """Complete a usage error of typer's; any other error stays as it is. Each group around the command does
    this in turn. The classes of these errors move from release to release, so they are recognised by their
    attributes."""
    command = getattr(getattr(error, "ctx", None), "command", None)
    if command is None or not hasattr(error, "message"):
        return
    options = list(_list_options(command))
    name = getattr(error, "option_name", None)
    if name is not None and hasattr(error, "possibilities"):
        error.possibilities = (
            _find_synonyms(name, options, _OPTIONS)
            or _find_similar(name, options, _OPTIONS)
            or error.possibilities
        )
        is_of_commands = hasattr(command, "commands") and name in _list_options_below(command)
        if is_of_commands and not error.possibilities and _BEHIND not in error.message:
            error.message += _BEHIND
    elif "--db" in options and "unexpected extra argument" in error.message:
        schemes = "|".join(map(re.escape, sorted(SCHEMES, key=len, reverse=True)))
        if url := re.search(rf"(?:{schemes})://[^\s)]*", error.message):
            error.message = f"{redact(url[0])} is a database; pass it as --db"


def _list_options(command: Any) -> Iterator[str]:
    for parameter in command.params:
        if parameter.param_type_name == "option" and not parameter.hidden:
            yield from (parameter.opts[0], *parameter.secondary_opts)


def _list_options_below(group: Any) -> set[str]:
    """Return the options of all commands of a group."""
    commands = group.commands.values()
    return {*(option for each in commands for option in _list_options(each))}.union(
        *(_list_options_below(each) for each in commands if hasattr(each, "commands"))
    )


def _find_synonyms(word: str, names: list[str], words: tuple[tuple[str, ...], ...]) -> list[str]:
    """Return the names that are synonyms of a word, or the word itself."""
    meant = {word, *(name for row in words if word.lower() in row for name in row)}
    return [name for name in names if name in meant]


def _find_similar(word: str, names: list[str], words: tuple[tuple[str, ...], ...]) -> list[str]:
    """Return the names whose spelling is similar to that of a word."""
    return get_close_matches(word, names)
