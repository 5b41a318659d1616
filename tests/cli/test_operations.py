"""What broke, what waits, where it is and how it is going, as a shell sees it.

Covers perdure.cli.runs, perdure.cli.upcoming, perdure.cli.questions, perdure.cli.top.
"""

from __future__ import annotations

import asyncio
import json
import time
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from rich.cells import cell_len
from rich.text import Text

import perdure
from perdure.cli.app import quote_id
from perdure.cli.runs import format_time, parse_since
from perdure.cli.top import _column
from perdure.runtime import Runtime, Settings, ask, wait_for
from tests.cli.running import run_cli

EVIL = "\x1b]0;title\x07 [bold]"
REVIEW = {
    "action_requests": [{"name": "send", "args": {"to": "board", "n": 1}}],
    "review_configs": [{"action_name": "send", "allowed_decisions": ["approve", "edit", "reject"]}],
}


class Done(NamedTuple):
    code: int
    stdout: str
    stderr: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stdout.splitlines()]


class Shell(Protocol):
    def __call__(self, *words: str) -> Done: ...


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shell:
    """Run ``perdure …`` on ``threads.db`` in an empty folder, in this process."""
    monkeypatch.chdir(tmp_path)
    for name in ("DATABASE_URL", "PERDURE_TENANT", "PERDURE_KEYS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PERDURE_DB", "sqlite:///threads.db")

    def run(*words: str) -> Done:
        return Done(*run_cli(monkeypatch, capfd, *words))

    return run


class Agent:
    is_down = True
    version: str | None = None

    def answer(self, state: MessagesState) -> dict[str, Any]:
        said = state["messages"][-1].text
        if said == "slow":
            time.sleep(0.5)
        if said.startswith("fail") and self.is_down:
            raise ConnectionError(f"{EVIL} gone after {len(said)} s")
        if said == "review":
            return {"messages": [AIMessage(repr(interrupt(REVIEW)))]}
        if said == "ask":
            return {"messages": [AIMessage(repr(interrupt({"question": EVIL, "options": [1, 2]})))]}
        return {"messages": [AIMessage("fine")]}


def work(agent: Agent, *said: tuple[str, str]) -> None:
    """Let messages be answered, and what waits already."""

    async def go() -> None:
        builder = StateGraph(MessagesState).add_node("answer", agent.answer).add_edge(START, "answer")
        settings = Settings(attempts=1, poll=0.05, on_failure="keep", version=agent.version)
        async with (
            perdure.connect("sqlite:///threads.db", migrate=True) as database,
            Runtime(database, builder.compile(), settings=settings, observers=()) as runtime,
        ):
            for thread, text in said:
                config = {"configurable": {"user_id": f"of {thread}"}}
                await runtime.wait(await runtime.accept(thread, text, config=config), 60)
            async with asyncio.timeout(60):
                while any(  # noqa: ASYNC110 - the worker ends what waits
                    row.status == "busy" for row in [r async for r in runtime.threads.index.search()]
                ):
                    await asyncio.sleep(0.05)

    asyncio.run(go())


