"""Server for development: a process that is replaced when a file of the project changes, on one socket that
stays open meanwhile.

The process reports which files of the project it has imported, and these are watched. A project that cannot
be loaded is reported, its requests are answered with 503, and its next change is waited for. The runs of a
process go on in the one that replaces it.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from importlib.util import cache_from_source
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Literal, NamedTuple

import uvicorn
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from watchfiles import Change, DefaultFilter, watch

from perdure.errors import PerdureError
from perdure.runtime.failures.failure_location import show_failures
from perdure.runtime.failures.own_code import list_own_files, list_own_places, write_traceback
from perdure.runtime.garbage_collector import exempt_existing
from perdure.runtime.log_output import write_log
from perdure.runtime.runtime import process_name
from perdure.server.auth.identity import Open
from perdure.server.config import Config, Cors
from perdure.server.hosting import child_process
from perdure.server.hosting.child_process import STOPS
from perdure.server.hosting.process import Server, guard, run, run_server
from perdure.storage.url import backend_of
from perdure.web.connections import LimitedConnection

_log = logging.getLogger("perdure.server")

_LOOK_MS = 300
_SETTLED_MS = 100
"""Milliseconds without another change after which changes are one edit."""
_REPORT_S = 0.3
_STOP_S = 3.0
"""Seconds for a process to hand over its runs; a node that blocks holds it longer, and is killed."""
_SHORT_S = 10.0
_PAUSE_S = 1.0
_ENDED_MAX = 32
_CLOCK_NS = 50_000_000
"""Nanoseconds by which the time of a file may be behind the clock's."""
_FOLDERS_MAX = 2000
"""Folders that are watched while the project cannot be loaded: the missing file may be in any."""


class Announcement(NamedTuple):
    """Announcement of a process that serves: its configuration, the files whose change began it, none for the
    first one, and the seconds that its start took."""

    config: Config
    changed: tuple[str, ...]
    took_s: float


class DevelopmentTerms(NamedTuple):
    """Arguments with which each process is started; all can be pickled. ``load`` reads the configuration
    again, and ``announce`` prints what was announced, or the text of what failed."""

    load: Callable[[], Config]
    announce: Callable[[Announcement], None]
    announce_failure: Callable[[str], None]
    works: bool
    log_level: str


_State = Literal["loading", "serving", "failed"]


class _Report(NamedTuple):
    """Report of a process: the existing files of the project that it depends on, and its progress."""

    files: frozenset[str] = frozenset()
    state: _State = "loading"


def serve_reloading(
    config: Config, terms: DevelopmentTerms, listener: socket.socket, announce_end: Callable[[str], None]
) -> None:
    """Serve until SIGINT or SIGTERM. A second signal kills the process at work.

    Args:
        config: the configuration at the start.
        terms: what each process is started with.
        listener: the listening socket, which all processes use in turn.
        announce_end: prints why a process has ended by itself.
    """
    # Before the forks, as in a server with several processes.
    backend_of(config.database_url)
    exempt_existing()
    stopping = threading.Event()
    current: list[BaseProcess] = []

    def stop(number: int, _: FrameType | None) -> None:
        if stopping.is_set():
            for process in current:
                process.kill()
        stopping.set()

    before = {number: signal.signal(number, stop) for number in STOPS}
    ended: deque[str] = deque(maxlen=_ENDED_MAX)
    changed: tuple[str, ...] = ()
    has_served = False
    try:
        while not stopping.is_set():
            token = secrets.token_hex(3)
            receiver, sender = multiprocessing.Pipe(duplex=False)
            began_ns, began = time.time_ns(), time.monotonic()
            reason = changed if has_served else ()
            process = child_process.start(_serve, terms, listener, token, tuple(ended), sender, reason)
            sender.close()
            current[:] = [process]

            def refuse(exit_code: int, processes: list[BaseProcess] = current) -> None:
                announce_end(
                    f"The process ended with {exit_code} while it loaded the project. The next save is "
                    "waited for."
                )
                processes.append(child_process.start(_serve_refusals, listener))

            watching = _Watching(
                receiver, {str(path.absolute()) for path in config.files}, config.root, began_ns
            )
            changed = watching.wait(process, stopping, refuse)
            has_served = has_served or watching.has_served()
            exit_code = process.exitcode
            for each in current:
                _stop(each)
            receiver.close()
            ended.append(process_name(process.pid or 0, token))
            for path in changed:
                _forget_compiled(path)
            if exit_code is None or changed or stopping.is_set():
                continue
            announce_end(f"The server process ended with {exit_code}; another one starts.")
            if time.monotonic() - began < _SHORT_S:
                stopping.wait(_PAUSE_S)
    finally:
        for process in current:
            _stop(process)
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(process: BaseProcess) -> None:
    if process.exitcode is None:
        process.terminate()
    process.join(_STOP_S)
    if process.exitcode is None:
        # Its runs are on disk, and due for the next process at once.
        process.kill()
    process.join()


