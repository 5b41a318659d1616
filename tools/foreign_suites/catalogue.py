"""The suites that are run: where their text comes from, what they need, and which part is quick.

Nothing of their text is in this repository. Each suite is in the source distribution of its package, or in
its repository at the tag of the release.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .reasons import read_entries

_REASONS = Path(__file__).parent / "excluded.toml"
_COMMON = (
    "anyio",
    "httpx",
    "langgraph-checkpoint-postgres==3.2.0",
    "langgraph-checkpoint-sqlite==3.1.2",
    "psycopg-pool",
    "pycryptodome",
    "pytest",
    "pytest-asyncio",
    "pytest-mock",
    "pytest-repeat",
    "pytest-timeout",
    "redis",
    "syrupy",
)

MAX_EXCLUDED = 15
"""How many tests of graphs and agents may be left out, each with a reason."""


@dataclass(frozen=True, slots=True)
class Suite:
    """One suite: a package's release, where its tests are below the root of its source, and what is run."""

    name: str
    package: str
    version: str
    tests: str = "tests"
    files: str = "test_*.py"
    quick: tuple[str, ...] = ()
    """The files of the bounded part that `make test` runs."""
    without: tuple[str, ...] = ()
    """Files that concern no saver and cannot run here."""
    requires: tuple[str, ...] = ()
    needs_postgres: bool = False
    """Whether its tests want a PostgreSQL of their own, whatever the savers are on."""
    checkout: str = ""
    """Where the package is below the root of its repository, for those who give a checkout."""
    settings: tuple[str, ...] = ()
    """Settings of pytest that its own lack."""
    repository: str = ""
    """Where its text is cloned from, if its source distribution holds no tests."""

    @property
    def requirements(self) -> tuple[str, ...]:
        """What is installed beside Perdure to run it."""
        return (f"{self.package}=={self.version}", *_COMMON, *self.requires)


SUITES = (
    Suite(
        "langgraph",
        "langgraph",
        "1.2.24",
        quick=("test_time_travel.py", "test_delta_channel_fork.py"),
        without=("test_delta_channel_benchmark.py",),
        requires=("uvloop", "langgraph-cli"),
        checkout="libs/langgraph",
    ),
    Suite(
        "prebuilt",
        "langgraph-prebuilt",
        "1.1.3",
        checkout="libs/prebuilt",
    ),
    Suite(
        "langchain",
        "langchain",
        "1.5.2",
        tests="tests/unit_tests/agents",
        requires=("langchain-tests", "langchain-openai", "pytest-socket", "toml", "blockbuster"),
        checkout="libs/langchain_v1",
    ),
    Suite(
        "deepagents",
        "deepagents",
        "0.7.32",
        tests="tests/unit_tests",
        requires=("langchain-openai", "langchain-tests", "pytest-benchmark", "pytest-cov", "pytest-socket"),
        checkout="libs/deepagents",
        # Its warnings are errors, and pytest-asyncio has a new one.
        settings=("asyncio_default_fixture_loop_scope=function",),
        repository="https://github.com/langchain-ai/deepagents",
    ),
)
"""Suites of graphs and agents: what they do with a saver or a store must not depend on whose it is."""

SAVER_SUITES = (
    Suite(
        "checkpoint",
        "langgraph-checkpoint",
        "4.3.2",
        files="test_[ms][et]*.py",
        requires=("numpy", "pandas", "dataclasses-json"),
        checkout="libs/checkpoint",
    ),
    Suite(
        "checkpoint-sqlite",
        "langgraph-checkpoint-sqlite",
        "3.1.2",
        requires=("langgraph-checkpoint-conformance==0.0.2", "pytest-retry"),
        checkout="libs/checkpoint-sqlite",
    ),
    Suite(
        "checkpoint-postgres",
        "langgraph-checkpoint-postgres",
        "3.2.0",
        requires=("langgraph-checkpoint-conformance==0.0.2",),
        needs_postgres=True,
        checkout="libs/checkpoint-postgres",
    ),
)
"""Suites of the stock savers and stores themselves; much of them tests how those store."""


@dataclass(frozen=True, slots=True)
class Reasons:
    """Tests that are expected to differ, by suite and id without parameters, with the reason.

    An id ``[word]`` is that of all tests of the suite with this word in their parameters.
    """

    by_id: dict[tuple[str, str], str]

    def of(self, suite: str, node: str) -> str | None:
        """Why a test may fail, or nothing when it may not."""
        found = self.entry_of(suite, node)
        return None if found is None else self.by_id[suite, found]

    def entry_of(self, suite: str, node: str) -> str | None:
        """The id of the entry for a test, or nothing. One for a class or file covers its tests."""
        name, _, parameters = node.partition("[")
        for of, word in self.by_id:
            if of == suite and word.startswith("[") and word.strip("[]") in parameters:
                return word
        while name:
            if (suite, name) in self.by_id:
                return name
            name = name.rpartition("::")[0]
        return None


def read_reasons(path: Path = _REASONS) -> Reasons:
    """The committed list. `ValueError` for an entry without a reason, or more of them than are allowed."""
    entries = read_entries(path)
    counted = {suite.name for suite in SUITES}
    excluded = sum(suite in counted for suite, _ in entries)
    if excluded > MAX_EXCLUDED:
        raise ValueError(f"{path.name}: {excluded} tests are left out, at most {MAX_EXCLUDED} may be")
    return Reasons(entries)
