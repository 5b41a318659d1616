"""Imports in processes that are killed at an effect of the target. They are forked from one that has imported
everything once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from perdure.imports.importer import Importer, ImportOptions
from perdure.imports.kinds import SourceKind, open_source
from perdure.testing.faults import ALL, WRITES, Fault, faulty, kill

ROOT = Path(__file__).resolve().parents[2]


class KilledImports:
    """The test's end of the pipe. Not safe to share between threads."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.imports.killed"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> KilledImports:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.communicate(timeout=60)

    def run(
        self, kind: SourceKind, where: str, target: str, at: int, when: str, *, writes: bool = False
    ) -> int:
        """Import a source in a child that is killed; return how the child ended, as ``waitpid`` says it.

        With ``writes`` it is killed at the ``at``-th write, whatever it reads before, else at that effect.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # A service's credentials are in the environment while its source is there.
        job = [kind, where, target, at, when, writes, dict(os.environ)]
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


def _import(kind: SourceKind, where: str, target: str, fault: Fault, writes: bool) -> None:
    with faulty(target, fault, counts=WRITES if writes else ALL) as (db, _):
        source = open_source(kind, where)
        importer = Importer(source, db, ImportOptions())
        for thread in source.threads():
            importer.import_thread(thread)


def _serve() -> None:
    for line in sys.stdin:
        kind, where, target, at, when, writes, environment = json.loads(line)
        os.environ.update(environment)
        open_source(SourceKind(kind), where).close()  # its client is imported here, once
        child = os.fork()
        if child == 0:
            code = 1
            try:
                _import(SourceKind(kind), where, target, Fault(at, kill, when), writes)
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        print(status, flush=True)


if __name__ == "__main__":
    _serve()
