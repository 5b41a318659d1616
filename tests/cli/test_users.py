"""What users use, as a shell sees it, and that nothing of a removed one is left."""

from __future__ import annotations

import asyncio
import io
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure.database.base import handle_of
from perdure.engine import documents, versioned_documents
from perdure.engine.queue import crons
from perdure.limits import SharedLimit
from perdure.memory import Memory
from perdure.memory.memory import find_roots
from perdure.model.ops import Commit
from perdure.model.program import ask
from perdure.model.records import CHAT_SESSIONS, SERVER, Partition
from perdure.model.runs.messages import Message
from perdure.runtime import Runtime
from perdure.runtime.agent_memory.memory_turns import MEMORY, lane_of
from perdure.runtime.limits.limiter import CallTurn, limiter_of
from tests.cli.test_operations import EVIL, Shell, shell

__all__ = ["shell"]

ASSISTANTS = Partition("", "assistants", SERVER)


def _answer(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage("fine")]}


def talk(*said: tuple[Any, str, str], later: Any = None, tenant: str = "") -> None:
    """Let messages of users be answered, and leave one of the user ``later`` for another time."""

    async def go() -> None:
        builder = StateGraph(MessagesState).add_node("answer", _answer).add_edge(START, "answer")
        async with (
            perdure.connect("sqlite:///threads.db", tenant=tenant, migrate=True) as database,
            Runtime(database, builder.compile(), observers=()) as runtime,
        ):
            for user, thread, text in said:
                config = {"configurable": {} if user is None else {"user_id": user}}
                await runtime.wait(await runtime.accept(thread, text, config=config), 60)
            if later is not None:
                config = {"configurable": {"user_id": later}}
                await runtime.submit(f"later of {later}", {"messages": []}, config=config, delay=3600)
                await runtime.accept(f"soon of {later}", "hello", config=config, debounce=1000, max_wait=1000)

    asyncio.run(go())


def test_users_are_listed_with_what_they_use(shell: Shell) -> None:
    talk(("ada", "a", "1"), (EVIL, "b", "1"), ("ada", "c", "1"))
    rows = shell("users", "ls", "--json").rows
    assert [(row["user"], row["runs"], row["failed"]) for row in rows] == [("ada", 2, 0), (EVIL, 1, 0)]
    listed = shell("users", "ls", "--last", "hour")
    assert "ada" in listed.stdout
    assert "\x1b" not in listed.stdout