def test_failed_runs_are_listed_shown_and_run_again(shell: Shell) -> None:
    agent = Agent()
    work(agent, ("a", "fail"), ("b", "fail more"), ("c", "hello"))
    listed = shell("runs", "ls")
    assert [line.split()[1] for line in listed.stdout.splitlines()[::1] if line[6:7] == "s"] == [
        "done",
        "failed",
        "failed",
    ]
    assert "\x1b" not in listed.stdout
    assert "of of a" in listed.stdout
    failed = shell("runs", "ls", "--status", "failed", "--json").rows
    assert [row["thread_id"] for row in failed] == ["b", "a"]
    assert failed[0]["error"]["kind"] == "ConnectionError"
    assert [row["thread_id"] for row in shell("runs", "ls", "--error", "after 4", "--json").rows] == ["a"]
    assert len(shell("runs", "ls", "-n", "1", "--json").rows) == 1
    assert shell("runs", "ls", "--since", "1h", "--user", "of b", "--json").rows[0]["thread_id"] == "b"
    assert shell("runs", "ls", "--prefix", "none").stdout == "No runs.\n"
    (group,) = shell("runs", "ls", "--by-error", "--json").rows
    assert (group["runs"], group["example"]["thread_id"]) == (2, "b")
    assert group["nodes"] == ["answer"]
    counted = shell("runs", "ls", "--by-error").stdout
    assert "2 runs  ConnectionError" in counted
    assert "\n  in answer\n" in counted
    assert "2 failed runs, those that were run again or whose thread went on too.\n" in counted
    assert "  in answer\n" in shell("runs", "ls", "--status", "failed").stdout

    run_id = failed[0]["run_id"]
    shown = shell("runs", "show", run_id)
    assert "in answer" in shown.stdout
    assert shown.stdout.count("ConnectionError: ") == 1
    assert f"`perdure runs rerun {run_id}` goes on from its last stored step, 0." in shown.stdout
    assert "\x1b" not in shown.stdout
    (detail,) = shell("runs", "show", run_id, "--thread", "b", "--json").rows
    assert detail["goes_on_from"]["step"] == 0
    assert "`perdure threads show b` shows the thread's steps; with --text" in shown.stdout
    with_text = shell("runs", "show", run_id[:8], "--text")
    assert "\ninput " in with_text.stdout
    assert "fail more" in with_text.stdout
    assert "fail more" in str(shell("runs", "show", run_id, "--text", "--json").rows[0]["input"])

    again = shell("runs", "rerun", run_id[:8])
    assert "b: run" in again.stdout
    assert "had been scheduled to run again" in shell("runs", "rerun", run_id).stdout
    counted = shell("runs", "rerun", "--failed", "--dry-run").stdout
    assert "1 run  ConnectionError" in counted
    assert counted.endswith("1 run would run again; nothing was changed.\n")
    (group,) = shell("runs", "rerun", "--failed", "--dry-run", "--json").rows
    assert (group["runs"], group["example"]["thread_id"]) == (1, "a")
    assert shell("runs", "rerun", "--failed", "--dry-run", "--user", "nobody").stdout == (
        "No failed run would run again.\n"
    )
    rest = shell("runs", "rerun", "--failed", "--since", "1h")
    assert rest.stdout.splitlines()[-1] == "1 run accepted again, 0 stay."
    assert shell("runs", "rerun", "--failed").stdout == "0 runs accepted again, 0 stay.\n"
    agent.is_down = False
    work(agent)
    assert [row["state"] for row in shell("runs", "ls", "--json", "-n", "2").rows] == ["done", "done"]
    assert "It is run again as" in shell("runs", "show", run_id).stdout
    assert "(run again)" in shell("runs", "ls").stdout


def test_what_cannot_be_run_again_stays_with_its_reason(shell: Shell) -> None:
    work(Agent(), ("a", "fail"), ("b", "fail"))
    asyncio.run(_postpone("a"))
    done = shell("runs", "rerun", "--failed", "--json")
    assert {row["thread_id"]: row["outcome"] for row in done.rows} == {"b": "accepted"}
    (run,) = shell("runs", "ls", "--prefix", "a", "--json").rows
    refused = shell("runs", "rerun", run["run_id"])
    assert refused.code == 1
    assert "open run or messages that wait" in refused.stderr
    for words, reason in (
        (("rerun",), "name one run by its id, or pass --failed"),
        (("rerun", "x", "--failed"), "name one run by its id, or pass --failed"),
        (("rerun", "x", "--since", "1h"), "are for --failed"),
        (("rerun", "x", "--dry-run"), "--dry-run is for --failed"),
        (("rerun", "none"), "there is no run 'none'"),
        (("show", "none", "--thread", "a"), "thread 'a' has no run 'none'"),
        (("ls", "--status", "broken"), "rolled_back, not 'broken'"),
        (("ls", "--since", "soon"), "'soon' is not a duration"),
        (("ls", "--slowest", "--by-error"), "leave one out"),
    ):
        wrong = shell("runs", *words)
        assert wrong.code != 0
        assert reason in " ".join(wrong.stderr.replace("│", " ").split()), wrong.stderr


