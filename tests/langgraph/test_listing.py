"""Listing all threads, or all namespaces of one, shows the checkpoints of the stock savers, in one order."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver

from perdure.testing.conformance.backend import at, put
from tests.langgraph import graphs
from tests.langgraph.savers import opened


def _steps(random: Random) -> list[tuple[str, str, str, str]]:
    """Places, ids and sources of checkpoints; ids mostly rise, as clocks of several machines have it."""
    threads = [f"t{n}" for n in range(random.choice((1, 3, 9)))]
    # The root comes first in each thread: a subgraph's checkpoint without a root is not a thread of
    # LangGraph's.
    places = [(thread, "") for thread in threads]
    places += [(random.choice(threads), f"inner|{n}") for n in range(random.randrange(4))]
    ids = [f"1f{n + random.randrange(8):04}.{n:04}" for n in range(random.choice((5, 40, 150)))]
    return [(*random.choice(places), one, random.choice(("input", "loop", "update"))) for one in ids]


def _fill(saver: BaseCheckpointSaver[Any], steps: list[tuple[str, str, str, str]]) -> None:
    for thread, namespace, checkpoint_id, source in steps:
        put(saver, at(thread=thread, namespace=namespace), checkpoint_id, source=source)


def _seen(item: Any) -> Any:
    place = item.config["configurable"]
    return place["checkpoint_id"], str(place["thread_id"]), place["checkpoint_ns"], item.metadata["source"]


@pytest.mark.parametrize("driver", ["memory", "sqlite"])
def test_all_threads_are_listed_as_on_the_stock_saver(driver: str, tmp_path: Path) -> None:
    """The stock saver in memory yields thread by thread; PostgresSaver sorts the same by id downwards."""
    random = Random(8)
    for number in range(12 if driver == "memory" else 4):
        steps = _steps(random)
        stock = InMemorySaver()
        folder = tmp_path / str(number)
        folder.mkdir()
        with opened(driver, folder) as db:
            saver = db.checkpointer(may_list_all_threads=True)
            _fill(saver, steps)
            _fill(stock, steps)
            for _ in range(15):
                wanted: dict[str, Any] = {
                    "filter": random.choice((None, {}, {"source": "input"}, {"source": "update", "step": 1})),
                    "before": random.choice((None, at(random.choice(steps)[2]), at("1f0020"))),
                }
                limit = random.choice((None, 0, 1, 3, 70))
                expected = sorted(map(_seen, stock.list(None, **wanted)), reverse=True)[:limit]
                assert [_seen(item) for item in saver.list(None, limit=limit, **wanted)] == expected
                assert asyncio.run(_awaited(saver, None, limit=limit, **wanted)) == expected


@pytest.mark.parametrize("driver", ["memory", "sqlite"])
def test_all_namespaces_of_a_thread_are_listed_as_on_the_stock_saver(driver: str, tmp_path: Path) -> None:
    random = Random(9)
    for number in range(12 if driver == "memory" else 4):
        steps = _steps(random)
        folder = tmp_path / str(number)
        folder.mkdir()
        with opened(driver, folder) as db, SqliteSaver.from_conn_string(":memory:") as stock:
            saver = db.checkpointer()
            _fill(saver, steps)
            _fill(stock, steps)
            for _ in range(15):
                config: RunnableConfig = {"configurable": {"thread_id": random.choice(steps)[0]}}
                wanted: dict[str, Any] = {
                    "filter": random.choice((None, {}, {"source": "input"}, {"source": "update", "step": 1})),
                    "before": random.choice((None, at(random.choice(steps)[2]), at("1f0020"))),
                    "limit": random.choice((None, 0, 1, 3, 70)),
                }
                expected = [_seen(item) for item in stock.list(config, **wanted)]
                assert [_seen(item) for item in saver.list(config, **wanted)] == expected
                assert asyncio.run(_awaited(saver, config, **wanted)) == expected
            assert list(saver.list({"configurable": {"thread_id": "nobody"}})) == []


async def _awaited(
    saver: BaseCheckpointSaver[Any], config: RunnableConfig | None, **options: Any
) -> list[Any]:
    return [_seen(item) async for item in saver.alist(config, **options)]


@pytest.mark.parametrize("driver", ["memory", "sqlite"])
def test_a_page_before_a_checkpoint_that_was_pruned_has_what_is_older(driver: str, tmp_path: Path) -> None:
    with opened(driver, tmp_path) as db:
        saver = db.checkpointer()
        ids = [f"1f{n:04}" for n in range(9)]
        for n, checkpoint_id in enumerate(ids):
            put(saver, at(checkpoint_id=ids[n - 1] if n else None), checkpoint_id)
        for name in ids[1], ids[3]:
            db.tag("thread", name, name)
        saver.prune(["thread"], keep_last=2)
        for limit, wanted in ((None, [ids[3], ids[1]]), (1, [ids[3]]), (0, [])):
            page = saver.list(at(), before=at(checkpoint_id=ids[5]), limit=limit)
            assert [item.checkpoint["id"] for item in page] == wanted
        named = saver.list(at(checkpoint_id=ids[3]), before=at(checkpoint_id=ids[2]))
        assert list(named) == []


@pytest.mark.parametrize("driver", ["memory", "sqlite"])
@pytest.mark.parametrize("is_fresh", [False, True])
def test_a_page_of_a_subgraph_before_what_was_removed_has_what_is_older(
    driver: str, is_fresh: bool, tmp_path: Path
) -> None:
    """Whether the checkpoint was one of the subgraph or of the graph itself, and also in the context of the
    run that came last, which a saver knows."""
    with opened(driver, tmp_path) as db:
        saver = db.checkpointer()
        graph = graphs.remembering(saver)
        for n in range(4):
            run: Any = {"configurable": {"thread_id": "thread"}, "metadata": {"run_id": f"r{n}"}}
            graph.invoke({"said": [f"turn {n}"]}, run)
        seen = {name: [item.config for item in saver.list(at(namespace=name))] for name in ("", "ask")}
        saver.delete_for_runs(["r2"])
        saver = db.checkpointer() if is_fresh else saver
        for namespace in seen:
            left = [item.checkpoint["id"] for item in saver.list(at(namespace=namespace))]
            assert 0 < len(left) < len(seen[namespace])
            for before in (*seen[""], *seen["ask"]):
                before_id = before["configurable"]["checkpoint_id"]
                if before_id in left or saver.get_tuple(before) is not None:
                    continue
                page = [item.checkpoint["id"] for item in saver.list(at(namespace=namespace), before=before)]
                assert page == [one for one in left if one < before_id]
                alone: RunnableConfig = {"configurable": {"thread_id": "thread", "checkpoint_id": before_id}}
                assert list(saver.list(at(namespace=namespace), before=alone, limit=2)) == list(
                    saver.list(at(namespace=namespace), before=before, limit=2)
                )
