"""The page of the command line is the one that the commands make."""

from __future__ import annotations

from tools import write_commands


def test_the_page_is_what_the_commands_say() -> None:
    recorded = write_commands.TARGET.read_text(encoding="utf-8").splitlines()
    assert write_commands.page().splitlines() == recorded, "run python -m tools.write_commands"


def test_commands_have_their_usage_options_and_examples() -> None:
    page = write_commands.page()
    part = page.partition("\n## perdure serve\n")[2].partition("\n## ")[0]
    assert "perdure serve [OPTIONS] [[NAME=]MODULE:GRAPH…]" in part
    assert "| `--workers WORKERS` |" in part
    assert "```sh\nperdure serve ./agent.py:graph --dev\n```" in part
    assert "| `--work`, `--no-work` |" in part
    assert "perdure threads list" not in page, "it is another name of ls"
    assert page.count("The threads' tenant; none by default") == 1


def test_signs_of_markdown_mean_nothing_outside_of_code() -> None:
    assert write_commands._escape("a *b* <c> [d] `*e*` f_g") == r"a \*b\* \<c> \[d] `*e*` f_g"
