"""Builds the interfaces in a folder outside the repository, and serves them on this machine."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tools.foreign_clients import sources
from tools.foreign_clients.servers import free_port, stop, until_ready
from tools.foreign_suites.places import Unobtainable, last_line
from tools.foreign_suites.running import own_variables, run_bounded

from .catalogue import PAGES, Application, Pages

_INSTALL_S = 1800
_BUILD_S = 1800

_FONTS = """module.exports = {
  "https://fonts.googleapis.com/css2?family=Inter:wght@100..900&display=swap":
    "@font-face { font-family: 'Inter'; font-weight: 100 900; src: local('sans-serif'); }",
};
"""
"""What Next.js takes in the place of fonts from elsewhere: the build fetches nothing."""


def application(app: Application, work: Path, given: Path | None) -> Path:
    """The folder of an application that is built, once for each commit.

    Raises:
        Unobtainable: Its text or its packages cannot be had, or it does not build.
    """
    folder = work / "interfaces" / f"{app.name}-{app.commit[:12]}"
    if (folder / ".complete").exists():
        return folder
    if not (folder / ".installed").exists():
        root = sources.checkout(app, work, given)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(root, folder, ignore=shutil.ignore_patterns(".git", "node_modules", ".next"))
        _run([_program("npx"), "--yes", *app.install], folder, "install", _INSTALL_S)
        (folder / ".installed").touch()
    fonts = folder / "fonts.cjs"
    fonts.write_text(_FONTS, encoding="utf-8")
    mocked = {"NEXT_FONT_GOOGLE_MOCKED_RESPONSES": str(fonts), "NEXT_TELEMETRY_DISABLED": "1"}
    _run([*_next(folder), "build", *app.build], folder, "build", _BUILD_S, mocked)
    (folder / ".complete").touch()
    return folder


@contextmanager
def serve_application(folder: Path, log: Path) -> Iterator[str]:
    """The address of an application that was built, for as long as the block lasts."""
    port = free_port()
    command = [*_next(folder), "start", "--hostname", "127.0.0.1", "--port", str(port)]
    with _start(command, folder, f"http://127.0.0.1:{port}", log) as address:
        yield address


def pages(kind: Pages, work: Path) -> Path:
    """A folder with pages of our own, bundled with the packages that they are about.

    Raises:
        Unobtainable: The packages cannot be installed, or do not go into a bundle.
    """
    folder = work / "interfaces" / kind.name
    wanted = json.dumps(kind.manifest, indent=1)
    manifest = folder / "package.json"
    if not (folder / ".installed").exists() or manifest.read_text(encoding="utf-8") != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        manifest.write_text(wanted, encoding="utf-8")
        options = ["--ignore-scripts", "--legacy-peer-deps", "--no-audit", "--no-fund", "--silent"]
        _run([_program("npm"), "install", *options], folder, "install", _INSTALL_S)
        (folder / ".installed").touch()
    shutil.copytree(PAGES / kind.folder, folder, dirs_exist_ok=True)
    _run([_program("node"), "bundle.mjs"], folder, "build", _BUILD_S)
    return folder


@contextmanager
def serve_pages(folder: Path, server: str, log: Path) -> Iterator[str]:
    """The address of such pages, for as long as the block lasts."""
    port = free_port()
    command = [_program("node"), "serve.mjs", str(port), server]
    with _start(command, folder, f"http://127.0.0.1:{port}", log) as address:
        yield address


def _next(folder: Path) -> list[str]:
    return [_program("node"), str(folder / "node_modules" / "next" / "dist" / "bin" / "next")]


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise Unobtainable(f"there is no {name}; install Node.js with npm")
    return found


def _run(
    command: Sequence[str], folder: Path, what: str, seconds: float, variables: Mapping[str, str] = {}
) -> None:
    log = folder / f"{what}.log"
    code = run_bounded(command, folder, {**own_variables(), **variables}, log, seconds)
    if code != 0:
        ended = "was not over in time" if code is None else f"ended with {code}"
        told = last_line(log.read_text(encoding="utf-8", errors="replace"))
        raise Unobtainable(f"{Path(command[0]).name} {what} {ended}: {told}; see {log}")


@contextmanager
def _start(command: Sequence[str], folder: Path, address: str, log: Path) -> Iterator[str]:
    variables = {**own_variables(), "NEXT_TELEMETRY_DISABLED": "1", "COPILOTKIT_TELEMETRY_DISABLED": "true"}
    with open(log, "wb") as written:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        until_ready(process, address, log)
        yield address
    finally:
        stop(process)
