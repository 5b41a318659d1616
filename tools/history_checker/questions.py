"""Questions: each is answered once, by an answer that was meant for it.

An answer's value begins with the name of the question that its sender was shown, so that an answer which
reached another question can be told from the state alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator

from .facts import ANSWERED, READ, STEP, SUCCESS, ThreadFacts, read_threads, run_of_step
from .guarantees import Guarantee
from .recording import Call, Violation


def check_questions(calls: Iterable[Call]) -> list[Violation]:
    """Return what is wrong with the answers in a record."""
    return [
        Violation(Guarantee.ANSWERED_ONCE, "/".join(thread.name), what)
        for thread in read_threads(calls)
        if not thread.is_deleted
        for rule in (
            _find_double_answers,
            _find_misattributed_answers,
            _find_double_acceptances,
            _find_answerless_steps,
            _find_repeated_questions,
            _not_accepted,
        )
        for what in rule(thread)
    ]


def _read_answers(entries: Iterable[str]) -> list[tuple[str, str]]:
    """Return the questions in a state that have been answered, each with its answer."""
    parts = (entry.removeprefix(ANSWERED).partition("=") for entry in entries if entry.startswith(ANSWERED))
    return [(question, answer) for question, _, answer in parts]


def _find_double_answers(thread: ThreadFacts) -> Iterator[str]:
    for seen in thread.observations:
        questions = [question for question, _ in _read_answers(seen.entries)]
        values = [answer for _, answer in _read_answers(seen.entries)]
        twice = {q for q in questions if questions.count(q) > 1} | {v for v in values if values.count(v) > 1}
        if twice:
            yield f"{seen.call.id} shows {sorted(twice)[:2]} answered more than once"
            return


def _find_misattributed_answers(thread: ThreadFacts) -> Iterator[str]:
    for seen in thread.observations:
        for question, answer in _read_answers(seen.entries):
            sent = thread.answers.get(answer)
            if sent is None or sent.began > seen.call.ended:
                yield f"{seen.call.id} shows {question!r} answered with {answer!r}, which nobody had sent"
                return
            if sent.is_refused:
                yield f"{seen.call.id} shows {answer!r}, which was refused"
                return
            if (meant := sent.calls[0].given["question"]) != question:
                yield f"{seen.call.id} shows that {question!r} was given the answer to {meant!r}"
                return


def _find_double_acceptances(thread: ThreadFacts) -> Iterator[str]:
    accepted: dict[str, list[str]] = defaultdict(list)
    for value, sent in thread.answers.items():
        if any(thread.has_ended(run, SUCCESS) for run in sent.runs):
            accepted[sent.calls[0].given["question"]].append(value)
    for question, values in accepted.items():
        if len(values) > 1:
            yield f"of the answers to {question!r} {len(values)} were accepted: {values}"


def _find_answerless_steps(thread: ThreadFacts) -> Iterator[str]:
    """The steps of an answer's run are stored together with the answer."""
    shown = {answer for _, answer in _read_answers(thread.final)}
    with_steps = {run_of_step(entry) for entry in thread.final if entry.startswith(STEP)}
    for value, sent in thread.answers.items():
        if value not in shown and sent.runs & with_steps:
            yield f"the state has steps of the run of the answer {value!r}, and not the answer"


def _find_repeated_questions(thread: ThreadFacts) -> Iterator[str]:
    """A question whose answer led to a successful run is not shown again."""
    ended: dict[str, float] = {}
    for sent in thread.answers.values():
        question = sent.calls[0].given["question"]
        for run in sent.runs:
            end = thread.end_of(run)
            if end is not None and end.answer["status"] == SUCCESS:
                ended[question] = min(end.ended, ended.get(question, end.ended))
    for read in thread.of(READ):
        for question in read.answer.get("questions", ()):
            if read.began > ended.get(question, math.inf):
                yield f"{read.id} shows {question!r} again, whose answer was taken"
                return


def _not_accepted(thread: ThreadFacts) -> Iterator[str]:
    """A question that is shown while nothing else happens to its thread is one that takes an answer."""
    for value, sent in thread.answers.items():
        if not sent.is_refused or all("error" in call.answer for call in sent.calls):
            continue
        question, ended = sent.calls[0].given["question"], max(call.ended for call in sent.calls)
        shown = [
            read
            for read in thread.of(READ)
            if read.ended < sent.began and question in read.answer.get("questions", ())
        ]
        if shown and thread.is_at_rest(shown[-1].began, ended, but=value):
            yield f"{shown[-1].id} shows {question!r}, and {sent.calls[-1]} with {sent.calls[-1].answer}"
