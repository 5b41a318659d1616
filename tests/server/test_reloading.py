"""Reload of a project that ``perdure dev`` serves.

Covers perdure.cli.dev.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from watchfiles import Change, watch

from perdure.server.hosting import reloading
from tests.server.browsing import answered, ask, bodies, browsing
from tests.server.developing import Development, developing

if TYPE_CHECKING:
    from playwright.sync_api import Browser

AGENT = """\
import asyncio
import os
import pathlib
import time

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from words import WORD

HERE = pathlib.Path(__file__).parent


def note(line):
    with (HERE / "notes").open("a") as file:
        file.write(line + "\\n")


def prepare(state: MessagesState):
    note("prepared")


async def answer(state: MessagesState):
    text = state["messages"][-1].text
    note("answers")
    while text == "wait" and not (HERE / "go").exists():
        await asyncio.sleep(0.02)
    while text == "block" and not (HERE / "go").exists():
        await asyncio.to_thread(time.sleep, 1000)
    return {"messages": [AIMessage(f"{WORD} {os.environ.get('NAME', '')}")]}


builder = StateGraph(MessagesState).add_node(prepare).add_node(answer)
graph = builder.add_edge(START, "prepare").add_edge("prepare", "answer").compile()
"""
LANGGRAPH = '{"dependencies": ["../shared"], "graphs": {"agent": "./agent.py:graph"}, "env": ".env"}'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a module of another folder."""
    made, shared = tmp_path / "project", tmp_path / "shared"
    made.mkdir()
    shared.mkdir()
    (made / "agent.py").write_text(AGENT)
    (made / "unused.py").write_text("")
    (made / "langgraph.json").write_text(LANGGRAPH)
    (shared / "words.py").write_text('WORD = "one"\n')
    return made


def notes(project: Path) -> list[str]:
    path = project / "notes"
    return path.read_text().splitlines() if path.exists() else []


def answers(project: Path, count: int) -> bool:
    """Whether the answering node has begun so often."""
    return notes(project).count("answers") == count


def reloaded(server: Development, times: int) -> None:
    server.logs("Reloaded after a change of", times)


def test_an_open_run_goes_on_with_the_new_code(project: Path) -> None:
    words = project.parent / "shared" / "words.py"
    with developing(project) as server:
        assert server.ask("ada", "hello") == "one "
        run_id = server.accept("ada", "wait")
        server.until(lambda: notes(project).count("answers") == 2)
        # More often than a run is tried: none of these is an attempt that failed. The length stays.
        for number, word in enumerate(("two", "six", "ten", "tea", "toe", "old", "new"), 1):
            words.write_text(f'WORD = "{word}"\n')
            reloaded(server, number)
            server.until(partial(answers, project, 2 + number))
        (project / "go").touch()
        assert server.answer("ada", run_id) == "new "
        # What was done before the first reload stays done.
        assert notes(project).count("prepared") == 2
        assert f"change of {os.path.join('..', 'shared', 'words.py')}, in " in server.log


def test_configuration_and_variables_are_read_anew_and_other_files_do_not_matter(project: Path) -> None:
    with developing(project) as server:
        (project / "unused.py").write_text("UNUSED = 1\n")
        (project / "data.txt").write_text("data")
        (project / ".env").write_text("NAME=Ada\n")
        reloaded(server, 1)
        assert server.ask("ada", "hello") == "one Ada"
        (project / "langgraph.json").write_text(
            LANGGRAPH.replace('"agent": ', '"agent": "./agent.py:no", "b": ')
        )
        server.logs("Waiting for the next save")
        assert "module 'agent' has no 'no'; it has builder, graph" in server.log
        (project / "langgraph.json").write_text(LANGGRAPH)
        reloaded(server, 2)
        assert server.ask("ada", "hello") == "one Ada"
        assert "unused.py" not in server.log
        assert "data.txt" not in server.log


