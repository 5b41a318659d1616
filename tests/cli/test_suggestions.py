"""An unknown command or option names the one that was meant, in every group."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.main import get_command

from perdure.cli import main
from perdure.cli.app import app
from perdure.cli.suggestions import Group

Refused = Callable[..., str]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Refused:
    """Run ``perdure`` with words that it refuses; return the error on one line."""
    monkeypatch.setenv("COLUMNS", "300")

    def call(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["perdure", *words])
        capfd.readouterr()
        with pytest.raises(SystemExit) as done:
            main()
        assert done.value.code == 2
        return " ".join(capfd.readouterr().err.split())

    return call


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("threads", "rm", "ada"), "'rm'. Did you mean `perdure threads delete`?"),
        (("threads", "remove"), "'remove'. Did you mean `perdure threads delete`?"),
        (("threads", "delet"), "'delet'. Did you mean `perdure threads delete`?"),
        (("threads", "export"), "'export'. Did you mean `perdure export`?"),
        (("threads", "copy"), "Did you mean `perdure threads fork` or `perdure copy`?"),
        (("memory", "delete"), "'delete'. Did you mean `perdure memory forget`?"),
        (("thread", "rm"), "'thread'. Did you mean `perdure threads`?"),
        (("run", "ls"), "'run'. Did you mean `perdure runs`?"),
        (("run",), "'run'. Did you mean `perdure worker` or `perdure runs`?"),
        (("work",), "'work'. Did you mean `perdure worker`?"),
        (("rm",), "`perdure threads delete`, `perdure users delete` or `perdure memory forget`?"),
        (("reindx",), "'reindx'. Did you mean `perdure store reindex`?"),
        (("crons",), "'crons'. Did you mean `perdure runs upcoming`?"),
        (("upgrade",), "'upgrade'. Did you mean `perdure migrate`?"),
        (("tenants", "zzzz"), "'zzzz'. There are ls."),
    ],
)
def test_an_unknown_command_names_the_one_that_was_meant(
    refused: Refused, words: tuple[str, ...], told: str
) -> None:
    assert told in refused(*words)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("threads", "delete", "ada", "--force"), " --yes"),
        (("threads", "ls", "--database", "x"), " --db"),
        (("migrate", "--url", "x"), " --db"),
        (("threads", "ls", "--format", "json"), " --json"),
        (("--db", "sqlite:///a.db", "threads", "ls"), "No such option: --db; it belongs behind the command"),
        (("threads", "--db", "x", "ls"), "No such option: --db; it belongs behind the command ╰"),
        (("threads", "ls", "--zzzz"), "No such option: --zzzz ╰"),
    ],
)
def test_an_unknown_option_names_the_one_that_was_meant(
    refused: Refused, words: tuple[str, ...], told: str
) -> None:
    # The frame that typer draws around an error ends it.
    assert told in refused(*words).replace("│", "").replace("─", "").replace("  ", " ")


@pytest.mark.parametrize("words", [("migrate",), ("threads", "ls")])
def test_a_database_without_its_option_is_recognised(refused: Refused, words: tuple[str, ...]) -> None:
    told = refused(*words, "postgresql://me:secret@host/app")
    assert "postgresql://me@host/app is a database; pass it as --db" in told
    assert "secret" not in told


def test_every_group_suggests() -> None:
    def groups(command: Any, name: str) -> Iterator[tuple[str, Any]]:
        if hasattr(command, "commands"):
            yield name, command
            for called, under in command.commands.items():
                yield from groups(under, f"{name} {called}")

    found = dict(groups(get_command(app), "perdure"))
    assert len(found) > 5
    assert [name for name, group in found.items() if not isinstance(group, Group)] == []
