"""A new process for a program of a user's, forked from one that has imported the libraries already."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

WITHIN_S = 120
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("PERDURE", "LANG"))}


def ended(line: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run ``program.py arguments`` or ``perdure arguments`` in a folder, and wait for its end."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.firstday.libraries", __name__])
    out, err = folder / "stdout", folder / "stderr"
    process = context.Process(target=_become, args=(line, folder, out, err))
    process.start()
    process.join(WITHIN_S)
    code = process.exitcode
    if code is None:
        process.kill()
        process.join()
        raise subprocess.TimeoutExpired(line, WITHIN_S, out.read_text(), err.read_text())
    return subprocess.CompletedProcess(line, code, out.read_text(), err.read_text())


def _become(line: list[str], folder: Path, out: Path, err: Path) -> None:
    for path, number in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(ENVIRONMENT)
    sys.argv = line
    if line[0] == "perdure":
        from perdure.cli import main

        main()
    else:
        sys.path.insert(0, str(folder))
        runpy.run_path(line[0], run_name="__main__")
