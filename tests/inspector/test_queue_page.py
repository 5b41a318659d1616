"""The page of the queue in Chromium: its verdict, its tables, and texts of any length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

import perdure
from perdure.database.base import handle_of
from perdure.inspector.access import LocalAccess
from tests.backends import EMPTY
from tests.inspector import staging
from tests.inspector.browsing import PHONE, findings, served
from tests.inspector.staging import HOSTILE
from tests.server.browsing import browsing, launched

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
NOW = 1_790_000_000_000_000
LANE = {"pending": 0, "due_at": None, "run_id": None, "owner": None, "retry_at": None}
RUN = {"run_id": "r", "graph": "agent", "attempts": 2, "error": None, "started_at": NOW, "updated_at": NOW}
ERROR = f"ValueError: {HOSTILE} {'Donaudampfschifffahrt' * 140}"


def thread(name: str, **more: Any) -> dict[str, Any]:
    about = {"thread_id": name, "user": HOSTILE * 40, "graph_id": "agent", "updated_at": NOW, "fault": None}
    about |= {"title": HOSTILE * 40}
    return {**about, "run": RUN, "asks": False, "waits": [], **more}


def work(name: str, lane: dict[str, Any], replies: int = 0) -> dict[str, Any]:
    outbox = {**LANE, "pending": replies, "states": {"ready": replies} if replies else {}}
    open_run = RUN if lane.get("run_id") else None
    return thread(name, queue={**LANE, **lane}, outbox=outbox, open_run=open_run)


def later(kind: str, seconds: int, **more: Any) -> dict[str, Any]:
    about = {"kind": kind, "id": None, "at": NOW + seconds * 1_000_000, "thread_id": None, "is_listed": False}
    return {**about, "title": "", "user": HOSTILE, "graph": "agent", "what": "", **more}


QUIET = {"now": NOW, "is_surveyed": True, "has_crons": True, "cut": []} | {
    name: [] for name in ("stuck", "work", "workers", "upcoming", "interrupted", "waiting", "failed")
}
BUSY = {
    **QUIET,
    "stuck": [
        {"problem": "waiting", "what": "graph", "name": HOSTILE, "threads": 2, "since": NOW, "attempts": 0}
        | {"tenant": "", "example": "late", "advice": "Start one."}
    ],
    "work": [
        work("late", {"pending": 3, "due_at": NOW - 90_000_000}),
        work("held", {"run_id": "r", "owner": "w" * 4000, "lease_until": NOW}, replies=2),
        work("again", {"run_id": "r", "retry_at": NOW}),
    ],
    "upcoming": [
        later("message", 60, thread_id="late", is_listed=True, title=HOSTILE * 40),
        later("cron", 3300, what="0 * * * * Europe/Berlin"),
        later("message", 4000, thread_id="new"),
        later("retry", 4100, id="r", thread_id="again", is_listed=True),
    ],
    "interrupted": [thread("asks", asks=True)],
    "waiting": [
        thread("signalled", waits=[{"kind": "signal", "since": NOW, "until": None, "signal": HOSTILE}]),
        thread("asleep", waits=[{"kind": "sleep", "since": NOW, "until": NOW + 1, "signal": None}]),
    ],
    "failed": [thread(f"failed-{n}", run={**RUN, "error": ERROR}) for n in range(100)],
    "cut": ["failed"],
}


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with launched(chromium) as opened:
        yield opened


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with EMPTY["sqlite"]() as url, perdure.connect_sync(url, migrate=True) as database:
        staging.fill(database)
        with served(LocalAccess(handle_of(database), "")) as found:
            yield found


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with browsing(browser, reduced_motion="reduce") as shown:
        yield shown


def opened(page: Page, address: str, found: dict[str, Any]) -> None:
    page.route("**/api/queue?*", lambda route: route.fulfill(json=found))
    page.goto(f"{address}#/queue")
    page.get_by_role("list", name="Verdict").wait_for()


def test_a_quiet_queue_says_first_that_nothing_is_stuck(page: Page, address: str) -> None:
    opened(page, address, QUIET)
    lines = page.get_by_role("list", name="Verdict").get_by_role("listitem").all_inner_texts()
    assert lines == [
        "Nothing is stuck.",
        "No message waits for a run.",
        "No run is under way.",
        "No reply waits to be sent. Look for replies that were given up",
        "No run starts by itself later.",
        "No thread asks.",
        "No thread has failed.",
    ]
    assert page.locator("main .notice").count() == 0


def test_what_waits_is_counted_first_and_linked_to_its_part(page: Page, address: str) -> None:
    opened(page, address, BUSY)
    verdict = page.get_by_role("list", name="Verdict")
    assert verdict.get_by_role("listitem").all_inner_texts() == [
        "2 threads are stuck.",
        "3 messages wait in 1 thread, due for up to 90 s.",
        "1 run is under way, 1 waits for the next attempt.",
        "2 replies wait to be sent. Look for replies that were given up",
        "4 runs start by themselves, the next in 60 s.",
        "1 thread asks.",
        "1 thread sleeps until a signal.",
        "At least 100 threads have failed.",
    ]
    captions = page.locator("caption").all_inner_texts()
    assert captions == ["Stuck", "Work", "What will run", "Until a signal", "Failed"]
    # The note stands where the list ends that is cut, and at no other place.
    assert page.locator("main .notice").all_inner_texts() == ["There may be more than is shown here."]
    verdict.get_by_role("link", name="At least 100").press("Enter")
    page.wait_for_function("() => document.activeElement.textContent === 'Failed'")
    page.get_by_role("link", name="1 thread asks.").click()
    page.get_by_role("heading", name="Questions").wait_for()
    page.go_back()
    page.get_by_role("link", name="Look for replies").click()
    page.get_by_text("4 threads examined, which is all.").wait_for()
    page.get_by_text("Nothing was given up.").wait_for()


def test_long_texts_are_cut_in_lists(page: Page, address: str) -> None:
    page.set_viewport_size(PHONE)
    opened(page, address, BUSY)
    page.get_by_role("link", name="failed-99").wait_for()
    assert page.title() == "Perdure inspector"
    assert page.locator("main img, main script").count() == 0
    assert page.evaluate("() => document.documentElement.scrollWidth") <= PHONE["width"]
    assert page.evaluate("() => document.documentElement.scrollHeight") < 24_000
    assert ERROR not in page.content()


def test_who_sees_a_part_of_the_threads_gets_no_verdict_on_all(page: Page, address: str) -> None:
    opened(page, address, {**QUIET, "is_surveyed": False})
    page.get_by_text("No message waits for a run.").wait_for()
    assert page.get_by_text("Nothing is stuck").count() == 0


def test_what_will_run_is_listed_by_time(page: Page, address: str) -> None:
    opened(page, address, BUSY)
    page.get_by_role("link", name="4 runs start by themselves").press("Enter")
    page.wait_for_function("() => document.activeElement.textContent === 'What will run'")
    rows = page.get_by_role("region", name="What will run").locator("tbody tr")
    what = [row.locator("td").nth(1).inner_text() for row in rows.all()]
    assert what == ["message for later", "cron\n0 * * * * Europe/Berlin", "message for later", "next attempt"]
    places = [row.locator("td").nth(2) for row in rows.all()]
    assert places[0].get_by_role("link").inner_text() == "late"
    # A thread that has not begun has no page, and a cron without a thread begins one each time.
    assert [place.inner_text() for place in places[1:3]] == ["a new one", "new"]
    assert places[2].get_by_role("link").count() == 0
    rows.first.get_by_role("link", name=HOSTILE, exact=True).click()
    page.get_by_role("heading", name=f"User {HOSTILE}", exact=True, level=1).wait_for()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.goto(f"{address}#/queue")
        page.get_by_role("list", name="Verdict").wait_for()
        assert findings(page) == []


def test_who_may_see_no_crons_reads_that(page: Page, address: str) -> None:
    opened(page, address, {**QUIET, "has_crons": False})
    page.get_by_text("Crons are not shown: you may not search them.").wait_for()
