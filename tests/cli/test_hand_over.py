"""Threads that wait move house as a shell sees it: refused, or handed over when that is asked for."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure.runtime import Runtime, sleep
from tests.cli.test_moving import Run, database, empty, run, talk

__all__ = ["run"]


def sleeping(db: perdure.SyncDatabase) -> Any:
    """A thread "cy" that sleeps, beside one that does not."""
    talk(db)

    async def naps(state: MessagesState) -> dict[str, Any]:
        await sleep(3600)
        return {}

    async def begin() -> None:
        graph = StateGraph(MessagesState).add_node(naps).add_edge(START, "naps").compile()
        async with Runtime(db, graph) as runtime:
            await runtime.wait(await runtime.accept("cy", "hello"))

    asyncio.run(begin())


def sleepers(run: Run, url: str) -> list[str]:
    code, out, _ = run("questions", "ls", "--waits", "--json", "--db", url)
    assert code == 0
    return [json.loads(line)["thread_id"] for line in out.splitlines()]


@pytest.mark.parametrize("by_file", [False, True])
def test_a_thread_that_sleeps_is_handed_over_when_that_is_asked_for(
    run: Run, tmp_path: Path, by_file: bool
) -> None:
    source = database(tmp_path / "a.db", fill=sleeping)
    target = database(tmp_path / "b.db", fill=empty)
    copying = ("export", "--all", "--output", "all.perdure", "--force", "--db", source)
    words = copying if by_file else ("copy", source, target)
    code, _, err = run(*words)
    assert code == 1
    assert "'cy' goes on by itself" in err
    assert "--hand-over" in err
    assert sleepers(run, source) == ["cy"]
    code, _, err = run(*words, "--hand-over")
    assert code == 0, err
    if by_file:
        code, _, err = run("import", "--from", "archive", "all.perdure", "--db", target)
        assert code == 0, err
    assert sleepers(run, source) == []
    assert sleepers(run, target) == ["cy"]
    code, _, err = run("export", "ada", "--hand-over", "--db", source)
    assert code != 0
    assert "name it with --output" in err
