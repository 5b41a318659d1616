"""The chat page in a real browser, over graphs that do as they are told."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from langgraph.checkpoint.base import id as ids

from perdure.server.config import RequestLimits
from tests.server.acceptance.saying import said
from tests.server.browsing import Site, act, answered, ask, bodies, browsing, wait_for, written
from tests.server.gates import GATES
from tests.server.hosting import owners
from tests.server.typists import graphs

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = pytest.mark.timeout(240)
COUNTED = "1 2 3 4 5"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    GATES.clear()
    served = Site(f"sqlite:///{tmp_path / 'page.db'}", graphs())
    yield served
    served.stop()


@pytest.fixture
def page(browser: Browser, site: Site) -> Iterator[Page]:
    with browsing(browser, viewport={"width": 1280, "height": 800}) as opened:
        opened.goto(site.page)
        choose_chat(opened)
        yield opened


def choose_chat(page: Page) -> None:
    """Wait until the graphs are known, and talk to this one."""
    page.locator("#graph option").first.wait_for(state="attached")
    page.select_option("#graph", "chat")


def late(page: Page, part: str) -> None:
    """Load the page again; whatever it asks for by this part of a URL comes late from now on."""
    page.add_init_script(
        f"""
        const real = window.fetch;
        window.fetch = async (url, ...how) => {{
          if (String(url).includes("{part}")) await new Promise((done) => setTimeout(done, 700));
          return real(url, ...how);
        }};
        """
    )
    page.reload()


def shown(page: Page, text: str) -> None:
    """Wait until something stands on the page."""
    page.locator("main").get_by_text(text).wait_for()


def test_an_answer_is_streamed_and_stays(page: Page, site: Site) -> None:
    ask(page, "count 40 at 20")
    assert written(page, 5).startswith(COUNTED[:5])
    assert page.locator(".message.user .state").inner_text() in ("Stored", "")
    GATES["count"].set()
    answered(page, 1)
    assert bodies(page) == ["count 40 at 20", " ".join(map(str, range(1, 41)))]
    thread = site.ask("POST", "/threads/search", json={})[0]["thread_id"]
    assert page.url == f"{site.page}#{thread}"
    page.reload()
    answered(page, 1)
    assert bodies(page) == ["count 40 at 20", " ".join(map(str, range(1, 41)))]
    assert page.locator(".thread[aria-current]").inner_text().startswith("count 40")


def test_what_a_model_writes_is_text_and_never_markup(page: Page) -> None:
    ask(page, "markdown")
    answered(page, 1)
    body = page.locator(".message.assistant .body")
    assert body.locator("strong").inner_text() == "two"
    assert body.locator("td").all_inner_texts() == ["threads", "12", "runs", "345"]
    assert body.locator("a").evaluate_all("found => found.map(one => one.href)") == [
        "https://example.com/manual"
    ]
    assert body.locator("li b").count() == 0
    assert "<b>no markup</b>" in body.inner_text()
    page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    body.get_by_role("button", name="Copy").click()
    body.get_by_text("Copied").wait_for()
    assert page.evaluate("window.copied").startswith("def greet(name: str)")


def test_stop_ends_the_answer_and_it_can_go_on(page: Page, site: Site) -> None:
    ask(page, "count 4000")
    written(page, 20)
    page.keyboard.press("Escape")
    shown(page, "What was written is kept")
    ((asked, kept),) = site.said()
    assert (asked, kept[:5]) == ("count 4000", COUNTED[:5])
    assert page.locator("#notice").get_by_role("button", name="Answer again").is_visible()
    page.reload()
    shown(page, "Stopped here")
    assert bodies(page) == ["count 4000", kept]
    page.locator("#notice").get_by_role("button", name="Answer again").click()
    written(page, len(kept) + 20)
    page.get_by_role("button", name="Stop the answer").click()
    shown(page, "What was written is kept")
    assert page.locator(".branch").inner_text() == "2/2"
    ask(page, "enough")
    shown(page, "You said: enough")
    ((_, longer, *more),) = site.said()
    assert longer.startswith(f"{kept} ")
    assert more == ["enough", "You said: enough"]


@pytest.mark.slow
def test_a_reload_and_a_second_tab_follow_the_answer_that_is_written(page: Page) -> None:
    ask(page, "count 150 at 60")
    written(page, 20)
    page.reload()
    assert written(page, 20).startswith(COUNTED)
    second = page.context.new_page()
    second.goto(page.url)
    assert written(second, 20).startswith(COUNTED)
    GATES["count"].set()
    whole = ["count 150 at 60", " ".join(map(str, range(1, 151)))]
    for tab in (second, page):
        answered(tab, 1)
        assert bodies(tab) == whole


def test_a_message_stands_below_the_answer_that_was_stopped_while_the_server_is_away(
    page: Page, site: Site
) -> None:
    ask(page, "count 4000")
    written(page, 20)
    page.keyboard.press("Escape")
    shown(page, "What was written is kept")
    cut = bodies(page)
    site.stop()
    ask(page, "enough")
    shown(page, "Waits for the server")
    assert bodies(page)[:3] == [*cut, "enough"]
    site.start()
    shown(page, "You said: enough")
    answered(page, 2)
    assert bodies(page) == [*cut, "enough", "You said: enough"]


def test_messages_wait_their_turn_and_can_be_taken_back(page: Page, site: Site) -> None:
    ask(page, "count 60 at 20")
    written(page, 3)
    for text in ("one", "two", "three"):
        ask(page, text)
        page.locator(".message.queued", has_text=text).wait_for()
    assert page.locator(".message.queued .state").all_inner_texts() == [
        "Queued: next",
        "Queued, number 2",
        "Queued, number 3",
    ]
    page.locator(".message.queued", has_text="two").get_by_role("button", name="Take back").click()
    page.reload()
    page.locator(".message.queued", has_text="three").wait_for()
    assert page.locator(".message.queued .body").all_inner_texts() == ["one", "three"]
    GATES["count"].set()
    shown(page, "You said: three")
    answered(page, 3)
    assert bodies(page)[2:] == ["one", "You said: one", "three", "You said: three"]
    assert site.said()[0] == bodies(page)


def test_an_edit_and_another_answer_are_branches(page: Page) -> None:
    ask(page, "first")
    answered(page, 1)
    ask(page, "second")
    answered(page, 2)
    for text in ("2nd", "zweitens"):
        act(page.locator(".message.user").nth(1), "edit")
        page.get_by_label("Your message, edited").fill(text)
        page.keyboard.press("Enter")
        shown(page, f"You said: {text}")
        answered(page, 2)
    branch = page.locator(".message.user").nth(1).locator(".branch")
    wait_for("the third branch", lambda: branch.inner_text() == "3/3")
    act(page.locator(".message.user").nth(1), "before")
    shown(page, "You said: 2nd")
    assert (branch.inner_text(), bodies(page)[2:]) == ("2/3", ["2nd", "You said: 2nd"])
    ask(page, "and on from there")
    shown(page, "You said: and on from there")
    answered(page, 3)
    page.reload()
    wait_for("both", lambda: (branch.inner_text(), len(bodies(page))) == ("2/3", 6))
    act(page.locator(".message.user").nth(1), "before")
    shown(page, "You said: second")
    assert bodies(page) == ["first", "You said: first", "second", "You said: second"]
    act(page.locator(".message.assistant").nth(1), "again")
    answer = page.locator(".message.assistant").nth(1).locator(".branch")
    wait_for("both", lambda: (answer.inner_text(), branch.inner_text()) == ("2/2", "1/3"))


@pytest.mark.slow
def test_a_refused_message_is_sent_again_in_the_branch_that_it_was_written_in(page: Page, site: Site) -> None:
    ask(page, "first")
    answered(page, 1)
    act(page.locator(".message.user"), "edit")
    page.get_by_label("Your message, edited").fill("erstens")
    page.keyboard.press("Enter")
    shown(page, "You said: erstens")
    answered(page, 1)
    branch = page.locator(".branch")
    wait_for("the second branch", lambda: branch.all_inner_texts() == ["2/2"])
    act(page.locator(".message.user"), "before")
    shown(page, "You said: first")
    refusal = {"status": 422, "json": {"detail": "not now"}}
    page.route("**/runs/stream", lambda route: route.fulfill(**refusal))
    ask(page, "refused")
    again = page.get_by_role("button", name="Send again")
    again.wait_for()
    page.unroute("**/runs/stream")
    again.click()
    shown(page, "You said: refused")
    answered(page, 2)
    assert bodies(page) == ["first", "You said: first", "refused", "You said: refused"]
    assert site.said() == [bodies(page)]


@pytest.mark.slow
def test_what_is_sent_before_the_graphs_are_known_is_sent_then(page: Page, site: Site) -> None:
    late(page, "/chat/graphs.json")
    ask(page, "text")  # the first of the graphs takes it, and asks
    page.locator(".question").wait_for()
    assert site.said() == [["text"]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Set the clock that checkpoint ids are made of so many seconds ahead."""

    def ahead(seconds: int) -> None:
        skewed = SimpleNamespace(time_ns=lambda: time.time_ns() + seconds * 10**9)
        monkeypatch.setattr(ids, "time", skewed)
        monkeypatch.setattr(ids, "_last_v6_timestamp", None)

    return ahead


