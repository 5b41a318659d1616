"""Workers: as processes of their own, and as a command that ends before it starts one."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import perdure
from tests.cli.processes import Workers
from tests.cli.running import run_cli

BROKEN = """
from langgraph.graph import MessagesState, StateGraph

from perdure.runtime import Channel

graph = StateGraph(MessagesState).add_node("n", lambda state: None).set_entry_point("n").compile()
pathless = StateGraph(MessagesState)
number = 7


def with_arguments(first, second, third):
    return graph


def failing():
    raise LookupError("the key\\nis missing")


async def wrong():
    return number


async def send(thread, reply):
    return None


patient = {"pigeon": Channel(send, timeout=100.0)}
unnamed = {"": Channel(send)}
mixed = {"pigeon": send}
"""

Run_ = Callable[..., tuple[int, str, str]]


@pytest.fixture
def nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable that a worker reads."""
    for name in list(os.environ):
        if name.startswith(("PERDURE_", "DATABASE_URL", "LANGGRAPH_", "PROMETHEUS_")):
            monkeypatch.delenv(name)


@pytest.fixture
def perdure_worker(
    nothing_is_set: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Iterator[Run_]:
    """Run ``perdure worker`` in a folder with broken things: its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken_app.py").write_text(BROKEN)
    (tmp_path / "needy_app.py").write_text("import no_such_library_at_all\n")
    (tmp_path / "raising_app.py").write_text("import json\n\njson.loads('{')\n")
    (tmp_path / "leaving_app.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "garbled_app.py").write_text("def\n")
    with perdure.connect_sync("sqlite:///ready.db", migrate=True):
        """Only its schema is wanted."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    level = logging.getLogger("perdure").level
    before = set(sys.modules)

    def call(*words: str) -> tuple[int, str, str]:
        return run_cli(monkeypatch, capfd, "worker", *words)

    yield call
    logging.getLogger("perdure").setLevel(level)
    for name in [name for name in sys.modules.keys() - before if name.endswith("_app")]:
        del sys.modules[name]


@pytest.fixture
def workers(nothing_is_set: None, tmp_path: Path) -> Iterator[Workers]:
    made = Workers(tmp_path)
    yield made
    made.close()
