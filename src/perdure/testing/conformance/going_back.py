"""Contract of rollbacks: the head returns to its earlier checkpoint, and no history becomes invalid."""

from __future__ import annotations

import asyncio
from typing import Any

from langchain_core.runnables import RunnableConfig

from perdure.database.base import handle_of
from perdure.errors import CannotTakeBack, Conflict, Corrupt, Fenced
from perdure.langgraph.saver import PerdureSaver
from perdure.model.ops import Commit, Delete
from perdure.model.program import Effect
from perdure.model.records import CHECKPOINT, Partition
from perdure.testing.conformance.backend import (
    THREAD,
    Backend,
    at,
    expect_refusal,
    latest,
    list_ids,
    load,
    on,
    put,
    with_lease,
)

_HERE = Partition("", THREAD)


def step(
    saver: PerdureSaver,
    config: RunnableConfig,
    checkpoint_id: str,
    run_id: str | None = None,
    *,
    root: str | None = None,
) -> RunnableConfig:
    """Store a checkpoint of a run on the one that the config names."""
    return put(saver, config, checkpoint_id, root=root, run_id=run_id)


def take_steps(saver: PerdureSaver, count: int) -> None:
    """Store the checkpoints ``c0``, ``c1``…, each of a run of its own."""
    config = at()
    for n in range(count):
        config = step(saver, config, f"c{n}", f"run {n}")


def roll_back(backend: Backend, run_id: str, epoch: int | None = None) -> None:
    """Remove what a run stored."""
    handle = handle_of(backend.database())
    asyncio.run(handle.roll_back(_HERE, run_id, epoch=epoch))


def lose(backend: Backend, checkpoint_id: str, namespace: str = "") -> None:
    """Remove a checkpoint's record as damage would."""
    backend.driver.perform(Commit(_HERE, (Delete(CHECKPOINT, (namespace, checkpoint_id)),)))