def _forget_compiled(path: str) -> None:
    """Remove the compiled form of a file, which Python would use after an edit within the same second that
    leaves the length as it was."""
    if path.endswith(".py"):
        with suppress(OSError, NotImplementedError):
            os.unlink(cache_from_source(path))


class _Watching:
    """Files of one process, until one of them changes."""

    def __init__(self, receiver: Connection, files: set[str], root: Path, began_ns: int) -> None:
        self._receiver = receiver
        self._first = frozenset(files)
        self._existing = frozenset(filter(os.path.exists, files))
        self._report = _Report()
        self._root = root
        self._began_ns = began_ns
        self._is_open = True

    def has_served(self) -> bool:
        """Return True if the process has come to serve."""
        self._receive()
        return self._report.state == "serving"

    def wait(
        self, process: BaseProcess, stopping: threading.Event, refuse: Callable[[int], None]
    ) -> tuple[str, ...]:
        """Return the files that have changed; none if the process has ended by itself, or all is to stop. A
        process that ends before it serves would do so again, so that a change is waited for, and ``refuse``
        is called with its exit code."""
        while not stopping.is_set():
            self._receive()
            watched = self._report
            paths = self._paths()
            folders = self._choose_folders(paths)
            is_caught_up = False
            # Every change of a folder is examined here. A filter that drops changes would keep the loop busy
            # for as long as another file there, such as a log, is written.
            for changes in watch(
                *folders,
                watch_filter=None,
                debounce=10 * _SETTLED_MS,
                step=_SETTLED_MS,
                stop_event=stopping,
                rust_timeout=_LOOK_MS,
                yield_on_timeout=True,
                raise_interrupt=False,
                recursive=False,
                ignore_permission_denied=True,
            ):
                if changed := self._select_relevant(changes, paths):
                    return changed
                # Only now, as the folders are watched, no change can come between.
                if not is_caught_up and (changed := self._find_changed(paths, folders)):
                    return changed
                is_caught_up = True
                exit_code = process.exitcode
                self._receive()
                if exit_code is not None and self._report.state == "serving":
                    return ()
                if exit_code is not None and self._report.state == "loading":
                    refuse(exit_code)
                    self._report = self._report._replace(state="failed")
                if self._report != watched:
                    break
        return ()

    def _receive(self) -> None:
        try:
            while self._is_open and self._receiver.poll():
                self._report = self._receiver.recv()
        except (EOFError, OSError):
            self._is_open = False

    def _paths(self) -> frozenset[str]:
        """Return the files, also under the names to which symbolic links lead."""
        files = self._first | self._report.files
        return files | {os.path.realpath(file) for file in files}

    def _choose_folders(self, paths: Iterable[str]) -> list[str]:
        folders = {folder for path in paths if os.path.isdir(folder := os.path.dirname(path))}
        folders.add(str(self._root))
        if self._report.state == "failed":
            folders.update(_list_folders_below(self._root))
        return sorted(folders)

    def _select_relevant(
        self, changes: Iterable[tuple[Change, str]], paths: Collection[str]
    ) -> tuple[str, ...]:
        """Return the changed files that the process depends on or has not found."""
        ignores = DefaultFilter()

        def is_relevant(change: Change, path: str) -> bool:
            if path in paths:
                return True
            # A missing file may exist now.
            is_possible = path.endswith(".py") or (change is Change.added and os.path.isdir(path))
            return self._report.state == "failed" and is_possible and ignores(change, path)

        return tuple(sorted({path for change, path in changes if is_relevant(change, path)}))

    def _find_changed(self, paths: Iterable[str], folders: Iterable[str]) -> tuple[str, ...]:
        """Return the files that were written, replaced or removed while they were not watched, and may have
        been read before."""
        waited_for: list[str] = []
        if self._report.state == "failed":
            waited_for = [str(path) for folder in folders for path in Path(folder).glob("*.py")]
        found = set()
        for path in (*paths, *waited_for):
            try:
                status = os.stat(path)
            except OSError:
                if path in self._existing or path in self._report.files:
                    found.add(path)
                continue
            # A file that is moved here keeps the time of its content.
            if max(status.st_mtime_ns, status.st_ctime_ns) > self._began_ns + _CLOCK_NS:
                found.add(path)
        return tuple(sorted(found))


