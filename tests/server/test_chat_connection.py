"""The chat page over connections that break, wait, or answer for the server: nothing that was sent is lost,
sent twice or out of order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.server.browsing import Site, act, answered, ask, bodies, browsing, wait_for, wait_on, written
from tests.server.gates import GATES
from tests.server.test_chat_page import site

if TYPE_CHECKING:
    from playwright.sync_api import APIResponse, Browser, Page, Route

__all__ = ["site"]
pytestmark = pytest.mark.timeout(240)
SIGN_IN = {"status": 200, "content_type": "text/html", "body": "<html>Sign in to the network</html>"}


@pytest.fixture
def page(browser: Browser, site: Site) -> Iterator[Page]:
    with browsing(browser, viewport={"width": 1280, "height": 800}) as opened:
        opened.goto(site.page)
        opened.locator("#graph option").first.wait_for(state="attached")
        opened.select_option("#graph", "chat")
        ask(opened, "hello")
        answered(opened, 1)
        yield opened


def test_a_page_of_a_proxy_is_no_answer_of_the_server(page: Page, site: Site) -> None:
    page.route(f"http://127.0.0.1:{site.port}/threads/**", lambda route: route.fulfill(**SIGN_IN))
    page.route("**/ok?*", lambda route: route.fulfill(**SIGN_IN))
    ask(page, "are you there?")
    page.get_by_text("Waits for the server").wait_for()
    listed = (
        "import(new URL('api.js', document.baseURI)).then((api) => api.threads(1)).catch(({ away }) => away)"
    )
    assert page.evaluate(listed) is True
    page.unroute_all()
    page.locator(".message", has_text="You said: are you there?").wait_for()
    answered(page, 2)
    assert site.said() == [bodies(page)]


@pytest.mark.slow
def test_a_server_that_is_alive_and_refuses_is_asked_with_pauses(page: Page, site: Site) -> None:
    asked: list[Route] = []

    def refuse(route: Route) -> None:
        asked.append(route)
        route.fulfill(status=503, json={"detail": "busy"})

    page.route("**/runs/stream", refuse)
    ask(page, "are you there?")
    wait_on(page, "a repetition", lambda: len(asked) > 1)
    page.wait_for_timeout(2000)
    assert len(asked) < 8
    page.unroute_all()
    page.locator(".message", has_text="You said: are you there?").wait_for()
    answered(page, 2)
    assert site.said() == [bodies(page)]


def cut_off(page: Page) -> None:
    """Let no request for a run, nor one for the server's health, reach the server."""
    for path in ("**/runs", "**/runs/stream", "**/ok?*"):
        page.route(path, lambda route: route.abort())


def test_messages_that_wait_outlive_a_reload_in_their_order(page: Page, site: Site) -> None:
    cut_off(page)
    for text in ("first", "second"):
        ask(page, text)
        page.locator(".message.user", has_text=text).get_by_text("Waits for the server").wait_for()
    page.reload()
    for text in ("first", "second"):
        page.locator(".message.user", has_text=text).get_by_text("Waits for the server").wait_for()
    page.unroute_all()
    page.locator(".message", has_text="You said: second").wait_for()
    answered(page, 3)
    assert bodies(page)[0::2] == ["hello", "first", "second"]
    assert site.said() == [bodies(page)]
    page.reload()
    answered(page, 3)
    assert page.locator(".message").count() == 6


def test_the_first_message_of_a_conversation_outlives_a_reload(page: Page, site: Site) -> None:
    page.route("**/threads", lambda route: route.abort())
    page.route("**/ok?*", lambda route: route.abort())
    page.locator("#new-thread").click()
    ask(page, "a new one")
    page.get_by_text("Waits for the server").wait_for()
    page.reload()
    page.get_by_text("Waits for the server").wait_for()
    page.unroute_all()
    page.locator(".message", has_text="You said: a new one").wait_for()
    answered(page, 1)
    assert site.said() == [bodies(page), ["hello", "You said: hello"]]


def test_a_message_whose_acceptance_was_not_seen_is_the_same_after_a_reload(page: Page, site: Site) -> None:
    passed: list[int] = []

    def lose(route: Route) -> None:
        passed.append(route.fetch(timeout=30_000).status)
        route.abort()

    page.route("**/runs/stream", lose)
    page.route("**/ok?*", lambda route: route.abort())
    ask(page, "once")
    page.get_by_text("Waits for the server").wait_for()
    assert passed == [200]
    page.reload()
    page.locator(".message", has_text="You said: once").wait_for()
    page.unroute_all()
    answered(page, 2)
    assert site.said() == [["hello", "You said: hello", "once", "You said: once"]] == [bodies(page)]
    assert page.evaluate("sessionStorage.getItem('perdure.unsent')") == "[]"


@pytest.mark.slow
def test_a_message_that_waits_is_not_overtaken_in_a_conversation_that_is_opened_again(
    page: Page, site: Site
) -> None:
    held: list[Route] = []
    ask(page, "count 100 at 40")
    written(page, 20)
    page.route("**/runs", lambda route: held.append(route) if not held else route.continue_())
    ask(page, "first")
    wait_on(page, "a request", lambda: held)
    page.locator("#new-thread").click()
    page.locator(".thread", has_text="hello").click()
    page.locator(".message.user", has_text="first").get_by_text("Sending").wait_for()
    ask(page, "second")
    page.wait_for_timeout(300)  # longer than the request for the second message would take
    held[0].continue_()
    GATES["count"].set()
    page.locator(".message", has_text="You said: second").wait_for()
    answered(page, 4)
    assert bodies(page)[0::2] == ["hello", "count 100 at 40", "first", "second"]
    assert site.said() == [bodies(page)]


