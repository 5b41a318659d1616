"""A saver used by plain calls on D1's engine: histories, compaction by a schedule, costs that stay flat, and
one writer a thread."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base.id import uuid6

import perdure
from tests.servers import d1
from tests.servers.d1_proxy import Proxy, proxy
from tests.systems.edge_saver import DurableObject, at, compact, messages, step

KEPT = perdure.Retention(keep_last=3)


@pytest.fixture
def wire() -> Iterator[tuple[Proxy, str]]:
    """D1's engine behind a proxy that counts, and the URL through it."""
    with d1.database() as id_, proxy(d1.started().origin) as between:
        url = d1.started().url(id_, between.endpoint)
        with perdure.connect_sync(url, migrate=True):
            """Only its schema is wanted."""
        yield between, url


def talk(saver: Any, thread: str, count: int) -> list[str]:
    """The ids of the checkpoints of a conversation."""
    return [step(saver, at(thread), f"t{n}")["configurable"]["checkpoint_id"] for n in range(count)]


@pytest.mark.slow
def test_a_tree_is_stored_listed_forked_and_compacted(wire: tuple[Proxy, str]) -> None:
    _, url = wire
    with perdure.connect_sync(url, retention=KEPT) as database:
        saver = database.checkpointer()
        ids = talk(saver, "a", 10)
        talk(saver, "b", 2)
        listed = list(saver.list(at("a")))
        assert [one.config["configurable"]["checkpoint_id"] for one in listed] == ids[::-1]
        parents = [one.parent_config and one.parent_config["configurable"]["checkpoint_id"] for one in listed]
        assert parents == [*ids[-2::-1], None]
        assert listed[1].pending_writes == [("task-9", "messages", ["t9", "9: heard t9"])]
        assert [len(one.checkpoint["channel_values"]["messages"]) for one in listed] == list(range(20, 0, -2))
        database.tag("a", "approved", ids[2])
        before = messages(saver, at("a"))
        assert compact(database) == 6
        assert compact(database) == 0, "a second one finds nothing"
        kept = [one.config["configurable"]["checkpoint_id"] for one in saver.list(at("a"))]
        assert kept == [*ids[:-4:-1], ids[2]]
        assert [one.parent_config is None for one in saver.list(at("a"))] == [False, False, False, True]
        assert database.fsck("a") == []
        assert messages(saver, at("a")) == before
        assert messages(saver, at("a", ids[2])) == before[:6]
        assert saver.get_tuple(at("a", ids[5])) is None
        step(saver, at("a", ids[2]), "instead")
        assert messages(saver, at("a")) == [*before[:6], "instead", "3: heard instead"]
        assert messages(saver, at("a", ids[-1])) == before
        assert len(messages(saver, at("b"))) == 4


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_step_costs_the_same_requests_statements_and_bytes_however_long_the_thread_is(
    wire: tuple[Proxy, str],
) -> None:
    between, url = wire
    costs: list[tuple[int, int, int]] = []
    with perdure.connect_sync(url, retention=KEPT) as database:
        saver = database.checkpointer()
        for n in range(200):
            between.requests.clear()
            step(saver, at("a"), f"t{n}")
            sent = sum(len(str(v)) for request in between.requests for _, given in request for v in given)
            costs.append((len(between.requests), sum(map(len, between.requests)), sent))
            if n % 50 == 49:
                compact(database)
    early, late = costs[10:40], costs[160:190]
    for what, before, after in zip(
        ("requests", "statements", "bytes"), zip(*early, strict=True), zip(*late, strict=True), strict=True
    ):
        print(f"{what} of a step: {max(before)} at most in steps 10 to 40, {max(after)} in steps 160 to 190")
    assert max(one[0] for one in late) <= max(one[0] for one in early)
    assert max(one[1] for one in late) <= max(one[1] for one in early) + 2
    assert sum(one[2] for one in late) < 2 * sum(one[2] for one in early), "400 messages are 12 times 30"


class Calls:
    """Counts the functions of Python that are called, by what they belong to."""

    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()
        self._home = str(Path(perdure.__file__).parent)

    def __call__(self, frame: Any, event: str, _: Any) -> None:
        if event == "call":
            self.counted[self._part(frame.f_code.co_filename)] += 1

    def _part(self, file: str) -> str:
        if file.startswith(f"{self._home}/storage"):
            return "database"
        if "/langgraph/" in file or "/langchain_core/" in file or file.startswith(self._home):
            return "serialisation and saver"
        return "rest"


@pytest.mark.slow
def test_the_saver_s_own_work_and_not_the_database_dominates_a_step(tmp_path: Path) -> None:
    """In calls of functions: of the thread that makes the step, and of those that talk to the database."""
    calls = Calls()
    threading.setprofile(calls)
    try:
        with perdure.connect_sync(f"sqlite:///{tmp_path / 'edge.db'}", migrate=True) as database:
            saver = database.checkpointer()
            talk(saver, "a", 60)
            calls.counted.clear()
            sys.setprofile(calls)
            talk(saver, "a", 20)
            sys.setprofile(None)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    print({part: count // 20 for part, count in calls.counted.items()}, "calls a step")
    assert calls.counted["serialisation and saver"] > 2 * calls.counted["database"]


# One writer a thread


@pytest.mark.slow
def test_requests_to_the_object_of_a_thread_are_served_one_after_the_other(wire: tuple[Proxy, str]) -> None:
    _, url = wire
    with perdure.connect_sync(url) as database, ThreadPoolExecutor(8) as pool:
        objects = {name: DurableObject(database.checkpointer, name) for name in ("a", "b")}
        list(pool.map(lambda n: objects["ab"[n % 2]].fetch(f"t{n}"), range(24)))
        for name, parity in (("a", 0), ("b", 1)):
            said = messages(database.checkpointer(), at(name))
            assert {*said[::2]} == {f"t{n}" for n in range(24) if n % 2 == parity}
            assert len(said) == 24
            assert [text.partition(":")[0] for text in said[1::2]] == [str(n) for n in range(12)]
            assert len(list(database.checkpointer().list(at(name)))) == 12
            assert database.fsck(name) == []


@pytest.mark.slow
def test_an_object_that_was_replaced_and_still_runs_stores_nothing(wire: tuple[Proxy, str]) -> None:
    """The platform may start a second object of a thread while the first one is cut off: each loads, and the
    one that stores later is refused, and loses nothing when it loads again."""
    _, url = wire
    with perdure.connect_sync(url) as one, perdure.connect_sync(url) as other:
        old, new = one.checkpointer(), other.checkpointer()
        talk(old, "a", 3)
        stale = old.get_tuple(at("a"))
        assert stale is not None
        step(new, at("a"), "newer")
        number = stale.metadata["step"] + 1
        version: Any = old.get_next_version(stale.checkpoint["channel_versions"]["messages"], None)
        late: Any = {
            **stale.checkpoint,
            "id": str(uuid6()),
            "channel_values": {"messages": ["late"]},
            "channel_versions": {"messages": version},
        }
        with pytest.raises(perdure.HeadConflict):
            old.put(
                stale.config, late, {"source": "loop", "step": number, "parents": {}}, {"messages": version}
            )
        step(old, at("a"), "again")
        assert messages(new, at("a"))[-4::2] == ["newer", "again"]
        assert one.fsck("a") == []
