"""Perdure on SQLite as its database grows: what later work costs beside earlier work of the same kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from bench.candidate import Place
from bench.desk import Desk
from bench.large import MEMORY, OURS
from bench.subject import Subject, SubjectFailed

Results = dict[str, Any]

STEPS = 10
"""Parts in which messages, turns and threads come; each is measured."""
SEND_ROUNDS = 3
PAGES = 20


def units(desk: Desk) -> int:
    return 3 * STEPS + 2 * SEND_ROUNDS


def run(desk: Desk) -> Results:
    plan = desk.plan
    found: Results = {
        "messages": plan.scale_messages,
        "turns": plan.scale_turns,
        "sends": plan.scale_sends,
        "threads": plan.scale_threads,
        "tenants": plan.scale_tenants,
        "steps": {},
    }
    parts = {
        "messages": [("messages", {"count": plan.scale_messages // STEPS})],
        "turns": [("turns", {"count": plan.scale_turns // STEPS})],
        "threads": [
            ("fill", {"threads": plan.scale_threads // STEPS, "tenants": plan.scale_tenants}),
            ("page", {"times": PAGES}),
        ],
    }
    try:
        for name, questions in parts.items():
            with _subject(desk, name) as subject:
                found["steps"][name] = [_ask_questions(desk, subject, questions, name) for _ in range(STEPS)]
        with _subject(desk, "sends") as subject:
            found["steps"]["sends"] = {OURS: [], MEMORY: []}
            for number in range(SEND_ROUNDS):
                for saver in (OURS, MEMORY) if number % 2 else (MEMORY, OURS):
                    asked = {"count": plan.scale_sends, "number": number, "saver": saver}
                    found["steps"]["sends"][saver].append(subject.ask("sends", **asked))
                    desk.step(f"{plan.scale_sends} parallel tasks, {saver}")
    except SubjectFailed as failure:
        desk.notes.append(f"scale was not measured to its end: {failure}")
        found["skipped"] = str(failure)
    return found


@contextmanager
def _subject(desk: Desk, name: str) -> Iterator[Subject]:
    folder = Path(mkdtemp(dir=desk.scratch, prefix=f"scale-{name}-"))
    subject = Subject(OURS, "", Place(folder), module="bench.large")
    try:
        yield subject
    finally:
        subject.leave()


def _ask_questions(
    desk: Desk, subject: Subject, questions: list[tuple[str, dict[str, int]]], name: str
) -> Results:
    answers: Results = {}
    for question, arguments in questions:
        answer = subject.ask(question, **arguments)
        # A figure of the answer's own counts, such as the median of several pages.
        answers.update({f"{question}_s": answer["seconds"], **answer})
    desk.step(name)
    return answers
