"""Command ``perdure init``: writes a small project that runs, without overwriting existing files."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from perdure.cli.app import err, format_count, say, warn
from perdure.errors import NotAllowed

_TEMPLATES = Path(__file__).with_name("new_project")
_FILES = {
    "agent.py": ("agent.py", "the graph; the place for your model"),
    "langgraph.json": ("langgraph.json", "names the graph"),
    "test_agent.py": ("test_agent.txt", "tests of the graph"),
    ".env": ("env", "variables and keys, for this machine alone"),
    ".env.example": ("env", "the same without secrets, for others"),
    "requirements.txt": ("requirements.txt", "packages of the agent"),
    "Dockerfile": ("Dockerfile", "an image of the server"),
    ".dockerignore": ("dockerignore", "what the image leaves out"),
    ".gitignore": ("gitignore", "what git leaves out"),
    "README.md": ("README.md", "the commands"),
}
"""Files of a project: the template of each, and its purpose."""
_CODE = ("agent.py", "langgraph.json", "test_agent.py")
"""Files that only work together: if one of them exists, nothing is written."""
_CONFIGURES = ("perdure.toml",)
"""Files whose settings would override the written ones: if one exists, nothing is written."""


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="The project's folder, which is made", show_default="here")
    ] = Path(),
) -> None:
    """Write a small project: a graph that runs without a model's key, its configuration, tests, and an image.

      perdure init my-agent

    No file is overwritten. If the folder has a graph or configuration already, nothing is written. Other
    existing files are left as they are, and are listed.
    """
    if folder.exists() and not folder.is_dir():
        raise NotAllowed(f"{folder} is not a folder; name one that the project is written to")
    existing = [name for name in (*_FILES, *_CONFIGURES) if os.path.lexists(folder / name)]
    if there := [name for name in existing if name in _CODE or name in _CONFIGURES]:
        raise NotAllowed(
            f"{'this folder' if folder == Path() else folder} has {', '.join(there)} already, so nothing was "
            "written; name another folder, e.g. perdure init my-agent"
        )
    names = [name for name in _FILES if name not in existing]
    _write(folder, names)
    where = "this folder" if folder == Path() else f"{folder}{os.sep}"
    warn(f"Wrote {format_count(len(names), 'file')} to {where}")
    for name in names:
        err.print(f"  {name:<17}{_FILES[name][1]}", markup=False)
    if existing:
        warn(f"Left as they were: {', '.join(existing)}")
    if ".gitignore" in existing:
        warn("Add .env and .perdure/ to .gitignore: they have keys and conversations.")
    err.print("\nNext:")
    for command in _list_next_commands(folder):
        say(command)


def _write(folder: Path, names: Sequence[str]) -> None:
    """Write all of these files or, if one fails, none."""
    from importlib.metadata import version

    release = version("perdure")
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    try:
        for name in names:
            template = _TEMPLATES / _FILES[name][0]
            text = template.read_text(encoding="utf-8").replace("@VERSION@", release)
            with open(folder / name, "x", encoding="utf-8", newline="\n") as file:
                written.append(folder / name)
                file.write(text)
    except OSError:
        for path in written:
            path.unlink()
        raise


def _list_next_commands(folder: Path) -> list[str]:
    """Return the commands that run the project, after those that install missing packages."""
    python, perdure = _choose_programs()
    if folder == Path():
        commands = []
    else:
        # A shell would read a dash at the start as an option.
        commands = [f"cd {shlex.quote(f'./{folder}' if str(folder).startswith('-') else str(folder))}"]
    lacking: list[str] = []
    if not all(map(find_spec, ("uvicorn", "fastapi", "watchfiles"))):
        lacking.append("'perdure[dev]'")
    if not find_spec("pytest"):
        lacking.append("pytest")
    if lacking:
        commands.append(f"{python} -m pip install {' '.join(lacking)}")
    return [*commands, f"{python} -m pytest", f"{perdure} dev"]


def _choose_programs() -> tuple[str, str]:
    """Return the words that start this interpreter and this command in the user's shell."""
    if "UV_RUN_RECURSION_DEPTH" in os.environ:
        # uv has put the environment on the path of this process alone, so the shell needs uv again.
        return "uv run python", "uv run perdure"
    here = Path(sys.executable).parent
    is_on_path = [
        (found := shutil.which(name)) is not None and Path(found).parent == here
        for name in ("python", "perdure")
    ]
    if all(is_on_path):
        return "python", "perdure"
    python = shlex.quote(sys.executable)
    return python, f"{python} -m perdure"
