"""Ten tasks of a first day, each by programs of their own: they work, or their errors say what to do."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.firstday import programs
from tests.firstday.running import ENVIRONMENT, WITHIN_S, ended

PERDURE = Path(sys.executable).with_name("perdure")
ADVICE = (
    "say how to store it: db.checkpointer(codecs=[",
    "pass it: db.checkpointer(codecs=[",
    "keep an alias under the old name",
    "run `perdure migrate",
)
"""What an error tells its reader to do."""

pytestmark = pytest.mark.timeout(900)

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a program in the project's folder. It has to end well, unless an error is expected of it."""
    for name, text in (("models", programs.MODELS), ("common", programs.COMMON)):
        (tmp_path / f"{name}.py").write_text(text)

    def call(text: str, *args: str, fails: bool = False) -> subprocess.CompletedProcess[str]:
        (tmp_path / "program.py").write_text(text)
        return command(["program.py", *args], tmp_path, fails=fails)

    return call


def command(line: list[str], folder: Path, *, fails: bool = False) -> subprocess.CompletedProcess[str]:
    done = ended(line, folder)
    assert (done.returncode != 0) is fails, done.stdout + done.stderr
    return done


def advice(done: subprocess.CompletedProcess[str]) -> str:
    """The last line of a program that failed, which has to say what to do."""
    line = done.stderr.strip().splitlines()[-1]
    assert any(words in line for words in ADVICE), line
    return line


def test_an_agent_with_a_structured_answer(run: Run) -> None:
    assert run(programs.STRUCTURED, "ask").stdout == run(programs.STRUCTURED, "look").stdout == "2\n"


def test_a_state_that_is_a_model(run: Run) -> None:
    assert [run(programs.FORM).stdout for _ in range(2)] == ["1\n", "2\n"]


def test_an_enum(run: Run) -> None:
    assert [run(programs.MOODS).stdout for _ in range(2)] == ["False\n", "True\n"]


def test_a_data_frame(run: Run) -> None:
    error = advice(run(programs.FRAMES, "none", fails=True))
    assert "say how to store it: db.checkpointer(codecs=[perdure.Codec(DataFrame, dump, load)])" in error
    assert [run(programs.FRAMES, "codec").stdout for _ in range(2)] == ["6\n", "12\n"]
    assert "pass it: db.checkpointer(codecs=[…])" in advice(run(programs.FRAMES, "none", fails=True))


def test_two_graphs(run: Run) -> None:
    assert run(programs.TWO_GRAPHS).stdout == "left 1\nright 1\n"
    assert run(programs.TWO_GRAPHS).stdout == "left 3\nright 3\n"


def test_a_node_that_fails(run: Run) -> None:
    failed = run(programs.FAILING, "fail", fails=True)
    assert "RuntimeError: the node has a mistake" in failed.stderr
    assert failed.stdout == "paid\n"
    # What was paid for is not paid for again.
    assert run(programs.FAILING, "mended").stdout == "done\n"


def test_a_class_that_was_renamed_and_the_listing_after_it(run: Run, tmp_path: Path) -> None:
    listing = ["perdure", "threads", "ls", "--db", "sqlite:///threads.db"]
    assert "there is no file threads.db" in advice(command(listing, tmp_path, fails=True))
    run(programs.MOODS)
    run(programs.TWO_GRAPHS)
    models = tmp_path / "models.py"
    models.write_text(programs.MODELS.replace("Mood", "Temper"))
    renamed = programs.MOODS.replace("Mood", "Temper")
    error = advice(run(renamed, fails=True))
    assert "thread 'ada'" in error
    assert "models.Mood, which is not in this program" in error
    assert "keep an alias under the old name" in error
    assert run(programs.LISTING).stdout == "ada True\nleft True\nright True\n[]\n"
    listed = command(listing, tmp_path)
    assert all(name in listed.stdout for name in ("ada", "left", "right"))
    models.write_text(programs.MODELS.replace("Mood", "Temper") + "\nMood = Temper\n")
    assert run(renamed).stdout == "True\n"


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """A server of the project's graph, on a port that it took."""
    line = [str(PERDURE), "serve", "chat=./chat.py:graph", "--db", "sqlite:///threads.db", "--port", "0"]
    server = subprocess.Popen(
        line, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield _address(server)
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=WITHIN_S)


def _address(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    seen = []
    for line in server.stdout:
        seen.append(line)
        for word in line.split():
            if word.startswith("http://127.0.0.1:"):
                return word.rstrip("/.,;")
    raise AssertionError("".join(seen))


@pytest.mark.slow
def test_a_thread_of_the_library_in_the_server(run: Run, tmp_path: Path) -> None:
    (tmp_path / "chat.py").write_text(programs.SERVED)
    command(["chat.py"], tmp_path)
    with served(tmp_path) as url, httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
        state = http.get("/threads/ada/state")
        assert state.status_code == 200, state.text
        values = state.json()["values"]
        assert values["messages"][0]["content"] == "from the library"
        assert values["structured_response"] == {"name": "Ada", "mood": "calm"}
        more = {
            "assistant_id": "chat",
            "input": {"messages": [{"role": "user", "content": "from the server"}]},
        }
        answer = http.post("/threads/ada/runs/wait", json=more)
        assert answer.status_code == 200, answer.text
        assert [m["content"] for m in answer.json()["messages"]] == ["from the library", "from the server"]


def test_a_store_of_ten_thousand_items(run: Run) -> None:
    assert run(programs.STORE).stdout == "10 10\n"
