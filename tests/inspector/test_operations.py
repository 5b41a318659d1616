"""Failed runs, open questions, searches and numbers in the inspector's API, with their rights.

Covers perdure.inspector.runs, perdure.inspector.questions, perdure.inspector.overview,
perdure.inspector.requests, perdure.runtime.operations.open_questions,
perdure.runtime.operations.thread_search, perdure.runtime.operations.walk_by_activity,
perdure.runtime.operations.run_search, perdure.runtime.threads.user_and_title.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

import httpx
import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

import perdure
from perdure.database.base import handle_of
from perdure.inspector import queue as queue_views
from perdure.inspector import runs as run_views
from perdure.inspector.access import PERMISSIONS, LocalAccess, Sees
from perdure.inspector.web import create_app
from perdure.runtime import Runtime, Settings
from perdure.runtime.failures.failure_location import shows_texts
from tests.backends import EMPTY
from tests.inspector.staging import HOSTILE

BASE = "http://127.0.0.1:8770"
REVIEW = {
    "action_requests": [{"name": "send", "args": {"to": "board"}, "description": "Send it?"}],
    "review_configs": [{"action_name": "send", "allowed_decisions": ["approve", "reject"]}],
}
BACKENDS = ("sqlite", "memory")


def within_two_minutes(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*given: Any, **named: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*given, **named), 120))

    return run


class Desk:
    """An agent that fails while its model is down, and asks what it is told to ask."""

    is_down = True

    def answer(self, state: MessagesState) -> dict[str, Any]:
        said = state["messages"][-1].text
        if said.startswith("fail") and self.is_down:
            raise ConnectionError(f"no answer after {len(said)} s")
        if said == "review":
            return {"messages": [AIMessage(str(interrupt(REVIEW)))]}
        if said == "ask":
            return {"messages": [AIMessage(str(interrupt({"question": HOSTILE, "options": ["yes", "no"]})))]}
        return {"messages": [AIMessage(f"about {said}")]}

    def graph(self) -> Any:
        builder = StateGraph(MessagesState).add_node("answer", self.answer)
        return builder.add_edge(START, "answer").compile()


class Restricted(LocalAccess):
    """The rights of one user."""

    async def authorize_listing(self) -> Sees | None:
        return lambda metadata: metadata.get("user_id") == "ada"


class Site:
    def __init__(self, client: httpx.AsyncClient, runtime: Runtime, desk: Desk, url: str) -> None:
        self.client, self.runtime, self.desk, self.url = client, runtime, desk, url

    async def get(self, view: str, status: int = 200, /, **asked: Any) -> Any:
        response = await self.client.get(f"/inspect/api/{view}", params=asked)
        assert response.status_code == status, response.text
        return response.json()

    async def act(self, action: str, status: int = 200, /, **given: Any) -> Any:
        response = await self.client.post(f"/inspect/api/actions/{action}", json=given)
        assert response.status_code == status, response.text
        return response.json()

    async def say(self, thread: str, text: str, user: str = "ada") -> None:
        config = {"configurable": {"user_id": user}}
        await self.runtime.wait(await self.runtime.accept(thread, text, config=config), 30)

    async def wait_with(self, thread: str, user: str) -> None:
        """Accept a message whose run does not begin in the time of a test."""
        config = {"configurable": {"user_id": user}}
        await self.runtime.accept(thread, "later", config=config, debounce=1000.0, max_wait=1000.0)

    async def asked(self, **asked: Any) -> list[str]:
        return [each["thread_id"] for each in (await self.get("questions", **asked))["questions"]]

    async def comes_to(self, thread: str, states: list[str]) -> None:
        async with asyncio.timeout(60):
            while await self.states(thread) != states:  # noqa: ASYNC110 - other tasks end the runs
                await asyncio.sleep(0.05)

    async def states(self, thread: str) -> list[str]:
        return [run.state for run in await self.runtime.runs(thread)]


@asynccontextmanager
async def site(
    backend: str = "sqlite",
    allowed: frozenset[str] = frozenset(PERMISSIONS),
    kind: type[LocalAccess] = LocalAccess,
    on_failure: Any = "rollback",
) -> AsyncIterator[Site]:
    desk, settings = Desk(), Settings(attempts=1, poll=0.1, on_failure=on_failure)
    with EMPTY[backend]() as url:
        async with (
            perdure.connect(url, migrate=True) as database,
            Runtime(database, desk.graph(), settings=settings, observers=()) as runtime,
        ):
            access = kind(handle_of(database), "", runtime=runtime, allowed=allowed)
            transport = httpx.ASGITransport(app=create_app(access), raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
                yield Site(client, runtime, desk, url)


@pytest.mark.parametrize("backend", BACKENDS)
@within_two_minutes
async def test_failed_runs_are_shown_by_error_and_run_again(backend: str) -> None:
    async with site(backend) as found:
        for n in range(3):
            await found.say(f"t{n}", f"fail{'!' * n}", "ada" if n else "bob")
        await found.say("fine", "hello")
        page = await found.get("runs", stands="1")
        assert {each["thread_id"] for each in page["runs"]} == {"t0", "t1", "t2"}
        (group,) = page["groups"]
        assert (group["kind"], group["message"], group["runs"]) == (
            "ConnectionError",
            "no answer after <n> s",
            3,
        )
        assert len((await found.get("runs", stands="1", user="bob"))["runs"]) == 1
        assert len((await found.get("runs", error="NO ANSWER AFTER 5"))["runs"]) == 1
        assert len((await found.get("runs", group=group["group"], since="1h"))["runs"]) == 3
        assert (await found.get("runs", group="other"))["runs"] == []
        assert len((await found.get("runs"))["runs"]) == 4
        assert (await found.get("runs", since=str(time.time_ns() // 1000 + 10**9)))["runs"] == []
        run_id = next(each["run_id"] for each in page["runs"] if each["thread_id"] == "t1")
        shown = await found.get("run", id="t1", run=run_id)
        assert "in answer" in shown["error"]["traceback"]
        assert (shown["stands"], shown["repeated_by"]) == (True, None)

        found.desk.is_down = False
        one = await found.act("rerun", id="t1", run_id=run_id)
        assert (await found.act("rerun", id="t1", run_id=run_id)) == {**one, "was_repeated": True}
        cursor, reruns = "", []
        while cursor is not None:
            done = await found.act("rerun-failed", error="no answer", cursor=cursor)
            reruns += done["reruns"]
            cursor = done["cursor"]
        assert {each["thread_id"]: each["outcome"] for each in reruns} == {"t0": "accepted", "t2": "accepted"}
        for n in range(3):
            await found.comes_to(f"t{n}", ["done", "failed"])
        assert (await found.get("runs", stands="1"))["runs"] == []
        (repeated,) = (await found.get("runs", state="failed", id="t1"))["runs"]
        assert (repeated["is_repeated"], repeated["stands"]) == (True, False)
        assert (await found.get("scan", what="dead"))["rows"] == []
        dead = {
            each["thread_id"]: each for each in (await found.get("scan", what="dead", repeated="1"))["rows"]
        }
        assert dead.keys() == {"t0", "t1", "t2"}
        assert (dead["t1"]["is_repeated"], dead["t1"]["repeated_by"]) == (True, one["run_id"])
        await found.get("scan", 422, what="dead", repeated="x")
        detail = await found.get("run", id="t1", run=one["run_id"])
        assert (detail["repeats"], detail["state"]) == (run_id, "done")
        log = [(each["action"], each["thread_id"]) for each in (await found.get("log"))["entries"]]
        assert log.count(("rerun", "t0")) == 1


@pytest.mark.parametrize("backend", BACKENDS)
@within_two_minutes
async def test_questions_have_forms_and_are_answered(backend: str) -> None:
    async with site(backend) as found:
        await found.say("review", "review")
        await found.say("ask", "ask", "bob")
        page = await found.get("questions")
        by_thread = {each["thread_id"]: each for each in page["questions"]}
        assert set(by_thread) == {"review", "ask"}
        review, asked = by_thread["review"], by_thread["ask"]
        assert review["form"]["kind"] == "review"
        assert review["form"]["actions"][0]["decisions"] == ["approve", "reject"]
        assert (review["text"], review["user"], review["graph"]) == ("Send it?", "ada", "agent")
        assert (asked["form"], asked["text"]) == ({"kind": "choice", "options": ["yes", "no"]}, HOSTILE)
        assert abs(time.time_ns() / 1000 - asked["since"]) < 120e6
        assert [each["thread_id"] for each in (await found.get("questions", user="bob"))["questions"]] == [
            "ask"
        ]
        assert await found.asked(older="1h") == []
        answer = {"value": {"decisions": [{"type": "approve"}]}, "interrupt_id": review["interrupt_id"]}
        await found.act("answer", id="review", **answer)
        await found.act("answer", 409, id="review", **answer)
        await found.comes_to("review", ["done", "waiting"])
        assert await found.asked() == ["ask"]
        # It went on for the same user.
        assert [each["thread_id"] for each in (await found.get("threads", user="ada"))["threads"]] == [
            "review"
        ]


@pytest.mark.parametrize("backend", BACKENDS)
@within_two_minutes
async def test_threads_are_found_by_what_is_known_of_them(backend: str) -> None:
    async with site(backend) as found:
        await found.runtime.threads.create("titled", {"title": "The Tides", "user_id": "eve"})
        await found.say("t1", "the moon and the tides")
        await found.say("t2", "fail at the moon", "bob")
        await found.say("t3", "the dark side of the moon", "bob")
        await found.runtime.threads.set_tag("t1", "approved", None)

        async def search(**asked: Any) -> list[str]:
            page = await found.get("threads", **asked)
            assert page["cursor"] is None
            return sorted(each["thread_id"] for each in page["threads"])

        assert await search(words="TIDES") == ["t1", "titled"]
        assert await search(words="moon tides") == ["t1"]
        assert await search(words="moon", user="bob") == ["t3"]
        assert await search(user="bob") == ["t2", "t3"]  # the first left nothing but its message
        assert await search(user="eve") == ["titled"]
        assert await search(error="connectionerror") == ["t2"]
        assert await search(tag="approved") == ["t1"]
        assert await search(tag="approv") == []
        assert await search(since="1h", status="error") == ["t2"]
        assert await search(since="1h", title="tides") == ["titled"]
        assert await search(words="about", id="t1") == ["t1"]
        assert await search(since="1h", metadata='{"user_id": "ada"}') == ["t1"]
        page = await found.get("threads", words="moon and")
        (thread,) = page["threads"][:1]
        assert (thread["excerpt"], thread["speaker"]) == ("about the moon and the tides", "ai")
        for wrong in (
            {"words": "x" * 301},
            {"since": "soon"},
            {"words": "a", "sort": "size"},
            {"cost": "1"},  # there are no prices here
            {"cost": "-1"},
            {"cost": "nan"},
            {"cost": "much"},
        ):
            assert "cost" not in wrong or "cost" in (await found.get("threads", 422, **wrong))["detail"]
            await found.get("threads", 422, **wrong)


@within_two_minutes
async def test_numbers_are_for_those_who_see_all_threads() -> None:
    async with site() as found:
        await found.say("t1", "hello")
        numbers = await found.get("overview")
        assert (len(numbers["minutes"]), numbers["threads"]["failed"]) == (60, 0)
        (present,) = (await found.get("growth"))["samples"]
        assert (present["threads"], present["bytes"] > 4096) == (1, True)
    async with site("memory") as found:
        (present,) = (await found.get("growth"))["samples"]
        assert (present["threads"], present["bytes"]) == (None, None)
    async with site(kind=Restricted) as found:
        await found.say("t1", "hello")
        for view in ("overview", "growth"):
            assert "some of them only" in (await found.get(view, 403))["detail"]


@within_two_minutes
async def test_runs_are_found_by_the_version_of_their_graph() -> None:
    async with site(on_failure="keep") as found:
        for thread, text in (("t1", "fail"), ("t2", "fail more"), ("t3", "hello")):
            await found.say(thread, text)
        await found.runtime._worker.runner.activity.flush()  # pyright: ignore[reportPrivateUsage]
        (group,) = (await found.get("runs", state="failed"))["groups"]
        ((version, count),) = group["versions"].items()
        assert (len(version), count) == (12, 2)
        (numbers,) = (await found.get("overview"))["day"]["versions"]
        assert (numbers["version"], numbers["graph"]) == (version, "agent")
        assert (numbers["runs"], numbers["failed"]) == (3, 2)
        assert numbers["since"] % 60_000_000 == 0
        assert numbers["since"] > time.time_ns() // 1000 - 3_700_000_000
        page = await found.get("runs", version=version)
        assert {each["graph_version"] for each in page["runs"]} == {version}
        assert len(page["runs"]) == 3
        assert (await found.get("runs", version="another"))["runs"] == []
        run_id = page["runs"][0]["run_id"]
        thread_id = page["runs"][0]["thread_id"]
        assert (await found.get("run", id=thread_id, run=run_id))["graph_version"] == version
        assert (await found.get("thread", id=thread_id))["runs"][0]["graph_version"] == version


@within_two_minutes
async def test_times_of_nodes_are_of_the_threads_that_a_viewer_sees() -> None:
    async with site() as found:
        await found.say("t1", "hello", "ada")
        await found.say("t2", "fail", "bob")
        page = await found.get("nodes")
        (node,) = page["nodes"]
        assert (node["node"], node["count"], node["failed"]) == (
            "answer",
            1,
            1,
        )  # t2's was rolled back, and its run names the node
        assert (page["examined"], page["cursor"]) == (2, None)
        for wrong in ({"since": "soon"}, {"cursor": "x"}):
            await found.get("nodes", 422, **wrong)
    async with site(kind=Restricted) as found:
        await found.say("t1", "hello", "bob")
        assert (await found.get("nodes", since="1h"))["nodes"] == []


@pytest.mark.parametrize("backend", BACKENDS)
@within_two_minutes
async def test_what_a_viewer_may_not_see_is_in_no_answer_and_left_alone(backend: str) -> None:
    async with site(backend, kind=Restricted, on_failure="keep") as found:
        for user in ("ada", "bob"):
            await found.say(f"fails of {user}", "fail", user)
            await found.say(f"asks {user}", "ask", user)
        pages = [
            await found.get("runs", stands="1"),
            await found.get("questions"),
            await found.get("threads", words="fail"),
        ]
        assert ["bob" in str(page) for page in pages] == [False] * 3
        assert ["ada" in str(page) for page in pages] == [True] * 3
        found.desk.is_down = False
        done = await found.act("rerun-failed")
        assert [each["thread_id"] for each in done["reruns"]] == ["fails of ada"]
        assert await found.states("fails of bob") == ["failed"]


@within_two_minutes
async def test_nothing_is_run_again_without_permission_or_with_a_wrong_word() -> None:
    async with site(allowed=frozenset(PERMISSIONS) - {"retry"}) as found:
        await found.say("t", "fail")
        await found.act("rerun-failed", 403)
        assert await found.states("t") == ["failed"]
    async with site() as found:
        await found.say("t", "fail")
        for wrong in ({"since": "soon"}, {"error": 3}, {"cursor": "x"}, {"error": "x" * 301}):
            await found.act("rerun-failed", 422, **wrong)
        for wrong in ({"state": "odd"}, {"stands": "yes"}, {"cursor": "i:0:"}, {"cursor": "t:x"}):
            await found.get("runs", 422, **wrong)
        await found.get("run", 404, id="t", run="none")
        await found.get("run", 422, id="t")
        assert await found.states("t") == ["failed"]


@pytest.mark.parametrize("backend", BACKENDS)
@within_two_minutes
async def test_runs_of_a_user_are_stopped(backend: str) -> None:
    async with site(backend) as found:
        await found.wait_with("t1", "ada")
        await found.wait_with("t2", "ada")
        await found.wait_with("t3", "bob")
        done = await found.act("stop-runs", user="ada", id="t1")
        assert [each["thread_id"] for each in done["stopped"]] == ["t1"]
        done = await found.act("stop-runs", user="ada")
        assert ([each["thread_id"] for each in done["stopped"]], done["more"]) == (["t2"], False)
        assert [await found.states(name) for name in ("t1", "t2", "t3")] == [["interrupted"]] * 2 + [[]]
        log = [(each["action"], each["thread_id"]) for each in (await found.get("log"))["entries"]]
        assert set(log) == {("cancel", "t1"), ("cancel", "t2")}
        wrong: tuple[dict[str, Any], ...] = ({"user": 3}, {"id": []}, {"user": "x" * 301})
        for each in wrong:
            await found.act("stop-runs", 422, **each)
    async with site(backend, allowed=frozenset(PERMISSIONS) - {"cancel"}) as found:
        await found.wait_with("t", "ada")
        await found.act("stop-runs", 403)
        assert await found.states("t") == []


@within_two_minutes
async def test_what_is_stuck_is_shown_to_who_may_see_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.inspector.queue._OVERDUE_US", -2_000_000_000)
    for kind, counts in ((LocalAccess, [2]), (Restricted, [])):
        async with site(kind=kind) as found:
            await found.wait_with("t1", "ada")
            await found.wait_with("t2", "bob")
            page = await found.get("queue")
            stuck = page["stuck"]
            assert page["is_surveyed"] == (kind is LocalAccess)
            assert [each["threads"] for each in stuck] == counts
            assert all("start one with the graph 'agent'" in each["advice"] for each in stuck)


@within_two_minutes
async def test_a_server_that_hides_texts_hides_them_here() -> None:
    async with site() as found:
        await found.say("t", "fail")
        hiding = shows_texts.set(False)
        try:
            (run,) = (await found.get("runs", stands="1"))["runs"]
            assert "no answer" not in str(run)
            assert (await found.get("runs", error="no answer"))["runs"] == []
            shown = (await found.get("run", id="t", run=run["run_id"]))["error"]
            assert (shown["traceback"], shown["is_hidden"]) == (None, True)
            (group,) = (await found.get("runs"))["groups"]
            assert group["is_hidden"]
            assert run["error"]["is_hidden"]
            # Where the text would be stands once which error it was, and how to see more.
            error = (await found.get("thread", id="t"))["run"]["error"]
            shows = f"perdure runs show {run['run_id']}"
            assert error == f"ConnectionError (its text is not shown here: {shows})"
        finally:
            shows_texts.reset(hiding)
        (run,) = (await found.get("runs", stands="1"))["runs"]
        assert run["error"]["is_hidden"] is False


@within_two_minutes
async def test_the_queue_page_looks_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site("sqlite") as found:
        await found.say("t1", "fail")
        page = await found.get("queue")
        assert ([each["thread_id"] for each in page["failed"]], page["cut"]) == (["t1"], [])
        monkeypatch.setattr(queue_views, "_SECONDS", 0.0)
        page = await found.get("queue")
        assert (page["failed"], page["cut"]) == ([], ["interrupted", "failed"])


@pytest.mark.parametrize("backend", BACKENDS)
@within_two_minutes
async def test_a_request_looks_for_a_moment_and_the_next_goes_on(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_views, "_SECONDS", 0.0)
    async with site(backend) as found:
        for n in range(5):
            await found.say(f"t{n}", "fail")
        names: list[str] = []
        cursor, requests = "", 0
        while cursor is not None:
            page = await found.get("runs", stands="1", cursor=cursor)
            assert page["examined"] <= 1
            names += [each["thread_id"] for each in page["runs"]]
            cursor, requests = page["cursor"], requests + 1
        assert sorted(names) == [f"t{n}" for n in range(5)]
        assert requests >= 5
        accepted: list[str] = []
        cursor = ""
        while cursor is not None:
            done = await found.act("rerun-failed", cursor=cursor)
            accepted += [each["thread_id"] for each in done["reruns"] if each["outcome"] == "accepted"]
            cursor = done["cursor"]
        assert sorted(accepted) == [f"t{n}" for n in range(5)]
