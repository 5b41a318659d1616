"""The chat page with content and states that break a careless reader, and with stops at awkward moments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph

from tests.server.acceptance.saying import said
from tests.server.browsing import Site, answered, ask, bodies, browsing, launched
from tests.server.gates import GATES
from tests.server.typists import AnyGraph, chat

if TYPE_CHECKING:
    from playwright.sync_api import Browser, FilePayload, Page, Route

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

STATES: dict[str, list[Any]] = {
    "entries": [None, 3, "a text", ["x"], {"content": None}],
    "calls": [
        {"type": "ai", "content": "one", "tool_calls": {"a": 1}},
        {"type": "ai", "content": "two", "tool_calls": [None, {"name": "look"}]},
    ],
    "parts": [{"type": "ai", "content": [None, 5, {"type": "reasoning", "summary": [None, "x"]}, "end"]}],
}
DEEP = {
    "quotes": ">" * 20_000 + " x",
    "lists": "- " * 5_000 + "x",
    "code": "```js\n" + "`${" * 10_000 + "\n```",
}
LONG = {
    r"\(": r"a \(x" * 20_000,
    "$$": "$$ a\nb\n" * 10_000,
    "**": "**a " * 20_000,
    "heading": "# a" + " " * 50_000 + "x",
    "rule": "|a|\n" + " " * 50_000 + "-" + " " * 50_000 + "x",
    "table": r"$$\begin{array}{c}" + "a&" * 600 + r"\\" * 600 + r"\end{array}$$",
    "ticks": "`" * 50_000 + "\u2028x`",
    "macros": r"$$\def\a{" + "x" * 2_000 + "}" + r"\a" * 190 + "$$",
}
"""Texts on which a reader of quadratic or exponential cost takes seconds to hours."""


class Loose(TypedDict):
    messages: list[Any]


def loose() -> AnyGraph:
    builder = StateGraph(Loose)
    builder.add_node("put", lambda state: {"messages": STATES[state["messages"][0]["content"]]})
    builder.add_edge(START, "put")
    return builder.compile()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    GATES.clear()
    folder = tmp_path_factory.mktemp("page")
    served = Site(f"sqlite:///{folder}/page.db", {"chat": chat(), "loose": loose()})
    yield served
    served.stop()


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with launched(chromium) as opened:
        yield opened


@pytest.fixture
def page(browser: Browser, site: Site) -> Iterator[Page]:
    with browsing(browser, reduced_motion="reduce") as opened:
        opened.goto(site.page)
        opened.locator("#graph option").first.wait_for(state="attached")
        opened.select_option("#graph", "chat")
        yield opened


def until(page: Page, held: list[Route]) -> None:
    """Wait for a request that a test holds back."""
    while not held:
        page.wait_for_timeout(20)


SHOWN = """async (texts) => {
    const { show } = await import("./markdown.js");
    const { formula, highlighted } = await import("./formatted.js");
    const until = async (made, what) => {
        while (!made.querySelector(what)) await new Promise(requestAnimationFrame);
    };
    await until(formula("x", false), "math"); // the libraries are loaded
    await until(highlighted("let a", "js"), ".hl-keyword");
    return texts.map((text) => {
        const place = document.createElement("div");
        show(place, text);
        return [place.textContent.length, place.querySelectorAll("*").length];
    });
}"""


def test_content_of_any_depth_and_length_is_shown(page: Page) -> None:
    texts = [*DEEP.values(), *LONG.values()]
    for (name, text), (letters, elements) in zip(
        {**DEEP, **LONG}.items(), page.evaluate(SHOWN, texts), strict=True
    ):
        assert letters > len(text.replace(" ", "")) / 2, name
        assert elements <= 20_000, name


def test_headings_fences_and_escapes(page: Page) -> None:
    text = "## A # b ##\n\n# ##\n\n### c#\n\n``` js  x\ny\n```\n\n```a`b\n\ncosts \\$5 and \\$6"
    shown = page.evaluate(
        """async (text) => {
            const { show } = await import("./markdown.js");
            const place = document.createElement("div");
            show(place, text);
            place.querySelectorAll("button").forEach((one) => one.remove());
            return [...place.children].map((one) => `${one.localName}: ${one.textContent}`);
        }""",
        text,
    )
    assert shown == ["h4: A # b", "h3: ", "h5: c#", "figure: jsy", "p: ```a`b", "p: costs $5 and $6"]


@pytest.mark.parametrize(("name", "last"), [("entries", ""), ("calls", "two"), ("parts", "end")])
def test_states_of_any_shape_are_shown(page: Page, site: Site, name: str, last: str) -> None:
    page.select_option("#graph", "loose")
    ask(page, name)
    page.wait_for_url("**#*")  # from here on the user's message is shown, until the state replaces it
    page.locator(".message.user").wait_for(state="detached")
    page.reload()
    page.locator(".message").nth(len(STATES[name]) - 1).wait_for()
    assert page.locator("#notice").is_hidden()
    if last:
        assert bodies(page)[-1] == last


def test_an_address_that_cannot_be_read_opens_a_new_conversation(page: Page, site: Site) -> None:
    page.goto("about:blank")
    page.goto(f"{site.page}#%")
    page.locator("#graph option").first.wait_for(state="attached")
    ask(page, "hello")
    answered(page, 1)
    assert bodies(page) == ["hello", "You said: hello"]


def test_files_stay_with_the_conversation_for_which_they_were_chosen(page: Page) -> None:
    ask(page, "one")
    answered(page, 1)
    file: FilePayload = {"name": "secret.md", "mimeType": "text/markdown", "buffer": b"secret"}
    page.set_input_files("#files", [file])
    page.get_by_role("button", name="Remove secret.md").wait_for()
    page.locator("#new-thread").click()
    page.locator("#attached").wait_for(state="hidden")
    ask(page, "two")
    answered(page, 1)
    page.locator(".thread", has_text="one").first.click()
    page.get_by_role("button", name="Remove secret.md").wait_for()
    assert page.locator(".message .attached").count() == 0


def test_a_stop_before_the_message_is_accepted_stops_its_answer(page: Page) -> None:
    held: list[Route] = []
    page.route("**/runs/stream", lambda one: held.append(one))
    ask(page, "hold early")
    until(page, held)
    page.get_by_role("button", name="Stop the answer").click()
    held[0].continue_()
    page.get_by_role("button", name="Stop the answer").wait_for(state="hidden")
    page.locator("#notice", has_text="topped").wait_for()


def sent_during_a_stop(page: Page) -> Route:
    """Stop an answer and send a message; return the request of the stop, which the server has not got yet."""
    held: list[Route] = []
    page.route("**/cancel", lambda one: held.append(one))
    ask(page, "hold written")
    page.locator(".message.writing", has_text="written").wait_for()
    page.get_by_role("button", name="Stop the answer").click()
    until(page, held)
    ask(page, "and next")
    page.get_by_text("Queued: next").wait_for()
    return held[0]


def test_a_message_sent_during_a_stop_leaves_what_was_written(page: Page) -> None:
    stop = sent_during_a_stop(page)
    stop.continue_()
    page.locator(".message", has_text="You said: and next").wait_for()
    answered(page, 2)
    assert bodies(page) == ["hold written", "written", "and next", "You said: and next"]


def test_a_message_that_is_answered_before_a_stop_is_seen_leaves_what_was_written(
    page: Page, site: Site
) -> None:
    stop = sent_during_a_stop(page)
    thread = f"/threads/{page.url.partition('#')[2]}"

    def late(route: Route) -> None:
        (queued,) = [run for run in site.ask("GET", f"{thread}/runs") if "next" in str(run["kwargs"])]
        site.ask("GET", f"{thread}/runs/{queued['run_id']}/join")
        route.continue_()

    page.route("**/runs?*", late, times=1)
    stop.continue_()
    page.locator(".message", has_text="You said: and next").wait_for()
    answered(page, 2)
    assert bodies(page) == ["hold written", "written", "and next", "You said: and next"]
    heard = [message["content"] for message in site.ask("GET", f"{thread}/state")["values"]["messages"]]
    assert heard == ["hold written", "and next", "You said: and next"]


def test_a_stopped_answer_is_not_kept_where_the_thread_has_gone_on(page: Page, site: Site) -> None:
    kept: list[str] = []

    def keeps(route: Route) -> None:
        if route.request.method != "POST":
            route.continue_()
            return
        kept.append(route.request.url)
        thread = page.url.partition("#")[2]
        run = {"assistant_id": "chat", "input": said("from elsewhere"), "stream_mode": "messages-tuple"}
        made = site.ask("POST", f"/threads/{thread}/runs", json=run)
        site.ask("GET", f"/threads/{thread}/runs/{made['run_id']}/join")
        route.fulfill(status=503, json={"detail": "away"})  # the page asks again when the server is back

    page.route("**/state", keeps)
    ask(page, "hold begun")
    page.locator(".message.writing", has_text="begun").wait_for()
    page.get_by_role("button", name="Stop the answer").click()
    page.locator(".message", has_text="You said: from elsewhere").wait_for()
    answered(page, 1)
    assert len(kept) == 1
    state = site.ask("GET", f"/threads/{page.url.partition('#')[2]}/state")
    heard = [message["content"] for message in state["values"]["messages"]]
    assert heard == ["hold begun", "from elsewhere", "You said: from elsewhere"]
