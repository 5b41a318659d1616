"""A server in a child process, which is replaced on its socket when it is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from perdure.web.listening import listen

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

PROGRAM = """
import os, signal, socket, sys
sys.path.insert(0, sys.argv[2])
from perdure.demo.replaced_process import serve_replaced


def serve(listener, is_again):
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(7))
    print("again" if is_again else "first", flush=True)
    while True:
        caller, _ = listener.accept()
        caller.sendall(str(os.getpid()).encode())
        caller.close()


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        sys.exit(serve_replaced(serve, listener))
"""


@contextmanager
def parent(folder: Path, listener: socket.socket) -> Iterator[subprocess.Popen[str]]:
    program = folder / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    fileno = listener.fileno()
    source = str(Path(__file__).resolve().parents[2] / "src")
    with subprocess.Popen(
        [sys.executable, str(program), str(fileno), source],
        pass_fds=[fileno],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def answering(listener: socket.socket) -> int:
    """The process that answers on a socket, once one does. One that is being killed may still accept."""
    while True:
        with suppress(ConnectionError), socket.create_connection(listener.getsockname(), timeout=60) as line:
            if answer := line.recv(20):
                return int(answer)


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is of POSIX")
def test_a_killed_child_is_replaced_and_a_stopped_one_is_not(tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as listener, parent(tmp_path, listener) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "first\n"
        first = answering(listener)
        assert first != process.pid
        os.kill(first, signal.SIGKILL)
        second = answering(listener)  # the connection waits until the next one accepts it
        assert process.stdout.readline() == "again\n"
        assert second not in (first, process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 7


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is of POSIX")
def test_a_child_ends_with_its_parent(tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as listener, parent(tmp_path, listener) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "first\n"
        answering(listener)
        process.kill()
        # The pipe closes when the last process that writes into it has ended.
        assert process.stdout.read() == ""
