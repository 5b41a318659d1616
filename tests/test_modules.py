"""Each module of ``src`` has its tests."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Container, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"


def test_each_module_has_its_tests() -> None:
    untested = [
        module
        for module, path in modules().items()
        if defines(tree(path))
        and module not in imported()
        and not mirrored(module)
        and not covers(covered(), module)
    ]
    assert not untested, (
        f"no test mirrors or imports these, and no test file's docstring 'Covers' them: {untested}"
    )


def test_what_a_test_file_covers_is_there() -> None:
    absent = [(name, file) for name, file in covered().items() if name not in modules()]
    assert not absent, f"these files cover modules that are not there: {absent}"


def test_a_module_without_tests_is_found() -> None:
    assert "perdure.model.values.tree" in imported()
    assert "perdure.model.unheard_of" not in imported()
    assert not mirrored("perdure.model.unheard_of")
    assert mirrored("perdure.langgraph.allowlist")
    assert mirrored("perdure.server.routes.tags")
    assert mirrored("perdure.storage.sqlite.errors")
    assert covers(covered(), "perdure.testing.conformance.lineage")
    assert not covers(covered(), "perdure.testing.conformances")
    assert not covers(covered(), "perdure.model.unheard_of")


def test_a_docstring_names_the_modules_that_a_file_covers() -> None:
    text = '"""Of turns.\n\nCovers perdure.a.b, perdure.c_d,\nperdure.e.\n"""\n\nfrom perdure.x import y\n'
    assert names_covered(text) == ["perdure.a.b", "perdure.c_d", "perdure.e"]
    assert names_covered('"""Covers no module by name."""\n"""Covers perdure.x."""\n') == []


def mirrored(module: str) -> bool:
    """Whether a test file has a module's name, in the folder of the same name or, as `test_tags.py` or
    `test_routes_tags.py`, in one above it."""
    _, *folders, name = module.split(".")
    return any(
        ROOT.joinpath("tests", *folders[:depth], f"test_{stem}.py").is_file()
        for depth in range(len(folders) + 1)
        for stem in (name, "_".join([*folders[depth:], name]))
    )


def covers(names: Container[str], module: str) -> bool:
    """Whether a module, or a package that holds it, is among names."""
    parts = module.split(".")
    return any(".".join(parts[:length]) in names for length in range(2, len(parts) + 1))


@cache
def covered() -> dict[str, str]:
    """The modules that test files cover through the layers above, by their docstrings, each with its file."""
    return {name: str(path.relative_to(ROOT)) for path, text in files() for name in names_covered(text)}


def names_covered(text: str) -> list[str]:
    """The modules of a paragraph `Covers perdure.a, perdure.b.` in a file's docstring."""
    docstring = re.match(r'r?"""(.*?)"""', text, re.DOTALL)
    line = re.search(r"^Covers (perdure\.[\w.,\s]*)\.$", docstring[1] if docstring else "", re.MULTILINE)
    return re.findall(r"perdure[.\w]*\w", line[1]) if line else []


@cache
def modules() -> dict[str, Path]:
    """The files of the package's modules."""
    found = {}
    for path in sorted((SOURCE / "perdure").rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def defines(of: ast.Module) -> bool:
    """Whether a module has functions or classes of its own."""
    return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) for node in of.body)


@cache
def imported() -> frozenset[str]:
    """The modules that tests import, also by way of a package that exports their names."""
    found: set[str] = set()
    for _, text in files():
        for module, name in names_in(text):
            found.update(origins(module, name))
    return frozenset(found)


@cache
def files() -> tuple[tuple[Path, str], ...]:
    """The files of the tests, with their text."""
    found = []
    for folder, folders, names in os.walk(ROOT / "tests"):
        folders[:] = [name for name in folders if name != "node_modules"]
        found += [Path(folder, name) for name in names if name.endswith(".py")]
    return tuple((path, path.read_text(encoding="utf-8")) for path in sorted(found))


def names_in(text: str) -> Iterator[tuple[str, str]]:
    """Names that a file takes of the package's modules. To parse all files would take seconds."""
    for module, names in re.findall(r"^\s*from (perdure[\w.]*) import (\([^)]*\)|.*)", text, re.MULTILINE):
        yield from ((module, name) for name in re.findall(r"(?<!as )\b\w+", names))
    yield from ((module, "") for module in re.findall(r"^\s*import (perdure[\w.]*)", text, re.MULTILINE))
    yield from (("perdure", name) for name in re.findall(r"\bperdure\.(\w+)", text))


def origins(module: str, name: str) -> set[str]:
    """The module, and those through which it got a name."""
    found = {module}
    while (module, name) in exports() and exports()[module, name][0] not in found:
        module, name = exports()[module, name]
        found.add(module)
    return found | {f"{module}.{name}"}


@cache
def exports() -> dict[tuple[str, str], tuple[str, str]]:
    """Where each module of the package got the names that it imports."""
    return {
        (module, alias.asname or alias.name): (node.module, alias.name)
        for module, path in modules().items()
        for node in tree(path).body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