def test_the_slowest_run_comes_first(shell: Shell) -> None:
    agent = Agent()
    work(agent, ("a", "slow"), ("b", "hello"))
    first, second = shell("runs", "ls", "--slowest").stdout.splitlines()
    assert "  a  agent took " in first
    assert "  b  agent took " in second


def test_waiting_runs_are_stopped(shell: Shell) -> None:
    work(Agent(), ("a", "hello"))
    for thread in ("a", "b", EVIL):
        asyncio.run(_postpone(thread))
    done = shell("runs", "stop", "--all", "--prefix", "a", "--json")
    (row,) = done.rows
    assert (row["thread_id"], row["was_open"]) == ("a", False)
    assert shell("runs", "stop", "--user", "ada").stdout == "0 runs stopped.\n"
    rest = shell("runs", "stop", "--all")
    assert rest.stdout.splitlines()[-1] == "2 runs stopped."
    assert "had not begun, and never does" in rest.stdout
    assert "\x1b" not in rest.stdout
    for words, reason in (
        (("stop",), "name one run by its id, or pass --user USER, or --all"),
        (("stop", "--all", "--user", "ada"), "name one run by its id, or pass"),
        (("stop", "none"), "no run 'none' is open or waits"),
        (("stop", "none", "--prefix", "a"), "--prefix is for --user and --all"),
    ):
        wrong = shell("runs", *words)
        assert wrong.code != 0
        assert reason in " ".join(wrong.stderr.replace("│", " ").split()), wrong.stderr


async def _postpone(thread: str) -> None:
    builder = StateGraph(MessagesState).add_node("answer", Agent().answer).add_edge(START, "answer")
    async with perdure.connect("sqlite:///threads.db") as database:
        runtime = Runtime(database, builder.compile(), works=False, observers=())
        await runtime.accept(thread, "later", debounce=1000.0, max_wait=1000.0)


def test_questions_are_listed_and_answered(shell: Shell) -> None:
    agent = Agent()
    work(agent, ("review", "review"), ("edit", "review"), ("reject", "review"), ("ask", "ask"))
    rows = shell("questions", "ls", "--json").rows
    assert [row["thread_id"] for row in rows] == ["review", "edit", "reject", "ask"]
    assert rows[0]["form"]["actions"][0]["decisions"] == ["approve", "edit", "reject"]
    assert rows[3]["form"] == {"kind": "choice", "options": [1, 2]}
    listed = shell("questions", "ls").stdout
    assert "one of [1, 2]" in listed
    assert "send takes approve, edit, reject" in listed
    assert "\x1b" not in listed
    assert shell("questions", "ls", "--older", "1d").stdout == "No thread waits for an answer.\n"
    assert [row["thread_id"] for row in shell("questions", "ls", "--user", "of ask", "--json").rows] == [
        "ask"
    ]
    answers: tuple[tuple[str, ...], ...] = (
        ("review", "--approve"),
        ("edit", "--edit", '{"to": "ada", "n": 2}'),
        ("reject", "--reject", "too many"),
        ("ask", "2"),
    )
    for words in answers:
        assert shell("questions", "answer", *words).code == 0
    late = shell("questions", "answer", "ask", "1")
    assert (late.code, "waits for no answer" in late.stderr) == (1, True)
    work(agent)
    said = {
        name: shell("threads", "show", name, "--json").rows[0]["channels"]
        for name in ("review", "edit", "reject", "ask")
    }
    texts = {name: str(channels) for name, channels in said.items()}
    assert "approve" in texts["review"]
    assert "ada" in texts["edit"]
    assert "too many" in texts["reject"]
    refusals: tuple[tuple[tuple[str, ...], str], ...] = (
        (("ask",), "give one answer"),
        (("ask", "1", "--approve"), "give one answer"),
        (("nobody", "--approve"), "there is no thread 'nobody'"),
        (("nobody", "yes"), "there is no thread 'nobody'"),
        (("ask", "--approve"), "waits for no answer"),
    )
    for words, reason in refusals:
        wrong = shell("questions", "answer", *words)
        assert wrong.code != 0
        assert reason in " ".join(wrong.stderr.replace("│", " ").split()), wrong.stderr


