"""The demo's process without a browser: one answer on the command line, ports, Ctrl-C and kill -9."""

from __future__ import annotations

import re
import socket
import subprocess
from pathlib import Path

import pytest

from tests.demo.process import command, free_port, need_the_parts, running, wait_for

LONG = "Tell me a very long story about a lighthouse keeper and the sea."

pytestmark = pytest.mark.timeout(360)


@pytest.fixture(autouse=True)
def _parts() -> None:
    need_the_parts()


def answer_once(database: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(database, *more), capture_output=True, text=True, timeout=150, check=False)


def test_once_prints_the_answer_and_nothing_else_to_stdout(tmp_path: Path) -> None:
    first = answer_once(tmp_path / "demo.db", "--once", "What is the capital of France?")
    assert first.returncode == 0, first.stderr
    assert first.stdout.strip()
    found = re.search(r"--thread (\w+)", first.stderr)
    assert found, first.stderr
    second = answer_once(tmp_path / "demo.db", "--thread", found[1], "--once", "And of Italy?")
    assert second.returncode == 0, second.stderr
    with running(tmp_path / "demo.db", free_port()) as demo:
        messages = demo.get(f"/api/threads/{found[1]}")["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant"] * 2
    assert [m["text"] for m in messages] == [
        "What is the capital of France?",
        first.stdout.rstrip("\n"),
        "And of Italy?",
        second.stdout.rstrip("\n"),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--once", "  "], "The message is empty"),
        (["--model", "nonsense", "--once", "Hello"], "provider:name"),
        (["--host", "192.0.2.1"], "Cannot listen on 192.0.2.1"),
    ],
)
def test_what_keeps_it_from_starting_is_said_in_a_sentence(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    ended = answer_once(tmp_path / "demo.db", *arguments)
    assert ended.returncode == 1
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_taken_port_is_said_and_another_one_used(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with running(tmp_path / "demo.db", port) as demo:
            assert f"Port {port} is taken" in demo.banner
            assert not demo.address.endswith(f":{port}")
            assert str(tmp_path / "demo.db") in demo.banner
            assert demo.get("/api/about")["model"].startswith("SmolLM2")
            assert demo.get("/api/threads") == {"threads": []}


def test_ctrl_c_in_the_middle_of_an_answer_loses_nothing(tmp_path: Path) -> None:
    with running(tmp_path / "demo.db", free_port()) as demo:
        demo.write("t", LONG)
        assert demo.get("/api/threads/t")["status"] == "answering"
        code, last = demo.interrupt()
    assert code == 0, last
    assert "Every accepted message is stored" in last
    assert "Traceback" not in last
    with running(tmp_path / "demo.db", free_port()) as demo:
        shown = demo.get("/api/threads/t")
        assert shown["status"] == "unfinished"
        assert [m["text"] for m in shown["messages"]] == [LONG]
        assert demo.interrupt()[0] == 0


def test_kill_9_at_each_of_several_answers_keeps_every_accepted_message(tmp_path: Path) -> None:
    asked = [f"{LONG} ({number})" for number in range(3)]
    for text in asked:
        with running(tmp_path / "demo.db", free_port()) as demo:
            demo.write("t", text)
            demo.kill()
    with running(tmp_path / "demo.db", free_port()) as demo:
        shown = demo.get("/api/threads/t")
        assert shown["status"] == "unfinished"
        assert [m["text"] for m in shown["messages"]] == asked
        demo.write("t", "And now something short.")
        wait_for("the answer", lambda: demo.get("/api/threads/t")["status"] == "finished")
        assert [m["role"] for m in demo.get("/api/threads/t")["messages"]] == ["user"] * 4 + ["assistant"]
