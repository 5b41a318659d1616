"""A process that has imported everything and does nothing but fork: each child is a fresh client that opens
the database for the first time, at a hundredth of what a cold start costs.

Reads one request a line from standard input and answers each with one line when its child has ended.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ended:
    """How a child ended: by a signal, or with an exit code and what it had to say."""

    signal: int
    code: int
    seconds: float
    error: str


class Zygote:
    """The test's end of the pipe. Not safe to share between threads."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.zygote"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Zygote:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.communicate(timeout=30)

    def live(self, job: Any, *, kill_after: float | None = None) -> Ended:
        """Let a child do a job; with ``kill_after`` it is killed that many seconds after it was forked."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"job": asdict(job), "kill_after": kill_after}) + "\n")
        self._process.stdin.flush()
        return Ended(**json.loads(self._process.stdout.readline()))


def _serve() -> None:
    from perdure.storage.url import backend_of
    from tests.chaos.client import Job, work
    from tests.packing_soon import pack_soon

    pack_soon()
    for line in sys.stdin:
        request = json.loads(line)
        job = Job(**request["job"])
        backend_of(job.url)  # its client is imported here, once
        error = Path(job.folder, "error")
        error.unlink(missing_ok=True)
        started = time.monotonic()
        child = os.fork()
        if child == 0:
            try:
                work(job)
            except BaseException:
                error.write_text(traceback.format_exc())
                os._exit(1)
            os._exit(0)
        if request["kill_after"] is not None:
            gone = os.pidfd_open(child)
            select.select([gone], [], [], request["kill_after"])
            os.close(gone)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        ended = Ended(
            os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
            os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0,
            time.monotonic() - started,
            error.read_text() if error.exists() else "",
        )
        print(json.dumps(asdict(ended)), flush=True)


if __name__ == "__main__":
    _serve()
