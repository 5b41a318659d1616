"""Shell, settings, SQL and JSON in the documentation: every block of every page is run or checked.

Requests to a server of this machine are sent to a real one, and those of the examples' pages to the example.
Commands of ``perdure`` are read by its parser (``test_docs_commands``, which also types the README's list).
Of ``make`` and ``pip`` the targets and extras exist. Settings are read as a server reads them, SQL runs on
PostgreSQL. Other programs are listed with the reason why they are not run; bash parses their blocks.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import tomllib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psycopg
import pytest

from perdure.config.sources import read_file
from perdure.errors import BadSetting
from perdure.storage.url import open_driver
from tests.docs_pages import ROOT, SHELL, TUTORIALS, Block, all_blocks, commands, script
from tests.server.served_processes import process_of
from tests.servers import postgres
from tests.servers.ports import free_port
from tests.test_docs_code import AGENT

WITHIN_S = 120
LANGUAGES = {*SHELL, "python", "toml", "sql", "json", "text"}
"""``text`` is what a program prints, or a picture. Each other language has its test."""

ELSEWHERE = {
    "docker": "needs a daemon and a network; tests/deploy checks the files that it is given",
    "kubectl": "needs a cluster; tests/deploy checks the manifests",
    "openssl": "needs a program of the system; a random secret is made",
    "sqlite3": "needs a program of the system",
    "uvicorn": "runs until it is stopped; tests/server/test_embedding.py serves the application",
    "wrangler": "needs an account at Cloudflare",
    "python": "one line of the standard library",
    ".": "reads the script of an environment",
    "cat": "prints a file",
    "cd": "changes the folder",
    "echo": "prints",
    "export": "sets a variable",
    "git": "needs a repository that is published",
    "langgraph": "LangGraph's own server; tests/server/test_embedding.py loads a graph in it",
}
"""Programs that the pages show and the tests do not run, each with the reason."""
LOCAL = re.compile(r"curl [^\n]*(?:localhost|127\.0\.0\.1):\d")
"""Requests to this machine. Others need an account elsewhere."""

EXAMPLES = sorted(path.parent.name for path in (ROOT / "examples").glob("*/README.md"))


def shell_blocks() -> list[Block]:
    """Return the blocks that hold commands, but for those of a tutorial, which run as a whole."""
    return [block for block in all_blocks(*SHELL) if not (block.page in TUTORIALS and block.is_marked)]


def problem(words: list[str]) -> str | None:
    """Return what is wrong with a command, None if it can be typed."""
    program, *rest = words
    if program == "make":
        targets = re.findall(r"^([\w-]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        names = {word.removeprefix("NAME=") for word in rest if word.startswith("NAME=")}
        named = [word for word in rest if "=" not in word]
        wrong = [f"there is no target {name!r}" for name in named if name not in targets]
        return next(iter(wrong + [f"there is no example {name!r}" for name in names - set(EXAMPLES)]), None)
    if program in ("pip", "uv"):
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        named = [name for word in rest for name in re.findall(r"\[([\w,-]+)\]$", word)]
        known = {name for text in named for name in text.split(",")} - set(extras["optional-dependencies"])
        return f"there is no extra {', '.join(known)}" if known else None
    if program == "curl":
        return None  # A request to this machine is sent below; others need an account elsewhere.
    return (
        None
        if {program, Path(program).name} & {*ELSEWHERE, "perdure"}
        else f"{program!r} is neither run nor listed"
    )


@pytest.mark.parametrize("block", [pytest.param(block, id=block.name) for block in shell_blocks()])
def test_every_command_is_known(block: Block) -> None:
    text = script(block)
    parsed = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert (parsed.returncode, parsed.stderr) == (0, "")
    assert text.strip(), "a console block has no command after $"
    if block.page.startswith("examples/") and "make example" not in text:
        return  # It runs below.
    for words in commands(text):
        assert (wrong := problem(words)) is None, wrong


def test_a_command_that_there_is_not_is_found() -> None:
    text = (
        "A=1 make lnt && pip install 'perdure[servers]'  # twice\nmake example NAME=winged > log | cargo run"
    )
    assert [problem(words) for words in commands(text)] == [
        "there is no target 'lnt'",
        "there is no extra servers",
        "there is no example 'winged'",
        "'cargo' is neither run nor listed",
    ]
    assert problem(["make", "test"]) is problem(["pip", "install", "perdure[server,postgres]"]) is None


@pytest.mark.parametrize("block", [pytest.param(block, id=block.name) for block in all_blocks()])
def test_every_block_has_a_language_that_is_checked(block: Block) -> None:
    assert block.language in LANGUAGES, f"say which language it is, one of {', '.join(sorted(LANGUAGES))}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server in development with the graph ``agent``."""
    folder = tmp_path_factory.mktemp("server")
    (folder / "agent.py").write_text(AGENT, encoding="utf-8")
    with process_of(folder, "./agent.py:graph", "--dev") as address:
        yield address


