"""Contract of heads: lost races, declared forks, and the meaning of "latest"."""

from __future__ import annotations

import asyncio
import operator
from contextlib import suppress
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from perdure.errors import HeadConflict
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
    on,
    put,
)
from perdure.testing.conformance.concurrency import at_once


class Sayings(TypedDict):
    notes: Annotated[list[str], operator.add]


def build_asking_graph(saver: Any) -> Any:
    """Return a graph that interrupts with a question and stores the answer."""

    def ask(state: Sayings) -> Any:
        return {"notes": [interrupt("yes or no?")]}

    graph = StateGraph(Sayings)
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    graph.add_edge("ask", END)
    return graph.compile(checkpointer=saver)


class Heads:
    """Compare-and-set on the head, and its declared exceptions."""

    def test_of_two_runs_on_one_head_the_second_loses(self, backend: Backend) -> None:
        for left, right in ((backend.saver(), backend.saver()), (backend.saver(),) * 2):
            left.delete_thread(THREAD)
            put(left, at(), "c1")
            a, b = load(left).config, load(right).config
            put(left, a, "c2")
            expect_refusal(HeadConflict, lambda: put(right, b, "c3"))  # noqa: B023
            assert list_ids(backend.saver()) == ["c2", "c1"], "a lost step was stored"
            assert latest(right) == "c2"
            assert any(isinstance(e, HeadConflict) for e in right.conflicts(THREAD))

    def test_a_loser_writes_nothing_more(self, backend: Backend) -> None:
        left, right = backend.saver(), backend.saver()
        put(left, at(), "c1")
        a, b = load(left).config, load(right).config
        put(left, a, "c2")
        expect_refusal(HeadConflict, lambda: put(right, b, "c3"))
        expect_refusal(HeadConflict, lambda: put(right, on(b, "c3"), "c4"))
        expect_refusal(HeadConflict, lambda: right.put_writes(b, [("x", "late")], "task"))
        assert load(left, at("c1")).pending_writes == []

    def test_addressing_the_head_is_no_fork(self, backend: Backend) -> None:
        left, right = backend.saver(), backend.saver()
        put(left, at(), "c1")
        a, b = load(left, at("c1")).config, load(right, at("c1")).config
        put(left, a, "c2")
        expect_refusal(HeadConflict, lambda: put(right, b, "c3"))

    def test_addressing_an_older_checkpoint_declares_a_fork(self, backend: Backend) -> None:
        saver = backend.saver()
        put(saver, put(saver, at(), "c1"), "c2")
        past = load(saver, at("c1")).config
        fork = put(saver, past, "f1")
        assert latest(backend.saver()) == "f1"
        assert load(saver, at("f1")).parent_config is not None
        put(saver, fork, "f2")
        assert list_ids(backend.saver()) == ["f2", "f1", "c2", "c1"]

    def test_a_fork_s_later_steps_are_no_forks(self, backend: Backend) -> None:
        saver, other = backend.saver(), backend.saver()
        put(saver, put(saver, at(), "c1"), "c2")
        fork = put(saver, load(saver, at("c1")).config, "f1")
        put(other, load(other).config, "o1")
        expect_refusal(HeadConflict, lambda: put(saver, fork, "f2"))

    def test_the_source_fork_declares_one(self, backend: Backend) -> None:
        saver, other = backend.saver(), backend.saver()
        put(saver, at(), "c1")
        loaded = load(saver).config
        put(other, load(other).config, "c2")
        put(saver, loaded, "f1", source="fork")
        assert latest(other) == "f1"

    def test_a_thread_that_was_absent_has_one_first_run(self, backend: Backend) -> None:
        left, right = backend.saver(), backend.saver()
        assert left.get_tuple(at()) is None
        assert right.get_tuple(at()) is None
        put(left, at(), "c1")
        expect_refusal(HeadConflict, lambda: put(right, at(), "d1"))
        assert list_ids(backend.saver()) == ["c1"]

    def test_puts_that_no_load_preceded_are_no_race(self, backend: Backend) -> None:
        saver = backend.saver()
        for name in ("a", "b", "c"):
            put(saver, at(), name)
        assert list_ids(saver) == ["c", "b", "a"]

    def test_both_runs_stand_where_forks_are_allowed(self, backend: Backend) -> None:
        saver = backend.saver(on_conflict="fork")
        put(saver, at(), "c1")
        a, b = load(saver).config, load(saver).config
        put(saver, a, "c2")
        put(saver, b, "c3")
        assert sorted(list_ids(saver)) == ["c1", "c2", "c3"]

    def test_the_head_is_the_last_put_and_not_the_largest_id(self, backend: Backend) -> None:
        saver = backend.saver()
        step = at()
        for name in ("m", "z", "a", "k"):
            step = put(saver, step, name)
        assert latest(saver) == "k"
        assert latest(backend.saver()) == "k"
        assert list_ids(backend.saver()) == ["k", "a", "z", "m"]
        assert list_ids(backend.saver(), limit=1) == ["k"]
        assert list_ids(backend.saver(), before=at("z")) == ["m"]

    def test_of_many_runs_on_one_head_one_wins(self, backend: Backend) -> None:
        savers = [backend.saver() for _ in range(4)]
        put(savers[0], at(), "c0")
        for turn in range(5):
            loaded = [load(savers[n % 4]).config for n in range(8)]

            def attempt(n: int) -> bool:
                try:
                    put(savers[n % 4], loaded[n], f"c{turn + 1}-{n}")  # noqa: B023
                except HeadConflict:
                    return False
                return True

            won = at_once(8, attempt)
            assert won.count(True) == 1
            assert latest(backend.saver()) == f"c{turn + 1}-{won.index(True)}"
        assert len(list_ids(backend.saver())) == 6

    def test_of_many_tasks_on_one_head_one_wins(self, backend: Backend) -> None:
        saver = backend.saver()
        put(saver, at(), "c1")
        loaded = load(saver)

        async def race() -> list[object]:
            starts = await asyncio.gather(*(saver.aget_tuple(at()) for _ in range(8)))
            outcomes: list[object] = await asyncio.gather(
                *(
                    saver.aput(start.config, {**loaded.checkpoint, "id": f"d{n}"}, {}, {})
                    for n, start in enumerate(starts)
                    if start is not None
                ),
                return_exceptions=True,
            )
            return outcomes

        outcomes = asyncio.run(race())
        lost = [o for o in outcomes if isinstance(o, HeadConflict)]
        assert len(lost) == 7, outcomes
        assert len(list_ids(backend.saver())) == 2

    def test_an_outdated_view_does_not_refuse_a_write(self, backend: Backend) -> None:
        """A view of the head from before another loop's step is not evidence of a race."""
        first, second = backend.saver(), backend.saver()
        put(first, at(), "c1")
        put(second, load(second).config, "c2")
        loaded = load(second).config
        put(first, loaded, "c3")
        assert list_ids(backend.saver()) == ["c3", "c2", "c1"]

    def test_of_two_answers_to_one_question_one_counts(self, backend: Backend) -> None:
        """Two loops answer at the head; the second runs completely before one of the first one's commits."""
        config = at()
        for place in range(1, 10):
            backend.saver().delete_thread(THREAD)
            first = build_asking_graph(backend.saver())
            first.invoke({"notes": ["hello"]}, config)
            left = place

            def hook(_: int, effect: Effect[Any]) -> None:
                nonlocal left
                left -= isinstance(effect, Commit)
                if left == 0:
                    left = -1
                    answer(first, "theirs")  # noqa: B023 - called within this round

            def answer(graph: Any, word: str) -> None:
                # LangGraph writes in the background, so either of the two may lose.
                with suppress(HeadConflict):
                    graph.invoke(Command(resume=word), graph.get_state(config).config, durability="sync")

            answer(build_asking_graph(backend.saver_with(hook)), "mine")
            if left > 0:
                assert place > 2, "there were hardly any commits to come between"
                return
            state = build_asking_graph(backend.saver()).get_state(config)
            assert state.values["notes"] in (["hello", "theirs"], ["hello", "mine"])
            assert state.next == ()