def turn(site: Site, text: str, **how: Any) -> list[str]:
    """A turn of another client on the thread "t"; its checkpoints, the newest first."""
    new = {"assistant_id": "chat", "input": said(text), "stream_mode": "messages-tuple", **how}
    run = site.ask("POST", "/threads/t/runs", json={**new, "if_not_exists": "create"})
    site.ask("GET", f"/threads/t/runs/{run['run_id']}/join")
    return [one["checkpoint_id"] for one in site.ask("POST", "/threads/t/history", json={"limit": 100})]


def test_the_head_is_the_servers_and_not_the_largest_id(
    page: Page, site: Site, clock: Callable[[int], None]
) -> None:
    clock(3600)
    base = turn(site, "first")[0]
    turn(site, "second")
    clock(0)
    history = turn(site, "2nd", checkpoint_id=base)
    assert max(history) != history[0]
    page.goto(f"{site.page}#t")
    shown(page, "You said: 2nd")
    assert bodies(page) == ["first", "You said: first", "2nd", "You said: 2nd"]
    branch = page.locator(".branch")
    assert branch.all_inner_texts() == ["2/2"]
    ask(page, "third")
    shown(page, "You said: third")
    answered(page, 3)
    act(page.locator(".message.user").nth(1), "before")
    shown(page, "You said: second")
    assert (branch.all_inner_texts(), len(bodies(page))) == (["1/2"], 4)
    act(page.locator(".message.user").nth(1), "after")
    shown(page, "You said: third")
    assert bodies(page)[2:] == ["2nd", "You said: 2nd", "third", "You said: third"]


