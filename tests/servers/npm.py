"""Packages from npm, installed on first use in the versions that a folder's ``package-lock.json`` names."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from functools import cache
from pathlib import Path

from tests.conftest import missing

WITHIN_S = 100.0


def need(folder: Path) -> None:
    """Install a folder's packages unless they are there; end the test when they cannot be installed."""
    if reason := problem(folder):
        missing(f"{folder.name}/node_modules", reason)


@cache
def problem(folder: Path) -> str | None:
    """Install a folder's packages unless they are there. Returns the reason when they cannot be installed.

    One process at a time installs into a folder. After a failure this process does not try again.
    """
    by_hand = f"by hand: npm ci --prefix {folder}"
    with (folder / "package-lock.json").open("rb") as pins:
        fcntl.flock(pins, fcntl.LOCK_EX)
        if _current(folder):
            return None
        npm = shutil.which("npm")
        if npm is None:
            return "install Node.js with npm by your system's packages (Debian: apt-get install nodejs npm)"
        command: list[str | Path] = [
            npm,
            "ci",
            "--prefix",
            folder,
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            "--silent",
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S)
        except subprocess.TimeoutExpired:
            return f"npm was not ready after {WITHIN_S:.0f} s; {by_hand}"
        return (
            f"npm ended with {done.returncode}: {done.stderr[-500:]}; {by_hand}" if done.returncode else None
        )


def _current(folder: Path) -> bool:
    """Whether the packages were installed after they were last pinned."""
    installed = folder / "node_modules" / ".package-lock.json"
    pins = folder / "package-lock.json"
    return installed.is_file() and installed.stat().st_mtime >= pins.stat().st_mtime
