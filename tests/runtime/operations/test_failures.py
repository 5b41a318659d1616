"""Errors of runs: alike but for ids, numbers and times, counted, and hidden where texts are hidden."""

from __future__ import annotations

import pytest

from perdure.model.runs.messages import TRACEBACK
from perdure.runtime.failures.failure_location import shows_texts
from perdure.runtime.operations.failures import RunFailure, failure_of, group_failures, normalise_message


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("timed out after 30.5 s", "timed out after <n> s"),
        ("run 3f2b8c1e-8a70-4a51-9b1c-2f4e6a7d8c90 is gone", "run <id> is gone"),
        ("<Model object at 0x7f6da6b53c60>", "<Model object at <address>>"),
        ("no such user ada@example.org", "no such user <address>"),
        ("at 2026-01-02T03:04:05.678Z: over", "at <time>: over"),
        ("request deadbeef01 failed", "request <id> failed"),
        ("a facade decade", "a facade decade"),
        ("two\n  lines", "two lines"),
        ("x" * 5000, "x" * 200),
    ],
)
def test_what_differs_from_run_to_run_is_left_out(message: str, expected: str) -> None:
    assert normalise_message(message) == expected


def test_long_and_strange_messages_take_no_time() -> None:
    for message in ("a" * 100_000 + "@", "1." * 50_000, "0x" * 50_000, "-" * 100_000, "\ud800" * 1000):
        assert len(normalise_message(message)) <= 200
        assert RunFailure("E", message).group


def test_failures_that_are_alike_are_counted_together() -> None:
    found = [
        ("t1", "r1", 10, RunFailure("Timeout", "after 1 s", node="team|write")),
        ("t2", "r2", 30, RunFailure("Timeout", "after 22 s", node="plan")),
        ("t3", "r3", 20, RunFailure("KeyError", "'x'")),
        ("t4", "r4", 40, RunFailure("OSError", "after 1 s")),
    ]
    first, *others = group_failures(found)
    assert (first.runs, first.kind, first.message) == (2, "Timeout", "after <n> s")
    assert (first.first_at, first.last_at, first.example) == (10, 30, ("t2", "r2"))
    assert first.nodes == ("plan", "team|write")
    assert [(each.kind, each.nodes) for each in others] == [("OSError", ()), ("KeyError", ())]


def test_a_note_of_an_older_release_has_its_type_in_the_text() -> None:
    assert failure_of({"error": "ValueError: bad: x"}) == RunFailure("ValueError", "bad: x")
    assert failure_of({"error": "it took: too long"}) == RunFailure("Error", "it took: too long")
    assert failure_of({"interrupts": []}) is None


def test_hidden_texts_are_in_no_group_and_found_by_no_search() -> None:
    notes = [{"error": f"ValueError: {each}", "kind": "ValueError", TRACEBACK: each} for each in ("a", "b")]
    shown = [failure_of(note) for note in notes]
    assert [each and (each.message, each.traceback) for each in shown] == [("a", "a"), ("b", "b")]
    hiding = shows_texts.set(False)
    try:
        hidden = [failure_of(note) for note in notes]
    finally:
        shows_texts.reset(hiding)
    assert hidden[0] == hidden[1]
    assert hidden[0] is not None
    assert hidden[0].traceback is None
    assert hidden[0].has("valueerror")
    assert not hidden[0].has(" a")
