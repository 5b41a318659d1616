"""The inspector's pages in Chromium: by mouse and by keys, light, dark and narrow, on two backends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import ViewportSize

import perdure
from perdure.database.base import handle_of
from perdure.database.opening import open_for_reading
from perdure.inspector.access import LocalAccess
from tests.backends import EMPTY
from tests.inspector import staging
from tests.inspector.browsing import findings, served
from tests.inspector.staging import HOSTILE, HOSTILE_ID
from tests.server.browsing import Site, browsing, launched

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PHONE = ViewportSize(width=390, height=844)


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with launched(chromium) as opened:
        yield opened


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    with EMPTY[request.param]() as url:
        with perdure.connect_sync(url, migrate=True) as database:
            staging.fill(database)
        reading = open_for_reading(url)
        try:
            with served(LocalAccess(handle_of(reading), "", url=url)) as found:
                yield found
        finally:
            reading.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with browsing(browser, reduced_motion="reduce") as shown:
        shown.set_default_timeout(20_000)
        yield shown


def rows(page: Page) -> list[str]:
    page.locator("tbody tr").first.wait_for()
    return page.locator("tbody tr td:first-child").all_inner_texts()


def test_a_thread_is_found_and_read(page: Page, address: str) -> None:
    page.goto(address)
    assert rows(page) == [HOSTILE_ID, "answered", "waiting", "plain"]
    page.get_by_label("Id", exact=True).fill("pl")
    page.get_by_role("button", name="Search").click()
    page.locator('tbody tr[data-id="answered"]').wait_for(state="detached")
    assert rows(page) == ["plain"]
    page.get_by_role("link", name="plain", exact=True).click()
    page.get_by_role("heading", name="plain", level=1).wait_for()
    links = page.locator("a[data-checkpoint]")
    links.nth(14).wait_for()
    assert links.count() == 15
    assert links.first.locator(".tag").inner_text() == "latest"
    # The newest step forked, and added a note to its parent's state.
    page.locator(".change.added", has_text="forked").wait_for()
    page.locator("a[data-checkpoint]", has_text="update").nth(2).click()
    page.locator(".change.edited ins", has_text="tides, please").wait_for()
    page.get_by_role("button", name="State").click()
    page.locator(".message.of-ai", has_text="About the moon.").wait_for()
    page.get_by_role("button", name="Branches").click()
    page.get_by_text("15 checkpoints in 3 branches.").wait_for()
    page.locator(".tree a").first.click()
    page.get_by_label("Compare with").wait_for(state="detached")
    page.get_by_role("button", name="Changes").click()
    page.get_by_label("Compare with").fill("approved")
    page.get_by_role("button", name="Compare").click()
    page.locator(".channel h3", has_text="facts").wait_for()


def test_a_waiting_thread_shows_its_question(page: Page, address: str) -> None:
    page.goto(f"{address}#/thread?id=waiting")
    page.locator(".tag.is-asked", has_text="interrupt").wait_for()
    page.get_by_role("button", name="Writes (1)").click()
    page.get_by_text("May I send it?").wait_for()


def test_hostile_texts_are_only_shown(page: Page, address: str) -> None:
    page.goto(address)
    page.get_by_role("link", name=HOSTILE_ID).click()
    page.get_by_role("heading", name=HOSTILE_ID, level=1).wait_for()
    page.get_by_role("button", name="State").click()
    page.locator(".message.of-human pre", has_text="<img src=x").wait_for()
    assert page.locator(".message.of-human pre").inner_text() == HOSTILE
    assert page.locator("main img, main script").count() == 0
    assert page.title() == "Perdure inspector"


def test_all_of_it_works_by_keys_alone(page: Page, address: str) -> None:
    page.goto(address)
    rows(page)
    page.keyboard.press("/")
    page.keyboard.type("pl")
    page.keyboard.press("Enter")
    page.locator('tbody tr[data-id="answered"]').wait_for(state="detached")
    tab_to(page, "plain")
    page.keyboard.press("Enter")
    page.locator("a[data-checkpoint]").first.wait_for()
    tab_to(page, "latest")
    for _ in range(2):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.locator('a[data-checkpoint][aria-current="true"]').wait_for()
    assert page.locator("a[data-checkpoint]").nth(2).get_attribute("aria-current") == "true"
    tab_to(page, "State")
    page.keyboard.press("Enter")
    page.locator(".message.of-human").first.wait_for()


def tab_to(page: Page, words: str) -> None:
    """Press Tab until the focused element has these words."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if words in page.evaluate("() => document.activeElement.innerText || ''"):
            return
    pytest.fail(f"Tab does not reach {words!r}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "place", ["#/threads", "#/thread?id=plain", "#/thread?id=waiting", "#/queue", "#/care", "#/log"]
)
def test_axe_finds_nothing_serious(page: Page, address: str, scheme: str, place: str) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(address + place)
    page.locator("h1").wait_for()
    page.wait_for_load_state("networkidle")
    assert findings(page) == []
    page.set_viewport_size(PHONE)
    assert findings(page) == []
    if "thread?" in place:
        page.locator("a[data-checkpoint]").first.click()
        page.locator(".detail h2").wait_for()
        for name in ("State", "Writes"):
            page.get_by_role("button", name=name).click()
            assert findings(page) == []
    assert page.evaluate("() => document.documentElement.scrollWidth") <= PHONE["width"]