@contextmanager
def application(place: str, folder: Path, **environ: str) -> Iterator[str]:
    """Serve an application of FastAPI's over a migrated database of SQLite; yield its address."""
    url, address = f"sqlite:///{folder / 'threads.db'}", f"127.0.0.1:{free_port()}"
    open_driver(url, migrate=True).close()
    flags = ["--factory"] if place.endswith(":create_app") else []
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", *flags, place, "--port", address.partition(":")[2]],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": f"{ROOT}", "PERDURE_DB": url, "DATABASE_URL": url, **environ},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        end = time.monotonic() + WITHIN_S
        while "startup complete" not in (folder / "log").read_text():
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < end, (folder / "log").read_text()
            time.sleep(0.05)
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(WITHIN_S)


def typed(text: str, folder: Path, address: str, **environ: str) -> str:
    """Type a script in bash, against a server's address in the place of the page's; return what it prints.

    A response of 400 or more ends it. What is installed and served already is passed over.
    """
    text = re.sub(r"(?:http://)?(?:localhost|127\.0\.0\.1):\d+", address, text)
    preface = (
        "set -eo pipefail\n"
        'curl() { command curl --silent --show-error --fail-with-body "$@"; }\n'
        "pip() { :; }\nuvicorn() { :; }\n"
    )
    done = subprocess.run(
        ["bash", "-c", preface + text.replace(".venv/bin/python", sys.executable)],
        cwd=folder,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=WITHIN_S,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


REQUESTS = [
    pytest.param(block, id=block.name)
    for block in shell_blocks()
    if not block.page.startswith("examples/") and LOCAL.search(block.code)
]


@pytest.mark.parametrize("block", REQUESTS)
def test_every_request_is_answered(block: Block, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if block.page == "docs/embedding.md":
        (app,) = (
            b.code for b in all_blocks("python") if b.page == block.page and '@app.post("/chat")' in b.code
        )
        (tmp_path / "app.py").write_text(app, encoding="utf-8")
        text = block.code.replace("postgresql://me@host/app", f"sqlite:///{tmp_path / 'threads.db'}")
        with application("app:app", tmp_path, LANGGRAPH_DEV="true") as address:
            assert "message" in typed(text, tmp_path, address)
        return
    server = request.getfixturevalue("server")
    hello = {"assistant_id": "agent", "input": {"messages": [{"role": "user", "content": "hello"}]}}
    thread_id = httpx.post(f"{server}/threads", json={}).raise_for_status().json()["thread_id"]
    httpx.post(f"{server}/threads/{thread_id}/runs/wait", json=hello).raise_for_status()
    httpx.put(f"{server}/threads/{thread_id}/tags/approved", json={}).raise_for_status()
    text = "\n".join(line for line in script(block).splitlines() if not line.startswith("perdure "))
    assert typed(text.replace("my-thread", thread_id), tmp_path, server, ID=thread_id)


def test_a_request_that_is_refused_is_noticed(server: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="404"):
        typed("curl localhost:2024/thread", tmp_path, server)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_commands_of_an_example_are_answered(name: str, tmp_path: Path) -> None:
    page = f"examples/{name}/README.md"
    texts = [
        block.code for block in all_blocks(*SHELL) if block.page == page and "make example" not in block.code
    ]
    assert texts
    with application(f"examples.{name}.app:create_app", tmp_path, MOVIES_SECRET="s" * 32) as address:
        lines = "\n".join(texts).splitlines()
        assert typed("\n".join(line for line in lines if not line.startswith("perdure ")), ROOT, address)


@pytest.mark.parametrize("block", [pytest.param(block, id=block.name) for block in all_blocks("toml")])
def test_the_settings_of_a_page_are_known(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "perdure.toml"
    file.write_text(block.code, encoding="utf-8")
    assert read_file(file).entries


def test_a_setting_that_there_is_not_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "perdure.toml"
    file.write_text("[retention]\nkeep_lst = 50\n", encoding="utf-8")
    with pytest.raises(BadSetting, match="keep_last"):
        read_file(file)


@pytest.mark.parametrize("block", [pytest.param(block, id=block.name) for block in all_blocks("json")])
def test_json_is_valid(block: Block, tmp_path: Path) -> None:
    json.loads(block.code)
    if 'title="langgraph.json"' in block.info:
        file = tmp_path / "langgraph.json"
        file.write_text(block.code, encoding="utf-8")
        layer = read_file(file)
        assert layer.entries
        assert not layer.ignored


def test_the_sql_of_a_page_runs_on_postgresql() -> None:
    blocks = all_blocks("sql")
    assert blocks
    name = f"docs_{uuid.uuid4().hex}"
    with psycopg.connect(postgres.shared().url(), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
    url = postgres.shared().url(name)
    open_driver(url, migrate=True).close()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE ROLE app")
        for block in blocks:
            connection.execute(block.code.encode())
        connection.rollback()
