"""What every test shares: how hard Hypothesis looks, and what happens when a real part is missing."""

import argparse
import dis
import functools
import gc
import os
import re
import shutil
import ssl
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import TestCase
from zlib import crc32

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from tests.packing_soon import packing_soon

IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}

MEMORY = Path("/dev/shm")
"""Where Linux keeps files in memory."""
MEMORY_BYTES = 4 << 30


def in_memory(folder: Path = MEMORY) -> bool:
    """Return True if a folder has room for the tests' files, and programs may be started from it."""
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return False
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize >= MEMORY_BYTES and not found.f_flag & os.ST_NOEXEC


# Waiting for a disk is most of what a commit to SQLite costs, and no test shows what only a disk can: those
# about lost power record the writes and flushes and cut them themselves. TMPDIR decides where it is set.
if "TMPDIR" not in os.environ and in_memory():
    os.environ["TMPDIR"] = str(MEMORY)
    tempfile.tempdir = None


# Each client of HTTP reads all certificates of the system, which takes longer than what it asks the tests'
# servers.
ssl.create_default_context = functools.cache(ssl.create_default_context)  # type: ignore[assignment]


# Whenever a graph is compiled LangGraph looks for subgraphs in the instructions of its nodes, and the tests
# compile the same nodes thousands of times.
_get_instructions = dis.get_instructions
_instructions = functools.cache(lambda code, **given: tuple(_get_instructions(code, **given)))
dis.get_instructions = lambda code, **given: iter(_instructions(code, **given))


def pytest_report_header() -> str:
    return f"temporary files: {tempfile.gettempdir()} (TMPDIR)"


# A busy machine is not a test's fault. In CI the same examples every time: a red build is red for everyone.
# At home, new ones on every run. Where the slow tests are left out there are fewer, in CI too: one of its
# parts of the slow tests runs each of those properties again, with all of its examples. A property with a
# count of its own has run all of them already.
settings.register_profile("any", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("any"), derandomize=True, print_blob=True)
settings.register_profile("dev", settings.get_profile("any"))
settings.register_profile("quick", settings.get_profile("any"), max_examples=30)
settings.register_profile("quick-ci", settings.get_profile("ci"), max_examples=30)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part",
        metavar="K/N",
        default="1/1",
        type=_part,
        help="run the K-th of N parts of the selected tests, which are of about the same size",
    )


