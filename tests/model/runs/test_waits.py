"""Rules of waits: when they are due, what stays of them from run to run, and how they are stored."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.model.runs.waits import (
    EXPIRED,
    Wait,
    after_run,
    find_unanswerable,
    mark_given,
    mark_resume,
    next_due,
    read_waits,
    unmark,
    with_waits,
)

TIMES = st.integers(1, 1 << 50)
WAITS = st.builds(
    Wait,
    st.sampled_from(["question", "sleep", "signal"]),
    st.none() | TIMES,
    st.just(()) | st.tuples(st.none() | st.booleans() | st.text() | st.lists(st.integers())),
    st.lists(TIMES, max_size=3, unique=True).map(lambda times: tuple(sorted(times))),
    name=st.text(max_size=5),
    is_spent=st.booleans(),
)


@given(st.dictionaries(st.text(max_size=4), WAITS, max_size=4))
def test_a_note_holds_waits_as_they_are(waits: dict[str, Wait]) -> None:
    note = json.loads(json.dumps(with_waits({"interrupts": [1]}, waits)))
    assert read_waits(note) == waits
    assert note["interrupts"] == [1]
    assert with_waits(note, {}) == {"interrupts": [1]}
    assert find_unanswerable(note) == {name for name, wait in waits.items() if wait.kind != "question"}


@given(WAITS, st.integers(0, 1 << 50))
def test_each_reminder_and_the_deadline_come_once(wait: Wait, start: int) -> None:
    wait = replace(wait.begin(start), is_spent=False)
    left, reminders, deadlines = wait, 0, 0
    while (due := left.due_at) is not None:
        assert due > start
        if left.has_expired(due):
            left, deadlines = left.spend(), deadlines + 1
        else:
            assert left.is_to_remind(due)
            left, reminders = left.note_reminders(due), reminders + 1
    assert deadlines == (wait.until is not None)
    before = [at for at in wait.remind if wait.until is None or at < wait.until]
    assert reminders == len(before)


def test_reminders_of_a_time_in_which_nobody_looked_are_one() -> None:
    wait = Wait("question", 100, (), (10, 20, 30)).begin(0)
    assert wait.note_reminders(25).due_at == 30
    assert wait.note_reminders(35).due_at == 100


def test_a_wait_that_is_asked_again_keeps_its_times() -> None:
    before = {"a": Wait("question", 50), "b": Wait("sleep", 60), "c": Wait("sleep", 70)}
    again = {"b": Wait("sleep", 10), "d": Wait("sleep", 10)}
    after = after_run(again, before, ["a"], 1000, is_answer=True)
    assert {name: wait.until for name, wait in after.items()} == {"b": 60, "c": 70, "d": 1010}
    past = after_run(again, before, [], 1000, is_answer=False)
    assert {name: wait.until for name, wait in past.items()} == {"b": 60, "d": 1010}
    assert next_due(after.values()) == 60


def test_a_wait_whose_deadline_gave_an_answer_begins_anew_if_it_is_asked_again() -> None:
    before = {"a": Wait("sleep", 50).spend()}
    assert before["a"].due_at is None
    assert after_run({"a": Wait("sleep", 10)}, before, [], 1000, is_answer=False)["a"].until == 1010


def test_without_a_default_the_answer_says_that_the_question_has_expired() -> None:
    assert Wait("question", 5).answer == EXPIRED
    assert Wait("question", 5, (None,)).answer is None


@pytest.mark.parametrize("answer", [EXPIRED, {"__perdure__": "given", "answer": EXPIRED}, {"a": 1}, None, []])
def test_what_a_person_gives_is_never_the_mark_of_a_deadline(answer: Any) -> None:
    marked = mark_given(answer)
    assert marked != EXPIRED
    assert unmark(marked) == answer
    waits = {"q": Wait("question", 5), "d": Wait("question", 5, ("no",)), "s": Wait("signal", None)}
    assert mark_resume(answer, ["q"], waits) == marked
    assert mark_resume(answer, ["d"], waits) == answer, "the node may use LangGraph's own interrupt"
    assert mark_resume({"q": answer, "d": answer}, ["q", "d"], waits) == {"q": marked, "d": answer}
    assert Wait("signal", 5, (answer,)).answer == marked
    assert Wait("question", 5, (answer,)).answer == answer
