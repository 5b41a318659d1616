"""Processes of the command ``perdure``, and of programs, without the cost of their imports.

One process has imported what the commands need, and forks once a command. What a fork does not show is how
a new interpreter starts: a test about that starts one.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LARGEST = 1 << 20
"""More than a request takes, in bytes: the words of a command, and its environment."""
LONGEST_S = 600.0
"""Seconds within which a command ends, on a busy machine too."""
PRELOADED = (
    "perdure.cli.worker",
    "perdure.cli.worker_process",
    "perdure.server.hosting.reloading",
    "perdure.server.hosting.several_processes",
    "perdure.storage.sqlite.driver",
)


class Forked:
    """A process of a command, with those methods of ``subprocess.Popen`` that tests use."""

    def __init__(self, pid: int, ends: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ends = ends

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("perdure", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        # Until its end is acknowledged nobody else can get its pid.
        if self._ended(0) is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._ends], [], [], timeout)[0]:
            with self._ends:
                self.returncode = int(self._ends.recv(100))
                self._ends.sendall(b"!")
        return self.returncode


class ForkServer:
    """The test's end of the connection. Not safe to share between threads."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forking", str(other.fileno())],
                cwd=ROOT, pass_fds=[other.fileno()], stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def start(
        self,
        words: Sequence[str],
        *,
        cwd: Path,
        environ: Mapping[str, str],
        stdout: int,
        stderr: int,
        start_new_session: bool = False,
    ) -> Forked:
        """Start ``perdure`` with these words, or a program of the folder if the first is a file of Python. It
        has these variables and no others, and each line that it prints is written at once."""
        ends, others = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        asked = {"words": list(words), "cwd": str(cwd), "environ": dict(environ), "leads": start_new_session}
        request = json.dumps(asked).encode()
        with others:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGEST)
            socket.send_fds(self._socket, [request], [others.fileno(), stdout, stderr])
        return Forked(int(ends.recv(100)), ends)

    def run(
        self, words: Sequence[str], *, cwd: Path, environ: Mapping[str, str], kill_after: float | None = None
    ) -> tuple[int, str]:
        """Run what ``start`` starts; return its exit code and all that it printed. With ``kill_after``
        it is killed after so many seconds."""
        with tempfile.TemporaryFile() as printed:
            output = printed.fileno()
            process = self.start(words, cwd=cwd, environ=environ, stdout=output, stderr=output)
            try:
                code = process.wait(LONGEST_S if kill_after is None else kill_after)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
                assert kill_after is not None, f"perdure {words[0]} has not ended in {LONGEST_S} s"
            printed.seek(0)
            return code, printed.read().decode()

    def close(self) -> None:
        self._socket.close()
        self._process.wait(60)


@cache
def fork_server() -> ForkServer:
    """Return the one that the tests of this process share."""
    server = ForkServer()
    atexit.register(server.close)
    return server


def _serve(requests: socket.socket) -> dict[str, Any] | None:
    """Fork for each request. Returns in each forked process, with what it has to do, and at the end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, fds, _, _ = socket.recv_fds(requests, LARGEST, 3)
        if not request:
            return None
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if child := os.fork():
                _tell_the_end(child, fds)
                os._exit(0)
            os.close(fds[0])
            for number, fd in enumerate(fds[1:], 1):
                os.dup2(fd, number)
                os.close(fd)
            asked: dict[str, Any] = json.loads(request)
            return asked
        for fd in fds:
            os.close(fd)


def _tell_the_end(child: int, fds: Sequence[int]) -> None:
    """Tell the test the pid of a process and how it ended; no other gets the pid before the test knows."""
    for fd in fds[1:]:
        os.close(fd)
    with socket.socket(fileno=fds[0]) as test:
        test.sendall(b"%d" % child)
        ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        test.sendall(b"%d" % code)
        test.recv(1)


def _run() -> None:
    from perdure.cli import main

    for name in PRELOADED:
        import_module(name)

    with socket.socket(fileno=int(sys.argv[1])) as requests:
        asked = _serve(requests)
    if asked is not None:
        if asked["leads"]:
            os.setsid()
        os.chdir(asked["cwd"])
        os.environ.clear()
        os.environ.update(asked["environ"])
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        if asked["words"][0].endswith(".py"):
            sys.argv, sys.path[0] = asked["words"], asked["cwd"]
            runpy.run_path(sys.argv[0], run_name="__main__")
            return
        sys.argv = ["perdure", *asked["words"]]
        sys.path[0] = str(Path(sys.executable).parent)
        main()


if __name__ == "__main__":
    _run()
