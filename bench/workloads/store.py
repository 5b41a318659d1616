"""Perdure's store beside the stock ones, on SQLite and PostgreSQL: searches, and large batches."""

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
from bench.servers import Missing, Server
from bench.stores import OURS, STOCK
from bench.subject import Subject, SubjectFailed

Results = dict[str, Any]

NAMES = (STOCK, OURS)
BACKENDS: dict[str, tuple[str, Callable[[], AbstractContextManager[Server | None]]]] = {
    "SQLite": ("langgraph.store.sqlite", lambda: nullcontext(None)),
    "PostgreSQL": ("langgraph.store.postgres", servers.postgres),
}
TASKS = ("search", "rare", "puts", "batch")


def units(desk: Desk) -> int:
    return len(BACKENDS) * (len(NAMES) + desk.plan.store_repeats * len(TASKS) * len(NAMES))


def run(desk: Desk) -> Results:
    plan = desk.plan
    return {
        "items": plan.store_items,
        "operations": plan.store_operations,
        "searches": plan.store_searches,
        "backends": {title: _backend(desk, title) for title in BACKENDS},
    }


def _backend(desk: Desk, title: str) -> Results:
    plan = desk.plan
    module, start = BACKENDS[title]
    if importlib.util.find_spec(module) is None:
        return {"skipped": f"{module} is not installed"}
    arguments: dict[str, dict[str, int]] = {
        "search": {"times": plan.store_searches},
        "rare": {"items": plan.store_items, "times": plan.store_searches},
        "puts": {"operations": plan.store_operations},
        "batch": {"operations": plan.store_operations},
    }
    try:
        with start() as server, ExitStack() as stack:
            root = Path(mkdtemp(dir=desk.scratch, prefix="store-"))
            subjects: dict[str, Subject] = {}
            for name in NAMES:
                (root / name).mkdir()
                url = "" if server is None else server.empty(f"store-{name}")
                subject = Subject(name, "", Place(root / name, url), module="bench.stores")
                stack.callback(subject.leave)
                subjects[name] = subject
                subject.ask("fill", items=plan.store_items)
                desk.step(f"{title}, {name}: {plan.store_items} items")
            seen: dict[str, dict[str, list[float]]] = {task: {name: [] for name in NAMES} for task in TASKS}
            peak = dict.fromkeys(NAMES, 0)
            for task in TASKS:
                for number in range(plan.store_repeats):
                    for name in NAMES if number % 2 else NAMES[::-1]:
                        os.sync()
                        more = {"version": number} if task in ("puts", "batch") else {}
                        answer = subjects[name].ask(task, **arguments[task], **more)
                        seen[task][name].append(answer["seconds"])
                        peak[name] = answer["peak_kb"]
                        desk.step(f"{title}, {name}: {task}")
            return {"seconds": seen, "peak_kb": peak}
    except Missing as missing:
        return {"skipped": str(missing)}
    except SubjectFailed as failure:
        desk.notes.append(f"The store on {title} was not measured: {failure}")
        return {"skipped": str(failure)}
