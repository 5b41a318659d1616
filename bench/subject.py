"""A saver under measurement, in a process of its own, and the field of all savers in one workload.

Only the process that is being asked runs: the others are stopped, so nobody tidies up behind its back or
slows a rival down. A saver that fails leaves the field; the failure goes to the notes, not away.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.candidate import URL_VARIABLE, Place
from bench.savers import CANDIDATES

Answer = dict[str, Any]

ANSWER_TIMEOUT_S = 600.0
LEAVING_TIMEOUT_S = 60.0


class SubjectFailed(Exception):
    """The saver's process reported an error, fell silent, or died."""


class Subject:
    """Starts the process; its place outlives it, so that a second subject can open the same database."""

    def __init__(self, name: str, scenario: str, place: Place, module: str = "bench.worker") -> None:
        self.name = name
        self.scenario = scenario
        self.place = place
        folder = place.folder
        # What is not a saver, such as a store, is not a candidate.
        candidate = CANDIDATES.get(name)
        twin, tree = (candidate.twin_of, candidate.tree) if candidate else ("", None)
        self._complaints = (folder.parent / f"{folder.name}.stderr").open("a+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, twin or name, scenario, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            env={**os.environ, **_code(tree), URL_VARIABLE: place.url},
        )
        try:
            self._read()
        except SubjectFailed:
            self._process.kill()
            self.leave()
            raise
        self._pause()

    def ask(self, question: str, **arguments: Any) -> Answer:
        if self._process.poll() is not None or self._process.stdin is None:
            raise SubjectFailed(self._last_words("has ended"))
        self._resume()
        self._process.stdin.write(json.dumps({"ask": question, "with": arguments}).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._read()
        self._pause()
        if "error" in answer:
            raise SubjectFailed(f"{question}: {answer['error']}")
        return answer

    def _read(self) -> Answer:
        stdout = self._process.stdout
        if stdout is None:
            raise SubjectFailed("has no output")
        ready, _, _ = select.select([stdout], [], [], ANSWER_TIMEOUT_S)
        if not ready:
            self._process.kill()
            raise SubjectFailed(self._last_words(f"gave no answer in {ANSWER_TIMEOUT_S:.0f} s"))
        line = stdout.readline()
        if not line:
            raise SubjectFailed(self._last_words("ended without an answer"))
        answer: Answer = json.loads(line)
        return answer

    def _last_words(self, what: str) -> str:
        self._complaints.seek(0)
        lines = [line for line in self._complaints.read().splitlines() if line.strip()]
        return f"{what}: {lines[-1][:300]}" if lines else what

    def _pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def _resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def leave(self) -> None:
        """Lets the saver close properly; a process that does not end is killed."""
        if self._process.poll() is None:
            self._resume()
        if self._process.stdin is not None and not self._process.stdin.closed:
            with suppress(BrokenPipeError):  # already dead; the wait below collects it
                self._process.stdin.close()
        try:
            self._process.wait(LEAVING_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        finally:
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._complaints.close()


def _code(tree: Path | None) -> dict[str, str]:
    """The variable by which a process imports the package from another tree."""
    return {} if tree is None else {"PYTHONPATH": str(tree / "src")}


class Field:
    """The savers that still take part, in an order that rotates from round to round."""

    def __init__(
        self,
        workload: str,
        scenario: str,
        names: list[str],
        scratch: Path,
        notes: list[str],
        urls: Mapping[str, str] | None = None,
    ) -> None:
        """`urls` are the databases of candidates that talk to a server."""
        self.subjects: dict[str, Subject] = {}
        self._workload = workload
        self._scenario = scenario
        self._notes = notes
        self._root = Path(tempfile.mkdtemp(dir=scratch, prefix=f"{scenario}-"))
        self._rounds = 0
        for name in names:
            folder = self._root / name
            folder.mkdir()
            with self._drop_on_failure(name):
                self.subjects[name] = Subject(name, scenario, Place(folder, (urls or {}).get(name, "")))

    def each(self, visit: Callable[[Subject], None]) -> None:
        """One round: every saver once, each with nothing left to flush of what the one before it wrote.

        Without that, a file system's journal makes one saver's small commit wait for another's megabytes.
        """
        order = list(self.subjects)
        turn = self._rounds % len(order) if order else 0
        self._rounds += 1
        for name in order[turn:] + order[:turn]:
            os.sync()
            with self._drop_on_failure(name):
                visit(self.subjects[name])

    def reopen(self, name: str) -> None:
        """A new process on the same files."""
        self.subjects[name].leave()
        self.subjects[name] = Subject(name, self._scenario, self.subjects[name].place)

    @contextmanager
    def _drop_on_failure(self, name: str) -> Iterator[None]:
        try:
            yield
        except SubjectFailed as error:
            self._notes.append(f"{CANDIDATES[name].label} left {self._workload}: {error}")
            if (subject := self.subjects.pop(name, None)) is not None:
                subject.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for subject in self.subjects.values():
            subject.leave()
        shutil.rmtree(self._root, ignore_errors=True)
