"""Children of a supervisor: what they have of it, that they can be stopped, and that they end with it.

Covers perdure.server.hosting.child_process and the replacement in perdure.server.hosting.several_processes.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

WITHIN_S = 60.0

forks = pytest.mark.skipif(sys.platform != "linux", reason="a child is a fork on Linux alone")


@pytest.mark.parametrize("threads", [pytest.param(0, marks=forks), 1])
def test_a_child_of_a_process_with_one_thread_does_not_import_again_what_its_parent_has(
    tmp_path: Path, threads: int
) -> None:
    (tmp_path / "costly.py").write_text("import os\nprint('imported by', os.getpid(), flush=True)\n")
    program = """
        import costly


        def work():
            import costly, os

            print("child", os.getpid(), "of", os.getppid(), flush=True)


        if __name__ == "__main__":
            done = threading.Event()
            for _ in range(int(sys.argv[1])):
                threading.Thread(target=done.wait).start()
            child = start(work)
            child.join()
            done.set()
            sys.exit(child.exitcode)
    """
    with _running(tmp_path, program, str(threads)) as process:
        assert process.stdout is not None
        first, *others, last = process.stdout.read().splitlines()
        assert process.wait(WITHIN_S) == 0
    assert first == f"imported by {process.pid}"
    assert len(others) == threads
    assert last.endswith(f" of {process.pid}")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_child_can_be_stopped_from_its_first_moment_on(tmp_path: Path, name: str) -> None:
    # The parent handles the signals as the supervisor does; in a child this handler would ignore them.
    program = """
        def work():
            try:
                time.sleep(3600)
            except KeyboardInterrupt:
                pass


        if __name__ == "__main__":
            number = getattr(signal, sys.argv[1])
            signal.signal(number, lambda *_: print("for the parent", flush=True))
            for _ in range(40):
                child = start(work)
                os.kill(child.pid, number)
                child.join(30)
                if child.exitcode is None:
                    child.kill()
                    sys.exit("the child goes on")
            os.kill(os.getpid(), number)
    """
    with _running(tmp_path, program, name) as process:
        assert process.stdout is not None
        assert process.stdout.read() == "for the parent\n"
        assert process.wait(WITHIN_S) == 0


def test_no_child_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    # A child that is forked later has what the earlier ones have of their parent: it must not keep them, also
    # while it takes its time to stop.
    program = """
        def work(place):
            if place == sys.argv[-1]:
                signal.signal(signal.SIGTERM, lambda *_: pathlib.Path(place).unlink())
            pathlib.Path(place).write_text(str(os.getpid()))
            while True:
                time.sleep(0.1)


        if __name__ == "__main__":
            for place in sys.argv[1:]:
                child = start(work, place)
            child.join()
    """
    places = [tmp_path / "one", tmp_path / "two", tmp_path / "three"]
    with _running(tmp_path, program, *map(str, places)) as process:
        _until(lambda: all(place.exists() and place.read_text() != "" for place in places))
        children = [psutil.Process(int(place.read_text())) for place in places]
        process.kill()
        process.wait()
        *others, slow = children
        try:
            _until(lambda: not any(map(_runs, others)))
            _until(lambda: not places[-1].exists())
        finally:
            slow.kill()


REPLACES = """
    import socket
    from perdure.server.config import load
    from perdure.server.hosting import several_processes
    from perdure.web.listening import listen


    def work(given, listener, token, ended):
        print("child", os.getpid(), len(ended), flush=True)
        time.sleep(3600)


    several_processes._serve = work
    several_processes._PAUSE_S = 3600.0
    several_processes._SHORT_S = float(sys.argv[1])
    if __name__ == "__main__":
        config = load(file=None, graphs=["./agent.py:graph"], db="sqlite:///d.db", environ={})
        with listen("127.0.0.1", 0) as listener:
            sys.exit(several_processes.serve_many(config, listener, 1))
"""


def test_a_process_that_has_lived_is_replaced_at_once(tmp_path: Path) -> None:
    with _running(tmp_path, REPLACES, "0") as process:
        for count in range(3):
            child, ended = _next_child(process)
            assert ended == count
            child.kill()
        child, ended = _next_child(process)
        process.terminate()
        assert process.wait(WITHIN_S) == 0
        assert not child.is_running()


def test_a_process_that_ends_soon_is_replaced_after_a_pause_in_which_all_can_be_stopped(
    tmp_path: Path,
) -> None:
    with _running(tmp_path, REPLACES, "3600") as process:
        child, _ = _next_child(process)
        child.kill()
        _until(lambda: not child.is_running())
        time.sleep(1)  # another one would have started
        process.terminate()
        assert process.wait(WITHIN_S) == 0
        assert process.stdout is not None
        assert process.stdout.read() == ""


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _next_child(process: subprocess.Popen[str]) -> tuple[psutil.Process, int]:
    """Return the child that has started, and how many had ended before it."""
    assert process.stdout is not None
    _, pid, ended = process.stdout.readline().split()
    return psutil.Process(int(pid)), int(ended)


@contextmanager
def _running(folder: Path, program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    place = folder / "program.py"
    place.write_text(
        "import os, pathlib, signal, sys, threading, time\n"
        "from perdure.server.hosting.child_process import start\n" + textwrap.dedent(program)
    )
    process = subprocess.Popen(
        [sys.executable, place.name, *arguments], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def _until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 4 * WITHIN_S
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)
