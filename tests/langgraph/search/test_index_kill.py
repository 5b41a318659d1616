"""Processes that end before or after any write of an indexed store: item and entry are one commit.

Each process writes one item after the other and notes which puts and deletions were acknowledged. It ends at
one storage effect, and another process then compares what the store returns with what a query finds.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Literal

import pytest

import perdure
from perdure.database.base import handle_of
from perdure.engine.items import search_index
from perdure.model.store_items import partition_of
from perdure.testing.conformance.meaning import WORDS, new_index
from perdure.testing.faults import WRITES, Fault, fail, faulty, kill
from tests.backends import BACKENDS, EMPTY
from tests.conversation.histories import how_many

USERS = (("users", "ada"), ("users", "bob"))
KEYS = ("a", "b", "c")
STEPS = 24
When = Literal["before", "after"]


def step(number: int) -> tuple[tuple[str, ...], str, str | None]:
    """The namespace and the key that a step writes, and the text, or ``None`` where it deletes."""
    words = (WORDS[number % len(WORDS)], WORDS[number * 5 % len(WORDS)], f"w{number}q")
    return USERS[number % 2], KEYS[number // 2 % 3], None if number % 7 == 6 else " ".join(words)


def write(url: str, acknowledge: Callable[[], object], *faults: Fault) -> int:
    """Write all steps, unless a fault ends it, and return the number of effects."""
    with faulty(url, *faults, counts=WRITES) as (db, driver):
        store = db.store(index=new_index())
        with suppress(ConnectionError):
            for number in range(STEPS):
                namespace, key, text = step(number)
                if text is None:
                    store.delete(namespace, key)
                else:
                    store.put(namespace, key, {"text": text})
                acknowledge()
        return driver.count


def write_and_die(url: str, noted: str, at: int, when: When) -> None:
    """Write in this process, which kills itself at one of the effects."""
    with Path(noted).open("a", encoding="utf-8", buffering=1) as file:
        write(url, lambda: file.write("step\n"), Fault(at, kill, when))


def check(url: str, acknowledged: int) -> None:
    """Fail unless each item is found by its own text alone, and what was acknowledged is there."""
    with perdure.connect_sync(url) as db:
        store = db.store(index=new_index())
        held = {(item.namespace, item.key): item.value["text"] for item in store.search((), limit=99)}
        assert held in [state(acknowledged), state(acknowledged + 1)]
        for (namespace, key), text in held.items():
            best = store.search(namespace, query=text, limit=1)[0]
            assert (best.key, best.value["text"]) == (key, text)
            assert best.score == pytest.approx(1.0, abs=1e-4)
        found = {(item.namespace, item.key) for item in store.search((), query="tea", limit=99)}
        assert found == set(held)
        for namespace in USERS:
            items = [key for of, key in held if of == namespace]
            lost = handle_of(db).run(search_index.orphans(partition_of("", namespace), items))
            assert lost == []


def state(steps: int) -> dict[tuple[tuple[str, ...], str], str]:
    out: dict[tuple[tuple[str, ...], str], str] = {}
    for number in range(steps):
        namespace, key, text = step(number)
        out.pop((namespace, key), None)
        if text is not None:
            out[namespace, key] = text
    return out


def places(url: str, few: int) -> Iterator[tuple[int, When]]:
    """Yield the effects at which a process ends: some of them, or all."""
    writes = write(url, lambda: None)
    assert writes >= STEPS
    for at in range(1, writes + 1, max(1, writes // how_many(few, writes))):
        yield at, "before"
        yield at, "after"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("on", [each for each in BACKENDS if each != "memory"])
def test_wherever_a_process_ends_items_and_entries_agree(on: str) -> None:
    with EMPTY[on]() as url, perdure.connect_sync(url, migrate=True):
        every = list(places(url, 3))
    for at, when in every:
        gone = ConnectionError("this process has ended")
        faults = [Fault(n, fail(gone), when if n == at else "before") for n in range(at, at + 2 * STEPS)]
        with EMPTY[on]() as url:
            with perdure.connect_sync(url, migrate=True):
                pass
            acknowledged = count(0)
            write(url, acknowledged.__next__, *faults)
            steps = next(acknowledged)
            assert steps < STEPS
            check(url, steps)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_wherever_a_process_is_killed_items_and_entries_agree(tmp_path: Path) -> None:
    def new(name: str) -> str:
        url = f"sqlite:///{tmp_path / name}.db"
        with perdure.connect_sync(url, migrate=True):
            return url

    code = "import sys; from tests.langgraph.search.test_index_kill import write_and_die; "
    code += "write_and_die(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])"
    for at, when in places(new("whole"), 2):
        url, noted = new(f"{at}-{when}"), tmp_path / f"{at}-{when}"
        command = [sys.executable, "-c", code, url, str(noted), str(at), when]
        ran = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, check=False)
        assert ran.returncode == -signal.SIGKILL, ran.stderr
        check(url, len(noted.read_text().splitlines()))
