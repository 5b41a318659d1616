"""Contract of fences: while a run is open, each commit checks the lease epoch of its writer."""

from __future__ import annotations

from typing import Any

from perdure.errors import Fenced
from perdure.model.ops import Commit
from perdure.model.program import Effect
from perdure.testing.conformance.backend import (
    THREAD,
    Backend,
    at,
    expect_refusal,
    latest,
    list_ids,
    load,
    put,
    with_lease,
)
from perdure.testing.conformance.heads import build_asking_graph


class Fences:
    """Contract of the fence: no write under an expired lease, and none without a lease beside an open run."""

    def test_a_write_without_a_lease_is_fenced_while_a_run_is_open(self, backend: Backend) -> None:
        old, new = backend.saver(), backend.saver()
        put(old, at(), "c1")
        backend.open_run("run-1")
        for saver in (old, new):
            loaded = load(saver).config
            expect_refusal(Fenced, lambda: put(saver, loaded, "c2"))  # noqa: B023
            expect_refusal(Fenced, lambda: saver.put_writes(at("c1"), [("x", 1)], "task"))  # noqa: B023
        assert list_ids(new) == ["c1"]
        assert load(new).pending_writes == []

    def test_an_edit_from_outside_is_fenced_while_a_run_is_open(self, backend: Backend) -> None:
        graph = build_asking_graph(backend.saver())
        config = {"configurable": {"thread_id": THREAD}}
        graph.invoke({"notes": ["hello"]}, config)
        epoch = backend.open_run("run-1")
        expect_refusal(Fenced, lambda: graph.update_state(config, {"notes": ["edit"]}, as_node="ask"))
        assert build_asking_graph(backend.saver()).get_state(config).values == {"notes": ["hello"]}
        graph.update_state(with_lease(at(), epoch), {"notes": ["edit"]}, as_node="ask")
        assert build_asking_graph(backend.saver()).get_state(config).values == {"notes": ["hello", "edit"]}

    def test_a_wrong_epoch_is_fenced_and_the_right_one_passes(self, backend: Backend) -> None:
        saver = backend.saver()
        put(saver, at(), "c1")
        backend.open_run("run-1")
        epoch = backend.open_run("run-2")
        for wrong in (epoch - 1, epoch + 1, 0):
            loaded = load(saver).config
            expect_refusal(Fenced, lambda: put(saver, with_lease(loaded, wrong), "c2"))  # noqa: B023
            expect_refusal(Fenced, lambda: saver.put_writes(with_lease(at("c1"), wrong), [("x", 1)], "task"))  # noqa: B023
        put(saver, with_lease(load(saver).config, epoch), "c2")
        saver.put_writes(with_lease(at("c2"), epoch), [("x", 1)], "task")
        assert latest(backend.saver()) == "c2"
        assert len(load(backend.saver()).pending_writes or []) == 1

    def test_an_epoch_outlives_its_run(self, backend: Backend) -> None:
        saver = backend.saver()
        put(saver, at(), "c1")
        epoch = backend.open_run("run-1")
        backend.open_run(None)
        expect_refusal(Fenced, lambda: put(saver, with_lease(load(saver).config, epoch), "c2"))
        put(saver, load(saver).config, "c3")
        assert list_ids(saver) == ["c3", "c1"]

    def test_a_claim_between_plan_and_commit_fences_the_plan(self, backend: Backend) -> None:
        put(backend.saver(), at(), "c1")
        epoch = backend.open_run("run-1")
        claims = iter([1])

        def hook(_: int, effect: Effect[Any]) -> None:
            if isinstance(effect, Commit):
                for _ in claims:
                    backend.open_run("run-2")

        saver = backend.saver_with(hook)
        expect_refusal(Fenced, lambda: put(saver, with_lease(load(saver).config, epoch), "c2"))
        assert list_ids(backend.saver()) == ["c1"]
        claims = iter([1])
        expect_refusal(Fenced, lambda: saver.put_writes(with_lease(at("c1"), epoch + 1), [("x", 1)], "task"))
        assert load(backend.saver()).pending_writes == []

    def test_subgraphs_are_fenced_with_their_thread(self, backend: Backend) -> None:
        saver = backend.saver()
        put(saver, at(), "c1")
        epoch = backend.open_run("run-1")
        inner = at(namespace="inner:1")
        expect_refusal(Fenced, lambda: put(saver, inner, "s1", root="c1"))
        expect_refusal(Fenced, lambda: put(saver, with_lease(inner, epoch + 1), "s1", root="c1"))
        put(saver, with_lease(inner, epoch), "s1", root="c1")
        assert list_ids(saver, "inner:1") == ["s1"]

    def test_an_outdated_view_does_not_fence_a_write(self, backend: Backend) -> None:
        """A view from before the claim, or from a run that has ended, does not refuse a write."""
        saver = backend.saver()
        put(saver, at(), "c1")
        epoch = backend.open_run("run-1")
        put(saver, with_lease(at("c1"), epoch), "c2")
        saver.put_writes(with_lease(at("c2"), epoch), [("x", 1)], "task")
        backend.open_run(None)
        put(saver, at("c2"), "c3")
        saver.put_writes(at("c3"), [("x", 1)], "task")
        assert list_ids(backend.saver()) == ["c3", "c2", "c1"]

    def test_a_graph_runs_under_its_epoch(self, backend: Backend) -> None:
        epoch = backend.open_run("run-1")
        graph = build_asking_graph(backend.saver())
        for durability in ("sync", "async"):
            expect_refusal(Fenced, lambda: graph.invoke({"notes": ["no"]}, at(), durability=durability))  # noqa: B023
        graph.invoke({"notes": ["hello"]}, with_lease(at(), epoch))
        assert build_asking_graph(backend.saver()).get_state(at()).values == {"notes": ["hello"]}

    def test_other_threads_are_not_fenced(self, backend: Backend) -> None:
        backend.open_run("run-1", "other")
        saver = backend.saver()
        put(saver, at(), "c1")
        assert latest(saver) == "c1"
        expect_refusal(Fenced, lambda: put(saver, at(thread="other"), "c1"))
