"""Worker processes that are told what to do by a server's files and variables."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.model.runs.messages import DONE, READY, SENT
from tests.cli.conftest import Run_
from tests.cli.processes import LEASE, Workers
from tests.server.receiving import begun, notices, opened, receiving

NO_SERVER = ("fastapi", "starlette", "uvicorn", "sse_starlette", "jwt", "dotenv")
"""What the extra ``server`` brings, and nothing else does."""

TELLING = """
import os

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph


async def tell(state, *, store):
    await store.aput(("told",), "word", {"said": state["messages"][-1].content})
    return {"messages": [AIMessage(os.environ.get("WORD", "no word"))]}


graph = StateGraph(MessagesState).add_node("tell", tell).add_edge(START, "tell")
"""


def own(workers: Workers, text: str, folder: Path | None = None) -> Path:
    path = (folder or workers.folder) / "perdure.toml"
    path.write_text(text)
    return path


def answered(workers: Workers, thread: str, graph: str) -> str:
    (run,) = workers.wait(workers.accept((thread, f"hi {thread}"), graph=graph), graph)
    assert (run.state, run.note.get("error")) == (DONE, None)
    return workers.said(thread)[-1]


def test_without_graphs_it_works_as_a_server_is_configured(workers: Workers) -> None:
    (workers.folder / "telling.py").write_text(TELLING)
    (workers.folder / ".env").write_text(f"DATABASE_URL={workers.url}\nWORD=from the file\n")
    own(
        workers,
        f"""
        env = ".env"
        [graphs]
        desk = "./telling.py:graph"
        echo = {{ path = "app:graph", description = "Says it again" }}
        [runtime]
        drain = 7
        poll = 0.1
        lease = {LEASE}
        """,
    )
    process = workers.ready()
    assert answered(workers, "a", "desk") == "from the file"
    assert answered(workers, "b", "echo") == "echo hi b"
    process.send_signal(signal.SIGTERM)
    assert workers.ended(process) == 0
    log = workers.log(process)
    assert "configured by perdure.toml, DATABASE_URL\n" in log
    assert "runs desk, echo on sqlite:///" in log
    assert "ends within 7 s" in log


@pytest.mark.parametrize(("words", "drain"), [((), 5), (("--drain", "3"), 3)])
def test_a_flag_wins_over_a_variable_over_the_file(
    workers: Workers, words: tuple[str, ...], drain: int
) -> None:
    own(
        workers,
        f'database_url = "{workers.url}"\n[graphs]\na = "app:graph"\n[runtime]\ndrain = 7\npoll = 0.1\n',
    )
    process = workers.ready("b=app:agent", *words, PERDURE_RUNTIME_DRAIN="5")
    assert answered(workers, "a", "b") == "echo hi a"
    process.send_signal(signal.SIGTERM)
    assert workers.ended(process) == 0
    assert f"ends within {drain} s" in workers.log(process)


def test_a_langgraph_json_that_is_named_is_the_project(workers: Workers, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "perdure.toml").write_text("nothing = 'of this is read'\n")
    held = {"graphs": {"a": "./app.py:graph"}, "novelty": 1, "dependencies": ["."]}
    (tmp_path / "langgraph.json").write_text(json.dumps(held))
    process = workers.ready(
        "--config",
        "../langgraph.json",
        "--channels",
        "app:channels",
        folder=elsewhere,
        DATABASE_URL=workers.url,
    )
    assert answered(workers, "a", "a") == "echo hi a"
    log = workers.log(process)
    assert "ignored: novelty in ../langgraph.json\n" in log
    assert "configured by ../langgraph.json, DATABASE_URL\n" in log


def test_who_comes_in_over_which_routes_is_not_its_matter(workers: Workers) -> None:
    own(
        workers,
        """
        [graphs]
        a = "app:graph"
        [auth]
        path = "./nowhere.py:auth"
        [auth.jwt]
        secret = "too short for a server"
        [http]
        app = "nowhere:app"
        port = 1
        [http.cors]
        allow_origins = ["*"]
        allow_credentials = true
        [limits]
        streams = 1
        """,
    )
    workers.ready("--poll", "0.1", PERDURE_DB=workers.url)
    assert answered(workers, "a", "a") == "echo hi a"


@pytest.mark.slow
def test_items_of_the_store_are_over_when_the_configuration_says(workers: Workers) -> None:
    (workers.folder / "telling.py").write_text(TELLING)
    process = workers.start("telling:graph")
    answered(workers, "a", "agent")
    assert [item.value for item in items(workers)] == [{"said": "hi a"}]
    process.send_signal(signal.SIGTERM)
    assert workers.ended(process) == 0
    own(workers, "[store.ttl]\ndefault_ttl = 0.01\n")
    workers.start("telling:graph")
    answered(workers, "b", "agent")
    workers.until(lambda: not items(workers))


def items(workers: Workers) -> list[Any]:
    with perdure.connect_sync(workers.url) as db:
        return list(db.store().search(("told",), refresh_ttl=False))


def test_in_development_it_has_a_server_s_database_and_makes_it(workers: Workers) -> None:
    own(workers, 'development = true\n[graphs]\na = "app:graph"\n')
    workers.ready()
    made = workers.folder / ".perdure"
    assert {"dev.db", ".gitignore"} <= {path.name for path in made.iterdir()}


def test_it_calls_webhooks_where_the_configuration_lets_it(workers: Workers) -> None:
    own(workers, '[graphs]\nchat = "app:graph"\n[http]\nwebhook_hosts = ["127.0.0.1"]\n')

    async def main() -> None:
        async with (
            receiving() as receiver,
            perdure.connect(workers.url) as database,
            opened(database, works=False) as accepting,
        ):
            run_id = await begun(accepting, receiver.url, "chat", "hi")
            await asyncio.to_thread(workers.ready, "--poll", "0.1", DATABASE_URL=workers.url)
            (told,) = await receiver.told()
            await notices(accepting, SENT)
        assert (told["run_id"], told["status"]) == (run_id, "success")

    asyncio.run(main())


def test_where_webhooks_are_off_it_leaves_them_to_others(workers: Workers) -> None:
    own(workers, '[graphs]\nchat = "app:graph"\n[http]\ndisable_webhooks = true\n')

    async def main() -> None:
        async with (
            receiving() as receiver,
            perdure.connect(workers.url) as database,
            opened(database, works=False) as accepting,
        ):
            await begun(accepting, receiver.url, "chat", "hi")
            process = await asyncio.to_thread(workers.ready, "--poll", "0.1", DATABASE_URL=workers.url)
            await notices(accepting, READY)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(workers.ended, process) == 0
            await notices(accepting, READY)
            assert receiver.calls == []

    asyncio.run(main())


# Without the server's extra


@pytest.mark.parametrize("is_in_file", [True, False])
def test_it_needs_nothing_that_a_server_needs(workers: Workers, is_in_file: bool) -> None:
    (workers.folder / "telling.py").write_text(TELLING)
    file = '[graphs]\nagent = "./telling.py:graph"\n[env]\nWORD = "from the table"\n[auth.jwt]\nleeway = 1\n'
    if is_in_file:
        own(workers, file)
    words = () if is_in_file else ("telling:graph",)
    process = workers.ready(*words, "--poll", "0.1", "--db", workers.url, without=NO_SERVER)
    assert answered(workers, "a", "agent") == ("from the table" if is_in_file else "no word")
    assert "webhook" not in workers.log(process)


def test_it_says_when_it_could_call_no_webhook_that_is_wanted(workers: Workers) -> None:
    process = workers.ready(
        "app:graph",
        without=NO_SERVER,
        DATABASE_URL=workers.url,
        PERDURE_HTTP_WEBHOOK_HOSTS="hooks.internal",
    )
    assert (
        "no webhook is called from here, although hosts are allowed: perdure.server needs an extra: pip "
        in (workers.log(process))
    )


def test_an_env_file_without_its_reader_stops_it(workers: Workers) -> None:
    (workers.folder / ".env").write_text("WORD=1\n")
    own(workers, 'env = ".env"\n')
    said = workers.refused("app:graph", "--db", workers.url, without=NO_SERVER)
    assert said == f'{workers.folder / ".env"} needs an extra to be read: pip install "perdure[server]"'


# What stops it


@pytest.mark.parametrize(
    ("text", "words", "mend"),
    [
        ("", (), "which graph? Pass a place, e.g. perdure worker app:graph, or list graphs in perdure.toml"),
        ("[runtime]\nlaese = 1\n", ("broken_app:graph",), "did you mean runtime.lease?"),
        ("[http]\nport = 'x'\n", ("broken_app:graph",), "http.port in perdure.toml is 'x'; it has to be"),
        ("[graphs]\na = 'nowhere:graph'\n", (), "nowhere:graph: there is no module 'nowhere'"),
        ("", ("broken_app:graph", "--config", "none.toml"), "none.toml cannot be read: No such file"),
        ("database_url = 'memory://'\n", ("broken_app:graph",), "no message would ever get here"),
        ("", ("broken_app:graph", "--metrics-host", "::1"), "no port is set for them; set metrics.port"),
    ],
)
def test_what_cannot_work_stops_it_with_one_sentence(
    perdure_worker: Run_, text: str, words: tuple[str, ...], mend: str
) -> None:
    Path("perdure.toml").write_text(text)
    db = () if "database_url" in text else ("--db", "sqlite:///ready.db")
    code, out, err = perdure_worker(*words, *db)
    assert (code, out) == (1, "")
    *logged, last = err.splitlines()
    assert all("perdure.worker: configured by perdure.toml" in line for line in logged)
    assert last.startswith("perdure: ")
    assert mend in last