def test_a_narrow_page_shows_one_thing_at_a_time(page: Page, address: str) -> None:
    page.set_viewport_size(PHONE)
    page.goto(f"{address}#/thread?id=plain")
    page.locator("a[data-checkpoint]").nth(3).click()
    page.get_by_role("link", name="← Timeline").wait_for()
    assert not page.locator(".timeline").is_visible()
    page.get_by_role("link", name="← Timeline").click()
    page.locator(".timeline").wait_for()


def test_an_unknown_thread_is_an_error(page: Page, address: str) -> None:
    page.goto(f"{address}#/thread?id=none")
    page.get_by_role("alert").get_by_text("there is no thread 'none'").wait_for()


def test_queue_and_care_are_shown(page: Page, address: str) -> None:
    page.goto(f"{address}#/queue")
    page.get_by_text("Nothing is due, and no run is open.").wait_for()
    page.get_by_role("link", name="waiting", exact=True).wait_for()
    page.get_by_role("link", name="Care").click()
    page.get_by_text("which is this release's").wait_for()
    page.get_by_role("button", name="Largest threads").click()
    page.get_by_text("4 threads examined, which is all.").wait_for()
    assert page.locator("tbody tr").count() == 4
    assert page.locator("tbody tr td").first.inner_text() == "plain"
    page.get_by_role("button", name="Check all threads").click()
    page.get_by_text("No damage was found.").wait_for()
    page.get_by_role("button", name="Failed runs").click()
    page.get_by_text("Nothing was given up.").wait_for()
    page.get_by_label("Keep the newest").fill("1")
    page.get_by_role("button", name="Preview").click()
    removed = page.locator("tbody tr", has_text="plain").locator("td").nth(1)
    removed.wait_for()
    assert removed.inner_text() == "13"


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
def test_threads_are_changed_from_the_page(browser: Browser, backend: str) -> None:
    with EMPTY[backend]() as url:
        site = Site(url, {"agent": staging.graph().compile()})
        try:
            sent = {"messages": [{"role": "user", "content": "send it"}], "notes": [], "facts": {}}
            site.ask("POST", "/threads", json={"thread_id": ID})
            site.ask("POST", f"/threads/{ID}/runs/wait", json={"assistant_id": "agent", "input": sent})
            with browsing(browser, reduced_motion="reduce") as page:
                page.set_default_timeout(20_000)
                act(page, site)
        finally:
            site.stop()


ID = "5f0f5b2e-0000-4000-8000-000000000001"


def act(page: Page, site: Site) -> None:
    page.goto(f"{site.page.replace('/chat/', '/inspect/')}#/thread?id={ID}")
    page.locator(".facts .status", has_text="interrupted").wait_for()
    page.get_by_text("Answer the interrupt").click()
    page.get_by_label("Answer, as JSON or text").fill("yes")
    page.get_by_role("button", name="Answer", exact=True).click()
    page.locator("#announcer", has_text="Answer the interrupt: done").wait_for(state="attached")
    messages: list[str] = []
    for _ in range(200):
        messages = site.said()[0]
        if len(messages) == 3:
            break
        page.wait_for_timeout(100)
    assert messages[-1] == "sent: yes"

    page.reload()
    page.locator("a[data-checkpoint]").nth(1).click()
    page.get_by_role("heading", name="Checkpoint").wait_for()
    page.get_by_text("Tag", exact=True).click()
    page.get_by_label("Name").fill("approved")
    page.get_by_role("button", name="Tag the checkpoint").click()
    page.locator("a[data-checkpoint]").nth(1).locator(".tag", has_text="approved").wait_for()
    page.get_by_text("Edit and fork").click()
    page.get_by_label("Values by channel").fill('{"notes": ["by hand"]}')
    page.get_by_label("As the node").fill("plan")
    page.get_by_role("button", name="Write", exact=True).click()
    page.locator(".change.added", has_text="by hand").wait_for()
    page.get_by_role("button", name="Branches").click()
    page.get_by_text("in 3 branches.").wait_for()
    page.get_by_text("Delete", exact=True).click()
    page.get_by_label("Type the thread's id").fill("another")
    page.get_by_role("button", name="Delete the thread").click()
    page.get_by_role("alert").get_by_text("confirm has to be the thread's id").wait_for()
    page.get_by_label("Type the thread's id").fill(ID)
    page.get_by_role("button", name="Delete the thread").click()
    page.get_by_text("No thread matches.").wait_for()
    page.get_by_role("link", name="Log").click()
    page.get_by_role("heading", name="Log of actions").wait_for()
    page.locator("tbody tr").first.wait_for()
    actions = page.locator("tbody td:nth-child(3)").all_inner_texts()
    assert actions == ["delete", "delete", "edit", "tag", "answer"]
    assert findings(page) == []