class GoingBack:
    """Contract of rollbacks: heads return, links stay valid."""

    def test_a_run_from_an_old_checkpoint_goes_back_to_the_head_before_it(self, backend: Backend) -> None:
        saver = backend.saver()
        take_steps(saver, 4)
        forked = step(saver, load(saver, at("c1")).config, "f0", "fork")
        step(saver, forked, "f1", "fork")
        assert latest(saver) == "f1"
        backend.saver().delete_for_runs(["fork"])
        assert latest(backend.saver()) == "c3"
        assert list_ids(backend.saver()) == ["c3", "c2", "c1", "c0"]
        assert backend.database().fsck(THREAD) == []

    def test_runs_that_are_deleted_together_go_back_to_before_the_first(self, backend: Backend) -> None:
        saver = backend.saver()
        config = step(saver, at(), "c0", "zero")
        config = step(saver, config, "c1", "one")
        step(saver, load(saver, at("c0")).config, "f0", "fork")
        step(saver, load(saver).config, "f1", "more")
        saver.delete_for_runs(["fork", "more"])
        assert latest(backend.saver()) == "c1"
        step(saver, load(saver).config, "c2", "two")
        saver.delete_for_runs(["one"])
        saver.delete_for_runs(["two"])
        assert latest(backend.saver()) == "c0"
        assert backend.database().fsck(THREAD) == []

    def test_a_subgraph_s_head_goes_back_with_its_run(self, backend: Backend) -> None:
        """A run from an old checkpoint builds on an old state of the subgraph, too."""
        saver, inner = backend.saver(), at(namespace="inner")
        config = at()
        for n in range(3):
            step(saver, on(inner, f"s{n - 1}" if n else None), f"s{n}", f"run {n}", root=f"c{n}")
            config = step(saver, config, f"c{n}", f"run {n}")
        epoch = backend.open_run("fork")
        step(saver, at("s0", namespace="inner", epoch=epoch), "s-fork", "fork", root="c0")
        step(saver, on(at(epoch=epoch), "c0"), "c-fork", "fork")
        backend.saver().prune([THREAD])
        roll_back(backend, "fork", epoch)
        backend.open_run(None)
        assert latest(backend.saver(), "inner") == "s2"
        assert latest(backend.saver()) == "c2"
        assert backend.database().fsck(THREAD) == []

    def test_a_tagged_checkpoint_of_a_run_stays_and_is_not_the_head(self, backend: Backend) -> None:
        saver = backend.saver()
        config = step(saver, at(), "c0", "zero")
        config = step(saver, config, "c1", "one")
        backend.database().tag(THREAD, "kept")
        step(saver, config, "c2", "one")
        roll_back(backend, "one")
        assert latest(backend.saver()) == "c0"
        assert list_ids(backend.saver()) == ["c1", "c0"]
        roll_back(backend, "one")
        assert latest(backend.saver()) == "c0"
        assert backend.database().fsck(THREAD) == []

    def test_writes_of_a_run_go_with_it_from_a_checkpoint_that_stays(self, backend: Backend) -> None:
        """Until its first checkpoint, a run stores finished and interrupted tasks on the head before it."""
        step(backend.saver(), at(), "c0", "zero")
        self._write(backend, "zero", "asks", "__interrupt__", "first question")
        self._write(backend, "zero", "done", "x", "by zero")
        before = load(backend.saver()).pending_writes
        for attempt in ("first", "second"):
            # Each attempt loads what the one before has left.
            self._write(backend, "one", "finished", "x", f"{attempt} by one")
            self._write(backend, "one", "asks", "__interrupt__", f"{attempt} by one")
            self._write(backend, "one", "asks", "__resume__", [f"{attempt} by one"])
        assert len(load(backend.saver()).pending_writes or ()) == 4
        roll_back(backend, "one")
        assert load(backend.saver()).pending_writes == before
        assert latest(backend.saver()) == "c0"
        assert backend.database().fsck(THREAD) == []
        self._write(backend, "two", "finished", "x", "by two")
        assert ("finished", "x", "by two") in (load(backend.saver()).pending_writes or ())

    @staticmethod
    def _write(backend: Backend, run_id: str, task: str, channel: str, value: Any) -> None:
        saver = backend.saver()
        config: RunnableConfig = {**at(), "metadata": {"run_id": run_id}}
        saver.put_writes(load(saver, config).config, [(channel, value)], task)

    def test_a_prune_anywhere_in_a_run_leaves_what_it_goes_back_to(self, backend: Backend) -> None:
        for options in ({}, {"keep_last": 2}, {"strategy": "delete"}):
            for parent in ("c2", "c0"):
                self._prune_anywhere(backend, parent, options)

    @staticmethod
    def _prune_anywhere(backend: Backend, parent: str, options: dict[str, Any]) -> None:
        saver = backend.saver()
        saver.delete_thread(THREAD)
        take_steps(saver, 3)

        def prune(_: int, effect: Effect[Any]) -> None:
            if options.get("strategy") != "delete" or isinstance(effect, Commit):
                backend.saver().prune([THREAD], **options)

        forks = load(saver, at(parent)).config
        epoch = backend.open_run("open")
        busy = backend.saver_with(prune)
        # A prune before the run's first step may take away what a run from an old checkpoint starts from.
        first = busy if parent == "c2" else saver
        config = step(first, with_lease(forks, epoch), "o0", "open")
        config = step(busy, config, "o1", "open")
        step(busy, config, "o2", "open")
        assert latest(backend.saver()) == "o2"
        roll_back(backend, "open", epoch)
        backend.open_run(None)
        assert latest(backend.saver()) == "c2"
        assert backend.database().fsck(THREAD) == []

    def test_a_run_that_began_while_a_prune_read_keeps_its_base(self, backend: Backend) -> None:
        for place in range(1, 40):
            saver = backend.saver()
            saver.delete_thread(THREAD)
            config = step(saver, step(saver, at(), "c0", "zero"), "c1", "one")
            left, epochs = place, list[int]()

            def begin(_: int, effect: Effect[Any]) -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    epochs.append(backend.open_run("open"))  # noqa: B023
                    step(saver, with_lease(config, epochs[0]), "o0", "open")  # noqa: B023

            backend.saver_with(begin).prune([THREAD])
            if not epochs:
                assert place > 3, "there were hardly any effects to come between"
                return
            roll_back(backend, "open", epochs[0])
            backend.open_run(None)
            assert latest(backend.saver()) == "c1"
            assert backend.database().fsck(THREAD) == []

    def test_a_run_whose_base_was_pruned_is_not_taken_back(self, backend: Backend) -> None:
        saver = backend.saver()
        take_steps(saver, 3)
        saver.prune([THREAD])
        error = expect_refusal(CannotTakeBack, lambda: roll_back(backend, "run 2"))
        assert "c1" in str(error)
        expect_refusal(CannotTakeBack, lambda: saver.delete_for_runs(["run 2"]))
        assert latest(backend.saver()) == "c2"
        step(saver, load(saver).config, "c3", "run 3")
        saver.delete_for_runs(["run 3"])
        assert latest(backend.saver()) == "c2"

    def test_only_the_holder_of_a_run_takes_it_back(self, backend: Backend) -> None:
        saver = backend.saver()
        step(saver, at(), "c0", "zero")
        old_epoch = backend.open_run("open")
        step(saver, on(at(epoch=old_epoch), "c0"), "o0", "open")
        current = backend.open_run("open")
        step(saver, on(at(epoch=current), "o0"), "o1", "open")
        expect_refusal(Fenced, lambda: roll_back(backend, "open", old_epoch))
        backend.open_run(None)
        expect_refusal(Fenced, lambda: roll_back(backend, "open", current))
        assert latest(backend.saver()) == "o1"

    def test_a_stored_checkpoint_cannot_be_put_elsewhere(self, backend: Backend) -> None:
        saver = backend.saver()
        take_steps(saver, 4)
        for parent in ("c3", "c1", "c2"):
            for child in ("c0", "c1"):
                error = expect_refusal(Conflict, lambda: step(saver, at(parent), child))  # noqa: B023
                assert "is stored already" in str(error)
        loaded = load(saver).config
        expect_refusal(Conflict, lambda: step(saver, loaded, "c0"))
        assert list_ids(backend.saver()) == ["c3", "c2", "c1", "c0"]
        assert backend.database().fsck(THREAD) == []

    def test_a_checkpoint_that_is_put_again_stays_where_it_is(self, backend: Backend) -> None:
        saver = backend.saver()
        take_steps(saver, 4)
        for again, parent in (("c3", "c2"), ("c1", "c0"), ("c0", None)):
            put(backend.saver(), at(parent), again, {"x": f"{again} anew"}, version=2)
            assert list_ids(backend.saver()) == ["c3", "c2", "c1", "c0"]
            assert latest(backend.saver()) == "c3"
            assert load(backend.saver(), at(again)).checkpoint["channel_values"] == {"x": f"{again} anew"}
            assert backend.database().fsck(THREAD) == []
        saver.prune([THREAD], keep_last=2)
        put(backend.saver(), at("c1"), "c2", {"x": "after a prune"}, version=3)
        assert list_ids(backend.saver()) == ["c3", "c2"]
        assert backend.database().fsck(THREAD) == []

    def test_a_latest_checkpoint_that_is_not_stored_is_an_error_by_name(self, backend: Backend) -> None:
        for namespace in ("", "inner"):
            saver = backend.saver()
            saver.delete_thread(THREAD)
            for n in range(3):
                step(saver, at(f"c{n - 1}" if n else None, namespace=namespace), f"c{n}")
            lose(backend, "c2", namespace)
            here = at(namespace=namespace)
            for reader in (saver, backend.saver()):
                error = expect_refusal(Corrupt, lambda: reader.get_tuple(here))  # noqa: B023
                assert THREAD in str(error)
                assert "c2" in str(error)
                assert "fsck" in str(error)
                expect_refusal(Corrupt, lambda: list(reader.list(here)))  # noqa: B023
                expect_refusal(Corrupt, lambda: list(reader.list(here, limit=1)))  # noqa: B023
                assert load(reader, at("c1", namespace=namespace)).checkpoint["id"] == "c1"
            expect_refusal(Corrupt, lambda: saver.copy_thread(THREAD, "copy"))  # noqa: B023
            database = backend.database()
            if namespace == "":
                expect_refusal(Corrupt, lambda: database.show(THREAD))  # noqa: B023
                expect_refusal(Corrupt, lambda: database.timeline(THREAD))  # noqa: B023
                expect_refusal(Corrupt, lambda: database.export(THREAD))  # noqa: B023
                expect_refusal(Corrupt, lambda: database.tag(THREAD, "now"))  # noqa: B023
            assert [f.kind.value for f in database.fsck(THREAD)] == ["head"]
            assert database.repair(THREAD).left == ()
            assert latest(backend.saver(), namespace) == "c1"
            assert list_ids(backend.saver(), namespace) == ["c1", "c0"]
        lose(backend, "c0", "inner")
        lose(backend, "c1", "inner")
        expect_refusal(Corrupt, lambda: list(backend.saver().list(at(namespace="inner"))))

    def test_a_head_that_moves_while_it_is_read_is_no_damage(self, backend: Backend) -> None:
        for place in range(1, 40):
            saver = backend.saver()
            saver.delete_thread(THREAD)
            config = step(saver, at(), "c0", "zero")
            step(saver, config, "c1", "one")
            left, moved = place, list[bool]()

            def remove(_: int, effect: Effect[Any]) -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    moved.append(True)  # noqa: B023
                    roll_back(backend, "one")

            reader = backend.saver_with(remove)
            found = load(reader)
            list(reader.list(at()))
            if not moved:
                assert place > 2, "there were hardly any effects to come between"
                return
            assert found.checkpoint["id"] in ("c0", "c1")
