"""Server for development: a process that is replaced when a file of the project changes, on one socket that
stays open meanwhile.

The process reports which files of the project it has imported, and these are watched. A project that cannot
be loaded is reported, its requests are answered with 503, and its next change is waited for; but the server
does not start if a file or a module that is named does not exist. The runs of a
process go on in the one that replaces it.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import secrets
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

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from watchfiles import Change, DefaultFilter, watch

from perdure.errors import GraphLoadError, PerdureError
from perdure.runtime.agents.module_files import Unplaced
from perdure.runtime.failures.failure_location import show_failures
from perdure.runtime.failures.own_code import list_own_files, list_own_places, write_traceback
from perdure.runtime.garbage_collector import exempt_existing
from perdure.runtime.log_output import configure_logging
from perdure.runtime.runtime import process_name
from perdure.server.auth.identity import OpenGate
from perdure.server.config import Config, Cors
from perdure.server.hosting import child_process
from perdure.server.hosting.child_process import handle_stops
from perdure.server.hosting.process import Server, guard, run, run_server
from perdure.storage.url import backend_of
from perdure.web.connections import make_server_config

_log = logging.getLogger("perdure.server")

_LOOK_MS = 300
_SETTLED_MS = 100
"""Milliseconds without a further change after which the changes so far count as one edit."""
_REPORT_S = 0.3
_STOP_S = 3.0
"""Seconds in which a process has to hand over its runs. One that a blocking node holds up longer is
killed."""
_SHORT_S = 10.0
_PAUSE_S = 1.0
_ENDED_MAX = 32
_CLOCK_NS = 50_000_000
"""Nanoseconds by which the time of a file may be behind the clock's."""
_FOLDERS_MAX = 2000
"""Maximum number of folders that are watched while the project cannot be loaded: the missing file may be in
any of them."""


class Announcement(NamedTuple):
    """Announcement of a process that serves: its configuration, the files whose change caused its start, none
    for the first process, and the seconds that its start took."""

    config: Config
    changed: tuple[str, ...]
    took_s: float


class DevelopmentTerms(NamedTuple):
    """Arguments with which each process is started; all can be pickled. ``load`` reads the configuration
    again, ``announce`` prints an announcement, and ``announce_failure`` the text of a failure. With ``works``
    the process executes runs."""

    load: Callable[[], Config]
    announce: Callable[[Announcement], None]
    announce_failure: Callable[[str], None]
    works: bool
    log_level: str


_State = Literal["loading", "serving", "failed", "refused"]


class _Report(NamedTuple):
    """Report of a process: the existing files of the project that it depends on, its progress, and why the
    start is refused."""

    files: frozenset[str] = frozenset()
    state: _State = "loading"
    why: str = ""


def serve_reloading(
    config: Config, terms: DevelopmentTerms, listener: socket.socket, announce_end: Callable[[str], None]
) -> None:
    """Serve until SIGINT or SIGTERM. A second signal kills the process at work.

    Args:
        config: the configuration at the start.
        terms: what each process is started with.
        listener: the listening socket, which all processes use in turn.
        announce_end: prints a sentence about a process that has ended by itself.

    Raises:
        GraphLoadError: at the start, a file or a module that the configuration names does not exist.
    """
    # Before the forks, for the reason given in ``several_processes``.
    backend_of(config.database_url)
    exempt_existing()
    stopping = threading.Event()
    current: list[BaseProcess] = []

    def stop(number: int, _: FrameType | None) -> None:
        if stopping.is_set():
            for process in current:
                process.kill()
        stopping.set()

    def start_refusals(exit_code: int) -> None:
        announce_end(
            f"The process ended with {exit_code} while it loaded the project. The next save is waited for."
        )
        current.append(child_process.start(_serve_refusals, listener))

    ended: deque[str] = deque(maxlen=_ENDED_MAX)
    changed: tuple[str, ...] = ()
    has_served = False
    with handle_stops(stop):
        try:
            while not stopping.is_set():
                token = secrets.token_hex(3)
                receiver, sender = multiprocessing.Pipe(duplex=False)
                began_ns, began = time.time_ns(), time.monotonic()
                announced = changed if has_served else ()
                process = child_process.start(_serve, terms, listener, token, tuple(ended), sender, announced)
                sender.close()
                current[:] = [process]
                watching = _Watching(
                    receiver, {str(path.absolute()) for path in config.files}, config.root, began_ns
                )
                changed = watching.wait(process, stopping, start_refusals)
                if why := watching.why_refused():
                    raise GraphLoadError(why)
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


