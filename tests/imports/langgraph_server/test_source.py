"""Threads of a real server, imported over LangGraph's API, compared, killed, repeated and gone on with.

Covers perdure.imports.langgraph_server.api, perdure.imports.langgraph_server.source,
perdure.imports.langgraph_server.states, perdure.imports.langgraph_server.steps.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar, NamedTuple

import httpx
import pytest
from langgraph.types import Command
from langgraph_sdk.client import SyncLangGraphClient

import perdure
from perdure.errors import BadUrl, NotAllowed, Unavailable
from perdure.imports.importer import Importer, ImportOptions, ThreadReport
from perdure.imports.kinds import SourceKind
from perdure.imports.langgraph_server import api
from perdure.imports.langgraph_server.api import ServerApi
from perdure.imports.langgraph_server.source import ServerSource
from tests.imports.killed import KilledImports
from tests.imports.langgraph_server import agent, servers

FULL = os.environ.get("PERDURE_CHAOS") == "full"
COUNT = 500 if FULL else 12
KILLS = 20
pytestmark = pytest.mark.timeout(3600 if FULL else 900)
GRAPHS = {"agent": agent.graph}


class Filled(NamedTuple):
    url: str
    client: SyncLangGraphClient
    threads: list[str]


@pytest.fixture(
    scope="module",
    params=servers.KINDS,
)
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    folder = servers.project(tmp_path_factory.mktemp("server"))
    with servers.served(request.param, folder) as url, servers.client_of(url) as client:
        yield Filled(url, client, servers.fill(client, COUNT))


@pytest.fixture
def db(tmp_path: Path) -> Iterator[perdure.SyncDatabase]:
    with perdure.connect_sync(f"sqlite:///{tmp_path / 'new.db'}", migrate=True) as opened:
        yield opened


def imported(url: str, db: perdure.SyncDatabase, graphs: Any = GRAPHS) -> dict[str, ThreadReport]:
    source = ServerSource(ServerApi(url), graphs)
    try:
        importer = Importer(source, db, ImportOptions())
        return {thread: importer.import_thread(thread) for thread in source.threads()}
    finally:
        source.close()


def states(db: perdure.SyncDatabase, thread: str) -> list[Any]:
    graph = agent.builder.compile(checkpointer=db.checkpointer())
    return list(graph.get_state_history({"configurable": {"thread_id": thread}}))


def test_histories_next_tasks_and_questions_are_equal_and_types_come_back(
    filled: Filled, db: perdure.SyncDatabase
) -> None:
    reports = imported(filled.url, db)
    assert set(reports) == set(filled.threads)
    assert {report.state for report in reports.values()} == {"imported", "unchanged"}
    for thread in filled.threads:
        theirs, ours = servers.history(filled.client, thread), states(db, thread)
        assert [s["checkpoint"]["checkpoint_id"] for s in theirs] == [
            s.config["configurable"]["checkpoint_id"] for s in ours
        ]
        for there, here in zip(theirs, ours, strict=True):
            parent = here.parent_config and here.parent_config["configurable"]["checkpoint_id"]
            assert (there["parent_checkpoint"] or {}).get("checkpoint_id") == parent
            assert there["metadata"] == here.metadata
            assert there["next"] == list(here.next)
            assert [(t["id"], t["name"], [i["id"] for i in t["interrupts"]]) for t in there["tasks"]] == [
                (t.id, t.name, [i.id for i in t.interrupts]) for t in here.tasks
            ]
            assert [m["content"] for m in there["values"].get("messages", ())] == [
                m.content for m in here.values.get("messages", ())
            ]
            if "seen" in there["values"]:
                assert (here.values["seen"], here.values["tags"]) == (agent.WHEN, {"a", "b"})
    again = imported(filled.url, db)
    assert {report.state for report in again.values()} == {"unchanged"}


AFTER = {
    "hello": ["hello", "you said hello"],
    "ask": ["answer yes"],
    "both": ["left", "right yes", "met"],
    "send": ["a", "b yes"],
    "inner": ["inner yes"],
    "tool": ["hello", "you said hello"],
}
"""What comes after an answer, or after another turn where nothing was asked."""


def test_every_question_can_be_answered_and_every_thread_goes_on(
    filled: Filled, db: perdure.SyncDatabase
) -> None:
    imported(filled.url, db)
    graph = agent.builder.compile(checkpointer=db.checkpointer())
    for thread, (word, after) in zip(filled.threads, AFTER.items(), strict=False):
        config: Any = {"configurable": {"thread_id": thread}}
        before = graph.get_state(config)
        assert before.interrupts or word in ("hello", "tool")
        given: Any = Command(resume="yes") if before.interrupts else servers.said("hello")
        found = graph.invoke(given, config)
        assert graph.get_state(config).next == ()
        said = [message.content for message in found["messages"][len(before.values["messages"]) :]]
        assert (said or found["notes"]) == after


def test_without_a_graph_threads_that_cannot_go_on_are_skipped_with_the_remedy(
    filled: Filled, db: perdure.SyncDatabase
) -> None:
    reports = imported(filled.url, db, None)
    for thread, word in zip(filled.threads, servers.WORDS, strict=False):
        report = reports[thread]
        if word in ("both", "send"):
            assert (report.state, "--graph" in report.why) == ("skipped", True)
            assert states(db, thread) == []
        else:
            assert report.state == "imported"
    graph = agent.builder.compile(checkpointer=db.checkpointer())
    config: Any = {"configurable": {"thread_id": filled.threads[servers.WORDS.index("ask")]}}
    assert graph.invoke(Command(resume="no"), config)["messages"][-1].content == "answer no"
    # With the graph the others follow.
    assert {report.state for report in imported(filled.url, db).values()} <= {
        "imported",
        "unchanged",
        "skipped",
    }
    assert len(states(db, filled.threads[servers.WORDS.index("send")])) == 3


def test_a_thread_that_went_on_at_the_server_is_brought_up_to_date(
    filled: Filled, db: perdure.SyncDatabase
) -> None:
    thread = filled.client.threads.create()["thread_id"]
    filled.client.runs.wait(thread, "agent", input=servers.said("both"))
    try:
        assert imported(filled.url, db)[thread].state == "imported"
        filled.client.runs.wait(thread, "agent", command={"resume": "later"})
        filled.client.runs.wait(thread, "agent", input=servers.said("hello"))
        assert imported(filled.url, db)[thread].state == "extended"
        found = states(db, thread)[0].values
        assert (found["notes"], len(found["messages"])) == (["left", "right later", "met"], 4)
    finally:
        filled.client.threads.delete(thread)


def test_killed_at_any_write_the_import_goes_on(filled: Filled, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path / 'killed.db'}"
    with perdure.connect_sync(target, migrate=True):
        pass
    ends = []
    with KilledImports() as children:
        for at in range(KILLS):
            status = children.run(
                SourceKind.LANGGRAPH_SERVER,
                filled.url,
                target,
                1 + at % 7,
                "after" if at % 2 else "before",
                writes=True,
            )
            ends.append(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)
    assert ends.count(signal.SIGKILL) >= KILLS // 2
    with (
        perdure.connect_sync(target) as db,
        perdure.connect_sync(f"sqlite:///{tmp_path / 'once.db'}", migrate=True) as once,
    ):
        imported(filled.url, db, None)
        imported(filled.url, once, None)
        for thread in filled.threads:
            assert states(db, thread) == states(once, thread)
        assert {report.state for report in imported(filled.url, db, None).values()} <= {
            "unchanged",
            "skipped",
        }


@pytest.mark.parametrize("answer", [None, 7, {"detail": "x"}, ["x"]])
def test_a_server_of_something_else_is_named(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    def reply(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=answer)

    monkeypatch.setattr(api, "BoundedTransport", lambda _: httpx.MockTransport(reply))
    server = ServerApi("http://source")
    for request in (server.threads, server.assistants, server.crons, server.items):
        with pytest.raises(Unavailable, match=r"check its URL|cannot be read"):
            list(request())
    with pytest.raises(Unavailable, match="something else than a list"):
        list(server.states("ada", ""))
    if answer != 7:
        with pytest.raises(Unavailable, match="cannot be read"):
            server.count()
    server.close()


class _Denies(BaseHTTPRequestHandler):
    """A server that refuses everybody, and notes who asked."""

    asked: ClassVar[list[tuple[str | None, str | None]]] = []

    def do_POST(self) -> None:
        self.asked.append((self.headers["Authorization"], self.headers["x-api-key"]))
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(403)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Log nothing."""


def test_a_server_that_is_away_or_refuses_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    away = ServerApi("http://me:secret@127.0.0.1:9")
    with pytest.raises(Unavailable, match=r"http://me@127\.0\.0\.1:9 cannot be read: Connect") as failed:
        list(away.threads())
    assert "secret" not in str(failed.value)
    monkeypatch.setenv("LANGGRAPH_API_KEY", "key")
    with HTTPServer(("127.0.0.1", 0), _Denies) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            api = ServerApi(f"http://127.0.0.1:{server.server_port}", {"Authorization": "Bearer word"})
            with pytest.raises(NotAllowed, match="LANGGRAPH_API_KEY"):
                list(api.threads())
            api.close()
        finally:
            server.shutdown()
            thread.join()
    assert _Denies.asked == [("Bearer word", "key")]
    with pytest.raises(BadUrl, match="reserved"):
        ServerApi("http://127.0.0.1:9", {"x-api-key": "other"})
    with pytest.raises(BadUrl, match="not the URL of a server"):
        ServerApi("ftp://127.0.0.1:9")