def test_an_error_of_an_edit_is_shown_and_the_next_save_waited_for(project: Path) -> None:
    words = project.parent / "shared" / "words.py"
    with developing(project) as server:
        words.write_text("WORD = (\n")
        server.logs("Waiting for the next save")
        shown = server.log.partition("./agent.py:graph cannot be loaded")[2]
        own, python = (
            shown.index(f'{project}/agent.py", line 9, in <module>'),
            shown.index("'(' was never closed\n"),
        )
        assert own < shown.index(f'{words}", line 1') < python < len(shown)
        assert "importlib" not in shown
        refused = server.request("GET", "/ready")
        assert refused.status_code == 503
        assert "terminal of perdure dev" in refused.json()["detail"]
        assert "WORD" not in refused.text
        # A module that is missing is waited for, too, in a folder that is missing.
        words.write_text("from more.of_them import WORD\n")
        server.logs("No module named 'more'")
        (project / "more").mkdir()
        time.sleep(0.5)
        (project / "more" / "of_them.py").write_text('WORD = "there"\n')
        reloaded(server, 1)
        assert server.ask("ada", "hello") == "there "
        assert server.interrupt() == 0
        assert server.log.endswith("Stopped. Every accepted run is stored.\n")
        assert "KeyboardInterrupt" not in server.log


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("./agnet.py:graph",), "/agnet.py; did you mean agent.py?"),
        (("nowhere:graph",), "nowhere:graph: there is no module 'nowhere'"),
        (("json.nowhere:graph",), "there is no module 'json.nowhere'"),
        (("./nowhere/agent.py:graph",), "nowhere/agent.py; check the path"),
        (("./langgraph.json:graph",), "is not a Python file"),
        (("my-agent:graph",), "is not a place to look"),
        (("./agent.py",), "'./agent.py' names no graph; write ./agent.py:graph"),
        ((), "./moved.py:graph: there is no file "),
    ],
)
def test_a_place_that_does_not_exist_ends_the_first_start(
    project: Path, words: tuple[str, ...], why: str
) -> None:
    if not words:
        (project / "langgraph.json").write_text(LANGGRAPH.replace("agent.py", "moved.py"))
    with developing(project, *words, is_ready=False) as server:
        assert server.process.wait(60) == 1
        assert server.log.startswith("perdure: ")
        assert why in server.log
        assert server.log.count("\n") == 1


def test_a_file_that_vanishes_later_is_waited_for(project: Path) -> None:
    with developing(project, "./agent.py:graph") as server:
        (project / "agent.py").rename(project / "away")
        server.logs("there is no file")
        server.logs("Waiting for the next save")
        (project / "away").rename(project / "agent.py")
        reloaded(server, 1)
        assert server.interrupt() == 0


def test_a_project_that_is_broken_from_the_start_is_served_once_it_is_mended(project: Path) -> None:
    (project / "agent.py").write_text("import os\nos._exit(7)\n")
    with developing(project, is_ready=False) as server:
        server.logs("ended with 7 while it loaded the project")
        (project / "agent.py").write_text(AGENT.replace("builder = ", "1 / 0\nbuilder = "))
        server.logs("ZeroDivisionError: division by zero")
        server.logs("Waiting for the next save")
        (project / "agent.py").write_text(AGENT)
        server.logs("watching the files")
        assert server.ask("ada", "hello") == "one "
        (project / "agent.py").write_text("import os\nos._exit(8)\n")
        server.logs("ended with 8 while it loaded the project")
        refused = server.request("GET", "/ready")
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        assert server.interrupt() == 0
        assert "server process [" not in server.log


@pytest.mark.slow
def test_a_node_that_blocks_holds_up_neither_a_reload_nor_its_run(project: Path) -> None:
    (project / "perdure.toml").write_text("[runtime]\nlease = 36000\n")
    with developing(project) as server:
        run_id = server.accept("ada", "block")
        server.until(lambda: notes(project).count("answers") == 1)
        (project / "go").touch()
        (project.parent / "shared" / "words.py").write_text('WORD = "freed"\n')
        reloaded(server, 1)
        assert server.answer("ada", run_id) == "freed "