@pytest.mark.slow
def test_a_turn_that_was_taken_back_is_no_branch(page: Page, site: Site) -> None:
    turn(site, "first")
    page.goto(f"{site.page}#t")
    answered(page, 1)
    ask(page, "count 4000")
    written(page, 10)
    page.reload()
    written(page, 10)  # the page knows the run's first checkpoints
    (run,) = site.ask("GET", "/threads/t/runs?status=running")
    site.ask("POST", f"/threads/t/runs/{run['run_id']}/cancel?action=rollback&wait=true")
    page.locator(".message.writing").wait_for(state="detached")
    wait_for("the turn's end", lambda: bodies(page) == ["first", "You said: first"])
    assert page.locator("#notice").is_hidden()
    ask(page, "second")
    shown(page, "You said: second")
    answered(page, 2)
    assert page.locator(".branch").count() == 0


@pytest.mark.slow
@pytest.mark.parametrize("is_slow", [False, True], ids=["", "before its place is known"])
def test_the_first_message_can_be_edited_too(page: Page, is_slow: bool) -> None:
    if is_slow:
        late(page, "/history")
        choose_chat(page)
    ask(page, "before")
    answered(page, 1)
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Control+A")
    page.keyboard.type("after")
    page.keyboard.press("Enter")
    shown(page, "You said: after")
    page.locator(".branch").wait_for()
    assert page.locator(".branch").all_inner_texts() == ["2/2"]
    assert bodies(page) == ["after", "You said: after"]