def _part(text: str) -> tuple[int, int]:
    number, _, parts = text.partition("/")
    if not number.isdecimal() or not parts.isdecimal() or not 1 <= int(number) <= int(parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a part; write 1/4 for the first of four")
    return int(number), int(parts)


def pytest_configure(config: pytest.Config) -> None:
    if config.option.markexpr == "not slow":
        settings.load_profile("quick-ci" if IN_CI else "quick")
    else:
        settings.load_profile("ci" if IN_CI else "dev")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Import one of so many test files as there are processes. In a fresh clone each process would compile
    all of them, in the same order; so it finds most of them compiled by the others."""
    worker: dict[str, Any] | None = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    # Of what is imported nothing is garbage, and looking for it takes a quarter of the time.
    gc.disable()
    root, number = session.config.rootpath, int(worker["workerid"].removeprefix("gw"))
    files = sorted(path for given in session.config.args for path in _test_files(root / given))
    for path in files[number :: worker["workercount"]]:
        # What cannot be imported is reported where it is collected.
        with suppress(Exception, pytest.skip.Exception):
            import_module(".".join(path.relative_to(root).with_suffix("").parts))


def _test_files(folder: Path) -> Iterator[Path]:
    for held, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in ("__pycache__", "node_modules")]
        yield from (Path(held, name) for name in names if re.fullmatch(r"test_\w+\.py", name))


DISTANT = {"d1", "dynamodb", "redis-cluster"}
"""Backends with the slowest servers: in the quick run the storage suite alone is shown on them."""
ELSEWHERE = {"redis", *DISTANT}
"""Backends on which what is above the port runs in `make test-all` only: SQLite and PostgreSQL stand for all,
and the storage suite and the contracts of saver and store show on every backend that they may."""
STORAGE = re.compile(r"tests/(storage|mutants)/")
CONTRACTS = re.compile(r"test_\w*(contract|conformance)\w*\.py$")
ROTATED = re.compile(r"tests/(engine|langgraph|runtime|server)/(?!acceptance/)")
"""Folders above the port whose tests take turns on the near backends in the quick run, as what differs
between those is the port's matter. All are on every one in `make test-all`."""
NEAR = re.compile(r"(?<=[\[-])(memory|sqlite|postgresql)(?=[\]-])")
"""The near backend in a test's id."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    profile = settings.default
    assert profile is not None
    for item in items:
        path = Path(item.path).as_posix()
        if not STORAGE.search(path) and _words(item) & (DISTANT if CONTRACTS.search(path) else ELSEWHERE):
            item.add_marker(pytest.mark.slow)
        if _examples(item) == profile.max_examples:
            item.add_marker(pytest.mark.more_examples)
    for item in _out_of_turn(items):
        item.add_marker(pytest.mark.slow)
    number, parts = config.getoption("part")
    others = [item for item in items if crc32(item.nodeid.encode()) % parts != number - 1]
    config.hook.pytest_deselected(items=others)
    left_out = set(others)
    items[:] = [item for item in items if item not in left_out]


def _out_of_turn(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield all but one of the tests that differ in their near backend alone. Which one stays goes round in
    each file, so that a file is shown on each of its backends. Tests about each backend all stay."""
    files: dict[Path, dict[str, dict[str, pytest.Item]]] = {}
    for item in items:
        path, at = item.path.as_posix(), NEAR.search(item.nodeid)
        if at is None or not ROTATED.search(path) or CONTRACTS.search(path):
            continue
        if "every_backend" in item.name or any(map(item.get_closest_marker, ("slow", "each_backend"))):
            continue
        test = NEAR.sub("…", item.nodeid, count=1)
        files.setdefault(item.path, {}).setdefault(test, {})[at[1]] = item
    for tests in files.values():
        for number, test in enumerate(sorted(tests)):
            ways = [way for _, way in sorted(tests[test].items())]
            del ways[number % len(ways)]
            yield from ways


def pytest_collection_finish() -> None:
    # What is there now stays: every collection of garbage would look through all modules and tests again.
    gc.enable()
    gc.collect()
    gc.freeze()


PACKED = re.compile(r"tests/(langgraph|engine|runtime|chaos|conversation|imports|care|replay|schema)/")
"""Folders of which half of the tests pack chunks after few checkpoints, as most histories are short."""


@pytest.fixture(autouse=True)
def _packs_soon(request: pytest.FixtureRequest) -> Iterator[None]:
    path = Path(request.node.path).as_posix()
    if not PACKED.search(path) or crc32(request.node.nodeid.encode()) % 2 or "packs_late" in request.keywords:
        yield
        return
    with packing_soon():
        yield


def _words(item: pytest.Item) -> set[str]:
    """The words of a test's parameters; those of a backend's name stay together."""
    spec = getattr(item, "callspec", None)
    return set() if spec is None else set(re.findall(r"redis-cluster|\w+", spec.id))


def _examples(item: pytest.Item) -> int | None:
    """Return how many examples a property runs in this session, None for other tests."""
    if not isinstance(item, pytest.Function) or not is_hypothesis_test(item.obj):
        return None
    if isinstance(item.cls, type) and issubclass(item.cls, TestCase):
        found: settings = item.cls.settings  # type: ignore[attr-defined]
    else:
        found = item.obj._hypothesis_internal_use_settings
    return found.max_examples


def missing(part: str, mend: str) -> None:
    """Ends the test: skipped on a laptop, failed in CI, where a part nobody misses would stay missing."""
    message = f"{part} is not installed; {mend}"
    if IN_CI:
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a Chromium for playwright's `executable_path`; nothing is downloaded."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    missing("chromium", "install it with your system's packages (Debian: apt-get install chromium)")
    raise AssertionError


@pytest.fixture(autouse=True)
def no_tools_of_other_tests() -> Iterator[None]:
    """A process notes in which namespaces its tools keep memories; those of one test are not another's."""
    yield
    if (users := sys.modules.get("perdure.memory.users")) is not None:
        users._TOOL_ROOTS.clear()
