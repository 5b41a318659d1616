"""The checker of histories accepts what the guarantees allow, and notices what they exclude."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.history_checker.checking import check_calls
from tools.history_checker.defects import DEFECTS
from tools.history_checker.guarantees import Guarantee
from tools.history_checker.recording import OK, REFUSED, UNKNOWN, Call, Recorder, read_calls
from tools.history_checker.registers import check_register

FULL = os.environ.get("PERDURE_CHAOS") == "full"

THREAD = ("ada", "t")
_NUMBERS = count()


def call(
    do: str, began: float, ended: float | None = None, *, on: Sequence[str] = THREAD, **rest: Any
) -> Call:
    """Return a call; ``given`` and ``answer`` are its parts, and an end of ``None`` is an unknown outcome."""
    outcome = rest.get("outcome", UNKNOWN if ended is None else OK)
    end = float("inf") if ended is None else ended
    return Call(
        str(next(_NUMBERS)), do, tuple(on), rest.get("given", {}), began, end, outcome, rest.get("answer", {})
    )


def accept(element: str, began: float, ended: float | None = None, **rest: Any) -> Call:
    rest.setdefault("answer", {"run": f"run-{element}"})
    return call("accept", began, ended, given={"element": element}, **rest)


def read(began: float, *entries: str, **rest: Any) -> Call:
    answer = {"entries": list(entries), "questions": rest.pop("questions", {})}
    return call("read", began, began + 0.5, answer=answer, **rest)


def status(run: str, began: float, found: str = "success") -> Call:
    return call("run", began, began + 0.5, given={"run": run}, answer={"status": found})


def answer(value: str, question: str, began: float, ended: float | None = None, **rest: Any) -> Call:
    rest.setdefault("answer", {"run": f"run-{value}"})
    return call("answer", began, ended, given={"element": value, "question": question}, **rest)


def broken(*calls: Call) -> set[str]:
    """Return the guarantees that a history breaks."""
    return {violation.guarantee for violation in check_calls(sorted(calls, key=lambda each: each.began))}


TWO = (accept("a", 0, 1), accept("b", 2, 3), status("run-a", 5), status("run-b", 6))


def test_a_history_as_it_should_be_is_accepted() -> None:
    assert not broken(*TWO, read(4, "m:a", "s:run-a:1"), read(8, "m:a", "s:run-a:1", "m:b", "s:run-b:1"))


def test_a_lost_message_is_noticed() -> None:
    assert "Nothing acknowledged is lost" in broken(*TWO, read(8, "m:a"))


def test_a_message_whose_outcome_is_unknown_may_be_there_or_not() -> None:
    unknown = accept("c", 4)
    assert not broken(*TWO, unknown, read(8, "m:a", "m:b"))
    assert not broken(*TWO, unknown, read(8, "m:a", "m:b", "m:c"))


def test_a_refused_message_that_is_there_is_noticed() -> None:
    refused = accept("c", 4, 5, outcome=REFUSED, answer={})
    assert broken(*TWO, refused, read(8, "m:a", "m:b", "m:c")) == {"Nothing acknowledged is lost"}


def test_a_message_that_is_there_twice_is_noticed() -> None:
    assert broken(*TWO, read(8, "m:a", "m:b", "m:b")) == {"A message is applied once, in order"}


def test_a_message_of_two_runs_is_noticed() -> None:
    again = accept("a", 3, 4, answer={"run": "another"})
    assert broken(*TWO, again, read(8, "m:a", "m:b")) == {"A message that is sent again is one message"}


def test_a_message_may_have_the_run_that_took_its_own_up() -> None:
    again = accept("a", 3, 4, answer={"run": "another"})
    taken = call("run", 7, 8, given={"run": "run-a"}, answer={"status": "success", "part_of": "another"})
    assert not broken(*TWO, again, taken, read(8, "m:a", "m:b"))


def test_an_order_against_the_times_is_noticed() -> None:
    assert broken(*TWO, read(8, "m:b", "m:a")) == {"A message is applied once, in order"}


def test_messages_that_are_sent_at_once_have_any_order() -> None:
    at_once = (accept("a", 0, 3), accept("b", 2, 3), status("run-a", 5), status("run-b", 6))
    assert not broken(*at_once, read(8, "m:a", "m:b"))
    assert not broken(*at_once, read(8, "m:b", "m:a"))


def test_a_fork_is_noticed() -> None:
    third = accept("c", 3, 4)
    assert "No unintended fork" in broken(
        *TWO, third, read(6, "m:a", "m:c", "m:b"), read(8, "m:a", "m:b", "m:c")
    )


def test_a_step_of_a_successful_run_that_is_gone_is_noticed() -> None:
    assert "No unintended fork" in broken(
        *TWO, read(6, "m:a", "s:run-a:1", "s:run-a:2"), read(8, "m:a", "m:b")
    )


def test_a_read_of_the_past_is_noticed() -> None:
    calls = (*TWO, read(8, "m:a", "m:b"), read(9, "m:a"), read(10, "m:a", "m:b"))
    assert broken(*calls) == {"No stale write"}


def test_a_read_that_misses_a_run_whose_end_was_shown_is_noticed() -> None:
    assert broken(*TWO, read(7, "m:a"), read(8, "m:a", "m:b")) == {"No stale write"}


def test_what_a_failed_run_of_a_server_stored_stays() -> None:
    failed = (accept("a", 0, 1), accept("b", 2, 3), status("run-a", 4), status("run-b", 6, "error"))
    during = read(5, "m:a", "m:b", "s:run-b:1")
    assert not broken(*failed, during, read(8, "m:a", "m:b", "s:run-b:1"))
    assert broken(*failed, during, read(8, "m:a")) == {
        "A message that always fails does not block its thread"
    }


def test_steps_of_two_runs_at_once_are_noticed() -> None:
    steps = ("m:a", "s:run-a:1", "m:b", "s:run-b:1", "s:run-a:2")
    assert broken(*TWO, read(8, *steps)) == {"One run a thread"}


def test_a_step_that_is_stored_twice_is_noticed() -> None:
    assert broken(*TWO, read(8, "m:a", "s:run-a:1", "s:run-a:1", "m:b")) == {
        "A committed step is not run twice"
    }


def test_what_was_sent_to_another_thread_is_noticed() -> None:
    other = accept("x", 0, 1, on=("ben", "t"))
    assert broken(*TWO, other, read(8, "m:a", "m:b", "m:x")) == {"Threads and tenants are isolated"}


def test_a_history_that_is_no_chain_is_noticed() -> None:
    states = [
        {"id": "2", "parent": "1", "entries": ["m:a", "m:b"]},
        {"id": "1", "parent": None, "entries": ["m:b"]},
    ]
    calls = (*TWO, call("history", 7, 8, answer={"states": states}), read(9, "m:a", "m:b"))
    assert "No unintended fork" in broken(*calls)


def test_what_reappears_after_a_deletion_is_noticed() -> None:
    deleted = (accept("a", 0, 1), call("delete", 2, 3), accept("b", 4, 5))
    assert not broken(*deleted, read(6, "m:b"))
    assert broken(*deleted, read(6, "m:a", "m:b")) == {"Deleted is deleted"}


def test_a_run_without_an_end_is_noticed() -> None:
    assert broken(accept("a", 0, 1), status("run-a", 5, "pending"), read(6)) == {
        "No queue entry is forgotten"
    }


def test_a_run_that_ends_twice_is_noticed() -> None:
    calls = (accept("a", 0, 1), status("run-a", 2), status("run-a", 4, "error"), read(6, "m:a"))
    assert broken(*calls) == {"Nothing acknowledged is lost"}


def test_a_run_that_fails_although_its_message_does_not_is_noticed() -> None:
    def sent(fails: bool) -> Call:
        return call("accept", 0, 1, given={"element": "a", "fails": fails}, answer={"run": "r"})

    assert not broken(sent(True), status("r", 2, "error"), read(3, "m:a"))
    assert broken(sent(False), status("r", 2, "error"), read(3, "m:a")) == {
        "A message that always fails does not block its thread"
    }


def test_a_failed_run_that_is_run_again_twice_is_noticed() -> None:
    def again(began: float, run: str) -> Call:
        return call("retry", began, began + 0.5, given={"run": "run-a"}, answer={"run": run})

    calls = (accept("a", 0, 1), status("run-a", 2, "error"), read(9, "m:a"))
    assert not broken(*calls, again(3, "r"), again(4, "r"))
    assert broken(*calls, again(3, "r"), again(4, "q")) == {
        "A message that always fails does not block its thread"
    }


def notice(run: str, began: float, key: str, ended_as: str = "success") -> Call:
    told = {"run": run, "key": key, "status": ended_as, "entries": ["m:a"]}
    return call("reply", began, began, given=told)


def test_notices_of_other_ends_and_under_other_keys_are_noticed() -> None:
    wanted = call("accept", 0, 1, given={"element": "a", "wants_reply": True}, answer={"run": "r"})
    calls = (wanted, status("r", 3), read(6, "m:a"))
    assert not broken(*calls, notice("r", 2, "k"), notice("r", 5, "k"))
    assert not broken(*calls)
    assert broken(*calls, notice("r", 2, "k", "error")) == {"Replies are those of runs that ended"}
    assert broken(*calls, status("r", 2.2, "running"), notice("r", 2, "k")) == {
        "Replies are those of runs that ended"
    }
    assert broken(*calls, notice("r", 2, "k"), notice("r", 5, "l")) == {
        "A reply is sent under one key, in order"
    }


def test_a_notice_that_overtakes_one_is_noticed() -> None:
    calls = (*TWO, read(8, "m:a", "m:b"))
    assert not broken(*calls, notice("run-a", 6, "k"), notice("run-b", 7, "l"))
    assert broken(*calls, notice("run-b", 6, "l"), notice("run-a", 7, "k")) == {
        "A reply is sent under one key, in order"
    }


def test_what_a_run_left_has_what_it_was_given() -> None:
    calls = (*TWO, read(8, "m:a", "m:b"))
    joined = call("join", 6, 7, given={"run": "run-b"}, answer={"entries": ["m:a", "m:b"]})
    assert not broken(*calls, joined)
    assert broken(*calls, replace(joined, answer={"entries": ["m:a"]})) == {"Nothing acknowledged is lost"}


def test_a_listing_is_a_read_of_each_thread() -> None:
    calls = (*TWO, read(8, "m:a", "m:b"))
    assert not broken(*calls, call("listing", 9, 10, on=("ada",), answer={"threads": {"t": ["m:a", "m:b"]}}))
    assert broken(*calls, call("listing", 9, 10, on=("ben",), answer={"threads": {"t": ["m:a", "m:b"]}})) == {
        "Threads and tenants are isolated"
    }


ASKED = accept("a", 0, 1), status("run-a", 3)


def test_an_answer_to_its_question_is_accepted() -> None:
    calls = (*ASKED, answer("q#1", "q", 4, 5), status("run-q#1", 6))
    assert not broken(*calls, read(8, "m:a", "a:q=q#1", "s:run-q#1:1"))


def test_an_answer_to_another_question_is_noticed() -> None:
    calls = (*ASKED, answer("q#1", "q", 4, 5), status("run-q#1", 6))
    assert broken(*calls, read(8, "m:a", "a:p=q#1")) == {"An interrupt is answered once"}


def test_two_accepted_answers_are_noticed() -> None:
    calls = (*ASKED, answer("q#1", "q", 4, 5), answer("q#2", "q", 4, 5), status("run-q#1", 6))
    assert broken(*calls, status("run-q#2", 6), read(8, "m:a", "a:q=q#1")) == {
        "An interrupt is answered once"
    }


def test_an_answer_that_is_given_twice_and_one_that_was_refused_are_noticed() -> None:
    once = answer("q#1", "q", 4, 5)
    assert broken(*ASKED, once, read(8, "m:a", "a:q=q#1", "a:p=q#1")) == {"An interrupt is answered once"}
    refused = answer("q#2", "q", 4, 5, outcome=REFUSED, answer={})
    assert broken(*ASKED, refused, read(8, "m:a", "a:q=q#2")) == {"An interrupt is answered once"}


def test_an_answer_that_is_not_in_the_state_of_its_run_is_noticed() -> None:
    calls = (*ASKED, answer("q#1", "q", 4, 5), status("run-q#1", 6))
    assert broken(*calls, read(8, "m:a", "s:run-q#1:1")) == {"An interrupt is answered once"}


def test_a_question_that_is_shown_again_is_noticed() -> None:
    calls = (*ASKED, answer("q#1", "q", 4, 5), status("run-q#1", 6))
    assert broken(*calls, read(8, "m:a", questions={"q": "1"})) == {"An interrupt is answered once"}


def test_a_question_that_is_shown_and_takes_no_answer_is_noticed() -> None:
    shown = read(4, "m:a", questions={"q": "1"})
    refused = answer("q#1", "q", 5, 6, outcome=REFUSED, answer={})
    assert broken(*ASKED, shown, refused, read(8, "m:a")) == {"An interrupt is answered once"}
    beside = answer("q#2", "q", 4.8, 5.5)
    assert not broken(*ASKED, shown, beside, refused, status("run-q#2", 7), read(8, "m:a", "a:q=q#2"))
    assert not broken(ASKED[0], shown, refused, status("run-a", 7), read(8, "m:a"))


# Registers


def item(do: str, began: float, ended: float | None = None, value: str | None = None, **rest: Any) -> Call:
    given = {"value": value} if do in ("put", "exchange") else {}
    answer = {"value": value} if do == "get" else {}
    return call(
        do, began, ended, on=("ada", "item"),
        given={**given, **rest.pop("given", {})}, answer={**answer, **rest.pop("answer", {})}, **rest,
    )  # fmt: skip


def test_reads_of_what_was_written_last_are_linear() -> None:
    assert check_register([item("get", 0, 1), item("put", 2, 3, "a"), item("get", 4, 5, "a")]) is None
    assert check_register([item("put", 0, 5, "a"), item("get", 1, 2), item("get", 3, 4, "a")]) is None
    assert check_register([item("put", 0, 1, "a"), item("remove", 2, 3), item("get", 4, 5)]) is None


def test_a_stale_read_of_an_item_is_noticed() -> None:
    assert (
        check_register([item("put", 0, 1, "a"), item("put", 2, 3, "b"), item("get", 4, 5, "a")]) is not None
    )
    calls = [item("put", 0, 9, "a"), item("get", 1, 2, "a"), item("get", 3, 4)]
    assert check_register(calls) is not None


def test_a_put_without_an_answer_happens_at_any_time_or_never() -> None:
    unknown = item("put", 0, None, "a")
    assert check_register([unknown, item("get", 1, 2), item("get", 8, 9, "a")]) is None
    assert check_register([unknown, item("get", 1, 2)]) is None
    assert check_register([unknown, item("get", 1, 2, "a"), item("get", 3, 4)]) is not None


def test_exchanges_are_compared() -> None:
    first = item("exchange", 0, 1, "a", given={"seen": None}, answer={"is_exchanged": True})
    second = item("exchange", 2, 3, "b", given={"seen": None}, answer={"is_exchanged": True})
    assert check_register([first]) is None
    assert check_register([first, second]) is not None
    assert check_register([first, replace(second, answer={"is_exchanged": False})]) is None


@given(st.integers(0, 2**32))
def test_the_register_of_any_interleaving_is_linear_until_an_answer_is_changed(seed: int) -> None:
    chance = random.Random(seed)
    value: str | None = None
    calls: list[Call] = []
    for number in range(30):
        # Each call takes effect at its number, some time after its beginning and before its end.
        began, ended = number - chance.uniform(0, 3), number + chance.uniform(0, 3)
        do = chance.choice(("put", "get", "get", "remove"))
        if do == "put":
            value = f"v{number}"
        if do == "remove":
            value = None
        is_unknown = do != "get" and chance.random() < 0.2
        calls.append(item(do, began, None if is_unknown else ended, value if do != "remove" else None))
    assert check_register(calls) is None
    gets = [n for n, each in enumerate(calls) if each.do == "get"]
    if gets:
        changed = chance.choice(gets)
        calls[changed] = replace(calls[changed], answer={"value": "never put"})
        assert check_register(calls) is not None


# Histories


def turn(began: float, ended: float | None, seen: int, *elements: str, **rest: Any) -> Call:
    return call(
        "turn", began, ended, on=("ada", "s"), given={"elements": list(elements), "seen": seen}, **rest
    )


def load(began: float, *elements: str) -> Call:
    return call("load", began, began + 0.5, on=("ada", "s"), answer={"elements": list(elements)})


def test_turns_one_after_the_other_are_accepted() -> None:
    first, second = turn(0, 1, 0, "a", "b"), turn(2, 3, 2, "c")
    lost = turn(2, 3, 2, "d", outcome=REFUSED)
    assert not broken(first, second, lost, turn(2, None, 2, "e"), load(4, "a", "b", "c"))


@pytest.mark.parametrize(
    "calls",
    [
        (turn(0, 1, 0, "a"), load(4)),
        (turn(0, 1, 0, "a"), turn(0, 1, 0, "b"), load(4, "a", "b")),
        (turn(0, 1, 0, "a", outcome=REFUSED), load(4, "a")),
        (turn(0, 1, 0, "a", "b"), load(4, "a")),
        (turn(0, 1, 0, "a"), load(4, "a", "a")),
        (turn(0, 1, 0, "a"), turn(2, None, 1, "b"), load(3, "a", "b"), load(4, "a")),
        (turn(0, 1, 0, "a"), load(0.5, "b"), load(4, "a")),
    ],
    ids=["lost", "not compared", "refused", "torn", "twice", "taken back", "of nobody"],
)
def test_turns_that_are_not_are_noticed(calls: Sequence[Call]) -> None:
    assert broken(*calls) == {"Turns of a history are one after the other"}


def test_a_session_has_its_last_turn_until_its_time_is_over() -> None:
    def turn(began: float, base: Sequence[str], *elements: str) -> Call:
        given = {"elements": list(elements), "base": list(base), "seen": len(base), "ttl_s": 5.0}
        return call("turn", began, began + 0.1, on=("ada", "s"), given=given)

    turns = (turn(0, [], "a"), turn(3, ["a"], "b"))
    assert not broken(*turns, load(4, "a", "b"), load(7, "a", "b", "c"), load(7.2, "a", "b"), load(9))
    assert broken(*turns, load(4, "a")) == {"Turns of a history are one after the other"}
    corrupt = call("load", 9, None, on=("ada", "s"), answer={"error": "Corrupt"})
    assert broken(*turns, corrupt) == {"Turns of a history are one after the other"}


# Records


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    times = iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    recorder = Recorder(tmp_path / "it", "me", lambda: next(times))
    first = recorder.note_call("put", ["ada", "x"], value="1")
    second = recorder.note_call("get", ["ada", "x"])
    recorder.note_event("kill")
    recorder.note_answer(first, OK)
    recorder.note_answer(second, UNKNOWN)
    recorder.note_call("get", ["ada", "x"])
    recorder.close()
    calls = read_calls((tmp_path / "it").read_text().splitlines())
    assert [(each.began, each.ended, each.outcome) for each in calls] == [
        (1.0, 4.0, OK),
        (2.0, float("inf"), UNKNOWN),
        (6.0, float("inf"), UNKNOWN),
    ]


def test_a_record_with_strange_answers_is_refused() -> None:
    asked = {"id": "1", "at": 0, "do": "get", "on": ["x"], "given": {}}
    told = {"id": "1", "at": 1, "outcome": OK, "answer": {}}
    with pytest.raises(ValueError, match="lacks"):
        read_calls([json.dumps(told)])
    with pytest.raises(ValueError, match="twice"):
        read_calls([json.dumps(each) for each in (asked, told, told)])


def test_the_checks_know_nothing_of_the_product() -> None:
    program = (
        "import sys, tools.history_checker.checking; "
        "print([n for n in sys.modules if n.partition('.')[0] in ('perdure', 'langgraph', 'tests')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_guarantee_that_is_checked_is_on_the_page() -> None:
    headings = {
        line.removeprefix("## ")
        for line in Path("docs/guarantees.md").read_text().splitlines()
        if line[:3] == "## "
    }
    assert set(map(str, Guarantee)) <= headings


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("defect", [None, *(DEFECTS if FULL else ("no dedupe",))])
def test_a_deployment_keeps_its_guarantees_and_one_without_a_guard_does_not(
    tmp_path: Path, defect: str | None
) -> None:
    from tools.history_checker.running import Plan, record

    file = tmp_path / "record"
    rest_s = 240.0 if defect is None else 30.0
    plan = Plan("sqlite", 1.0 if FULL else 0.5, 7, servers=1, defect=defect, rest_s=rest_s)
    record(plan, tmp_path, file)
    calls = read_calls(file.read_text().splitlines())
    assert {each.do for each in calls} >= {"accept", "read", "run", "get", "put", "load", "turn"}
    assert bool(check_calls(calls)) == (defect is not None)
