"""Starts a server over a suite's graphs on a free port of this machine, and stops it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from tools.foreign_suites.running import own_variables

_READY_S = 90
# Longer than a server gives its runs to end.
_STOP_S = 40
_PERDURE = "import sys; from perdure.cli import main; sys.exit(main())"


class NotStarted(Exception):
    """A server that does not answer."""


@contextmanager
def serve(server: str, python: Path, config: Path, folder: Path, model: str = "") -> Iterator[str]:
    """The URL of a server for as long as the block lasts; ``folder`` gets its database and its log. With
    ``model`` its graphs call the model at this path of its own.

    Raises:
        NotStarted: It does not answer; the message ends with the last lines of its log.
    """
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    if server == "perdure":
        database = f"sqlite:///{folder / 'threads.db'}"
        arguments = ["-c", _PERDURE, "serve", "--config", str(config), "--dev", "--db", database]
    else:
        arguments = ["-m", "langgraph_cli", "dev", "--no-browser", "--no-reload", "--n-jobs-per-worker", "10"]
        arguments += ["--config", str(config)]
    url = f"http://127.0.0.1:{port}"
    variables = own_variables() | {
        "FF_OPTIMIZED_STREAMING": "true",
        "LANGGRAPH_CLI_NO_ANALYTICS": "1",
        "LANGSMITH_TRACING": "false",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if model:
        variables |= {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": url + model}
    log = folder / "server.log"
    with open(log, "wb") as written:
        process = subprocess.Popen(
            [str(python), *arguments, "--port", str(port)],
            cwd=config.parent,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        until_ready(process, f"{url}/ok", log)
        yield url
    finally:
        stop(process)


def ask(url: str) -> None:
    """Have a server answer a request, however long its first answer takes."""
    with urlopen(url, timeout=_READY_S):  # noqa: S310 - a server of ours, on loopback
        return


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Wait until a server that was started answers.

    Raises:
        NotStarted: It does not; the message ends with the last lines of its log.
    """
    end = time.monotonic() + _READY_S
    while time.monotonic() < end and process.poll() is None:
        try:
            with urlopen(url, timeout=2):  # noqa: S310 - a server of ours, on loopback
                return
        except (URLError, OSError):
            time.sleep(0.3)
    last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-8:]
    raise NotStarted(f"the server at {url} does not answer; the last lines of {log}:\n" + "\n".join(last))


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process, by force if it does not end by itself."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            print(f"a server was still there {_STOP_S} s after SIGTERM; killed", file=sys.stderr)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