@pytest.mark.parametrize(
    ("form", "presses", "told"),
    [
        pytest.param("text", [], "'Vienna'", marks=pytest.mark.slow),
        ("action", ["Approve"], "{'type': 'accept', 'args': None}"),
        pytest.param("review", ["Approve"], "{'decisions': [{'type': 'approve'}]}", marks=pytest.mark.slow),
        ("review", ["Reject", "Reject"], "{'decisions': [{'type': 'reject'}]}"),
        ("json", [], "[1, 2]"),
        ("options", ["first"], "'first'"),
    ],
)
def test_a_question_is_shown_and_answered(page: Page, form: str, presses: list[str], told: str) -> None:
    page.select_option("#graph", "asking")
    ask(page, form)
    page.locator(".question").wait_for()
    assert page.locator("#text").is_disabled()
    # The list is read anew once the run has ended; the question is told a moment before.
    when = page.locator(".thread-when").first
    wait_for("the status in the list", lambda: when.inner_text() == "Waits for you")
    page.reload()
    question = page.locator(".question")
    question.wait_for()
    if form == "json":
        assert '"most": 3' in question.inner_text()
        question.get_by_label("What the answer is").select_option("json")
        question.get_by_label("Your answer").fill("[1, ")
        question.get_by_role("button", name="Answer").click()
        question.get_by_text("This is not JSON").wait_for()
        question.get_by_label("Your answer").fill("[1, 2]")
        question.get_by_role("button", name="Answer").click()
    elif form == "options":
        assert "{" not in question.inner_text()
    elif form == "text":
        question.get_by_label("Your answer").fill("Vienna")
        page.keyboard.press("Enter")
    for name in presses:
        question.get_by_role("button", name=name).click()
    answered(page, 1)
    assert page.locator(".message.assistant code").inner_text() == told
    assert page.locator(".question").count() == 0
    assert page.locator("#text").is_enabled()
    page.keyboard.press("Control+k")
    page.select_option("#graph", "chat")
    ask(page, "another graph")
    shown(page, "You said: another graph")


def test_a_failure_is_said_and_tried_again(page: Page, site: Site) -> None:
    ask(page, "break")
    shown(page, "The answer failed with ConnectionError: no line.")
    page.get_by_role("button", name="Try again").click()
    shown(page, "The answer failed with ConnectionError: no line.")
    ask(page, "better")
    shown(page, "You said: better")
    assert page.locator("#notice").is_hidden()
    assert site.said() == [["break", "better", "You said: better"]]


def test_the_page_outlives_the_server_and_goes_on_when_it_is_back(page: Page, site: Site) -> None:
    ask(page, "count 100 at 40")
    written(page, 20)
    site.stop()
    shown(page, "The server does not answer.")
    unfinished = bodies(page)[1]
    for text in ("are you there?", "hello?"):
        ask(page, text)
        page.locator(".message.user", has_text=text).get_by_text("Waits for the server").wait_for()
    assert bodies(page) == ["count 100 at 40", unfinished, "are you there?", "hello?"]
    GATES["count"].set()
    site.start()
    shown(page, "You said: hello?")
    answered(page, 3)
    assert page.locator("#notice").is_hidden()
    assert bodies(page)[0::2] == ["count 100 at 40", "are you there?", "hello?"]
    assert site.said() == [bodies(page)]