@pytest.mark.slow
def test_a_process_that_is_killed_is_replaced_and_its_run_goes_on(project: Path) -> None:
    agent = project / "agent.py"
    agent.write_text(AGENT.replace('note("answers")', 'note(f"answers {os.getpid()}")'))
    (project / "perdure.toml").write_text("[runtime]\nlease = 36000\n")
    with developing(project) as server:
        run_id = server.accept("ada", "wait")
        server.until(lambda: notes(project)[1:])
        (project / "go").touch()
        os.kill(int(notes(project)[1].split()[1]), signal.SIGKILL)
        server.logs("another one starts")
        assert server.answer("ada", run_id) == "one "


@pytest.mark.slow
def test_a_page_reconnects_by_itself_and_shows_what_the_new_code_answers(
    project: Path, browser: Browser
) -> None:
    with developing(project) as server, browsing(browser) as page:
        page.goto(f"{server.url}/chat/")
        page.locator("#graph option").first.wait_for(state="attached")
        ask(page, "wait")
        server.until(lambda: notes(project).count("answers") == 1)
        (project.parent / "shared" / "words.py").write_text('WORD = "renewed"\n')
        reloaded(server, 1)
        (project / "go").touch()
        answered(page, 1)
        assert bodies(page) == ["wait", "renewed"]


def test_a_folder_in_which_something_is_written_all_the_time_is_watched_all_the_same(project: Path) -> None:
    is_over = threading.Event()

    def write() -> None:
        with (project / "app.log").open("a") as log:
            while not is_over.wait(0.02):
                log.write("line\n")
                log.flush()

    (project / "agent.py").write_text(f"{AGENT}\n(HERE / 'pid').write_text(str(os.getpid()))\n")
    writer = threading.Thread(target=write)
    writer.start()
    try:
        with developing(project) as server:
            run_id = server.accept("ada", "wait")
            server.until(partial(answers, project, 1))
            os.kill(int((project / "pid").read_text()), signal.SIGKILL)
            server.logs("another one starts")
            (project / "go").touch()
            assert server.answer("ada", run_id) == "one "
            (project.parent / "shared" / "words.py").write_text('WORD = "two"\n')
            reloaded(server, 1)
            (project / "agent.py").write_text(AGENT.replace("{WORD}", "{WORD}!"))
            reloaded(server, 2)
            assert server.ask("ada", "hello") == "two! "
    finally:
        is_over.set()
        writer.join()


def test_a_module_that_is_removed_as_soon_as_it_was_loaded_is_noticed(project: Path) -> None:
    extra = project / "extra.py"
    with developing(project) as server:
        for times in (1, 2, 3):
            extra.write_text("")
            (project / "agent.py").write_text(f"import extra  # {times}\n{AGENT}")
            reloaded(server, 2 * times - 1)
            extra.unlink()
            server.logs("Waiting for the next save", times)
            (project / "agent.py").write_text(AGENT)
            reloaded(server, 2 * times)


def test_a_file_that_is_saved_just_before_it_is_watched_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "agent.py"
    file.touch()
    began_ns = time.time_ns() - 1_000_000_000
    os.utime(file, ns=(began_ns, began_ns))

    def save_and_watch(*folders: str, **terms: Any) -> Iterator[set[tuple[Change, str]]]:
        file.write_text("graph = None")
        return watch(*folders, **terms)

    monkeypatch.setattr(reloading, "watch", save_and_watch)
    receiver, sender = multiprocessing.Pipe(duplex=False)
    stopping = threading.Event()
    limit = threading.Timer(10, stopping.set)
    limit.start()
    with receiver, sender:
        watching = reloading._Watching(receiver, {str(file)}, tmp_path, began_ns)
        try:
            found = watching.wait(multiprocessing.Process(), stopping, lambda _: stopping.set())
            assert found == (str(file),)
        finally:
            limit.cancel()


def test_a_database_in_memory_is_refused(project: Path) -> None:
    with developing(project, "--db", "memory://", is_ready=False) as server:
        assert server.process.wait(60) == 1
        assert "perdure dev needs a database that outlives a reload" in server.log