def test_what_was_streamed_is_not_replaced_by_a_state_that_was_read_before(page: Page, site: Site) -> None:
    thread = page.url.partition("#")[2]
    site.ask("POST", f"/threads/{thread}/state", json={"values": {"messages": []}})
    held: list[tuple[Route, APIResponse]] = []

    def hold(route: Route) -> None:
        if len(held) < 2:
            held.append((route, route.fetch()))
        else:
            route.continue_()

    page.route("**/state", hold)
    page.evaluate("dispatchEvent(new Event('focus'))")
    wait_on(page, "the state", lambda: held)
    ask(page, "next")
    page.locator(".message", has_text="You said: next").wait_for()
    page.wait_for_timeout(500)  # longer than the rest of the answer takes
    route, before = held[0]
    route.fulfill(response=before)
    wait_on(page, "the state after the run", lambda: len(held) > 1)
    assert bodies(page)[2:4] == ["next", "You said: next"]
    route, after = held[1]
    route.fulfill(response=after)
    answered(page, 2)
    assert site.said() == [bodies(page)]


@pytest.mark.slow
def test_a_refused_message_stays_until_it_is_taken_back(page: Page, site: Site) -> None:
    page.route("**/runs/stream", lambda route: route.fulfill(status=422, json={"detail": "not now"}))
    ask(page, "refused")
    refused = page.locator(".message.failed", has_text="refused")
    refused.get_by_text("Not sent: not now").wait_for()
    page.reload()
    answered(page, 1)  # the messages that are loaded move the button
    refused.get_by_text("Not sent: not now").wait_for()
    refused.get_by_role("button", name="Take back").click()
    page.reload()
    answered(page, 1)
    assert bodies(page) == ["hello", "You said: hello"] == site.said()[0]


@pytest.mark.slow
def test_another_answer_that_is_asked_for_twice_is_made_once(page: Page, site: Site) -> None:
    held: list[Route] = []
    page.reload()
    answered(page, 1)
    answer = page.locator(".message.assistant")
    answer.hover()
    page.route("**/state/**", lambda route: held.append(route))
    # Both clicks come before the page is drawn again.
    answer.locator('[data-act="again"]').evaluate("button => { button.click(); button.click(); }")
    wait_on(page, "a request", lambda: held)
    ask(page, "and next")
    page.wait_for_timeout(300)  # longer than the request for the next message would take
    page.route("**/state/**", lambda route: route.continue_())
    for one in held:
        one.continue_()
    page.locator(".message", has_text="You said: and next").wait_for()
    answered(page, 2)
    assert bodies(page) == ["hello", "You said: hello", "and next", "You said: and next"]
    thread = page.url.partition("#")[2]
    assert len(site.ask("GET", f"/threads/{thread}/runs")) == 3
    assert page.locator(".branch").inner_text() == "2/2"


def test_an_edit_that_is_being_written_stays_when_the_thread_goes_on_elsewhere(
    page: Page, site: Site
) -> None:
    act(page.locator(".message.user"), "edit")
    editor = page.get_by_label("Your message, edited")
    editor.fill("good morning")
    thread = page.url.partition("#")[2]
    new = {"assistant_id": "chat", "input": {"messages": [{"role": "user", "content": "elsewhere"}]}}
    made = site.ask("POST", f"/threads/{thread}/runs", json={**new, "checkpoint": first_of(site, thread)})
    site.ask("GET", f"/threads/{thread}/runs/{made['run_id']}/join")
    with page.expect_response("**/threads/search"):
        page.evaluate("dispatchEvent(new Event('focus'))")
    page.wait_for_timeout(300)  # longer than the page would take to read the thread
    editor.press("Enter")
    page.locator(".message", has_text="You said: good morning").wait_for()
    answered(page, 1)
    assert bodies(page) == ["good morning", "You said: good morning"]


def first_of(site: Site, thread: str) -> dict[str, str]:
    checkpoints = site.ask("POST", f"/threads/{thread}/history", json={"limit": 100})
    return {"checkpoint_id": checkpoints[-1]["checkpoint_id"]}


def test_what_is_deleted_is_deleted_although_the_page_is_left_at_once(page: Page, site: Site) -> None:
    page.locator("li", has_text="hello").hover()
    page.get_by_role("button", name="Delete hello").click()
    page.locator(".deleted").wait_for()
    page.goto("about:blank")
    wait_for("the deletion", lambda: site.said() == [])


@pytest.mark.slow
def test_names_and_deletions_wait_for_the_server_too(page: Page, site: Site) -> None:
    titles = page.locator(".thread-title")
    page.locator("#new-thread").click()
    ask(page, "gone soon")
    answered(page, 1)
    held: list[Route] = []

    def refuse(route: Route) -> None:
        held.append(route)
        route.abort()

    for path in ("**/threads/*", "**/threads/search", "**/ok?*"):
        page.route(path, refuse)
    for name in ("one", "two"):
        page.locator(".thread").nth(1).focus()
        page.keyboard.press("F2")
        page.keyboard.type(name)
        page.keyboard.press("Enter")
    page.clock.install()
    page.locator(".thread", has_text="gone soon").focus()
    page.keyboard.press("Delete")
    page.get_by_role("button", name="Undo").wait_for()
    page.clock.fast_forward(7_000)
    page.get_by_role("button", name="Undo").wait_for(state="detached")
    wait_for("the request", lambda: any(one.request.method == "DELETE" for one in held))
    page.unroute_all()
    page.clock.fast_forward(7_000)
    page.locator(".deleted").wait_for(state="detached")
    wait_for("the name", lambda: titles.all_inner_texts() == ["two"])
    assert site.said() == [["hello", "You said: hello"]]
    thread = site.ask("POST", "/threads/search", json={})[0]
    assert thread["metadata"]["title"] == "two"
