"""The section of the runtime: every way answers every message, and the page has what was measured."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bench import report
from bench.desk import Desk
from bench.loops import Ways
from bench.plan import FULL, QUICK
from bench.subject import SubjectFailed
from bench.ways import BARE, RUNTIME, SYNC, WAYS
from bench.workloads import runtime
from tests.bench.test_report import results


async def asked(*questions: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    ways = Ways("memory://")
    try:
        return [await ways.answer(name, arguments) for name, arguments in questions]
    finally:
        await ways.close()


OPEN = ("open", {"concurrency": 4, "poll": 600.0})


@pytest.mark.parametrize("way", WAYS)
def test_every_message_of_a_crowd_is_answered(way: str) -> None:
    crowd = ("many", {"way": way, "threads": 5, "turns": 3})
    _, *answers = asyncio.run(asked(OPEN, crowd, crowd))
    assert [answer["messages"] for answer in answers] == [15, 15]
    assert all(answer["seconds"] > 0 for answer in answers)


def test_a_message_that_is_missing_is_no_figure() -> None:
    class Losing(Ways):
        async def _one(self, way: str, thread: str, said: str) -> None:
            if thread != "crowd 1 3":
                await super()._one(way, thread, said)

    async def main() -> None:
        ways = Losing("memory://")
        try:
            await ways.answer("many", {"way": BARE, "threads": 4, "turns": 2})
        finally:
            await ways.close()

    with pytest.raises(RuntimeError, match="crowd 1 3 ended with 0 messages in place of 4"):
        asyncio.run(main())


def test_lone_messages_are_timed_each_way_as_often() -> None:
    _, answer = asyncio.run(asked(OPEN, ("pairs", {"count": 7})))
    assert {way: len(took) for way, took in answer["ms"].items()} == dict.fromkeys(WAYS, 7)


def test_what_a_message_asks_of_the_driver() -> None:
    """The runtime stores what a loop of the same durability does, the message with its claim, and the end."""
    questions = [("messages", {"way": way, "count": count}) for way in WAYS for count in (1, 4)]
    _, *answers = asyncio.run(asked(OPEN, *questions))
    spent = dict(zip(((q["way"], q["count"]) for _, q in questions), answers, strict=True))
    assert spent[BARE, 4]["commits"] == 4 * spent[BARE, 1]["commits"]
    assert spent[SYNC, 4]["commits"] >= spent[BARE, 4]["commits"]
    assert spent[RUNTIME, 4]["commits"] >= spent[SYNC, 4]["commits"] + 4 * 2
    assert all(spent[way, 4]["reads"] >= 4 for way in WAYS)


def test_the_runtime_is_asked_only_while_it_is_open() -> None:
    message = ("messages", {"way": RUNTIME, "count": 1})
    with pytest.raises(RuntimeError, match="the runtime is not open"):
        asyncio.run(asked(OPEN, message, ("shut", {}), message))


def measured() -> dict[str, Any]:
    def counts(commits: float) -> dict[str, float]:
        return {"commits": commits, "reads": 1.0, "round_trips": commits + 1}

    rates = {BARE: [100.0, 200.0, 300.0], SYNC: [90.0, 180.0, 270.0], RUNTIME: [70.0, 130.0, 240.0]}
    return {
        "threads": 64,
        "messages_a_thread": 20,
        "lone_messages": 3,
        "poll_s": 1.0,
        "backends": {
            "SQLite": {"skipped": "it ended without an answer"},
            "PostgreSQL": {
                "settings": "PostgreSQL 18",
                "crowd": {
                    way: {"messages_per_s": sorted(seen)[1], "rounds": seen} for way, seen in rates.items()
                },
                "lone": {BARE: [5.0, 6.0, 50.0], SYNC: [6.0, 7.0, 60.0], RUNTIME: [9.0, 12.0, 90.0]},
                "counts": {BARE: counts(4.0), SYNC: counts(5.0), RUNTIME: counts(8.0)},
            },
        },
    }


def test_the_page_has_ratios_of_neighbours_and_counts() -> None:
    page = report.page(results({}, 1, runtime=measured()), [], "")
    assert "### SQLite\n\nNot measured: it ended without an answer.\n" in page
    assert "64 threads of 20 messages at once, each completed before the next" in page
    # Ratios of 0.70, 0.65 and 0.80: the median is none of the medians'.
    assert "| **Perdure's runtime** | 130 | 0.70 × |" in page
    # 4, 6 and 40 ms more; 1.8, 2 and 1.8 times as long.
    assert "| **Perdure's runtime** | 12.0 | 1.80 × | 6.00 | 8.00 | 1.00 | 9.00 |" in page
    assert "share one machine and no network, and no model is waited for" in page


def test_a_page_without_the_section_says_nothing_of_it() -> None:
    assert "From a message to its run's end" not in report.page(results({}, 1), [], "")


@pytest.mark.parametrize("plan", [QUICK, FULL])
def test_progress_comes_to_its_end(plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With processes that answer at once."""

    class Quick:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def ask(self, question: str, **arguments: Any) -> dict[str, Any]:
            answers: dict[str, dict[str, Any]] = {
                "pairs": {"ms": {way: [1.0] for way in WAYS}},
                "many": {"messages": 1, "seconds": 1.0},
                "messages": {"commits": 1, "reads": 1},
            }
            return answers.get(question, {})

        def leave(self) -> None:
            pass

    steps: list[str] = []
    monkeypatch.setattr(runtime, "Subject", Quick)
    monkeypatch.setattr(runtime, "BACKENDS", {"SQLite": runtime.BACKENDS["SQLite"]})
    desk = Desk(plan, [], tmp_path, steps.append)
    found = runtime.run(desk)
    assert len(steps) == runtime.units(desk)
    assert len(found["backends"]["SQLite"]["crowd"][RUNTIME]["rounds"]) == plan.runtime_repeats
    assert not desk.notes
    assert "| **Perdure's runtime** |" in report.page(results({}, 1, runtime=found), [], "")


def test_a_failure_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dead(*_: object, **__: object) -> None:
        raise SubjectFailed("ended without an answer")

    monkeypatch.setattr(runtime, "Subject", dead)
    monkeypatch.setattr(runtime, "BACKENDS", {"SQLite": runtime.BACKENDS["SQLite"]})
    desk = Desk(QUICK, [], tmp_path, lambda _: None)
    assert runtime.run(desk)["backends"] == {"SQLite": {"skipped": "ended without an answer"}}
    assert desk.notes == ["The runtime on SQLite was not measured: ended without an answer"]