def test_messages_are_accepted_in_the_order_in_which_they_were_sent(page: Page, site: Site) -> None:
    held: list[Route] = []

    def delay(route: Route) -> None:
        if "first" in (route.request.post_data or ""):
            held.append(route)
        else:
            route.continue_()

    ask(page, "count 100 at 40")
    written(page, 20)
    page.route("**/runs", delay)
    ask(page, "first")
    ask(page, "second")
    while not held:
        page.wait_for_timeout(20)
    page.wait_for_timeout(300)  # longer than the request for the second message would take
    held[0].continue_()
    GATES["count"].set()
    shown(page, "You said: second")
    answered(page, 3)
    assert bodies(page)[0::2] == ["count 100 at 40", "first", "second"]
    assert site.said() == [bodies(page)]


@pytest.mark.slow
def test_conversations_are_renamed_deleted_and_brought_back(page: Page, site: Site) -> None:
    for text in ("apples", "pears"):
        page.keyboard.press("Control+k")
        ask(page, text)
        answered(page, 1)
    titles = page.locator(".thread-title")
    wait_for("two conversations", lambda: titles.all_inner_texts() == ["pears", "apples"])
    page.locator(".thread", has_text="apples").focus()
    page.keyboard.press("F2")
    page.keyboard.type("Fruit of the garden")
    page.keyboard.press("Enter")
    wait_for("the new name", lambda: "Fruit of the garden" in titles.all_inner_texts())
    page.clock.install()
    page.reload()
    wait_for("the stored name", lambda: "Fruit of the garden" in titles.all_inner_texts())
    page.clock.pause_at(time.time() + 1)
    page.locator(".thread", has_text="pears").focus()
    page.keyboard.press("Delete")
    page.get_by_role("button", name="Undo").press("Enter")
    page.locator(".thread", has_text="pears").wait_for()
    page.locator("li", has_text="pears").hover()
    page.get_by_role("button", name="Delete pears").click()
    page.locator(".deleted").wait_for()
    assert len(site.said()) == 2
    page.clock.fast_forward(7_000)
    page.locator(".deleted").wait_for(state="detached")
    assert site.said() == [["apples", "You said: apples"]]


