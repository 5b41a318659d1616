"""Side effects of a step that another run repeats: an answer to its interrupt, or a continued run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.types import interrupt

import perdure
from perdure.runtime import Options, effect, effect_key
from tests.runtime.nodes.test_effects import Items, isolated, one_step, working


@pytest.mark.parametrize("shape", ["a node", "a subgraph", "a called graph", "an isolated graph"])
def test_an_effect_before_an_interrupt_is_not_repeated_by_the_run_of_the_answer(shape: str) -> None:
    calls: list[int] = []
    keys: list[str] = []
    # An isolated graph stores nothing, the earlier of two answers included.
    questions = ("sure?",) if shape == "an isolated graph" else ("sure?", "really?")

    async def charge(amount: int) -> int:
        calls.append(amount)
        return len(calls)

    async def work(state: Items) -> dict[str, Any]:
        keys.append(effect_key("charge"))
        receipt = await effect(charge, 5)
        return {"seen": [f"{receipt} {' '.join(interrupt(question) for question in questions)}"]}

    inner = one_step(work).compile()

    async def calling(state: Items) -> dict[str, Any]:
        return {"seen": (await inner.ainvoke({"item": 0, "seen": []}))["seen"]}

    outer = {
        "a node": lambda: inner,
        "a subgraph": lambda: one_step(inner).compile(),
        "a called graph": lambda: one_step(calling).compile(),
        "an isolated graph": lambda: one_step(isolated(inner)).compile(),
    }[shape]()

    async def main() -> list[str]:
        async with perdure.connect("memory://") as db:
            async with working(db, outer) as app:
                ended = [await app.wait(await app.submit("t", {"item": 0, "seen": []}))]
                ended += [await app.wait(await app.answer("t", "yes")) for _ in questions]
                assert [run.state for run in ended] == [*["waiting"] * len(questions), "done"]
            found = await db.checkpointer().aget_tuple({"configurable": {"thread_id": "t"}})
            assert found is not None
            return list(found.checkpoint["channel_values"]["seen"])

    assert asyncio.run(main()) == [" ".join(["1", *["yes"] * len(questions)])]
    assert calls == [5]
    assert len(keys) == len(questions) + 1
    assert len(set(keys)) == 1


def test_a_run_that_continues_a_failed_one_repeats_no_effect() -> None:
    calls: list[int] = []
    is_down = True

    async def charge(amount: int) -> str:
        calls.append(amount)
        return "receipt"

    async def work(state: Items) -> dict[str, Any]:
        receipt = await effect(charge, 5)
        if is_down:
            raise ConnectionError("what follows the effect is down")
        return {"seen": [receipt]}

    async def main() -> list[str]:
        nonlocal is_down
        async with perdure.connect("memory://") as db, working(db, one_step(work).compile()) as app:
            kept = Options(on_failure="keep")
            failed = await app.wait(await app.submit("t", {"item": 0, "seen": []}, options=kept))
            is_down = False
            continued = await app.wait(await app.submit("t", None))
            return [failed.state, continued.state]

    assert asyncio.run(main()) == ["failed", "done"]
    assert calls == [5]
