"""Search in the store by vectors: beside a bare scan by sqlite-vec, and the stock store on PostgreSQL."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from bench import servers
from bench.candidate import Place
from bench.desk import Desk
from bench.searches import BATCH, SCAN
from bench.servers import Missing, Server
from bench.stores import OURS, STOCK
from bench.subject import Subject, SubjectFailed

Results = dict[str, Any]

BACKENDS: dict[str, tuple[str, str, Callable[[], AbstractContextManager[Server | None]]]] = {
    "SQLite": (SCAN, "sqlite_vec", lambda: nullcontext(None)),
    "PostgreSQL": (STOCK, "langgraph.store.postgres", servers.postgres),
    "Redis and Valkey": ("", "", servers.redis),
}
"""What Perdure's store is compared with on each backend, if anything, and the module that it needs."""

_STEPS = 5


def units(desk: Desk) -> int:
    return sum(_STEPS * (2 if rival else 1) for rival, _, _ in BACKENDS.values())


def run(desk: Desk) -> Results:
    plan = desk.plan
    return {
        "items": plan.search_items,
        "dims": plan.search_dims,
        "searches": plan.searches,
        "puts": plan.search_puts,
        "batch": BATCH,
        "backends": {title: _backend(desk, title) for title in BACKENDS},
    }


def _backend(desk: Desk, title: str) -> Results:
    rival, module, start = BACKENDS[title]
    if module and importlib.util.find_spec(module) is None:
        return {"skipped": f"{module} is not installed"}
    try:
        with start() as server, ExitStack() as stack:
            root = Path(mkdtemp(dir=desk.scratch, prefix="search-"))
            found: Results = {}
            # One after the other: each holds its vectors in memory.
            for name in (rival, OURS) if rival else (OURS,):
                (root / name).mkdir()
                url = "" if server is None else server.empty(f"search-{name}")
                scenario = f"{SCAN if name == SCAN else 'search'}-{desk.plan.search_dims}"
                subject = Subject(name, scenario, Place(root / name, url), module="bench.searches")
                stack.callback(subject.leave)
                found[name] = _measure(desk, title, subject)
            return {"seen": found}
    except Missing as missing:
        return {"skipped": str(missing)}
    except SubjectFailed as failure:
        desk.notes.append(f"Search on {title} was not measured: {failure}")
        return {"skipped": str(failure)}


def _measure(desk: Desk, title: str, subject: Subject) -> Results:
    plan, name = desk.plan, subject.name
    out: Results = {}

    def ask(question: str, **arguments: Any) -> Results:
        os.sync()
        return subject.ask(question, **arguments)

    if name != SCAN:
        out["puts"] = {
            str(at_once): ask("puts", count=plan.search_puts * (1 if at_once == 1 else 4), at_once=at_once)
            for at_once in (1, BATCH)
        }
    desk.step(f"{title}, {name}: puts")
    ask("fill", items=plan.search_items, queries=plan.searches)
    desk.step(f"{title}, {name}: {plan.search_items} items")
    out["first"] = ask("first")["seconds"]
    desk.step(f"{title}, {name}: first search")
    out |= ask("searches")
    desk.step(f"{title}, {name}: searches")
    if name != SCAN:
        out["after_puts"] = ask("after_puts", items=plan.search_items, times=plan.searches)["seconds"]
    desk.step(f"{title}, {name}: searches after puts")
    return out