@pytest.mark.slow
def test_a_phone_a_drawer_and_no_way_aside(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    ask(page, "markdown")
    answered(page, 1)
    ask(page, "https://example.com/" + "long" * 60)
    answered(page, 2)
    for width in (390, 320):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate("document.querySelector('#scroller').scrollWidth") <= width
    page.get_by_role("button", name="Conversations").click()
    page.get_by_role("button", name="New conversation").click()
    page.locator(".welcome").wait_for()
    small = page.evaluate(
        """() => [...document.querySelectorAll("main button, main select")]
            .filter((one) => one.offsetParent && Math.min(one.offsetWidth, one.offsetHeight) < 32)
            .map((one) => one.outerHTML)"""
    )
    assert small == []


@pytest.mark.slow
def test_colours_follow_the_system_until_they_are_chosen(page: Page) -> None:
    def ground() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    seen = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        seen[scheme] = ground()
    assert seen["light"] != seen["dark"]
    page.get_by_role("button", name="Colours: as the system").click()
    assert ground() == seen["light"]
    page.get_by_role("button", name="Colours: light").click()
    page.emulate_media(color_scheme="light")
    page.reload()
    assert ground() == seen["dark"]


@pytest.mark.slow
def test_the_reader_who_scrolls_up_is_left_alone(page: Page) -> None:
    page.set_viewport_size({"width": 700, "height": 420})
    ask(page, "markdown")
    answered(page, 1)
    ask(page, "count 4000")
    written(page, 30)
    page.mouse.move(350, 200)
    page.mouse.wheel(0, -400)
    page.get_by_role("button", name="Latest").wait_for()
    top = page.evaluate("document.querySelector('#scroller').scrollTop")
    length = len(written(page, 60))
    written(page, length + 60)
    assert page.evaluate("document.querySelector('#scroller').scrollTop") == top
    page.get_by_role("button", name="Latest").click()
    assert page.evaluate("document.querySelector('#scroller').scrollTop") > top


def test_everything_by_keys_alone(page: Page) -> None:
    page.keyboard.press("Control+k")
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    page.keyboard.press("Enter")
    answered(page, 1)
    assert bodies(page)[0] == "one\ntwo"
    page.keyboard.press("Shift+Tab")
    seen = []
    for _ in range(12):
        seen.append(
            page.evaluate(
                """() => {
                    const at = document.activeElement;
                    return [at.getAttribute("aria-label") || at.innerText, getComputedStyle(at).outlineStyle];
                }"""
            )
        )
        page.keyboard.press("Shift+Tab")
    names = [name for name, _ in seen]
    for wanted in ("Answer again", "Copy", "Edit this message"):
        assert wanted in names, names
    assert any(re.match("Rename one two", name or "") for name in names), names
    assert {outline for name, outline in seen if name in ("Answer again", "Copy")} != {"none"}


@pytest.mark.slow
def test_who_is_asked_for_gives_a_token(browser: Browser, tmp_path: Path) -> None:
    site = Site(f"sqlite:///{tmp_path / 'page.db'}", graphs(), owners())
    try:
        with browsing(browser) as page:
            page.goto(site.page)
            page.get_by_role("button", name="Give a token").click()
            page.get_by_label("Token").fill("ada")
            page.keyboard.press("Enter")
            page.locator("#graph option").first.wait_for(state="attached")
            page.select_option("#graph", "chat")
            ask(page, "hello")
            answered(page, 1)
            assert bodies(page) == ["hello", "You said: hello"]
    finally:
        site.stop()


@pytest.mark.slow
def test_the_page_asks_for_no_more_at_once_than_the_server_gives(browser: Browser, tmp_path: Path) -> None:
    site = Site(f"sqlite:///{tmp_path / 'page.db'}", graphs(), limits=RequestLimits(page_max=2))
    try:
        turns = [(f"before-{number}", f"hello {number}") for number in range(5)]
        for thread, text in (*turns, ("before-0", "once more"), ("before-0", "and again")):
            new = {"assistant_id": "chat", "input": said(text), "stream_mode": "messages-tuple"}
            new["if_not_exists"] = "create"
            made = site.ask("POST", f"/threads/{thread}/runs", json=new)
            site.ask("GET", f"/threads/{thread}/runs/{made['run_id']}/join")
        with browsing(browser, viewport={"width": 1280, "height": 800}) as page:
            refused: list[str] = []
            page.on("response", lambda answer: refused.append(answer.url) if answer.status >= 400 else None)
            page.goto(f"{site.page}#before-0")
            answered(page, 3)
            # All graphs, all conversations with their titles, and all of the tree that a fork is made in.
            options = page.locator("#graph option")
            wait_for("every graph", lambda: options.count() == len(graphs()))
            titles = page.locator(".thread .thread-title")
            every = [f"hello {number}" for number in range(5)]
            wait_for("every title", lambda: sorted(titles.all_inner_texts()) == every)
            act(page.locator(".message.user").first, "edit")
            page.get_by_label("Your message, edited").fill("another beginning")
            page.keyboard.press("Enter")
            shown(page, "You said: another beginning")
            page.reload()
            page.locator(".branch").wait_for()
            assert page.locator(".branch").all_inner_texts() == ["2/2"]
            act(page.locator(".message.user").first, "before")
            shown(page, "You said: and again")
            assert len(bodies(page)) == 6
            assert refused == []
    finally:
        site.stop()
