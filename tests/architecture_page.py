"""What `docs/architecture.md` says, and what there is in the code: names, packages, routes and imports."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "perdure"
FILE = ROOT / "docs" / "architecture.md"
PAGE = FILE.read_text(encoding="utf-8")
PUT, LOAD = "Life of a put", "Life of a cold load"
DRIVER = "Life of a request in a driver"
MESSAGE, QUESTION = "Life of a message", "Life of a question"
WALKS = (PUT, LOAD, DRIVER, MESSAGE, QUESTION)

Place = tuple[str, str]
"""A file, and the qualified name of a function in it."""


# What the code is


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def defined(path: Path) -> Mapping[str, ast.stmt]:
    """Return what a module defines, by qualified name: functions, classes, and what is assigned in either."""
    found: dict[str, ast.stmt] = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    found[prefix + name] = node
                case ast.ClassDef(name=name):
                    found[prefix + name] = node
                    visit(node.body, f"{prefix}{name}.")
                case ast.Assign(targets=targets):
                    inner = [each for target in targets for each in ast.walk(target)]
                    found.update({prefix + each.id: node for each in inner if isinstance(each, ast.Name)})
                case ast.AnnAssign(target=ast.Name(id=name)):
                    found[prefix + name] = node
                case _:
                    pass

    visit(tree(path).body, "")
    return found


@cache
def everywhere() -> Mapping[str, list[ast.stmt]]:
    """Return everything that the package defines, by qualified name and by last name."""
    found: dict[str, list[ast.stmt]] = {}
    for path in SOURCE.rglob("*.py"):
        for name, node in defined(path).items():
            for each in {name, name.rpartition(".")[2]}:
                found.setdefault(each, []).append(node)
    return found


def defined_at(file: str, name: str) -> list[ast.stmt]:
    """Return what a file of the package defines under a name, if it does."""
    path = located(file)
    node = None if path is None or path.suffix != ".py" else defined(path).get(name)
    return [] if node is None else [node]


def packages() -> set[str]:
    return {path.parent.name for path in SOURCE.glob("*/__init__.py")}


@cache
def rooms() -> Mapping[str, str]:
    """Return the packages within packages by their paths, each with the first sentence about it."""
    found = {}
    for path in SOURCE.glob("*/*/__init__.py"):
        text = " ".join((ast.get_docstring(tree(path)) or "").partition("\n\n")[0].split())
        sentence = re.split(r"(?<=\.)\s", text)[0].replace("``", "`")
        found[path.parent.relative_to(SOURCE).as_posix()] = sentence
    return found


@cache
def imported(package: str) -> frozenset[str]:
    """Return the packages and rooms that one of them imports, also for its annotations only."""
    found: set[str] = set()
    for path in (SOURCE / package).rglob("*.py"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for name in names:
                if name.startswith("perdure."):
                    parts = name.split(".")
                    found.update((parts[1], "/".join(parts[1:3])))
    return frozenset(found - {package})


def located(name: str) -> Path | None:
    """Return the file of a path on the page, in which ``<word>`` stands for any name."""
    pattern = re.sub(r"<\w+>", "*", name.rstrip("/"))
    return next((path for base in (SOURCE, ROOT) for path in sorted(base.glob(pattern))), None)


@cache
def routes() -> frozenset[str]:
    """Return the methods and paths of the server's routes, with ``{}`` for each parameter."""
    text = "".join(path.read_text(encoding="utf-8") for path in (SOURCE / "server" / "routes").glob("*.py"))
    found = re.findall(r'@router\.(\w+)\(\s*"([^"]+)"', text)
    return frozenset(without_parameters(f"{method.upper()} {path}") for method, path in found)


def without_parameters(path: str) -> str:
    return re.sub(r"\{\w+\}", "{}", path)


# What the page says


def section(page: str, title: str) -> str:
    """Return the text under a heading of the second level."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def rows(text: str) -> list[list[str]]:
    """Return the cells of the rows of all tables in a text, the heads included."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


class Stop(NamedTuple):
    """A stop of a walk: the number of the stop from which it is reached, or what calls it from outside; the
    function that names it instead of that one; and where it is."""

    number: int
    origin: str
    by: Place | None
    file: str
    name: str

    @property
    def last_name(self) -> str:
        """The name by which it is called; a class is called by its own."""
        *outer, name = self.name.split(".")
        return outer[-1] if name == "__call__" else name

    @property
    def place(self) -> Place:
        """The function that runs when it is passed."""
        is_class = any(isinstance(node, ast.ClassDef) for node in defined_at(self.file, self.name))
        return self.file, f"{self.name}.__init__" if is_class else self.name


ORIGIN = re.compile(r"(?P<origin>\w+)(?:, by (?:`(?P<file>[^`]+)` )?`(?P<by>[\w.]+)`)?")
PLACED = re.compile(r"`(?P<file>[^`]+)` `(?P<name>[\w.]+)`")


def stops(page: str, title: str) -> list[Stop]:
    """Return the stops of a walk; fail if a row cannot be read."""
    found = []
    for cells in rows(section(page, title)):
        if not cells[0].isdigit():
            continue
        origin, placed = ORIGIN.fullmatch(cells[1]), PLACED.fullmatch(cells[2])
        assert origin, f"{title}: stop {cells[0]} is reached from {cells[1]}"
        assert placed, f"{title}: stop {cells[0]} is at {cells[2]}"
        by = (origin["file"] or "", origin["by"]) if origin["by"] else None
        found.append(Stop(int(cells[0]), origin["origin"], by, placed["file"], placed["name"]))
    return found


BESIDE = re.compile(r"`([\w/.]+\.py)` `([\w.]+)`")
"""A path with the name of what is defined there."""


def tokens(page: str) -> list[str]:
    """Return the code within the sentences of a page, without its blocks and without names beside paths."""
    text = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`\n]+)`", BESIDE.sub("", text))
