"""Runs a suite file by file, on stock savers or on a backend of Perdure, and reads what happened."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from .catalogue import Suite
from .places import ROOT

STOCK = "stock"
_BATCH_S = 1200
_BATCH_BYTES = 150_000
_TEST_S = 120


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one test: "passed", "failed" or "skipped", and the first line of the error."""

    result: str
    reason: str = ""


Outcomes = Mapping[str, Outcome]
"""By node id."""


@dataclass(frozen=True, slots=True)
class Backend:
    """What the savers of a suite stand on: "stock", or the URLs of two empty databases of Perdure."""

    name: str
    variables: Mapping[str, str]


def backends() -> tuple[str, ...]:
    """The names of the backends that there are."""
    names: tuple[str, ...] = import_module("tests.backends").BACKENDS
    return names


def open_backend(name: str, stack: ExitStack, suite: Suite) -> Backend:
    """A suite's backend by its name, with a server where it needs one; its databases end with the stack."""
    # The servers of our own tests, which are no package that could be imported from here by type.
    backends = import_module("tests.backends")
    postgres = import_module("tests.servers.postgres")

    variables = {"NO_DOCKER": "true", "LANGGRAPH_TEST_FAST": "true"}
    variables["PYTEST_ADDOPTS"] = " ".join(f"-o {setting}" for setting in suite.settings)
    if suite.needs_postgres:
        variables["PERDURE_SUITE_POSTGRES"] = postgres.shared().url("")
    if name != STOCK:
        variables["PERDURE_SUITE_URL"] = stack.enter_context(backends.EMPTY[name]())
        variables["PERDURE_SUITE_SEALED_URL"] = stack.enter_context(backends.EMPTY[name]())
    if name == "d1":
        # The name of its variable is in the URL, and its value in none.
        token: str = import_module("tests.servers.d1").TOKEN_ENV
        variables[token] = os.environ[token]
    return Backend(name, variables)


def files_of(suite: Suite, folder: Path, quick: bool, only: str) -> list[Path]:
    """The test files to run, in order: all, or those of the bounded part, whose path has ``only`` in it."""
    found = sorted(p for p in (folder / suite.tests).rglob(suite.files) if p.name not in suite.without)
    return [p for p in found if (not quick or p.name in suite.quick) and only in str(p.relative_to(folder))]


def run_files(
    python: Path, folder: Path, files: Sequence[Path], backend: Backend, jobs: int
) -> dict[str, Outcome]:
    """The outcomes of the tests in some files: small ones share a process, a large one has its own."""
    outcomes: dict[str, Outcome] = {}
    with ThreadPoolExecutor(jobs) as pool:
        for found in pool.map(lambda names: _run(python, folder, names, backend), _batches(folder, files)):
            outcomes.update(found)
    return outcomes


def run_tests(python: Path, folder: Path, nodes: Sequence[str], backend: Backend) -> dict[str, Outcome]:
    """The outcomes of single tests by their ids, each in a process of its own."""
    outcomes: dict[str, Outcome] = {}
    for node in nodes:
        outcomes.update(_run(python, folder, [node], backend))
    return outcomes


def _batches(folder: Path, files: Sequence[Path]) -> list[list[str]]:
    """The files' names, in order, in batches of a bounded size."""
    batches: list[list[str]] = []
    size = _BATCH_BYTES
    for file in files:
        size += file.stat().st_size
        if size > _BATCH_BYTES:
            batches.append([])
            size = file.stat().st_size
        batches[-1].append(str(file.relative_to(folder)))
    return batches


def _run(python: Path, folder: Path, names: list[str], backend: Backend) -> dict[str, Outcome]:
    named = re.sub(r"[^\w.-]", "-", names[0])[:150]
    written = folder / ".outcomes" / f"{backend.name}-{named}.jsonl"
    written.parent.mkdir(exist_ok=True)
    written.unlink(missing_ok=True)
    paths = [str(ROOT / "src"), str(Path(__file__).parent)]
    variables = {
        **own_variables(),
        **backend.variables,
        "PYTHONPATH": os.pathsep.join(paths),
        "PERDURE_SUITE_OUTCOMES": str(written),
    }
    command = [
        str(python),
        "-m",
        "pytest",
        "-q",
        "-p",
        "stand_ins",
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=",
    ]
    command += ["--timeout", str(_TEST_S), *names]
    code = run_bounded(command, folder, variables, written.with_suffix(".log"), _BATCH_S)
    if code is None:
        return dict.fromkeys(names, Outcome("failed", f"not over after {_BATCH_S} s"))
    if not written.exists():
        ended = f"pytest ended with {code}: see {written.with_suffix('.log')}"
        return dict.fromkeys(names, Outcome("failed", ended))
    return {
        node: Outcome(result, reason)
        for node, result, reason in map(json.loads, written.read_text(encoding="utf-8").splitlines())
    }


def read_kept(path: Path) -> dict[str, Outcome]:
    """Outcomes that were kept by an earlier run; none when there was none."""
    if not path.exists():
        return {}
    return {node: Outcome(*found) for node, found in json.loads(path.read_text(encoding="utf-8")).items()}


def keep(path: Path, outcomes: Outcomes) -> None:
    """Keep outcomes for later runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    read = {node: [outcome.result, outcome.reason] for node, outcome in outcomes.items()}
    path.write_text(json.dumps(read, indent=0, sort_keys=True), encoding="utf-8")


def own_variables() -> dict[str, str]:
    """This process's variables without those of pytest and of Perdure, which are none of a suite's."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "PERDURE_"))}


def run_bounded(
    command: Sequence[str], folder: Path, variables: Mapping[str, str], log: Path, seconds: float
) -> int | None:
    """Run a command in a process group of its own, its output in ``log``: its exit code, or ``None`` when it
    was stopped after so many seconds. What it leaves among its temporary files is removed."""
    with open(log, "wb") as output, TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        process = subprocess.Popen(
            command, cwd=folder, env={**variables, "TMPDIR": temporary}, stdout=output,
            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None
