"""Failed runs, questions, numbers and searches in Chromium: by mouse and by keys, dark, narrow, hostile."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import apsw
import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

import perdure
from perdure.database.base import handle_of
from perdure.engine.retention.old_counts import DAY_US, SIZES, partition_of
from perdure.inspector.access import LocalAccess
from perdure.model.ops import Commit, Put
from perdure.model.records import DOCUMENT
from perdure.runtime import Runtime, Settings
from tests.backends import EMPTY
from tests.inspector.browsing import served, sound
from tests.inspector.staging import HOSTILE, HOSTILE_ID
from tests.server.browsing import browsing, launched, wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page, Route

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
ACTION = {"name": HOSTILE, "args": {"to": HOSTILE}, "description": HOSTILE}
QUESTIONS: dict[str, Any] = {
    "review": {
        "action_requests": [ACTION, {"name": "delete", "args": {"id": 3}}],
        "review_configs": [{"action_name": "delete", "allowed_decisions": ["approve", "reject"]}],
    },
    "choice": {"question": f"Which? {HOSTILE}", "options": ["yes", HOSTILE]},
    "schema": {
        "question": "Where to?",
        "schema": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "title": HOSTILE},
                "nights": {"type": "integer", "default": 2},
                "class": {"enum": ["economy", "first"]},
                "meal": {"type": "boolean"},
            },
            "required": ["city"],
        },
    },
    "open": HOSTILE,
    "human": [
        {
            "action_request": {"action": "buy", "args": {"n": 3}},
            "config": {"allow_accept": True, "allow_edit": True, "allow_respond": True, "allow_ignore": True},
            "description": "Buy three?",
        }
    ],
}


class Agent:
    """Fails until it is mended, and answers with what its question was answered."""

    is_down = True

    async def answer(self, state: MessagesState) -> dict[str, Any]:
        said = state["messages"][-1].text
        if said == "hold":
            await asyncio.sleep(3600)
        if said == "break" and self.is_down:
            raise KeyError("broken")
        if said.startswith("fail") and self.is_down:
            raise ValueError(f"{HOSTILE} after {len(said)} s")
        if said in QUESTIONS:
            return {"messages": [AIMessage(repr(interrupt(QUESTIONS[said])))]}
        return {"messages": [AIMessage("fine")]}


class Stage:
    """A runtime that works in a thread of its own, with an inspector over it."""

    def __init__(self, url: str) -> None:
        self.url, self.agent = url, Agent()
        self.is_ready, self.is_over = threading.Event(), asyncio.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._live()))
        self.thread.start()
        assert self.is_ready.wait(60)

    async def _live(self) -> None:
        self.loop = asyncio.get_running_loop()
        builder = StateGraph(MessagesState).add_node("answer", self.agent.answer)
        graph = builder.add_edge(START, "answer").compile()
        async with (
            perdure.connect(self.url, migrate=True) as database,
            Runtime(
                database, graph, settings=Settings(attempts=1, poll=0.1, on_failure="keep"), observers=()
            ) as self.runtime,
        ):
            self.database = database
            self.is_ready.set()
            await self.is_over.wait()

    def call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def say(self, thread: str, text: str) -> None:
        async def said() -> None:
            config = {"configurable": {"user_id": HOSTILE}}
            await self.runtime.wait(await self.runtime.accept(thread, text, config=config), 30)

        self.call(said())

    def start(self, thread: str, text: str) -> None:
        config = {"configurable": {"user_id": HOSTILE}}
        self.call(self.runtime.accept(thread, text, config=config))
        wait_for("the run", lambda: self.states(thread) == ["open"])

    def states(self, thread: str) -> list[str]:
        return [run.state for run in self.call(self.runtime.runs(thread))]

    def answer_of(self, thread: str) -> str:
        async def last() -> str:
            state = await self.runtime.graph("agent").aget_state({"configurable": {"thread_id": thread}})
            return str(state.values["messages"][-1].text)

        return str(self.call(last()))

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.is_over.set)
        self.thread.join(60)


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with launched(chromium) as opened:
        yield opened


@pytest.fixture
def stage() -> Iterator[Stage]:
    with EMPTY["sqlite"]() as url:
        stage = Stage(url)
        try:
            yield stage
        finally:
            stage.close()


@pytest.fixture
def address(stage: Stage) -> Iterator[str]:
    # The pages are served by another event loop, so by a runtime of its own.
    with perdure.connect_sync(stage.url) as database:
        graph = StateGraph(MessagesState).add_node("answer", stage.agent.answer).add_edge(START, "answer")
        runtime = Runtime(database, graph.compile(), works=False, observers=())
        access = LocalAccess(
            handle_of(database),
            "",
            runtime=runtime,
            allowed=frozenset(("retry", "answer", "cancel", "delete")),
        )
        with served(access) as found:
            yield found


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with browsing(browser, reduced_motion="reduce") as shown:
        yield shown


class Held:
    """Requests that wait until they are answered, one by one."""

    def __init__(self, page: Page, pattern: str) -> None:
        self._page = page
        self._routes: list[Route] = []
        page.route(pattern, self._hold)

    def _hold(self, route: Route) -> None:
        self._routes.append(route)

    def wait(self) -> None:
        until = time.monotonic() + 60
        while not self._routes:
            assert time.monotonic() < until
            self._page.wait_for_timeout(20)

    def answer(self, body: dict[str, Any], status: int = 200) -> None:
        self.wait()
        self._routes.pop().fulfill(status=status, json=body)


def test_failed_runs_are_found_by_error_and_run_again(page: Page, stage: Stage, address: str) -> None:
    for thread in ("one", "two", HOSTILE_ID):
        stage.say(thread, f"fail {thread}")
    page.goto(f"{address}#/runs")
    page.locator("#main").get_by_text("3 runs in 3 threads, of 3 examined.").wait_for()
    page.get_by_text("3 × ValueError").wait_for()
    first = page.locator("details.channel").first
    first.locator("summary").focus()
    page.keyboard.press("Enter")
    trace = first.get_by_role("region", name="Traceback")
    trace.wait_for()
    assert "in answer" in trace.inner_text()
    assert "frames of libraries" not in trace.inner_text()
    first.locator("summary", has_text="Frames of libraries").press("Enter")
    assert "/perdure/" in first.get_by_role("region", name="Frames of libraries").inner_text()
    sound(page)
    stage.agent.is_down = False
    first.get_by_role("button", name="Run again").focus()
    page.keyboard.press("Enter")
    first.get_by_text("It is run again").wait_for()
    wait_for("the repetition", lambda: stage.states(HOSTILE_ID) == ["done", "failed"])
    page.get_by_label("Error", exact=True).fill("after")
    page.get_by_role("button", name="Search").click()
    page.locator("#main").get_by_text("2 runs in 2 threads, of 2 examined.").wait_for()
    assert "error=after" in page.url
    page.reload()
    page.locator("#main").get_by_text("2 runs in 2 threads, of 2 examined.").wait_for()
    page.get_by_role("button", name="Run these again, which failed with ValueError").click()
    asks = page.get_by_text("Run 2 failed runs again?")
    asks.wait_for()
    for key in ("Enter", "Escape"):  # A second Enter runs nothing.
        page.keyboard.press(key)
        asks.wait_for(state="detached")
        assert page.evaluate("() => document.activeElement.textContent") == "Run these again"
        page.keyboard.press("Enter")
        asks.wait_for()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    page.locator("#main").get_by_text("2 of 2 failed runs accepted again.").wait_for()
    page.get_by_text("No run matches.").wait_for()
    sound(page)
    for thread in ("one", "two"):
        wait_for("the repetition", lambda name=thread: stage.states(name) == ["done", "failed"])  # type: ignore[misc]


def test_all_that_failed_since_noon_runs_again(page: Page, stage: Stage, address: str) -> None:
    stage.say("one", "fail")
    stage.say("two", "break")
    page.goto(f"{address}#/runs")
    page.get_by_label("Changed in").select_option(label="since noon")
    page.locator("#main").get_by_text("2 runs in 2 threads, of 2 examined.").wait_for()
    stage.agent.is_down = False
    page.get_by_role("button", name="Run all 2 again").click()
    page.get_by_role("button", name="Leave them").click()
    assert [stage.states(name) for name in ("one", "two")] == [["failed"], ["failed"]]
    page.get_by_role("button", name="Run all 2 again").click()
    page.get_by_role("button", name="Run 2 again").click()
    page.locator("#main").get_by_text("2 of 2 failed runs accepted again.").wait_for()
    wait_for("the repetition", lambda: [stage.states(name)[0] for name in ("one", "two")] == ["done", "done"])
    page.get_by_text("No run matches.").wait_for()
    sound(page)


def test_running_again_goes_on_in_other_views_and_says_how_far_it_came(
    page: Page, stage: Stage, address: str
) -> None:
    for thread in ("one", "two", "three"):
        stage.say(thread, "fail")
    held = Held(page, "**/actions/rerun-failed")
    part = {"reruns": [{"outcome": "accepted", "reason": None}], "cursor": "1/x"}
    page.goto(f"{address}#/runs")
    page.get_by_role("button", name="Run these again").click()
    page.get_by_role("button", name="Run 3 again").click()
    page.locator("#main").get_by_text("Running failed runs again: 0 of 3 …").wait_for()
    held.answer(part)
    page.locator("#main").get_by_text("Running failed runs again: 1 of 3 …").wait_for()
    sound(page)
    page.get_by_role("link", name="Limits").click()
    page.get_by_role("heading", name="Limits", level=1).wait_for()
    held.answer(part)
    page.locator("#bulk").get_by_text("Running failed runs again: 2 of 3 …").wait_for()
    sound(page)
    asked: list[str] = []

    def agree(dialog: Dialog) -> None:
        asked.append(dialog.type)
        dialog.accept()

    page.on("dialog", agree)
    page.reload()
    assert asked == ["beforeunload"]
    left = (
        "The page was left before this was over: Running failed runs again: 2 of 3 … The rest was not begun."
    )
    page.locator("#bulk").get_by_text(left).wait_for()
    page.get_by_role("button", name="Close").click()
    page.locator("#bulk").get_by_text(left).wait_for(state="detached")
    page.reload()
    assert (len(asked), page.locator("#bulk").inner_text()) == (1, "")


def test_running_again_is_stopped_between_its_parts(page: Page, stage: Stage, address: str) -> None:
    stage.say("one", "fail")
    stage.say("two", "fail")
    held = Held(page, "**/actions/rerun-failed")
    page.goto(f"{address}#/runs")
    page.get_by_role("button", name="Run these again").click()
    page.get_by_role("button", name="Run 2 again").click()
    held.wait()
    page.get_by_role("button", name="Stop", exact=True).click()
    held.answer({"reruns": [{"outcome": "stays", "reason": HOSTILE}], "cursor": "1/x"})
    page.locator("#main").get_by_text("1 of 2 … Stopped: the rest was not begun.").wait_for()
    sound(page)
    page.get_by_role("button", name="Look again").click()
    page.get_by_role("button", name="Run these again").click()
    page.get_by_role("button", name="Run 2 again").click()
    held.answer({"detail": "away"}, 503)
    page.locator("#main").get_by_text("away").wait_for()


def test_a_list_of_runs_shows_the_beginning_of_each_error(page: Page, stage: Stage, address: str) -> None:
    stage.say("one", f"fail {'x' * 5000}")
    page.goto(f"{address}#/runs")
    line = page.locator(".error-line")
    line.wait_for()
    assert len(line.inner_text()) < 130
    page.locator("details.channel summary").click()
    page.locator("pre.problem").get_by_text(HOSTILE).wait_for()


def test_open_runs_of_a_user_are_stopped(page: Page, stage: Stage, address: str) -> None:
    stage.start("one", "hold")
    page.goto(f"{address}#/runs?state=open")
    page.get_by_label("User").fill(HOSTILE)
    page.get_by_label("User").press("Enter")
    stop = page.get_by_role("button", name="Stop these runs")
    assert stop.is_disabled()
    page.get_by_label(f"all open runs, and the messages that wait, of {HOSTILE}").check()
    sound(page)
    stop.click()
    page.locator("#main").get_by_text("1 run stopped.").wait_for()
    wait_for("its end", lambda: stage.states("one") == ["interrupted"])


def test_questions_are_answered_by_their_forms(page: Page, stage: Stage, address: str) -> None:
    for name in QUESTIONS:
        stage.say(name, name)
    page.goto(f"{address}#/questions")
    page.locator("#main").get_by_text("5 questions wait for an answer.").wait_for()
    sound(page)

    def card(name: str) -> Any:
        return page.get_by_label(f"Question of {name}", exact=True)

    review = card("review")
    review.get_by_role("button", name="Edit").click()
    arguments = review.get_by_label("The arguments, as JSON")
    arguments.fill("{")
    review.get_by_role("button", name="Approve with changes").click()
    review.get_by_text("This is not JSON").wait_for()
    arguments.fill('{"to": "ada"}')
    review.get_by_role("button", name="Approve with changes").click()
    review.get_by_text("Decided: edit").wait_for()
    assert page.evaluate("() => document.activeElement.textContent") == "Approve"
    review.get_by_role("button", name="Reject").focus()
    page.keyboard.press("Enter")
    page.keyboard.type("too many")
    review.get_by_role("button", name="Reject").click()
    card("choice").get_by_role("button", name="yes").click()
    schema = card("schema")
    schema.get_by_label(HOSTILE).fill("Rome")
    schema.get_by_label("class").select_option("first")
    schema.get_by_role("button", name="Answer", exact=True).first.click()
    card("open").get_by_label("Your answer").fill("as you like")
    card("open").get_by_role("button", name="Answer").click()
    card("open").get_by_text("Answered.").wait_for()
    card("human").get_by_role("button", name="Approve").press("Enter")
    page.wait_for_function("() => document.activeElement.matches('h2')")
    assert page.evaluate("() => document.activeElement.textContent") == "human"
    answers = {
        "review": [
            {"type": "edit", "edited_action": {"name": HOSTILE, "args": {"to": "ada"}}},
            {"type": "reject", "message": "too many"},
        ],
        "choice": "yes",
        "schema": {"city": "Rome", "nights": 2, "class": "first", "meal": False},
        "open": "as you like",
        "human": [{"type": "accept", "args": None}],
    }
    answers["review"] = {"decisions": answers["review"]}
    for name, answer in answers.items():
        wait_for(f"the end of {name}", lambda name=name: stage.states(name) == ["done", "waiting"])  # type: ignore[misc]
        assert stage.answer_of(name) == repr(answer)


def test_a_question_that_was_answered_elsewhere_says_so(page: Page, stage: Stage, address: str) -> None:
    stage.say("choice", "choice")
    page.goto(f"{address}#/questions")
    button = page.get_by_role("button", name="yes")
    button.wait_for()
    stage.call(stage.runtime.answer("choice", "no"))
    button.click()
    page.locator("#main").get_by_text("waits for no answer").wait_for()


def test_threads_are_searched_and_filters_are_kept(page: Page, stage: Stage, address: str) -> None:
    stage.say("one", f"the moon {HOSTILE}")
    stage.say(HOSTILE_ID, "the sun")
    page.goto(address)
    page.keyboard.press("/")
    assert page.evaluate("() => document.activeElement.name") == "words"
    page.keyboard.type("MOON the")
    page.keyboard.press("Enter")
    page.locator("#main").get_by_text("1 found in 2 threads, which are all.").wait_for()
    page.locator(".excerpt", has_text="the moon").wait_for()
    assert "words=MOON" in page.url
    page.locator("summary", has_text="Save").click()
    page.get_by_label("Save this filter as").fill(HOSTILE)
    page.keyboard.press("Enter")
    page.locator(".filter a").wait_for()
    sound(page)
    page.goto(f"{address}#/threads")
    page.locator("tbody tr").nth(1).wait_for()
    page.locator(".filter a").click()
    page.locator("#main").get_by_text("1 found in 2 threads, which are all.").wait_for()
    page.locator(".filter button").click()
    page.locator(".filter").wait_for(state="detached")
    page.evaluate("() => localStorage.setItem('perdure.inspector.filters', '{\"a\": 1}')")
    page.reload()
    page.locator("#main").get_by_text("1 found in 2 threads, which are all.").wait_for()
    # A hit opens at the message that has the words.
    page.get_by_role("link", name="one", exact=True).press("Enter")
    page.wait_for_function("() => document.activeElement.matches('.bubble[data-found]')")
    assert "the moon" in page.evaluate("() => document.activeElement.textContent")


def test_the_numbers_of_the_last_hour_are_shown(page: Page, stage: Stage, address: str) -> None:
    stage.say("one", "fail")
    stage.say("two", "hello")
    stage.call(stage.runtime._worker.runner.activity.flush())  # pyright: ignore[reportPrivateUsage]
    page.goto(f"{address}#/overview")
    chart = page.get_by_role("img", name="The last hour, by minute: 2 runs, 1 failed")
    chart.wait_for()
    columns = chart.locator("rect")
    widths = columns.evaluate_all("all => all.map((each) => each.getBoundingClientRect().width)")
    assert len(widths) >= 2
    assert min(widths) > 1
    page.get_by_role("link", name="ValueError").first.wait_for()
    sound(page)
    page.get_by_role("link", name="ValueError").first.focus()
    page.keyboard.press("Enter")
    page.locator("#main").get_by_text("1 run in").wait_for()
    page.get_by_role("button", name="Run these again").wait_for()


def test_failures_since_a_deploy_are_found_from_the_numbers(page: Page, stage: Stage, address: str) -> None:
    stage.say("one", "fail")
    stage.say("two", "hello")
    stage.call(stage.runtime._worker.runner.activity.flush())  # pyright: ignore[reportPrivateUsage]
    (run,) = stage.call(stage.runtime.runs("one"))
    version = run.graph_version
    page.goto(f"{address}#/overview")
    row = page.get_by_role("region", name="By version of the graph").locator("tbody td")
    row.first.wait_for()
    cells = row.all_inner_texts()
    assert (cells[:2], cells[3:]) == (["agent", version], ["2", "1"])
    sound(page)
    row.last.get_by_role("link").focus()
    page.keyboard.press("Enter")
    page.locator("#main").get_by_text("1 run in").wait_for()
    assert page.get_by_label("Version").input_value() == version
    page.get_by_text(f"version {version}").wait_for()
    page.locator("summary", has_text="one").click()
    page.locator("dd", has_text=version).get_by_role("link").click()
    page.locator("#main").get_by_text("2 runs in").wait_for()
    sound(page)
    page.get_by_label("Version").fill("another")
    page.keyboard.press("Enter")
    page.locator("#main").get_by_text("No run matches.").wait_for()


def test_growth_is_shown_by_day(page: Page, stage: Stage, address: str) -> None:
    stage.say("one", "hello")
    stage.call(stage.runtime._worker.runner.activity.flush())  # pyright: ignore[reportPrivateUsage]
    now = time.time_ns() // 1000
    driver = handle_of(stage.database).driver
    for days, size, threads in ((40, 1_000, 1), (31, 3_000_000, 3), (8, 9_000_000, 2)):
        at = now - days * DAY_US
        body = json.dumps({"bytes": size, "threads": threads}).encode()
        put = Put(DOCUMENT, (SIZES, str(at - at % DAY_US)), {"updated_at": at}, body, version=1)
        driver.perform(Commit(partition_of(""), (put,)))
    page.goto(f"{address}#/care")
    minus = "\N{MINUS SIGN}"
    chart = page.get_by_role("img", name=f"Threads by day: 1 now, {minus}1 in 7 days, {minus}2 in 30 days")
    chart.wait_for()
    assert chart.locator("rect").count() == 41
    assert page.get_by_role("img", name="Size of the database by day").locator("rect").count() == 41
    sound(page)


def test_a_user_is_shown_and_removed_by_keys(page: Page, stage: Stage, address: str) -> None:
    stage.say("one", "hello")
    stage.say(HOSTILE_ID, "hello")
    page.goto(address)
    links = page.get_by_role("link", name=HOSTILE, exact=True)
    links.first.wait_for()
    assert links.count() == 2
    page.get_by_label("User", exact=True).fill("nobody")
    page.keyboard.press("Enter")
    page.locator("#main").get_by_text("0 found in 2 threads, which are all.").wait_for()
    page.get_by_label("User", exact=True).fill(HOSTILE)
    page.keyboard.press("Enter")
    page.locator("#main").get_by_text("2 found in 2 threads, which are all.").wait_for()
    links.first.focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name=f"User {HOSTILE}", exact=True, level=1).wait_for()
    status = page.get_by_role("status")
    status.get_by_text("2 threads of the user in 2 examined, which are all.").wait_for()
    assert page.locator("dd").first.inner_text() == "2"
    page.locator("dt", has_text="Stays: items in the store").wait_for()
    page.get_by_label("Changed in").select_option("1h")
    page.wait_for_url("**since=1h")
    status.get_by_text("2 threads of the user in 2 examined, which are all.").wait_for()
    sound(page)
    summary = page.locator("summary", has_text="Delete everything of the user")
    summary.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("somebody else")
    page.keyboard.press("Enter")
    page.locator(".problem", has_text="confirm has to be the user's id").wait_for()
    page.get_by_label("Type the user's id to confirm").fill(HOSTILE)
    page.keyboard.press("Enter")
    removed = "2 threads, 0 crons, 0 assistants and 0 entries of what was known are removed."
    status.get_by_text(removed).wait_for()
    status.get_by_text("0 threads of the user in 0 examined, which are all.").wait_for()
    # The focus is on the outcome, and not lost.
    assert "are removed" in page.evaluate("() => document.activeElement.textContent")
    sound(page)
    page.get_by_role("link", name="Log").click()
    page.locator("tbody td", has_text="delete-user").wait_for()


def test_a_log_that_may_hold_a_removed_user_is_named(page: Page, stage: Stage, address: str) -> None:
    stage.say("one", "hello")
    page.goto(f"{address}#/user?user={quote(HOSTILE)}")
    page.locator("summary", has_text="Delete everything of the user").click()
    page.get_by_label("Type the user's id to confirm").fill(HOSTILE)
    with closing(apsw.Connection(stage.url.removeprefix("sqlite:///"))) as reader:
        reader.execute("BEGIN; SELECT * FROM perdure_thread").fetchall()
        page.keyboard.press("Enter")
        page.get_by_role("status").get_by_text("what was removed stays in its log").wait_for()


def test_times_of_nodes_that_are_not_whole_say_so(page: Page, stage: Stage, address: str) -> None:
    stage.say("one", "hello")
    stage.say("two", "fail")
    held = Held(page, "**/api/nodes?*")
    page.goto(f"{address}#/overview")
    page.get_by_role("button", name="Measure nodes").click()
    node = {"graph": "agent", "node": "answer", "count": 1, "failed": 0, "longest": 5, "classes": {"1": 1}}
    part = {"nodes": [node], "examined": 1, "unreadable": 0}
    held.answer({**part, "cursor": "x"})
    note = page.locator("#main .notice")
    note.get_by_text("So far, 1 thread of at most 2: the numbers below are not whole.").wait_for()
    page.get_by_role("region", name="Nodes so far, the slowest first").wait_for()
    sound(page)
    held.answer({**part, "cursor": None})
    page.locator("#main").get_by_text("2 threads examined, which are all that changed since.").wait_for()
    page.get_by_role("region", name="Nodes, the slowest first").wait_for()
    assert note.count() == 0


def test_the_times_of_nodes_are_measured_by_keys(page: Page, stage: Stage, address: str) -> None:
    stage.say("one", "hello")
    stage.say("two", "fail")
    page.goto(f"{address}#/overview")
    button = page.get_by_role("button", name="Measure nodes")
    button.focus()
    page.keyboard.press("Enter")
    page.get_by_role("status").get_by_text("2 threads examined, which are all that changed since.").wait_for()
    row = page.get_by_role("region", name="Nodes, the slowest first").locator("tbody td").all_inner_texts()
    assert row[:4] == ["agent", "answer", "2", "1"]
    assert page.evaluate("() => document.activeElement.textContent") == "Measure nodes"
    sound(page)
