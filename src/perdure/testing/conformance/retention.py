"""Contract of pruning and collection while others write, and of writes that are too large for one commit."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, TypedDict

from langchain_core._api import LangChainBetaWarning
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.serde.types import ERROR
from langgraph.graph import START, StateGraph

from perdure.database.base import handle_of
from perdure.engine.queue.inbox import Accept, read_standing
from perdure.errors import NotFound
from perdure.langgraph.saver import PerdureSaver
from perdure.model.ops import Commit, Delete, Fetch, Get, Put, Stage
from perdure.model.program import Effect
from perdure.model.records import CHECKPOINT, CHUNK, GC, HEAD
from perdure.model.runs.messages import Message
from perdure.model.runs.queue import Debounce
from perdure.storage.port import CommitLimits, Driver
from perdure.testing.conformance.backend import (
    AT,
    THREAD,
    Backend,
    Narrow,
    at,
    deletes_chunks,
    expect_refusal,
    latest,
    list_ids,
    load,
    long,
    put,
)
from perdure.testing.faults import FaultyDriver


def _join(state: list[str], writes: Sequence[list[str]]) -> list[str]:
    return [*state, *(item for write in writes for item in write)]


class Replayed(TypedDict):
    notes: Annotated[list[str], DeltaChannel(_join)]


def _answer(state: Replayed) -> Any:
    return {"notes": [long(f"answer {len(state['notes'])}")]}


def build_replaying_graph(saver: Any) -> Any:
    """Return a graph whose state is replayed from the writes of ancestors."""
    graph = StateGraph(Replayed)
    graph.add_node("answer", _answer)
    graph.add_edge(START, "answer")
    return graph.compile(checkpointer=saver)


def chain(saver: PerdureSaver, length: int, thread: str = THREAD) -> list[dict[str, Any]]:
    """Store checkpoints, each with a value of its own and one that shares items with the others; return the
    values."""
    step = at(thread=thread)
    out: list[dict[str, Any]] = []
    for n in range(length):
        out.append({"own": long(f"own {n}"), "shared": [long(f"item {i}") for i in range(n + 1)]})
        step = put(saver, step, f"c{n}", out[-1], version=n + 1)
    return out


def values(saver: PerdureSaver, checkpoint_id: str | None = None) -> dict[str, Any]:
    return dict(load(saver, at(checkpoint_id)).checkpoint["channel_values"])


class Pruning:
    """Contract of pruning, collection and staging: nothing that is still needed is lost."""

    def test_prune_keeps_the_head_and_what_it_needs(self, backend: Backend) -> None:
        saver = backend.saver()
        originals = chain(saver, 6)
        before = backend.chunks()
        backend.saver().prune([THREAD])
        assert list_ids(backend.saver()) == ["c5"]
        assert values(saver) == values(backend.saver()) == originals[5]
        assert backend.chunks() < before, "prune left the chunks of what it removed"
        put(saver, load(saver).config, "c6", originals[0], version=9)
        assert values(backend.saver()) == originals[0]

    def test_prune_keeps_what_is_tagged_and_what_is_asked_for(self, backend: Backend) -> None:
        originals = chain(backend.saver(), 6)
        backend.database().tag(THREAD, "mine", "c1")
        backend.saver().prune([THREAD], keep_last=2)
        assert list_ids(backend.saver()) == ["c5", "c4", "c1"]
        for n in (1, 4, 5):
            assert values(backend.saver(), f"c{n}") == originals[n]

    def test_prune_keeps_a_head_that_is_not_the_newest_by_id(self, backend: Backend) -> None:
        saver = backend.saver()
        step = put(saver, at(), "z", {"x": long("z")})
        put(saver, step, "a", {"x": long("a")})
        backend.saver().prune([THREAD])
        assert list_ids(backend.saver()) == ["a"]
        assert values(backend.saver()) == {"x": long("a")}

    def test_prune_keeps_the_writes_of_the_head(self, backend: Backend) -> None:
        saver = backend.saver()
        chain(saver, 3)
        saver.put_writes(at("c0"), [("x", long("old"))], "t")
        saver.put_writes(at("c2"), [("x", long("pending"))], "t")
        backend.saver().prune([THREAD])
        assert load(backend.saver()).pending_writes == [("t", "x", long("pending"))]

    def test_prune_keeps_what_a_delta_channel_replays(self, backend: Backend) -> None:
        config = {"configurable": {"thread_id": THREAD}}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LangChainBetaWarning)
            for n in range(4):
                build_replaying_graph(backend.saver()).invoke({"notes": [long(f"turn {n}")]}, config)
            before = build_replaying_graph(backend.saver()).get_state(config).values
            assert len(before["notes"]) == 8
            backend.saver().prune([THREAD])
            assert build_replaying_graph(backend.saver()).get_state(config).values == before
            build_replaying_graph(backend.saver()).invoke({"notes": [long("after")]}, config)
            after = build_replaying_graph(backend.saver()).get_state(config).values
        assert after["notes"][:8] == before["notes"]
        assert len(after["notes"]) == 10
        assert len(list_ids(backend.saver())) > 1

    def test_a_put_planned_before_a_collection_is_planned_again(self, backend: Backend) -> None:
        """Between plan and commit another process removes the chunks that the plan assumes to be stored."""

        def hook(_: int, effect: Effect[Any]) -> None:
            if isinstance(effect, Commit) and any(op.key == ("", "new") for op in effect.ops):
                for other in pruners:
                    other.prune([THREAD])

        pruners = iter([backend.saver()])
        saver = backend.saver_with(hook)
        originals = chain(saver, 4)
        put(saver, load(saver).config, "new", {"own": originals[0]["own"]}, version=9)
        assert values(backend.saver()) == {"own": originals[0]["own"]}
        assert list_ids(backend.saver()) == ["new", "c3"]
        for write in (originals[1]["own"], originals[2]["own"]):
            pruners = iter([backend.saver()])
            saver.put_writes(at("new"), [("x", write)], write[:6])
        assert [w[2] for w in load(backend.saver()).pending_writes or []] == [
            originals[1]["own"],
            originals[2]["own"],
        ]

    def test_a_prune_anywhere_in_a_put_loses_nothing(self, backend: Backend) -> None:
        self._interleave(backend, lambda s: s.prune([THREAD]), self._put_again)

    def test_a_put_anywhere_in_a_prune_loses_nothing(self, backend: Backend) -> None:
        self._interleave(backend, self._put_again, lambda s: s.prune([THREAD]))

    @staticmethod
    def _put_again(saver: PerdureSaver) -> None:
        """Store the values of an old checkpoint again, in a write and in a checkpoint."""
        old = {"own": long("own 0"), "shared": [long("item 0"), long("new")]}
        loaded = load(saver)
        saver.put_writes(loaded.config, [("shared", old["shared"])], "t")
        put(saver, loaded.config, "again", old, version=9)

    @staticmethod
    def _interleave(
        backend: Backend, inner: Callable[[PerdureSaver], None], outer: Callable[[PerdureSaver], None]
    ) -> None:
        """Run ``inner``, in another process with a warm cache of the thread, before each effect of
        ``outer``."""
        for place in range(1, 1000):
            backend.saver().delete_thread(THREAD)
            left = 0

            def hook(_: int, effect: Effect[Any]) -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    inner(rival)  # noqa: B023 - called within this round

            saver, rival = backend.saver_with(hook), backend.saver()
            originals = chain(saver, 4)
            assert values(rival) == originals[3]
            left = place
            outer(saver)
            if left > 0:
                assert place > 3, "there were hardly any effects to interleave with"
                return
            fresh = backend.saver()
            found = {item.checkpoint["id"]: item.checkpoint["channel_values"] for item in fresh.list(at())}
            assert latest(fresh) == "again"
            assert found["again"] == {"own": long("own 0"), "shared": [long("item 0"), long("new")]}
            assert all(found[f"c{n}"] == originals[n] for n in range(4) if f"c{n}" in found)
            saver.prune([THREAD])
            assert values(backend.saver()) == found["again"]

    def test_what_waits_for_a_thread_survives_the_removal_of_its_checkpoints(self, backend: Backend) -> None:
        saver, database = backend.saver(), backend.database()

        def put_all() -> None:
            put(saver, {**at(), "metadata": {"run_id": "r"}}, "c1")

        def store_message() -> list[object]:
            accept = Accept(AT, Message("id", {"input": 1}, "g"), 1, Debounce(), "enqueue", 100, 1 << 30)
            number = handle_of(database).run(accept.store(None)).seq
            return [number, handle_of(database).run(read_standing(AT, number, "id")).message.payload]

        removals: list[Callable[[], None]] = [
            lambda: saver.prune([THREAD], strategy="delete"),
            lambda: saver.delete_for_runs(["r"]),
        ]
        for number, remove in enumerate(removals, start=1):
            put_all()
            assert store_message() == [number, {"input": 1}]
            remove()
            assert saver.get_tuple(at()) is None
            assert handle_of(database).run(read_standing(AT, number, "id")).message.id == "id"
        saver.delete_thread(THREAD)
        assert store_message() == [1, {"input": 1}], "a deleted thread kept its messages"

    def test_collection_spares_a_chunk_that_was_stored_again(self, backend: Backend) -> None:
        """Another writer may store, under the new generation, a chunk that was found unreachable."""
        chain(backend.saver(), 3)
        again: list[bytes] = []

        def hook(_: int, effect: Effect[Any]) -> None:
            if isinstance(effect, Commit) and deletes_chunks(effect) and not again:
                (gc,), *chunks = backend.driver.perform(
                    Fetch(AT, (Get(GC, ()), *(Get(CHUNK, op.key) for op in effect.ops if op.kind is CHUNK)))
                )
                record = chunks[0][0]
                restamped = Put(CHUNK, record.key, {"generation": gc.version}, record.body)
                backend.driver.perform(Stage(AT, (restamped,)))
                again.append(record.key[0])

        backend.saver_with(hook).prune([THREAD])
        assert again, "the prune had nothing to collect"
        (answer,) = backend.driver.perform(Fetch(AT, (Get(CHUNK, (again[0],)),)))
        assert answer, "a chunk was deleted although it had been stored again"
        assert backend.chunks() < 8

    def test_a_tag_set_while_a_prune_is_planned_is_kept(self, backend: Backend) -> None:
        originals = chain(backend.saver(), 4)
        tags = iter(["late"])

        def hook(_: int, effect: Effect[Any]) -> None:
            if isinstance(effect, Commit) and any(
                isinstance(o, Delete) and o.kind is CHECKPOINT for o in effect.ops
            ):
                for name in tags:
                    backend.database().tag(THREAD, name, "c1")

        backend.saver_with(hook).prune([THREAD])
        assert list_ids(backend.saver()) == ["c3", "c1"]
        assert values(backend.saver(), "c1") == originals[1]

    def test_a_fork_from_a_checkpoint_that_was_pruned_says_so(self, backend: Backend) -> None:
        saver = backend.saver()
        chain(saver, 3)
        past = load(saver, at("c0")).config
        backend.saver().prune([THREAD])
        error = expect_refusal(NotFound, lambda: put(saver, past, "fork"))
        assert "c0" in str(error)
        assert list_ids(backend.saver()) == ["c2"]

    def test_what_does_not_fit_a_commit_is_staged_first(self, backend: Backend) -> None:
        narrow: list[Narrow] = []

        def wrap(driver: Driver) -> Driver:
            narrow.append(Narrow(driver, CommitLimits(ops=8, bytes=20_000)))
            return narrow[-1]

        saver = backend.saver(wrap=wrap)
        many = {
            "x": [long(f"item {n}") for n in range(300)],
            "y": {"deep": [long(f"item {n}") for n in range(9)]},
        }
        put(saver, at(), "c1", many)
        assert narrow[0].staged > 0
        assert values(saver) == values(backend.saver()) == many
        staged = narrow[0].staged
        saver.put_writes(at("c1"), [("x", [long(f"write {n}") for n in range(50)])], "t")
        assert narrow[0].staged > staged
        assert load(backend.saver()).pending_writes == [("t", "x", [long(f"write {n}") for n in range(50)])]
        for n in range(2, 30):
            put(saver, load(saver).config, f"c{n}", {"x": [long(f"turn {n}")]}, version=n)
        saver.prune([THREAD])
        assert list_ids(backend.saver()) == ["c29"]
        assert values(backend.saver()) == {"x": [long("turn 29")]}
        saver.copy_thread(THREAD, "copy")
        assert load(backend.saver(), at(thread="copy")).checkpoint["channel_values"] == {
            "x": [long("turn 29")]
        }

    def test_a_step_that_failed_after_staging_left_nothing_to_see(self, backend: Backend) -> None:
        class Broken(Exception):
            """Error raised by this test."""

        def hook(_: int, effect: Effect[Any]) -> None:
            if isinstance(effect, Commit) and any(op.kind is HEAD for op in effect.ops):
                raise Broken

        big = {"x": [long(f"item {n}") for n in range(100)]}
        narrow = CommitLimits(ops=8, bytes=20_000)
        failing = backend.database(
            wrap=lambda driver: Narrow(FaultyDriver(driver, on_effect=hook), narrow)
        ).checkpointer()
        try:
            put(failing, at(), "c1", big)
        except Broken:
            assert backend.saver().get_tuple(at()) is None
        else:
            raise AssertionError("the fault did not strike")
        assert backend.chunks() > 50
        put(backend.saver(), at(), "c1", big)
        assert values(backend.saver()) == big

    def test_a_commit_near_the_limit_still_fits_when_it_is_sealed(self, backend: Backend) -> None:
        for size in range(19_000, 20_400, 60):
            saver = backend.saver(wrap=lambda driver: Narrow(driver, CommitLimits(ops=64, bytes=20_000)))
            originals = {"x": [f"{n:04}" + "x" * 990 for n in range(size // 1000)] + ["y" * (size % 1000)]}
            saver.delete_thread(THREAD)
            put(saver, at(), "c1", originals)
            assert values(backend.saver()) == originals

    def test_a_thread_made_anew_is_not_taken_for_one_that_came_back_older(self, backend: Backend) -> None:
        """A new thread with the id of a deleted one has versions far from those of the deleted one."""
        saver, other = backend.saver(), backend.saver()
        older: list[object] = []
        saver.on_older = older.append
        for life in range(4):
            chain(other, 3)
            other.prune([THREAD])
            load(saver)
            other.delete_thread(THREAD)
            put(other, at(), f"new {life}", {"own": "value"})
            assert values(saver) == {"own": "value"}
            other.delete_thread(THREAD)
        assert older == []

    def test_a_write_that_was_overwritten_during_a_collection_is_not_taken_for_stored(
        self, backend: Backend
    ) -> None:
        """The reserved slots are overwritten: a collection in progress may remove the old value."""
        saver, other = backend.saver(), backend.saver()
        chain(other, 3)
        other.put_writes(at("c2"), [(ERROR, long("trouble"))], "t")
        steps: Iterator[Callable[[], object]] = iter(
            [lambda: load(saver), lambda: other.put_writes(at("c2"), [(ERROR, "fine")], "t")]
        )
        removed = False

        def hook(_: int, effect: Effect[Any]) -> None:
            nonlocal removed
            if removed:
                for step in steps:
                    step()
            removed |= isinstance(effect, Commit) and any(op.kind is CHECKPOINT for op in effect.ops)

        backend.saver_with(hook).prune([THREAD])
        put(saver, load(saver).config, "c3", {"own": long("trouble")}, version=9)
        assert values(backend.saver()) == {"own": long("trouble")}
        put(saver, at("c2"), "c4", {"own": long("trouble")}, version=9, source="fork")
        assert values(backend.saver()) == {"own": long("trouble")}
