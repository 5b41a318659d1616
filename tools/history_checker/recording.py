"""The record of a history: a line of JSON for each call, when it is made, and one for its answer.

A call without an answer, or whose answer does not tell, may have taken effect at any time since, or never.
Times are those of the host's monotonic clock, which all processes of a host share.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .guarantees import Guarantee

OK, REFUSED, UNKNOWN = "ok", "refused", "unknown"
"""Outcomes: it took effect, nothing of it did, it cannot be known."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call and its answer. ``ended`` is infinite for a call whose outcome is unknown."""

    id: str
    do: str
    on: tuple[str, ...]
    given: dict[str, Any]
    began: float
    ended: float = math.inf
    outcome: str = UNKNOWN
    answer: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def is_ok(self) -> bool:
        return self.outcome == OK

    @property
    def is_refused(self) -> bool:
        return self.outcome == REFUSED

    def __str__(self) -> str:
        given = "".join(f" {name}={value!r}" for name, value in self.given.items())
        return f"call {self.id} {self.do} {'/'.join(self.on)}{given}: {self.outcome}"


@dataclass(frozen=True, slots=True)
class Violation:
    """A guarantee that a history breaks, where, and how."""

    guarantee: Guarantee
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.guarantee}: {self.where}: {self.what}"


class Recorder:
    """Appends to a record; several processes may share the file, each under a name of its own."""

    def __init__(self, file: Path, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._name = name
        self._numbers = itertools.count(1)
        self._clock = clock

    def note_call(self, do: str, on: Iterable[str], **given: Any) -> str:
        """Record a call before it is made; its id."""
        call_id = f"{self._name}.{next(self._numbers)}"
        self._append({"id": call_id, "at": self._clock(), "do": do, "on": list(on), "given": given})
        return call_id

    def note_answer(self, call_id: str, outcome: str, **answer: Any) -> None:
        """Record the answer to a call once it is there."""
        self._append({"id": call_id, "at": self._clock(), "outcome": outcome, "answer": answer})

    def note_event(self, what: str, **about: Any) -> None:
        """Record what was done to the deployment. No check reads it; it explains a history to people."""
        self._append({"at": self._clock(), "event": what, "about": about})

    def close(self) -> None:
        os.close(self._file)

    def _append(self, line: dict[str, Any]) -> None:
        # One write, so that lines of several processes do not mix, nor is one of a killed process torn.
        os.write(self._file, json.dumps(line, separators=(",", ":")).encode() + b"\n")


def read_calls(lines: Iterable[str]) -> list[Call]:
    """Return the calls of a record, in the order of their beginnings.

    Raises:
        ValueError: an answer is to no call, or a call has two.
    """
    begun: dict[str, dict[str, Any]] = {}
    answers: dict[str, dict[str, Any]] = {}
    for line in _parse_lines(lines):
        if "event" in line:
            continue
        into = begun if "do" in line else answers
        if line["id"] in into:
            raise ValueError(f"the record has the call {line['id']} twice, or two answers to it")
        into[line["id"]] = line
    if strange := answers.keys() - begun.keys():
        raise ValueError(f"the record has answers to calls that it lacks: {sorted(strange)[:3]}")
    calls = [_call(line, answers.get(call_id)) for call_id, line in begun.items()]
    return sorted(calls, key=lambda call: call.began)


def _parse_lines(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.strip():
            yield json.loads(line)


def _call(line: dict[str, Any], answer: dict[str, Any] | None) -> Call:
    call = (line["id"], line["do"], tuple(line["on"]), line["given"], line["at"])
    if answer is None:
        return Call(*call)
    ended = math.inf if answer["outcome"] == UNKNOWN else answer["at"]
    return Call(*call, ended, answer["outcome"], answer["answer"])