def test_threads_are_listed_by_conditions(shell: Shell) -> None:
    work(Agent(), ("one", "the moon"), ("two", "fail"), ("three", "ask"))
    assert [row["thread_id"] for row in shell("threads", "ls", "--json").rows] == ["one", "three", "two"]
    newest = shell("threads", "ls", "--json", "-n", "2").rows
    assert [row["thread_id"] for row in newest] == ["three", "two"]
    assert newest[0]["user"] == "of three"

    def named(*words: str) -> list[str]:
        return [row["thread_id"] for row in shell("threads", "ls", "--json", *words).rows]

    assert named("--status", "error") == ["two"]
    assert named("--words", "MOON") == ["one"]
    assert named("--user", "of three") == ["three"]
    assert named("--error", "connection") == ["two"]
    assert named("--prefix", "t", "--since", "1h") == ["three", "two"]
    assert shell("threads", "ls", "--tag", "none").stdout == "No thread matches.\n"
    wrong = shell("threads", "ls", "--status", "odd")
    assert wrong.code == 2
    assert shell("threads", "ls").stdout.splitlines()[1].split()[1:] == ["idle", "one", "of", "of", "one"]


def test_top_shows_numbers_once_without_a_terminal(shell: Shell) -> None:
    work(Agent(), ("one", "hello"), ("two", "fail"))
    (found,) = shell("top", "--json").rows
    assert (found["hour"]["runs"], found["hour"]["failed"]) == (2, 1)
    shown = shell("top").stdout
    assert "2 in the last hour, 1 failed" in shown
    assert "ConnectionError" in shown
    assert "of one" in shown
    assert "█" in shown


@pytest.mark.parametrize(("last", "span"), [("hour", "last hour"), ("day", "last 24 hours")])
def test_each_table_of_top_names_its_time(shell: Shell, last: str, span: str) -> None:
    work(Agent(), ("one", "hello"), ("two", "fail"))
    headings = {f"graph, {span}", f"user, {span}", f"error, {span}", "version, last 24 hours"}
    lines = shell("top", "--last", last).stdout.splitlines()
    assert {line[:30].strip() for line in lines} >= headings
    assert any(line.startswith(f"latency in the {span}  to the end ") for line in lines)
    assert "graph, last 30 days" in shell("top", "--last", "month").stdout
    assert "graph, last hour" in shell("top").stdout
    refused = shell("top", "--last", "day", "--nodes")
    assert (refused.code, "--nodes takes --since" in refused.stderr) == (2, True)


def test_what_runs_by_itself_is_listed_with_its_time(shell: Shell) -> None:
    work(Agent(), ("a", "hello"))
    assert shell("runs", "upcoming").stdout == "Nothing runs by itself within 1d.\n"
    for thread in ("b", EVIL):
        asyncio.run(_postpone(thread))
    listed = shell("runs", "upcoming", "--within", "1h").stdout
    assert [line.split()[2:5] for line in listed.splitlines()] == [["in", "16m", "message"]] * 2
    assert "\x1b" not in listed
    assert [row["thread_id"] for row in shell("runs", "upcoming", "--json").rows] == ["b", EVIL]
    assert shell("runs", "upcoming", "-n", "1").stdout.endswith("raise --limit, or shorten --within.\n")
    assert shell("runs", "upcoming", "--within", "5m").stdout == "Nothing runs by itself within 5m.\n"


