"""The demo's process without a browser: one answer on the command line, ports, Ctrl-C and kill -9.

Covers perdure.cli.demo, perdure.demo.__main__, perdure.demo.one_message, perdure.demo.page_server,
perdure.demo.serve.
"""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
from pathlib import Path

import pytest

from tests.demo.process import command, need_the_parts, running, saying, wait_for
from tests.servers.ports import free_port
from tests.web.heads import is_cut_off

LONG = "Tell me a story of a lighthouse keeper and the sea."

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
    printed = first.stderr.partition("Go on with: ")[2].strip()
    second = subprocess.run(shlex.split(printed), capture_output=True, text=True, timeout=150, check=False)
    assert second.returncode == 0, second.stderr
    with running(tmp_path / "demo.db", free_port()) as demo:
        assert demo.threads() == [found[1]]
        messages = demo.said(found[1])
        assert is_cut_off(demo.address)
    assert [kind for kind, _ in messages] == ["human", "ai"] * 2
    assert [text for _, text in messages] == [
        "What is the capital of France?",
        first.stdout.rstrip("\n"),
        "And then?",
        second.stdout.rstrip("\n"),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--once", "  "], "The message is empty"),
        (["--model", "nonsense", "--once", "Hello"], "provider:name"),
        (["--host", "192.0.2.1"], "192.0.2.1:0 cannot be listened on"),
    ],
)
def test_what_keeps_it_from_starting_is_said_in_a_sentence(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    ended = answer_once(tmp_path / "demo.db", *arguments)
    assert ended.returncode == 1
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_a_taken_port_is_said_and_another_one_used(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with running(tmp_path / "demo.db", port) as demo:
            assert f"Port {port} is taken" in demo.banner
            assert not demo.address.endswith(f":{port}")
            assert str(tmp_path / "demo.db") in demo.banner
            assert demo.ask("GET", "/chat/about.json")["model"].startswith("SmolLM2")
            assert demo.threads() == []


@pytest.mark.slow
def test_ctrl_c_in_the_middle_of_an_answer_and_it_goes_on_at_the_next_start(tmp_path: Path) -> None:
    with running(tmp_path / "demo.db", free_port()) as demo:
        demo.write("t", LONG)
        assert demo.status("t") == "busy"
        code, last = demo.interrupt()
    assert code == 0, last
    assert "Every accepted message is stored" in last
    assert "continues when the demo is started again" in last
    assert "Traceback" not in last
    with running(tmp_path / "demo.db", free_port()) as demo:
        assert demo.said("t")[0] == ("human", LONG)
        wait_for("the answer", lambda: demo.status("t") == "idle")
        kinds = [kind for kind, _ in demo.said("t")]
        assert kinds[:1] == ["human"]
        assert kinds[1:] == ["ai"] * (len(kinds) - 1)
        assert 3 <= len(kinds) - 1 <= 5, "an outline and two to four paragraphs"
        code, last = demo.interrupt()
        assert code == 0, last
        assert "goes on" not in last


@pytest.mark.slow
def test_kill_9_at_each_of_several_answers_keeps_every_accepted_message(tmp_path: Path) -> None:
    asked = [f"Count from one to ten, number {number}." for number in range(2)]
    for text in asked:
        with running(tmp_path / "demo.db", free_port()) as demo:
            demo.ask("POST", "/threads/t/runs", json=saying(text))
            demo.kill()
    with running(tmp_path / "demo.db", free_port()) as demo:
        wait_for("the answers", lambda: demo.status("t") == "idle", 240)
        said = demo.said("t")
        assert [kind for kind, _ in said] == ["human", "ai"] * 2
        assert [text for _, text in said[::2]] == asked
