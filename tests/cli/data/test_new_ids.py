"""Commands that give a thread a new id refuse one that nothing could name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_moving import Run, database, run, talk

__all__ = ["run"]


@pytest.mark.parametrize("new", ["", "perdure.memory:ada", "sqlite:///b.db"])
def test_a_thread_gets_no_id_that_nothing_could_name(run: Run, tmp_path: Path, new: str) -> None:
    url = database(tmp_path / "a.db", fill=talk)
    assert run("export", "ada", "--output", "a.perdure", "--db", url)[0] == 0
    for words in (
        ("import", "a.perdure", "--from", "archive", "--rename", new),
        ("threads", "fork", "ada", "latest", "--into", new),
    ):
        code, _, err = run(*words, "--db", url)
        assert code == 2, err
    _, out, _ = run("threads", "ls", "--db", url, "--json")
    assert len(out.splitlines()) == 1
