"""A thread's queue as a shell sees it: messages, runs, replies, what was given up, and another try."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

import perdure
from perdure.database.base import handle_of
from perdure.engine import complete_reads
from perdure.engine.queue import inbox
from perdure.model.records import Partition
from perdure.model.runs.messages import DEAD, DONE, READY, SENT, UNKNOWN, Reply
from perdure.runtime import Channel, NotSent, Runtime, Settings, Undeliverable
from tests.cli.running import run_cli

WITHIN = 60.0


class Done(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stdout.splitlines()]


Shell = Callable[..., Done]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shell:
    """Run ``perdure threads …`` on ``threads.db`` in an empty folder, in this process."""
    monkeypatch.chdir(tmp_path)
    for name in ("DATABASE_URL", "PERDURE_TENANT", "PERDURE_KEYS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PERDURE_DB", "sqlite:///threads.db")

    def run(*words: str) -> Done:
        return Done(*run_cli(monkeypatch, capfd, "threads", *words))

    return run


def answer(state: MessagesState) -> dict[str, Any]:
    said = state["messages"][-1].text
    if said == "fail":
        raise RuntimeError("the model is [gone]")
    if said == "fail at length":
        raise RuntimeError("the model\nis gone " * 500)
    if said == "ask":
        interrupt("really?")
    return {"messages": [AIMessage(f"answer to {said}")]}


async def send(thread: str, reply: Reply) -> str | None:
    if thread == "refused":
        raise Undeliverable("no such chat")
    if thread == "doubtful":
        raise TimeoutError("no answer")
    if thread == "late":
        raise NotSent("try later")
    return f"post-{reply.seq}"


async def served(
    go: Callable[[Runtime], Awaitable[Any]], *, works: bool = True, tenant: str = "", **settings: Any
) -> None:
    graph = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()
    async with (
        perdure.connect("sqlite:///threads.db", migrate=True, tenant=tenant) as db,
        Runtime(
            db,
            graph,
            channels={"post": Channel(send), "held": Channel(send, in_doubt="hold")},
            settings=Settings(attempts=1, poll=0.1, **settings),
            works=works,
        ) as runtime,
    ):
        await go(runtime)


def is_settled(reply: Reply) -> bool:
    return reply.state in (SENT, DEAD, UNKNOWN)


def talk(*said: tuple[str, str], channel: str = "post", tenant: str = "") -> None:
    """Messages that are answered, one after the other, their replies settled."""

    async def go(runtime: Runtime) -> None:
        for thread, text in said:
            await runtime.wait(await runtime.accept(thread, text, channel=channel), WITHIN)
            async with asyncio.timeout(WITHIN):
                # Whoever settles them tells nobody.
                while not all(map(is_settled, await runtime.replies(thread))):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

    asyncio.run(served(go, tenant=tenant))


def leave(*said: tuple[str, str], channel: str = "post", options: Mapping[str, Any] | None = None) -> None:
    """Messages that nobody works on."""

    async def go(runtime: Runtime) -> None:
        for thread, text in said:
            await runtime.accept(thread, text, channel=channel, **(options or {}))

    asyncio.run(served(go, works=False))


def test_the_inbox_lists_messages_with_their_runs_and_no_text_unless_asked(shell: Shell) -> None:
    talk(("ada", "hello [bold] 你好"))
    leave(("ada", "next \x1b[31m"))
    listed = shell("inbox", "ada")
    assert listed.returncode == 0
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["number", "2", "1"]
    assert "pending" in listed.stdout.splitlines()[1]
    assert "done" in listed.stdout.splitlines()[2]
    assert "hello" not in listed.stdout
    with_text = shell("inbox", "ada", "--text").stdout
    assert "hello [bold] 你好" in with_text
    assert "\x1b" not in with_text
    newest, oldest = shell("inbox", "ada", "--json").rows
    assert (newest["number"], newest["state"], newest["run"]) == (2, "pending", None)
    assert (oldest["number"], oldest["state"], oldest["run"]) == (1, DONE, oldest["id"])
    stored = {"message": {"role": "user", "content": "hello [bold] 你好"}}
    assert oldest["bytes"] == len(json.dumps(stored, ensure_ascii=False, separators=(",", ":")).encode())
    assert "payload" not in oldest
    assert (
        shell("inbox", "ada", "--json", "--text").rows[0]["payload"]["message"]["content"] == "next \x1b[31m"
    )
    assert [row["number"] for row in shell("inbox", "ada", "--json", "--limit", "1").rows] == [2]


def test_a_run_of_several_messages_stands_by_each_of_them(shell: Shell) -> None:
    leave(*(("ada", f"part {n}") for n in range(4)), options={"debounce": 0.0})
    talk(("ada", "the end"))
    rows = shell("inbox", "ada", "--json").rows
    assert [row["number"] for row in rows] == [5, 4, 3, 2, 1]
    runs = shell("runs", "ada", "--json").rows
    spans = {row["run"]: row["messages"] for row in runs}
    taken = {row["run"] for row in rows}
    assert taken == set(spans)
    assert len(spans) < 5
    # A page that begins in the middle of a run knows it.
    assert shell("inbox", "ada", "--json", "--limit", "2").rows == rows[:2]


def test_a_long_inbox_is_read_in_pages(shell: Shell) -> None:
    leave(*(("ada", str(n)) for n in range(205)))
    assert [row["number"] for row in shell("inbox", "ada", "--json", "--limit", "203").rows] == list(
        range(205, 2, -1)
    )


def test_runs_are_listed_with_what_went_wrong(shell: Shell) -> None:
    talk(("ada", "hello"), ("ada", "fail"), ("ada", "ask"))
    listed = shell("runs", "ada").stdout
    assert "the model is [gone]" in listed
    waiting, failed, done = shell("runs", "ada", "--json").rows
    assert [waiting["state"], failed["state"], done["state"]] == ["waiting", "failed", "done"]
    assert failed["error"] == "RuntimeError: the model is [gone]"
    assert (done["messages"], done["attempts"], done["error"]) == ("1", 1, None)
    assert "hello" not in listed


def test_the_outbox_lists_replies_and_no_text_unless_asked(shell: Shell) -> None:
    talk(("ada", "hello"), ("refused", "hello"))
    (row,) = shell("outbox", "ada", "--json").rows
    assert (row["number"], row["state"], row["provider_id"], row["channel"]) == (1, SENT, "post-1", "post")
    assert row["key"] == f"{row['run']}:0"
    assert "payload" not in row
    listed = shell("outbox", "refused").stdout
    assert "Undeliverable: no such chat" in listed
    assert "answer to" not in listed
    assert "answer to hello" in shell("outbox", "refused", "--text").stdout


def test_what_was_given_up_is_found_in_every_thread_of_the_tenant(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(complete_reads, "PAGE", 2)
    monkeypatch.setattr(inbox, "_BODIES", 2)
    talk(("ada", "hello"), *[("refused", f"{n}") for n in range(5)], ("ada", "fail"))
    talk(("doubtful", "hello"), channel="held")
    talk(("refused", "hello"), tenant="other")
    rows = shell("dead", "--json").rows
    assert [(row["thread"], row["what"], row["state"]) for row in rows] == [
        ("ada", "run", "failed"),
        ("doubtful", "reply", UNKNOWN),
        *[("refused", "reply", DEAD)] * 5,
    ]
    assert [row["number"] for row in rows[2:]] == [5, 4, 3, 2, 1]
    listed = shell("dead").stdout
    assert "the model is [gone]" in listed
    assert "answer to" not in listed
    assert "answer to 3" in shell("dead", "--text").stdout
    assert [row["thread"] for row in shell("dead", "ada", "--json").rows] == ["ada"]
    assert [row["thread"] for row in shell("dead", "--json", "--tenant", "other").rows] == ["refused"]
    assert shell("dead", "--tenant", "nobody").stdout == "Nothing was given up.\n"


def test_what_was_given_up_takes_a_line_each_without_what_was_run_again(shell: Shell) -> None:
    talk(("ada", "fail at length"), ("bob", "fail"), ("refused", "hello"))
    runs = {row["thread"]: row for row in shell("dead", "--json").rows}
    assert runs["ada"]["error"].count("\n") > 200
    lines = shell("dead").stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [["ada", "run"], ["bob", "run"], ["refused", "reply"]]
    assert max(map(len, lines)) < 250
    assert "RuntimeError: the model is gone the model" in lines[0]
    assert "…" in lines[0]
    assert max(map(len, shell("runs", "ada").stdout.splitlines())) < 250
    assert len(shell("runs", "ada").stdout.splitlines()) < 30
    shell("retry", "ada", "--run", runs["ada"]["run"])
    assert [line.split()[0] for line in shell("dead").stdout.splitlines()] == ["bob", "refused"]
    assert [row["thread"] for row in shell("dead", "--json").rows] == ["bob", "refused"]
    asked = shell("dead", "ada", "--repeated", "--json").rows
    assert [(row["thread"], row["is_repeated"]) for row in asked] == [("ada", True)]
    (again, _) = shell("inbox", "ada", "--json").rows
    assert asked[0]["repeated_by"] == again["id"]
    assert f"(run again as {again['id']})" in shell("dead", "--repeated").stdout.splitlines()[0]
    assert shell("dead", "ada").stdout == "Nothing was given up.\n"


def test_a_reply_that_was_given_up_is_sent_again_under_its_key(shell: Shell) -> None:
    talk(("refused", "hello"), ("ada", "hello"))
    (before,) = shell("outbox", "refused", "--json").rows
    done = shell("retry", "refused", "--reply", "1")
    assert done.returncode == 0
    assert f"as number 2 under the key {before['key']}" in done.stdout
    (after,) = shell("outbox", "refused", "--json").rows
    assert (after["number"], after["key"], after["state"]) == (2, before["key"], READY)
    assert shell("dead").stdout == "Nothing was given up.\n"
    for words, said in (
        (("refused", "--reply", "2"), "reply 2 of thread 'refused' is ready; only replies that are"),
        (("ada", "--reply", "1"), "reply 1 of thread 'ada' is sent; only replies that are"),
        (("ada", "--reply", "9"), "thread 'ada' has no reply 9"),
    ):
        refused = shell("retry", *words)
        assert refused.returncode == 1
        assert refused.stderr.startswith("perdure: ")
        assert refused.stderr.count("\n") == 1
        assert said in refused.stderr


def test_failed_runs_are_run_again_one_or_all(shell: Shell) -> None:
    talk(("ada", "fail"), ("bob", "fail"), ("bob", "fail"), ("eve", "hello"))
    (run,) = (row["run"] for row in shell("runs", "ada", "--json").rows)
    done = shell("retry", "ada", "--run", run)
    assert (done.returncode, f"run {run} is scheduled to run again, as" in done.stdout) == (0, True)
    assert "had been scheduled to run again" in shell("retry", "ada", "--run", run).stdout
    everything = shell("retry", "--failed")
    assert everything.returncode == 0
    assert everything.stdout.splitlines()[-1] == "2 runs are scheduled to run again, 0 are not."
    assert [row["run"] for row in shell("inbox", "bob", "--json").rows][:2] == [None, None]
    for words, said in (
        (("ada", "--run", "none"), "has no run 'none'"),
        (("eve", "--run", shell("runs", "eve", "--json").rows[0]["run"]), "only one that failed"),
        (("eve",), "name a thread with --reply NUMBER or --run RUN"),
        (("--run", run), "name a thread with --reply NUMBER or --run RUN"),
    ):
        refused = shell("retry", *words)
        assert refused.returncode in (1, 2)
        assert said in " ".join(refused.stderr.split())


@pytest.mark.parametrize("command", ["inbox", "runs", "outbox", "dead"])
def test_an_empty_list_is_told_from_a_thread_that_is_not_there(shell: Shell, command: str) -> None:
    def fill(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("hi")]}

    with perdure.connect_sync("sqlite:///threads.db", migrate=True) as db:
        graph = StateGraph(MessagesState).add_node("fill", fill).add_edge(START, "fill")
        config: Any = {"configurable": {"thread_id": "plain"}}
        graph.compile(checkpointer=db.checkpointer()).invoke({"messages": []}, config)
    empty = shell(command, "plain")
    assert (empty.returncode, empty.stdout.count("\n")) == (0, 1)
    assert shell(command, "plain", "--json").stdout == ""
    absent = shell(command, "nobody")
    assert absent.returncode == 1
    assert absent.stderr == (
        "perdure: there is no thread 'nobody'; `perdure threads ls` lists what there is, "
        "`perdure tenants ls` the tenants with threads of their own\n"
    )


def test_a_page_of_the_inbox_finds_the_run_that_began_before_it() -> None:
    graph = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()

    async def run() -> None:
        async with perdure.connect("memory://") as db:
            async with Runtime(db, graph, works=False) as front:
                tickets = [await front.accept("ada", f"part {n}") for n in range(3)]
            async with Runtime(db, graph) as worker:
                await worker.wait(tickets[-1], WITHIN)
            ada = Partition("", "ada")
            whole = await handle_of(db).arun(inbox.read_latest(ada, 10))
            assert [standing.message.seq for standing in whole] == [3, 2, 1]
            assert len({standing.run.id for standing in whole if standing.run is not None}) == 1
            assert await handle_of(db).arun(inbox.read_latest(ada, 2)) == whole[:2]
            assert await handle_of(db).arun(inbox.read_latest(ada, 2, after=2)) == whole[2:]

    asyncio.run(run())


def test_what_no_worker_does_is_counted_by_name(shell: Shell) -> None:
    leave(("ada", "hello"), ("bob", "secret text"), ("eve", "hello"))
    assert shell("stuck").stdout.startswith("Nothing is stuck.\n")
    listed = shell("stuck", "--older", "0")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "waiting" in listed.stdout
    assert "secret" not in listed.stdout
    assert "waiting graph agent: No worker takes them: start one with the graph 'agent'" in listed.stdout
    assert "`perdure threads dead`" in listed.stdout
    (row,) = shell("stuck", "--older", "0", "--json").rows
    assert (row["problem"], row["what"], row["name"]) == ("waiting", "graph", "agent")
    assert (row["threads"], row["example"], row["attempts"]) == (3, "ada", 0)
    assert datetime.fromisoformat(row["oldest"]).tzinfo is UTC
    cut = shell("stuck", "--older", "0", "--most", "1", "--json")
    assert cut.rows[0]["threads"] == 1
    assert "pass --most" in cut.stderr
