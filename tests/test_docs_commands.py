"""Commands and links of the README, the documentation and the examples.

Every command that a page shows is one that there is, with its options and arguments. The README's list of
commands is typed as it stands, over a thread of its own. Links within the repository lead somewhere.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import perdure
from perdure.cli import main
from perdure.cli.app import app
from tests.docs_pages import ROOT, SHELL, blocks_of, commands, pages, script

PAGES = [path for path in pages() if path.name != "CHANGELOG.md"]
INLINE = re.compile(r"`(perdure [^`\n]+)`")
LINK = re.compile(r"\]\((?!https?:|mailto:|<)([^)\s]*)\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
FENCED = re.compile(r"^(`{3,}).*?^\1", re.MULTILINE | re.DOTALL)


def in_blocks(text: str) -> Iterator[str]:
    """Yield the commands of ``perdure`` in a page's shell blocks."""
    for block in blocks_of(text):
        if block.language in SHELL:
            for words in commands(script(block)):
                if Path(words[0]).name == "perdure":
                    yield shlex.join(["perdure", *words[1:]])


def inline(text: str) -> Iterator[str]:
    """Yield the commands within a page's sentences; they may leave arguments out."""
    yield from (found.strip() for found in INLINE.findall(FENCED.sub("", text)))


@cache
def _root() -> Any:
    return get_command(app)


def leaf(words: list[str]) -> tuple[Any, list[str]]:
    """Return the command that words name, and its arguments; fail when there is none."""
    command = _root()
    while (commands := getattr(command, "commands", None)) and words and not words[0].startswith("-"):
        assert words[0] in commands, f"there is no command {words[0]!r}, only {', '.join(commands)}"
        command, words = commands[words[0]], words[1:]
    return command, words


def unknown_options(line: str) -> list[str]:
    """Return the options of a command that it does not have."""
    command, rest = leaf(re.sub(r"[…\[\]()'\"|]", " ", line).split()[1:])
    known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    known |= {"-h", "--help", "--install-completion", "--show-completion"}
    used = [word.partition("=")[0].rstrip(".,") for word in rest if word.startswith("--")]
    return [name for name in used if name not in known]


def links(text: str) -> Iterator[str]:
    """Yield the links of a page that stay within the repository."""
    yield from LINK.findall(FENCED.sub("", text))


def with_any(parts: Callable[[str], Iterator[str]]) -> list[Any]:
    """Return the pages that have such parts, as cases."""
    return [
        pytest.param(page, id=str(page.relative_to(ROOT)))
        for page in PAGES
        if any(parts(page.read_text("utf-8")))
    ]


@pytest.mark.parametrize("page", with_any(in_blocks))
def test_every_command_of_a_block_can_be_typed(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_DB", "memory://")
    for line in in_blocks(page.read_text("utf-8")):
        command, rest = leaf(shlex.split(line)[1:])
        try:
            command.make_context("perdure", rest)
        except Exception as error:
            pytest.fail(f"{line}: {error!r} {getattr(error, 'message', '')}")


@pytest.mark.parametrize("page", with_any(inline))
def test_every_command_of_a_sentence_is_known_with_its_options(page: Path) -> None:
    for line in inline(page.read_text("utf-8")):
        assert not unknown_options(line), line


def test_every_command_of_the_first_help_is_known_with_its_options() -> None:
    lines = re.findall(r" {2}(perdure .+)", str(app.info.help))
    assert len(lines) > 5
    for line in lines:
        assert not unknown_options(line), line
        command, rest = leaf(shlex.split(line)[1:])
        command.make_context("perdure", rest)


def test_the_pages_that_are_read_show_commands() -> None:
    assert sum(len(list(in_blocks(page.read_text("utf-8")))) for page in PAGES) > 50
    assert sum(len(list(inline(page.read_text("utf-8")))) for page in PAGES) > 50


def test_a_command_or_an_option_that_there_is_not_is_found() -> None:
    with pytest.raises(AssertionError, match=r"there is no command 'shows', only .*show"):
        leaf(["threads", "shows", "ada"])
    assert unknown_options("perdure threads show ada --jsn --json") == ["--jsn"]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the documentation's site make them."""
    found = set(re.findall(r"\{ *#([\w-]+)", page.read_text("utf-8")))
    for heading in HEADING.findall(FENCED.sub("", page.read_text("utf-8"))):
        words = re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)|\{[^}]*\}", "", heading).lower()).strip()
        found |= {words.replace(" ", "-"), re.sub(r"[-\s]+", "-", words)}
    return found


@pytest.mark.parametrize("page", with_any(links))
def test_every_link_within_the_repository_leads_somewhere(page: Path) -> None:
    for target in links(page.read_text("utf-8")):
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        assert other.exists(), f"{target}: there is no such file"
        if anchor and other.suffix == ".md":
            assert anchor in anchors(other), f"{target}: the page has no such heading"


AGENT = """
from langgraph.graph import START, MessagesState, StateGraph


def answer(state: MessagesState) -> dict:
    return {"messages": [("ai", f"{len(state['messages'])} messages")]}


graph = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").compile()
"""


def test_the_list_of_commands_in_the_readme_works_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("PERDURE_", "DATABASE_URL"))]:
        monkeypatch.delenv(name)
    (tmp_path / "app.py").write_text(AGENT, encoding="utf-8")
    lines = list(in_blocks((ROOT / "README.md").read_text("utf-8").partition("## Command line")[2]))
    assert len(lines) > 10

    def typed(line: str) -> str:
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", shlex.split(line))
        code: object = 0
        try:
            main()
        except SystemExit as done:
            code = done.code or 0
        shown = capfd.readouterr()
        assert code == 0, f"{line}: {shown.err}"
        return shown.out

    def converse() -> None:
        names: dict[str, object] = {}
        exec(AGENT, names)  # noqa: S102
        with perdure.connect_sync("sqlite:///threads.db") as db:
            graph = names["graph"].builder.compile(checkpointer=db.checkpointer())  # type: ignore[attr-defined]
            graph.invoke({"messages": [("user", "hello")]}, {"configurable": {"thread_id": "ada"}})

    seen = {}
    for line in lines:
        if line.split()[1] in ("serve", "worker"):
            continue  # They run until they are stopped; tests/cli and tests/server run them.
        seen[line.partition(" --db")[0]] = typed(line)
        if line.startswith("perdure migrate"):
            converse()
    assert "ada" in seen["perdure threads ls"]
    assert "hello" in seen["perdure export ada"]
    assert "1 thread is sound" in seen["perdure fsck"]