def _list_folders_below(root: Path) -> list[str]:
    """Return the folders of a project without those of packages, caches and version control."""
    found: list[str] = []
    for folder, below, files in os.walk(root):
        if "pyvenv.cfg" in files:
            below.clear()
            continue
        found.append(folder)
        below[:] = [name for name in below if name not in DefaultFilter.ignore_dirs and name[0] != "."]
        if len(found) >= _FOLDERS_MAX:
            break
    return found


def _serve(
    terms: DevelopmentTerms,
    listener: socket.socket,
    token: str,
    ended: Collection[str],
    sender: Connection,
    changed: tuple[str, ...],
) -> None:
    """Serve in a child process until SIGTERM."""
    write_log(terms.log_level)
    show_failures()
    began = time.monotonic()
    reports = _Reports(sender, list_own_files())
    try:
        config = terms.load()

        def ready() -> None:
            reports.add("serving")
            terms.announce(Announcement(config, changed, time.monotonic() - began))

        # A run that is under way goes on with the new code, so nothing waits for its end.
        settings = {"drain": 0.0, **config.runtime}
        run_server(
            replace(config, runtime=settings),
            listener,
            works=terms.works,
            name=process_name(os.getpid(), token),
            ended=ended,
            ready=ready,
        )
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        reports.add("failed", list_own_places(error))
        terms.announce_failure(_describe_failure(error))
        _serve_refusals(listener)


def _describe_failure(error: Exception) -> str:
    """Describe a failure: the message of an error of Perdure's, then the error of the user's code."""
    if not isinstance(error, PerdureError):
        return write_traceback(error)
    cause = error.__cause__
    if cause is not None and list_own_places(cause):
        return f"{error}\n\n{write_traceback(cause)}"
    return str(error)


class _Reports:
    """Thread that reports the files of the project that this process has imported, whenever there are more,
    from the start on: an import may take long, or never end."""

    def __init__(self, sender: Connection, inherited: frozenset[str]) -> None:
        self._sender = sender
        # A fork has them from its parent, and would not import them again.
        self._inherited = inherited
        self._lock = threading.RLock()
        self._last = _Report()
        threading.Thread(target=self._run, name="reports", daemon=True).start()

    def add(self, state: _State, files: frozenset[str] = frozenset()) -> None:
        """Report how far the process has come, and more files that it depends on."""
        with self._lock:
            more = (files | (list_own_files() - self._inherited)) - self._last.files
            report = _Report(self._last.files | frozenset(filter(os.path.exists, more)), state)
            if report != self._last:
                self._last = report
                # The parent may have stopped to listen; then it stops this process, too.
                with suppress(OSError):
                    self._sender.send(report)

    def _run(self) -> None:
        while True:
            with self._lock:
                self.add(self._last.state)
            time.sleep(_REPORT_S)


def _serve_refusals(listener: socket.socket) -> None:
    """Answer every request with 503 until SIGTERM: clients that reconnect keep trying."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            detail = "The project cannot be loaded; the terminal of perdure dev shows why."
            await JSONResponse({"detail": detail}, 503, {"Retry-After": "1"})(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1013})

    async def nothing() -> None:
        """Do nothing at the start and stop."""

    settings = uvicorn.Config(
        guard(refuse, Open(), Cors(), listener),
        http=LimitedConnection,
        log_level="warning",
        lifespan="off",
        timeout_graceful_shutdown=1,
        server_header=False,
    )
    run(Server(settings, nothing, nothing).serve(sockets=[listener]))