def test_a_deploy_is_seen_in_runs_errors_and_numbers(shell: Shell) -> None:
    class Deployed(Agent):
        def answer(self, state: MessagesState) -> dict[str, Any]:
            return super().answer(state)

    class Named(Agent):
        version = "1.2.0-rc1"

    work(Deployed(), ("a", "hello"), ("b", "fail"))
    work(Named(), ("c", "fail"), ("d", "fail"))
    rows = {row["thread_id"]: row["graph_version"] for row in shell("runs", "ls", "--json").rows}
    assert rows["a"] == rows["b"] != rows["c"] == rows["d"] == "1.2.0-rc1"
    found = shell("runs", "ls", "--graph-version", "1.2.0-rc1", "--status", "failed", "--json").rows
    assert {row["thread_id"] for row in found} == {"c", "d"}
    (group,) = shell("runs", "ls", "--by-error", "--json").rows
    assert group["versions"] == {"1.2.0-rc1": 2, rows["b"]: 1}
    assert (
        f"of the graph's version 1.2.0-rc1 (2), {rows['b']} (1)" in shell("runs", "ls", "--by-error").stdout
    )
    shown = shell("runs", "show", found[0]["run_id"])
    assert "graph agent, version 1.2.0-rc1  1 attempt" in shown.stdout
    numbers = shell("top", "--json").rows[0]["day"]["versions"]
    assert {(each["version"], each["runs"], each["failed"]) for each in numbers} == {
        (rows["a"], 2, 1),
        ("1.2.0-rc1", 2, 2),
    }
    (line,) = [line for line in shell("top").stdout.splitlines() if "1.2.0-rc1" in line]
    assert line.split()[:4] == ["agent", "1.2.0-rc1", "2", "2"]


def test_top_shows_how_the_database_grew(shell: Shell) -> None:
    work(Agent(), ("one", "hello"))
    work(Agent(), ("two", "hello"))
    sample, present = shell("top", "--growth", "--json").rows
    assert (sample["threads"], present["threads"]) == (1, 2)
    assert present["at"] > sample["at"]
    assert min(present["bytes"], sample["bytes"]) > 4096
    lines = shell("top", "--growth").stdout.splitlines()
    assert lines[-1].split()[-2:] == ["2", "+1"]
    refused = shell("top", "--growth", "--nodes")
    assert refused.code == 2
    assert shell("top", "--growth", "--tenant", "none", "--json").rows[0]["threads"] == 0


def test_top_shows_which_node_is_slow(shell: Shell) -> None:
    work(Agent(), ("one", "hello"), ("two", "slow"), ("three", "fail"))
    (found,) = shell("top", "--nodes", "--json").rows
    assert (found["graph"], found["node"], found["count"], found["failed"]) == ("agent", "answer", 3, 1)
    assert found["p95"] > 450_000 > found["p50"]
    assert "classes" not in found
    lines = shell("top", "--nodes", "--since", "1h").stdout.splitlines()
    assert lines[0].split()[:4] == ["graph", "node", "runs", "failed"]
    assert lines[1].split()[:4] == ["agent", "answer", "3", "1"]
    assert lines[2] == "3 threads examined."
    refused = shell("top", "--since", "1h")
    assert refused.code == 2
    assert "--nodes" in refused.stderr
    assert shell("top", "--nodes", "--tenant", "none").stdout == "No node ran: 0 threads examined.\n"


@pytest.mark.parametrize("name", ["ada", "[bold]bob[/]", "漢字" * 20, EVIL])
def test_columns_of_top_stay_in_place_whatever_the_names_are(name: str) -> None:
    shown = Text.from_markup(_column(quote_id(name)))
    assert cell_len(shown.plain) == 30
    assert not shown.spans


