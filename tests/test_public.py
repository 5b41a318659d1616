"""The public surface, pinned: adding a name here is a decision."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import perdure
from tools import write_sync


def test_the_top_level_names_are_these() -> None:
    assert set(perdure.__all__) == {
        "BadUrl",
        "AsyncPerdureStore",
        "ByteCount",
        "ChannelView",
        "CheckpointView",
        "Codec",
        "Conflict",
        "Corrupt",
        "Damage",
        "Database",
        "Digest",
        "Fenced",
        "Finding",
        "HeadConflict",
        "Measure",
        "MigrationRequired",
        "MissingExtra",
        "NotFound",
        "NotWaiting",
        "PerdureError",
        "PerdureSaver",
        "PerdureStore",
        "QueueFull",
        "Replaces",
        "Retention",
        "RetentionRules",
        "Repaired",
        "RunInProgress",
        "SearchIndex",
        "Stuck",
        "Survey",
        "SyncDatabase",
        "Thread",
        "TypeNotAllowed",
        "TypeNotFound",
        "Unavailable",
        "checkpoint_lifespan",
        "compile_graph",
        "connect",
        "connect_sync",
    }
    assert all(getattr(perdure, name).__doc__ for name in perdure.__all__)


def test_every_error_is_in_one_tree() -> None:
    from perdure import errors

    for name, value in vars(errors).items():
        if isinstance(value, type) and value.__module__ == errors.__name__:
            assert issubclass(value, perdure.PerdureError), name
            assert value.__name__ in (errors.__doc__ or ""), f"{name} is missing in the tree at the top"


def test_the_blocking_database_is_generated_from_the_asynchronous_one() -> None:
    expected = write_sync.make_blocking(write_sync.SOURCE.read_text(encoding="utf-8"))
    found = write_sync.TARGET.read_text(encoding="utf-8")
    # Compared without the format: the formatter is not installed with the tests.
    assert ast.dump(ast.parse(found)) == ast.dump(ast.parse(expected)), "run: python -m tools.write_sync"


def test_a_class_has_a_name_of_its_own() -> None:
    named = Counter(
        node.name
        for path in Path(perdure.__file__).parent.rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    shared = sorted(name for name, count in named.items() if count > 1)
    assert shared == [], f"more than one module has a class of these names: {shared}"


SLOW_TO_IMPORT = {
    "langgraph",
    "langchain_core",
    "pydantic",
    "httpx",
    "fastapi",
    "apsw",
    "cryptography",
    "asyncio",
    "sqlite3",
    "rich.progress",
}


def _modules_after(program: str) -> set[str]:
    program = f"import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); {program}"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return set(done.stderr.split())


@pytest.mark.parametrize("module", ["perdure", "perdure.errors"])
def test_what_is_slow_to_import_is_imported_when_it_is_used(module: str) -> None:
    assert SLOW_TO_IMPORT & _modules_after(f"import {module}") == set()


def test_the_help_of_the_command_line_imports_only_the_commands() -> None:
    found = _modules_after("sys.argv = ['perdure', '--help']; from perdure.cli import main; main()")
    assert SLOW_TO_IMPORT & found == set()
    ours = {name for name in found if name.startswith("perdure.") and not name.startswith("perdure.cli")}
    assert ours == {
        "perdure.errors",
        "perdure.imports",
        "perdure.imports.kinds",
        "perdure.model",
        "perdure.model.missing_thread",
        "perdure.model.records",
        "perdure.model.times",
        "perdure.storage",
        "perdure.storage.url",
    }


@pytest.mark.parametrize(
    "command", ["threads ls", "threads dead", "users ls", "runs ls", "questions ls", "top", "tenants ls"]
)
def test_a_command_that_lists_imports_neither_langgraph_nor_langchain(command: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    with perdure.connect_sync(url, migrate=True):
        pass
    words = ["perdure", *command.split(), "--db", url]
    found = _modules_after(f"sys.argv = {words}; from perdure.cli import main; main()")
    langgraph = {"langgraph.types", "langgraph.checkpoint.base", "langgraph.store.base", "langgraph.pregel"}
    assert ({"langchain_core", "langsmith", "fastapi"} | langgraph) & found == set()


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    assert set(perdure.__all__) <= set(dir(perdure))
    with pytest.raises(AttributeError, match="no attribute 'checkpointer'"):
        perdure.checkpointer  # noqa: B018 - the access is what is tried
