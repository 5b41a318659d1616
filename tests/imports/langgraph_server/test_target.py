"""Threads and items leave for a server with LangGraph's API, and go on there.

Covers perdure.imports.langgraph_server.target, perdure.cli.data.export_to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import perdure
from tests.forking import fork_server
from tests.imports import threads
from tests.imports.langgraph_server import agent, servers
from tests.servers import postgres

AFTER = {
    "hello": ["hello", "you said hello"],
    "ask": ["answer yes"],
    "both": ["left", "right yes", "met"],
    "send": ["a", "b yes"],
    "inner": ["inner yes"],
    "tool": ["hello", "you said hello"],
}


def export(folder: Path, *words: str) -> tuple[int, str]:
    asked = ["export", *words, "--db", "sqlite:///own.db"]
    return fork_server().run(asked, cwd=folder, environ=servers.ENVIRON)


def records(folder: Path, thread: str | None) -> None:
    """Store what a server has beside threads: an assistant, a cron without a thread, and one of a thread."""
    with (
        servers.served(servers.PERDURE, folder, f"sqlite:///{folder / 'own.db'}") as url,
        servers.client_of(url) as own,
    ):
        mine = own.assistants.create("agent", name="one", metadata={"mine": 1})["assistant_id"]
        own.assistants.update(mine, name="two")
        if thread is not None:
            own.crons.create_for_thread(thread, "agent", schedule="0 9 1 1 *", input=servers.said("hello"))
        own.crons.create(mine, schedule="5 9 1 1 *", input=servers.said("hello"), timezone="Europe/Prague")


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_aegra_gets_threads_whole_in_its_tables_and_the_rest_over_its_api(tmp_path: Path) -> None:
    folder = servers.project(tmp_path / "own")
    thread = str(uuid4())
    with perdure.connect_sync(f"sqlite:///{folder / 'own.db'}", migrate=True) as db:
        graph = agent.builder.compile(checkpointer=db.checkpointer())
        graph.invoke(servers.said("ask"), threads.config(thread))
    # A cron of the thread would start a run on it at once there, after which it is another one.
    records(folder, None)
    with (
        postgres.empty_database() as database,
        servers.served(servers.AEGRA, servers.project(tmp_path / "there"), database) as url,
        servers.client_of(url) as client,
    ):
        to = ("--all", "--to", url, "--graph", "agent")
        code, printed = export(folder, *to)
        assert (code, "without its state, as Aegra does" in printed) == (1, True), printed
        code, printed = export(folder, "--all", "--to", database)
        assert code == 0, printed
        for outcome in ("unchanged", "unchanged"):
            code, printed = export(folder, *to)
            assert (code, f"{thread}: {outcome}" in printed) == (0, True), printed
        assert "assistants: 1 unchanged\ncrons: 1 unchanged" in printed
        state: Any = client.threads.get_state(thread)
        assert [asked["value"] for asked in state["interrupts"]] == [{"question": "sure?"}]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "kind", [servers.PERDURE, pytest.param(servers.LANGGRAPH_DEV, marks=pytest.mark.slow)]
)
def test_threads_and_items_arrive_at_a_server_and_go_on(kind: str, tmp_path: Path) -> None:
    folder = servers.project(tmp_path / "own")
    made = {word: str(uuid4()) for word in servers.WORDS}
    with perdure.connect_sync(f"sqlite:///{folder / 'own.db'}", migrate=True) as db:
        graph = agent.builder.compile(checkpointer=db.checkpointer())
        for word, name in made.items():
            graph.invoke(servers.said(word), threads.config(name))
        changed = str(uuid4())
        graph.invoke(servers.said("hello"), threads.config(changed))
        graph.update_state(threads.config(changed), {"notes": ["changed"]})
        db.store().put(("users", "ada"), "likes", {"tea": 1})
    records(folder, made["hello"])
    with servers.served(kind, servers.project(tmp_path / "there")) as url, servers.client_of(url) as client:
        to = ("--to", url, "--graph", "agent")
        code, printed = export(folder, "--all", *to)
        assert (code, f"{changed!r} was not exported" in printed) == (1, True), printed
        code, printed = export(folder, *made.values(), *to)
        assert (code, printed.count(": unchanged")) == (0, len(made)), printed
        code, printed = export(folder, "--all", *to)
        assert (code, "assistants: 1 unchanged" in printed, "crons: 2 unchanged" in printed) == (
            1,
            True,
            True,
        ), printed
        assert {cron["thread_id"] for cron in client.crons.search()} == {None, made["hello"]}
        item: Any = client.store.get_item(("users", "ada"), "likes")
        assert item["value"] == {"tea": 1}
        for word, name in made.items():
            state = client.threads.get_state(name)
            run: dict[str, Any] = {"input": None if state["next"] else servers.said("hello")}
            found: Any = client.runs.wait(name, "agent", **run)
            if "__interrupt__" in found:
                # A question is asked again there by the first run.
                found = client.runs.wait(name, "agent", command={"resume": "yes"})
            said = [message["content"] for message in found["messages"]]
            assert (found.get("notes") or said[-len(AFTER[word]) :]) == AFTER[word]
        code, printed = export(folder, made["hello"], *to)
        assert (code, "differs at" in printed) == (1, True), printed


def test_the_command_writes_a_stock_saver_and_says_what_a_server_needs(tmp_path: Path) -> None:
    folder = servers.project(tmp_path / "own")
    with perdure.connect_sync(f"sqlite:///{folder / 'own.db'}", migrate=True) as db:
        agent.builder.compile(checkpointer=db.checkpointer()).invoke(
            servers.said("ask"), threads.config("ada")
        )
    code, printed = export(folder, "ada", "--to", "sqlite:///stock.db")
    assert (code, "ada: 3 checkpoints" in printed, "1 thread at sqlite:///stock.db" in printed) == (
        0,
        True,
        True,
    )
    code, printed = export(folder, "ada", "--to", "http://127.0.0.1:9")
    assert (code, "--graph agent=" in printed) == (1, True), printed
    code, printed = export(folder, "ada", "--to", "redis://127.0.0.1:9")
    assert (code, "sqlite:///FILE or postgresql://" in printed) == (1, True), printed