def test_nothing_of_a_removed_user_is_left(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    talk(("ada", "a1", "1"), ("ada", "a2", "1"), ("bob", "b", "1"), later="ada")
    with perdure.connect_sync("sqlite:///threads.db") as database:
        for user in ("ada", "bob"):
            Memory(database.store(), user).remember("Likes tea.")
            Memory(database.store(), user, root=("notes", "of")).remember("Likes cake.")
            database.store().put((user, "facts"), "own", {"of": "the application"})
            body = {"thread_id": None, "user": {"identity": user}}
            new = crons.Due(body, None)
            handle_of(database).run(crons.create(crons.place(""), f"cron of {user}", new, 1, 1))
            assistant = {"graph_id": "agent", "metadata": {}, "config": {"configurable": {"user_id": user}}}
            new_assistant = versioned_documents.create(ASSISTANTS, "assistant", f"of {user}", assistant, 1, 1)
            handle_of(database).run(new_assistant)

    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    kept = shell("users", "delete", "ada")
    assert kept.code == 1
    assert "Nothing was removed. Pass --yes" in kept.stderr
    # A server has the file open meanwhile, so that no end of the last process empties the log.
    with perdure.connect_sync("sqlite:///threads.db"):
        (done,) = shell("users", "delete", "ada", "--yes", "--json").rows
        assert Path("threads.db-wal").stat().st_size == 0
    assert done == {"user": "ada", "threads": 4, "crons": 1, "assistants": 1, "entries": 2, "shared": []}

    with perdure.connect_sync("sqlite:///threads.db") as database:
        assert {each.thread_id for each in database.threads()} == {"b"}
        assert find_roots(database.store(), "ada") == []
        assert find_roots(database.store(), "bob") == [("memories",), ("notes", "of")]
        assert database.store().get(("ada", "facts"), "own") is not None
        left = handle_of(database).run(crons.read_all_crons(crons.place("")))
        assistants = handle_of(database).run(versioned_documents.read_all_current(ASSISTANTS, "assistant"))
    assert [assistant.name for assistant in assistants] == ["of bob"]
    assert [cron.id for cron in left] == ["cron of bob"]
    again = shell("users", "delete", "ada", "--yes")
    assert again.stdout == (
        "ada: 0 threads, 0 crons and 0 assistants removed, nothing was known\n"
        "`perdure users show ada` names what stays, such as items in the store.\n"
    )
    assert "later" not in shell("runs", "stop", "--all").stdout


def test_what_is_stored_of_a_user_is_what_is_removed_and_what_stays(shell: Shell) -> None:
    talk(("ada", "a1", "1"), ("ada", "a1", "2"), ("ada", "both", "1"), ("bob", "both", "1"), later="ada")
    with perdure.connect_sync("sqlite:///threads.db") as database:
        store = database.store()
        Memory(store, "ada").remember("Likes tea.")
        for user in ("ada", "bob"):
            store.put(("drafts", user), "own", {"of": "the application"})
            store.put(("notes", user), "gone", {"of": "the application"})
            store.delete(("notes", user), "gone")
            turn = Message("turn", {"input": {"user": user}}, MEMORY, seq=1, accepted_at=1)
            handle_of(database).run(ask(Commit(Partition("", lane_of(user)), (turn.put(),))))
        new = crons.Due({"thread_id": None, "user": {"identity": "ada"}}, None)
        handle_of(database).run(crons.create(crons.place(""), "cron of ada", new, 1, 1))
    *threads, rest = shell("users", "show", "ada", "--json").rows
    found = {row["thread_id"]: row for row in threads}
    assert found.keys() == {"a1", "both", "soon of ada"}
    assert (found["a1"]["runs"], found["a1"]["others"]) == (2, [])
    assert found["both"]["others"] == ["bob"]
    assert rest["bytes"] == found["a1"]["bytes"] + found["soon of ada"]["bytes"] > 0
    assert (rest["threads"], rest["shared"], rest["runs"]) == (2, 1, 2)
    assert (rest["crons"], rest["assistants"], rest["unlisted"]) == (["cron of ada"], [], ["later of ada"])
    assert (rest["entries"], rest["items"], rest["sessions"]) == (1, 1, 0)
    assert (rest["turns"], rest["names"]) == (1, 1)
    shown = shell("users", "show", "ada").stdout
    assert "both  stays, as it is also of bob\n" in shown
    assert "stays: 1 shared thread, 1 item in the store, 0 states of limits\n" in shown
    assert '  1 item in the namespace ["drafts", "ada"], for your program to remove\n' in shown
    assert rest["namespaces"] == [{"namespace": ["drafts", "ada"], "items": 1}]
    assert "memories: 1, 1 turn for their extraction, 1 empty namespace, sessions of 0 chats\n" in shown
    recent = shell("users", "show", "ada", "--since", "2020-01-01", "--json").rows
    # A thread whose first message waits has no time, and ends no search.
    assert {row["thread_id"] for row in recent[:-1]} == {"a1", "both"}
    assert [
        row["thread_id"] for row in shell("threads", "ls", "--since", "1h", "-n", "9", "--json").rows
    ] == [row["thread_id"] for row in recent[:-1]]
    assert len(shell("runs", "ls", "--since", "1h", "--json").rows) == 4
    assert len(shell("users", "show", "ada", "--since", "2999-01-01", "--json").rows) == 1
    (done,) = shell("users", "delete", "ada", "--yes", "--json").rows
    # The same counts, as both are made from the same.
    assert done["threads"] == rest["threads"] + len(rest["unlisted"])
    assert (done["crons"], done["entries"], done["shared"]) == (1, rest["entries"], ["both"])
    *left, rest = shell("users", "show", "ada", "--json").rows
    assert [row["thread_id"] for row in left] == ["both"]
    stays = {"user": "ada", "shared": 1, "items": 1}
    apart = ("namespaces", "usage")
    assert {name: value for name, value in rest.items() if value and name not in apart} == stays
    (*_, bobs) = shell("users", "show", "bob", "--json").rows
    assert (bobs["turns"], bobs["names"], bobs["items"]) == (1, 1, 1)


def test_a_user_has_the_costs_of_threads_and_the_states_of_limits(shell: Shell) -> None:
    usage: Any = {"input_tokens": 1000, "output_tokens": 10, "total_tokens": 1010}

    async def go() -> None:
        def answer(state: MessagesState) -> dict[str, Any]:
            about = {"model_name": "large"}
            return {"messages": [AIMessage("fine", usage_metadata=usage, response_metadata=about)]}

        graph = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").compile()
        async with (
            perdure.connect("sqlite:///threads.db", migrate=True) as database,
            Runtime(database, graph, observers=()) as runtime,
        ):
            for user, thread in (("ada", "a"), ("ada", "both"), ("bob", "both")):
                config = {"configurable": {"user_id": user}}
                await runtime.wait(await runtime.accept(thread, "hello", config=config), 60)
            limiter = limiter_of(handle_of(database))
            limiter.declare({"daily": SharedLimit(by=("user",), budget=5.0)})
            for name in ("ada", "bob"):
                turn = CallTurn([("daily", {"user": name}, name)])
                await limiter.acquire(turn, "", 20)
                limiter.end(turn, tokens=1, cost=1_000_000)

    asyncio.run(go())
    Path("perdure.toml").write_text("[prices.models.large]\ninput = 1000\noutput = 0\n", encoding="utf-8")
    shown = shell("users", "show", "ada").stdout
    assert "bytes  a  cost 1 USD\n" in shown
    assert "bytes  both  cost 2 USD  stays, as it is also of bob\n" in shown
    assert "tokens in these threads: 1,000 in, 10 out, in 1 call; cost 1 USD\n" in shown
    assert "0 items in the store, 1 state of limits\n" in shown
    assert "  `perdure limits reset daily --key user=ada` empties this state\n" in shown
    *threads, rest = shell("users", "show", "ada", "--json").rows
    assert {row["thread_id"]: row["usage"]["cost"] for row in threads} == {"a": 1.0, "both": 2.0}
    assert rest["limits"] == [{"limit": "daily", "key": {"user": "ada"}}]


def test_the_sessions_of_a_chat_are_those_of_its_users(shell: Shell) -> None:
    talk(("telegram:7", "a", "1"))
    with perdure.connect_sync("sqlite:///threads.db") as database:
        for chat in ("telegram:7::", "telegram:7:3:", "telegram:70::", "telegram:-1:7:"):
            place = Partition("", f"{CHAT_SESSIONS}{chat}", SERVER)
            handle_of(database).run(documents.change(place, "channel", "sessions", lambda _: {}, 1, 1))
    for user, count in (("telegram:7", 2), ("telegram", 0), ("telegram:-1:7", 1)):
        assert shell("users", "show", user, "--json").rows[-1]["sessions"] == count


def test_a_log_that_is_in_use_is_named(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    talk(("ada", "a1", "1"))
    monkeypatch.setattr("perdure.storage.sqlite.driver._CUT_MS", 20)
    with closing(apsw.Connection("threads.db")) as reader:
        reader.execute("BEGIN; SELECT * FROM perdure_thread").fetchall()
        done = shell("users", "delete", "ada", "--yes")
    assert done.stdout.startswith("ada: 1 thread")
    assert "what was removed stays in its log" in done.stderr


def test_a_user_whose_id_is_a_number_is_found_by_every_command_and_removed(shell: Shell) -> None:
    talk((42, "a", "1"), ("42", "b", "1"), (43, "c", "1"), later=42)
    rows = shell("users", "ls", "--json").rows
    assert {(row["user"], row["runs"]) for row in rows} == {("42", 2), ("43", 1)}
    listed = shell("threads", "ls", "--user", "42", "--json").rows
    assert {row["thread_id"] for row in listed} == {"a", "b", "soon of 42"}
    (done,) = shell("users", "delete", "42", "--yes", "--json").rows
    assert (done["user"], done["threads"]) == ("42", 4)
    with perdure.connect_sync("sqlite:///threads.db") as database:
        assert {each.thread_id for each in database.threads()} == {"c"}


def test_a_thread_is_removed_with_the_only_user_of_its_runs_and_stays_with_several(shell: Shell) -> None:
    talk(("ada", "reminded", "1"), (None, "reminded", "a reminder"))
    talk(("ada", "shared", "1"), ("ada", "shared", "2"), ("bob", "shared", "a colleague helps"))
    for user, removed, other in (("bob", 0, "ada"), ("ada", 1, "bob")):
        done = shell("users", "delete", user, "--yes")
        assert f"{removed} thread" in done.stderr + done.stdout
        assert f"shared stays, as it is also of {other}\n" in done.stderr + done.stdout
    assert [row["thread_id"] for row in shell("threads", "ls", "--json").rows] == ["shared"]
    assert shell("users", "delete", "ada", "--yes", "--json").rows[0]["shared"] == ["shared"]


def test_threads_of_a_user_are_those_of_any_of_its_runs(shell: Shell) -> None:
    """One rule finds threads for a search, and for the removal of the user."""
    talk(("ada", "shared", "1"), ("ada", "shared", "2"), ("bob", "shared", "3"), ("eve", "other", "1"))
    talk(("ada", "own", "1"), (None, "own", "a reminder"))
    for user, threads in (("ada", {"own", "shared"}), ("bob", {"shared"}), ("nobody", set())):
        rows = shell("threads", "ls", "--user", user, "--json").rows
        assert {row["thread_id"] for row in rows} == threads
        assert all(row["users"] == ["ada", "bob"] for row in rows if row["thread_id"] == "shared")
    listed = shell("threads", "ls", "--user", "ada").stdout
    assert "shared  of ada, bob\n" in listed
    assert "own  of ada\n" in listed
    assert len(shell("runs", "ls", "--user", "ada", "--prefix", "shared", "--json").rows) == 2
    assert len(shell("runs", "ls", "--user", "bob", "--json").rows) == 1


def test_threads_and_runs_are_found_by_their_graph(shell: Shell) -> None:
    talk(("ada", "a", "1"))
    (run,) = shell("runs", "ls", "--json").rows
    for name, count in ((run["graph"], 1), ("other", 0)):
        assert len(shell("threads", "ls", "--graph", name, "--json").rows) == count
        assert len(shell("runs", "ls", "--graph", name, "--json").rows) == count


def test_a_user_of_a_tenant_is_not_said_to_have_nothing(shell: Shell) -> None:
    talk(("ada", "a1", "1"), tenant="acme")
    refused = shell("users", "delete", "ada", "--yes")
    assert refused.code == 1
    assert "pass --tenant acme" in refused.stderr
    with perdure.connect_sync("sqlite:///threads.db", tenant="acme") as database:
        assert [each.thread_id for each in database.threads()] == ["a1"]
        Memory(database.store(), "eve").remember("Likes tea.")
    assert "pass --tenant acme" in shell("users", "delete", "eve", "--yes").stderr
    assert shell("users", "delete", "bob", "--yes").stdout.startswith("bob: 0 threads")
    assert "pass --tenant acme" in shell("users", "show", "ada").stderr
    (done,) = shell("users", "delete", "ada", "--yes", "--tenant", "acme", "--json").rows
    assert done["threads"] == 1