def _stop(process: BaseProcess) -> None:
    if process.exitcode is None:
        process.terminate()
    process.join(_STOP_S)
    if process.exitcode is None:
        # Its runs are stored, and the next process continues them at once.
        process.kill()
    process.join()


def _forget_compiled(path: str) -> None:
    """Remove the compiled form of a file: Python would still use it after an edit in the same second that
    does not change the file's length."""
    if path.endswith(".py"):
        with suppress(OSError, NotImplementedError):
            os.unlink(cache_from_source(path))


class _Watching:
    """Watches the files of one process until one of them changes."""

    def __init__(self, receiver: Connection, files: set[str], root: Path, began_ns: int) -> None:
        self._receiver = receiver
        self._config_files = frozenset(files)
        self._existing = frozenset(filter(os.path.exists, files))
        self._report = _Report()
        self._root = root
        self._began_ns = began_ns
        self._is_open = True

    def has_served(self) -> bool:
        """Return True if the process has begun to serve."""
        self._receive()
        return self._report.state == "serving"

    def why_refused(self) -> str:
        """Return why the process has refused to start, empty if it has not."""
        return self._report.why

    def wait(
        self, process: BaseProcess, stopping: threading.Event, refuse: Callable[[int], None]
    ) -> tuple[str, ...]:
        """Return the files that have changed; none if the process has ended by itself, or the server is to
        stop. If the process ends before it serves, another one would end in the same way: then ``refuse`` is
        called with the exit code, and the next change is waited for."""
        while not stopping.is_set():
            self._receive()
            watched = self._report
            paths = self._list_paths()
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
                # Look for earlier changes only now that the folders are watched: so none is missed.
                if not is_caught_up and (changed := self._find_changed(paths, folders)):
                    return changed
                is_caught_up = True
                exit_code = process.exitcode
                self._receive()
                state = self._report.state
                if state == "refused" or (exit_code is not None and state == "serving"):
                    return ()
                if exit_code is not None and state == "loading":
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

    def _list_paths(self) -> frozenset[str]:
        """Return the watched files, also under the names to which symbolic links lead."""
        files = self._config_files | self._report.files
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
            # A file that was missing when the project was loaded may exist now.
            is_possible = path.endswith(".py") or (change is Change.added and os.path.isdir(path))
            return self._report.state == "failed" and is_possible and ignores(change, path)

        return tuple(sorted({path for change, path in changes if is_relevant(change, path)}))

    def _find_changed(self, paths: Iterable[str], folders: Iterable[str]) -> tuple[str, ...]:
        """Return the files that were written, replaced or removed while they were not watched: the process
        may have read them before."""
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
            # A file that was moved here keeps the time of its last write, so its status change counts as
            # well.
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
    configure_logging(terms.log_level)
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
        if not ended and isinstance(error.__cause__, Unplaced):
            reports.add("refused", why=str(error))
            return
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
    """OS thread that reports the files of the project that this process has imported, whenever there are
    more. It begins before the imports: one of these may take long, or never end."""

    def __init__(self, sender: Connection, inherited: frozenset[str]) -> None:
        self._sender = sender
        # A fork has the parent's imports, and would not import these files again.
        self._inherited = inherited
        self._lock = threading.RLock()
        self._last = _Report()
        threading.Thread(target=self._run, name="reports", daemon=True).start()

    def add(self, state: _State, files: frozenset[str] = frozenset(), why: str = "") -> None:
        """Report how far the process has come, more files that it depends on, and why it refuses to start."""
        with self._lock:
            more = (files | (list_own_files() - self._inherited)) - self._last.files
            report = _Report(
                self._last.files | frozenset(filter(os.path.exists, more)), state, why or self._last.why
            )
            if report != self._last:
                self._last = report
                # The parent may have closed the pipe; then it is about to stop this process.
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

    settings = make_server_config(guard(refuse, OpenGate(), Cors(), listener), 1)
    run(Server(settings).serve(sockets=[listener]))