@pytest.mark.parametrize(
    ("since", "found"),
    [
        ("1h", "2026-03-02T09:30:00"),
        ("10:30", "2026-03-02T10:30:00"),
        ("9:05", "2026-03-02T09:05:00"),
        ("23:00", "2026-03-01T23:00:00"),
        ("noon", "2026-03-01T12:00:00"),
        ("midnight", "2026-03-02T00:00:00"),
        ("today", "2026-03-02T00:00:00"),
        ("yesterday", "2026-03-01T00:00:00"),
        ("2026-02-28", "2026-02-28T00:00:00"),
        ("2026-02-28T12:15", "2026-02-28T12:15:00"),
        ("2026-02-28T12:15Z", "2026-02-28T12:15:00+00:00"),
    ],
)
def test_since_is_a_span_or_a_time(since: str, found: str) -> None:
    now = round(datetime.fromisoformat("2026-03-02T10:30:00").timestamp() * 1_000_000)
    assert parse_since(since, now) == round(datetime.fromisoformat(found).timestamp() * 1_000_000)


@pytest.mark.parametrize("since", ["25:00", "tomorrow", "12:60", "2026-13-01"])
def test_what_is_neither_a_span_nor_a_time_is_refused(since: str, shell: Shell) -> None:
    work(Agent(), ("one", "hello"))
    done = shell("threads", "ls", "--since", since)
    assert (done.code, done.stdout) == (2, "")
    assert repr(since) in done.stderr


def test_times_name_their_zone() -> None:
    assert format_time(1_700_000_000_000_000) == "2023-11-14 22:13:20Z"


def test_a_thread_that_waits_is_listed_and_signalled(shell: Shell, tmp_path: Path) -> None:
    async def pay(state: MessagesState) -> dict[str, Any]:
        paid = await wait_for("paid", within=3600, default=None)
        return {"messages": [AIMessage(f"{paid} {ask('sure?', within=3600, default='no')}")]}

    graph = StateGraph(MessagesState).add_node(pay).add_edge(START, "pay").compile()

    async def work(reach: int) -> None:
        async with (
            perdure.connect("sqlite:///threads.db", migrate=True) as database,
            Runtime(database, graph, settings=Settings(poll=0.1)) as runtime,
            asyncio.timeout(60),
        ):
            if reach == 1:
                await runtime.wait(await runtime.submit("t", {"messages": []}))
            while len(runs := await runtime.runs("t")) < reach or runs[0].state == "open":  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    asyncio.run(work(1))
    assert shell("questions", "ls").stdout == "No thread waits for an answer.\n"
    (row,) = shell("questions", "ls", "--waits", "--json").rows
    assert (row["kind"], row["signal"], row["form"]) == ("signal", "paid", {"kind": "none"})
    assert "It waits for the signal 'paid'." in shell("questions", "ls", "--waits").stdout
    shown = shell("threads", "show", "t")
    assert "It waits for the signal 'paid'.  until 20" in shown.stdout
    assert "waits for an answer" not in shown.stdout
    (entry,) = shell("threads", "show", "t", "--json").rows
    assert (entry["asks"], [wait["signal"] for wait in entry["waits"]]) == (False, ["paid"])
    refused = shell("questions", "answer", "t", "1")
    assert (refused.code, "waits for no answer" in refused.stderr or "sleeps" in refused.stderr) == (1, True)
    first = shell("threads", "signal", "t", "paid", '{"n": 1}', "--key", "k", "--json").rows[0]
    assert first["run_id"]
    assert "as it had been before" in shell("threads", "signal", "t", "paid", "1", "--key", "k").stdout
    assert "kept" in shell("threads", "signal", "t", "other").stdout
    missing = shell("threads", "signal", "none", "paid")
    assert (missing.code, "there is no thread" in missing.stderr) == (1, True)
    assert shell("threads", "signal", "t", "").code == 2
    asyncio.run(work(2))
    (asked,) = shell("questions", "ls", "--json").rows
    assert asked["deadline"] > asked["since"]
    assert "deadline" in shell("questions", "ls").stdout
    assert "waits for an answer" in shell("threads", "show", "t").stdout
