"""What a workload is handed: where to put files, where to leave notes, how to show progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.plan import Plan


@dataclass
class Desk:
    """`step` is called once per unit of progress, with what was just done."""

    plan: Plan
    names: list[str]
    scratch: Path
    step: Callable[[str], None]
    notes: list[str] = field(default_factory=list)
