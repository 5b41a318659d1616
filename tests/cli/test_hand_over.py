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


def test_a_thread_goes_on_where_it_is_if_another_one_cannot_be_exported(run: Run, tmp_path: Path) -> None:
    source = database(tmp_path / "a.db", fill=sleeping_beside_a_message)
    copying = ("export", "cy", "dee", "--output", "both.perdure", "--hand-over", "--db", source)
    code, _, err = run(*copying)
    assert code == 1
    assert "'dee' has messages or replies under way" in err
    assert sleepers(run, source) == ["cy"]
    assert not Path("both.perdure").exists()


def sleeping_beside_a_message(db: perdure.SyncDatabase) -> None:
    """A thread "cy" that sleeps, and a thread "dee" whose message waits for a worker."""
    sleeping(db)

    async def accept() -> None:
        graph = StateGraph(MessagesState).add_node("n", lambda state: {}).add_edge(START, "n").compile()
        async with Runtime(db, graph) as runtime:
            await runtime.wait(await runtime.accept("dee", "hello"))
        async with Runtime(db, graph, works=False) as runtime:
            await runtime.accept("dee", "again")

    asyncio.run(accept())
