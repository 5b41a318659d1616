"""Obtains the suites' text and what they need: checkouts by git, packages by pip or uv, and npm."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tools.foreign_suites import places
from tools.foreign_suites.places import Unobtainable, last_line

from .catalogue import GRAPHS, PORTED, REFERENCE, TESTS, Suite

# Not all of LangChain: the suites' graphs need newer integrations than Perdure's own tests.
_PINNED = ("langgraph", "langchain-core")


class Checkout(Protocol):
    """What is taken from a repository at one commit."""

    @property
    def repository(self) -> str: ...

    @property
    def commit(self) -> str: ...

    @property
    def folders(self) -> Sequence[tuple[str, str]]:
        """The folders that it has to hold, and what each is called where it is copied to."""


def checkout(suite: Checkout, work: Path, given: Path | None) -> Path:
    """The root of a repository: the one of that name in the folder that was given, or a clone.

    Raises:
        Unobtainable: There is none, and none can be cloned.
    """
    name = suite.repository.rpartition("/")[2]
    if given is not None:
        root = given.absolute() / name
        for held, _ in suite.folders:
            if not (root / held).is_dir():
                raise Unobtainable(f"{root} holds no {held}; check out {suite.repository} there")
        return root
    root = work / "checkouts" / f"{name}-{suite.commit[:12]}"
    if (root / ".complete").exists():
        return root
    shutil.rmtree(root, ignore_errors=True)
    try:
        places.clone(suite.repository, suite.commit, root)
    except Unobtainable as error:
        raise Unobtainable(f"{error}; check it out into FOLDER/{name} and pass --sources FOLDER") from error
    (root / ".complete").touch()
    return root


def copy_suite(suite: Suite, root: Path | None, folder: Path) -> Path:
    """A copy of what the suite needs, to run in, with what stands beside it; ``root`` is None for one without
    a repository."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if root is not None:
        for held, name in suite.folders:
            shutil.copytree(root / held, folder / name)
    if suite.ported:
        # The folder is not a package: its files are imported by their own names.
        unused = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PORTED / suite.ported, folder, ignore=unused, dirs_exist_ok=True)
        (folder / "__init__.py").unlink()
    return folder


def point_at(suite: Suite, folder: Path, url: str) -> None:
    """Have the tests' text name the server's address."""
    if not suite.address:
        return
    tests = folder / suite.tests
    for path in [tests] if tests.is_file() else sorted(tests.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if suite.address in text:
            path.write_text(text.replace(suite.address, url), encoding="utf-8")


def python_of(server: str, work: Path, needs: Sequence[str] = ()) -> Path:
    """The Python of an environment in which a server runs, with what a suite needs; that of Perdure's is the
    tests' too."""
    if server == "perdure":
        return places.environment([*GRAPHS, *TESTS, *needs], work, with_own=True, pinned=_PINNED)
    return places.environment([*GRAPHS, *REFERENCE, *needs], work, pinned=_PINNED)


def modules_of(folder: Path, packages: Mapping[str, str]) -> Path:
    """The ``node_modules`` with some packages, installed once."""
    wanted = json.dumps({"private": True, "type": "module", "dependencies": packages}, indent=1)
    manifest = folder / "package.json"
    installed = folder / "node_modules"
    if installed.is_dir() and manifest.exists() and manifest.read_text(encoding="utf-8") == wanted:
        return installed
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    npm = shutil.which("npm")
    if npm is None:
        raise Unobtainable("there is no npm; install Node, or leave the suites in JavaScript out")
    manifest.write_text(wanted, encoding="utf-8")
    command = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        shutil.rmtree(folder)
        raise Unobtainable(f"npm cannot install what the suites need: {last_line(done.stderr)}")
    return installed
