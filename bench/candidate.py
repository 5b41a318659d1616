"""What a candidate is: a saver by name, how to open it, and where it is told to keep its data."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from langgraph.checkpoint.base import BaseCheckpointSaver

Saver: TypeAlias = BaseCheckpointSaver[Any]
Opened: TypeAlias = AbstractAsyncContextManager[Saver | None]

DATABASE = "threads.db"
URL_VARIABLE = "PERDURE_BENCH_URL"
"""Where a candidate's process finds its URL. Not an argument: everyone may read those of a process."""


@dataclass(frozen=True)
class Place:
    """A folder of one's own, and for a saver that talks to a server the URL of a database of one's own."""

    folder: Path
    url: str = ""

    @property
    def file(self) -> Path:
        return self.folder / DATABASE


@dataclass(frozen=True)
class Candidate:
    """One line of every table. `sync` savers are driven with `invoke`, the others with `ainvoke`. Of a
    candidate with a `tree`, the package is imported from there and not from this tree; `twin_of` is then the
    name of the candidate with this tree's code. One that is ``bare`` is not a saver for users, and is
    measured only where it shows what the least costs."""

    name: str
    label: str
    colour: str
    open: Callable[[Place], Opened]
    sync: bool = False
    delta: bool = False
    on_disk: bool = True
    keeps: bool = True
    ours: bool = False
    bare: bool = False
    missing: Callable[[], str | None] = lambda: None
    backend: str = "sqlite"
    tree: Path | None = None
    twin_of: str = ""

    def at(self, commit: str, tree: Path) -> Candidate:
        """The same candidate with the code of a commit that is checked out in ``tree``."""
        return replace(
            self,
            name=f"{self.name}@{commit}",
            label=f"{self.label} at {commit}",
            tree=tree,
            twin_of=self.name,
        )


def perdure_missing() -> str | None:
    try:
        perdure = importlib.import_module("perdure")
    except ImportError as error:
        return f"perdure cannot be imported ({error})"
    return None if hasattr(perdure, "connect") else "perdure has no connect() yet"
