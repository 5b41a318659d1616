"""Environments for other people's servers: made by uv, outside of the tree, and kept for the next time.

None of them is the bench's own, so that nothing of those servers, whatever its licence, is ever imported or
installed beside Perdure. One that cannot be made is a `Missing` with the reason.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.served.hosts import Host
from bench.servers import Missing

_INSTALLING_S = 300.0
_SAME = ("langgraph", "langchain-core")
"""Of the versions that this environment has, so that every server runs the graphs with the same library."""
_VERSION = "import sys; print(list(sys.version_info[:2]))"
_ASKING = (
    "import json, sys, platform; from importlib import metadata; "
    "print(json.dumps([platform.python_version(), {n: metadata.version(n) for n in sys.argv[1:]}]))"
)


def programs(host: Host) -> Path:
    """The folder of the host's programs, which is made first when it is not there."""
    if not host.packages:
        return Path(sys.executable).parent
    wanted = [*host.packages, *(f"{name}=={metadata.version(name)}" for name in _SAME)]
    python = _python(host)
    room = _rooms() / hashlib.sha256("\n".join([python, *wanted]).encode()).hexdigest()[:16]
    ready = room / "ready"
    if not ready.exists():
        shutil.rmtree(room, ignore_errors=True)
        _uv("venv", "--quiet", "--python", python, str(room))
        _uv("pip", "install", "--quiet", "--python", str(room / "bin" / "python"), *wanted)
        ready.touch()
    return room / "bin"


def versions(host: Host, folder: Path) -> tuple[str, dict[str, str]]:
    """Of Python and of what is shown of the packages."""
    found = subprocess.run(
        [folder / "python", "-c", _ASKING, *host.shown], capture_output=True, text=True, check=True
    )
    python, packages = json.loads(found.stdout)
    return python, packages


def _rooms() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perdure-bench"


def _python(host: Host) -> str:
    """This one, where it will do: the same for all. Nothing is downloaded."""
    if sys.version_info[:2] >= host.least_python:
        return sys.executable
    for python in _pythons():
        done = subprocess.run([python, "-c", _VERSION], capture_output=True, text=True)
        if not done.returncode and tuple(json.loads(done.stdout)) >= host.least_python:
            return str(python)
    least = ".".join(map(str, host.least_python))
    raise Missing(f"it needs Python {least}, and none so new is found")


def _pythons() -> list[Path]:
    """On the PATH, or among those that pyenv keeps, which on the PATH are often not usable."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    kept = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    folders += sorted(kept.glob("*/bin"), reverse=True)
    names = ("python3.12", "python3.13", "python3.14")
    return [folder / name for name in names for folder in folders if os.access(folder / name, os.X_OK)]


def _uv(*arguments: str) -> None:
    """uv says where it is to what it runs; `make` may have put one beside its environment. It is run among
    the rooms: in the project it would hold a rival's packages to the project's own versions."""
    beside = Path(sys.prefix).parent / ".uv" / "bin" / "uv"
    uv = os.environ.get("UV") or shutil.which("uv") or (str(beside) if beside.exists() else None)
    if uv is None:
        raise Missing("uv, which installs it, is not found; put uv on the PATH")
    try:
        rooms = _rooms()
        rooms.mkdir(parents=True, exist_ok=True)
        done: Any = subprocess.run(
            [uv, *arguments], capture_output=True, text=True, timeout=_INSTALLING_S, cwd=rooms
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"uv {arguments[0]} did not end: {error}") from None
    if done.returncode:
        complaint = " ".join(done.stderr.split())[-300:]
        raise Missing(f"uv {arguments[0]} failed: {complaint}")
