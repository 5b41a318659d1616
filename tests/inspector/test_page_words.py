"""What the console's pages say: of which time numbers are, what is used of limits, which run failed and why,
what stays of a user, and that an address is unknown. Most answers of the API are given by these tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

import perdure
from perdure.cli.runs import format_duration
from perdure.database.base import handle_of
from perdure.inspector.access import PERMISSIONS, LocalAccess
from tests.backends import EMPTY
from tests.inspector import staging
from tests.inspector.browsing import served, sound
from tests.inspector.staging import HOSTILE
from tests.server.browsing import browsing, launched

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Browser, Locator, Page, Route

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
NOW = 1_790_000_000_000_000
INTO = "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"
RUN_ID = "0195d0c7-1111-7222-8333-9176bdb643c1"


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


def answers(page: Page, **views: Any) -> None:
    """Answer requests for views by these."""

    def give(found: Any) -> Callable[[Route], None]:
        return lambda route: route.fulfill(json=found)

    for view, found in views.items():
        page.route(f"**/api/{view}?*", give(found))


def is_on_one_line(cell: Locator) -> bool:
    return bool(
        cell.evaluate(
            """(cell) => {
                const range = document.createRange();
                range.selectNodeContents(cell);
                return new Set([...range.getClientRects()].map((each) => each.top)).size === 1;
            }"""
        )
    )


def usage(calls: int, tokens: int, cost: float | None) -> dict[str, Any]:
    return {"calls": calls, "input_tokens": tokens, "output_tokens": tokens // 2, "cost": cost}


def sums(name: str) -> dict[str, Any]:
    graph = {"graph": HOSTILE, "runs": 3, "failed": 1, "end": {"p50": 0.5, "p95": None}, "first": None}
    models = [
        {"model": f"cheap of {name}", **usage(90, 206_000, 0.01)},
        {"model": f"unknown of {name}", **usage(3, 900, None)},
        {"model": f"dear of {name}", **usage(2, 300, 1.5)},
    ]
    users = [
        {"user": "ada", "runs": 2, "failed": 0, **usage(2, 900, 0.1)},
        {"user": HOSTILE, "runs": 1, "failed": 1, **usage(1, 100, 0.7)},
    ]
    return {
        **usage(95, 207_200, 1.51),
        "runs": 3,
        "failed": 1,
        "end": graph["end"],
        "first": None,
        "graphs": [{**graph, **usage(9, 206_000, 0.8)}],
        "users": [] if name == "month" else users,
        "models": models,
        "errors": [{"kind": "ValueError", "runs": 1}],
        "versions": [],
    }


def numbers() -> dict[str, Any]:
    slot = {"runs": 1, "failed": 0, **usage(1, 1, None)}
    slots = {name: [{"at": NOW, **slot}] * 2 for name in ("minutes", "hours", "days")}
    queue = {"due": 4, "under_way": 1, "replies": 0, "scheduled": 3, "oldest": NOW - 90_000_000}
    threads = {"failed": 1, "interrupted": 3, "asleep": 1}
    spans = {name: sums(name) for name in ("hour", "day", "month")}
    return {"now": NOW, **slots, **spans, "queue": queue, "threads": threads, "is_whole": True} | {
        "currency": "CHF"
    }


def test_each_table_of_numbers_says_of_which_time_it_is(page: Page, address: str) -> None:
    answers(page, overview=numbers())
    page.goto(f"{address}#/overview")
    page.get_by_role("heading", name="Now", level=1).wait_for()
    for span, when, name in (
        ("Last 24 hours", "in the last 24 hours", "day"),
        ("Last hour", "in the last hour", "hour"),
        ("Last 30 days", "in the last 30 days", "month"),
    ):
        page.get_by_role("button", name=span).press("Enter")
        assert page.get_by_role("button", name=span).get_attribute("aria-pressed") == "true"
        captions = page.locator("caption")
        assert captions.count() >= 3
        for caption in captions.all():
            assert caption.inner_text().endswith(when)
            box = caption.bounding_box()
            assert box is not None
            assert box["width"] > 100
        # The dearest comes first, and not the one with the most calls; costs have a currency.
        rows = page.get_by_role("region", name="By model").locator("tbody tr").all_inner_texts()
        assert [row.split("\t")[0] for row in rows] == [
            f"{each} of {name}" for each in ("dear", "cheap", "unknown")
        ]
        assert "1.5 CHF" in rows[0]
        users = page.get_by_role("region", name="By user").locator("tbody tr td:first-child")
        assert users.all_inner_texts() == ([] if name == "month" else [HOSTILE, "ada"])
    page.reload()
    page.get_by_role("button", name="Last 30 days", pressed=True).wait_for()
    page.get_by_role("button", name="Last hour").click()
    page.get_by_role("link", name="ValueError").wait_for()
    sound(page)
    for cell in page.get_by_role("region", name="By model").locator("td", has_text="206,000").all():
        assert is_on_one_line(cell)


def limit(name: str, share: float, **amounts: Any) -> dict[str, Any]:
    about = {"limit": name, "of": "model", "key": {}, "waiting": 0, "processes": [], "share": share}
    return {**about, **amounts}


def test_the_limits_that_are_used_most_come_first(page: Page, address: str) -> None:
    budget = {"most": 1.0, "spent": 0.7236, "held": 0.1, "resets_at": NOW}
    found = [
        limit("provider", 0.04, rate={"most": 600, "burst": 50, "left": 48, "next_at": None}),
        limit("daily", 0.8236, key={"user": HOSTILE}, budget=budget),
        limit("places", 0.5, concurrency={"most": 2, "used": 1}),
    ]
    answers(page, limits={"limits": found, "set": [], "currency": "CHF", "cursor": None})
    page.goto(f"{address}#/limits")
    rows = page.locator("tbody tr")
    rows.first.wait_for()
    shown = [row.locator("td").all_inner_texts()[:2] for row in rows.all()]
    assert shown == [["daily", "82%"], ["places", "50%"], ["provider", "4%"]]
    assert rows.nth(0).locator(".problem").inner_text() == "82%"
    assert rows.nth(0).get_by_text("0.7236 of 1 CHF spent, anew 2026-09").count() == 1
    assert rows.nth(2).get_by_text("48 of 50 left at once, 600 a minute").count() == 1
    page.get_by_text("A rate counts what may come at once").wait_for()
    sound(page)
    page.get_by_role("link", name=HOSTILE, exact=True).press("Enter")
    page.get_by_role("heading", name=f"User {HOSTILE}", exact=True, level=1).wait_for()


def failed_run(**error: Any) -> dict[str, Any]:
    about = {"thread_id": "plain", "run_id": RUN_ID, "state": "failed", "graph": "agent", "user": HOSTILE}
    times = {"started_at": NOW, "updated_at": NOW + 1, "attempts": 1, "channel": "", "graph_version": None}
    detail: dict[str, Any] = dict.fromkeys(("repeats", "repeated_by", "goes_on_from"))
    detail |= {"messages": [], "permissions": []}
    error = {"kind": "ValueError", "group": "g", "node": "team|tools", "traceback": None, **error}
    return {**about, **times, **detail, "is_repeated": False, "stands": True, "error": error}


def test_where_texts_are_hidden_the_command_that_shows_them_is_named(page: Page, address: str) -> None:
    hidden = {"is_hidden": True, "message": "The graph failed (ValueError); the server's log says where."}
    run = failed_run(**hidden)
    group = {**hidden, "group": "g", "kind": "ValueError", "runs": 1, "nodes": ["tools"], "versions": {}}
    group |= {"first_at": NOW, "last_at": NOW, "example": {"thread_id": "plain", "run_id": RUN_ID}}
    runs = {"runs": [run], "groups": [group], "examined": 1, "unreadable": 0, "cursor": None}
    answers(page, runs=runs, run=run)
    page.goto(f"{address}#/runs")
    line = page.locator(".error-line")
    line.wait_for()
    assert line.inner_text() == f"ValueError in team {INTO} tools"
    assert "the server's log" not in page.locator("main").inner_text()
    shows = f"perdure runs show {RUN_ID}"
    assert page.locator("code").all_inner_texts() == [shows]
    page.locator("details.channel summary").press("Enter")
    page.locator(".problem code", has_text=shows).wait_for()
    sound(page)


def test_the_error_of_a_thread_leads_to_its_run(page: Page, address: str) -> None:
    text = f"ValueError: {HOSTILE}\n  File 'own.py', line 1, in own\nframes of libraries:\n  File 'x.py'\n"
    run = failed_run(is_hidden=False, message=HOSTILE, traceback=text)
    page.route(
        "**/api/thread?*",
        lambda route: route.fulfill(
            json={
                **route.fetch().json(),
                "status": "error",
                "run": {**run, "error": f"ValueError: {HOSTILE}"},
            }
        ),
    )
    answers(page, run=run)
    page.goto(f"{address}#/thread?id=plain")
    page.get_by_role("link", name="Traceback").press("Enter")
    page.get_by_role("heading", name="This run").wait_for()
    assert f"run={RUN_ID}" in page.url
    trace = page.get_by_role("region", name="Traceback")
    trace.wait_for()
    assert trace.inner_text().endswith("in own")
    assert page.locator("main code").first.inner_text() == RUN_ID
    libraries = page.get_by_role("region", name="Frames of libraries")
    assert not libraries.is_visible()
    page.locator("summary", has_text="Frames of libraries").press("Enter")
    libraries.wait_for()
    sound(page)


def test_a_thread_that_sleeps_is_not_one_that_asks(page: Page, address: str) -> None:
    about: dict[str, Any] = {}

    def answer(route: Any) -> None:
        found = route.fetch().json()
        for each in found["threads"]:
            each["is_asleep"] = each["thread_id"] == "plain"
            about[each["thread_id"]] = each
            each["status"] = "interrupted"
        route.fulfill(json=found)

    page.route("**/api/threads?*", answer)
    page.goto(address)
    for thread, words in (("plain", "interrupted sleeps"), ("waiting", "interrupted asks")):
        cell = page.locator(f'tr[data-id="{thread}"] td').nth(1)
        cell.wait_for()
        assert cell.inner_text() == words


def test_what_stays_of_a_user_is_named_before_and_after(browser: Browser) -> None:
    with EMPTY["sqlite"]() as url, perdure.connect_sync(url, migrate=True) as database:
        staging.fill(database)
        database.store().put(("notes", "ada"), "one", {"text": "kept"})
        access = LocalAccess(handle_of(database), "", allowed=frozenset(PERMISSIONS))
        with served(access) as address, browsing(browser, reduced_motion="reduce") as page:
            stored: dict[str, Any] = {}

            def answer(route: Any) -> None:
                found = route.fetch().json()
                found["stored"] = {**found["stored"], "limits": ["daily"]}
                stored.update(found["stored"])
                route.fulfill(json=found)

            page.route("**/api/user?*", answer)
            about = {"permissions": ["delete"], "tenant": "", "all_tenants": False}
            done = {"threads": 1, "shared": 1, "crons": 1, "assistants": 0, "entries": 2, "refused": 0}
            answers(page, about=about)
            page.route(
                "**/actions/delete-user",
                lambda route: route.fulfill(json={**done, "cursor": None, "is_in_log": False}),
            )
            page.goto(f"{address}#/user?user=ada")
            page.get_by_text(f"1 item, notes {INTO} ada").wait_for()
            page.locator("summary", has_text="Delete everything of the user").press("Enter")
            stays = (
                f"1 item of the store stays under notes {INTO} ada: a program removes them with "
                "store.delete. What is used of the limit daily stays until it is anew; "
                "perdure limits reset removes it."
            )
            page.locator("form p", has_text=stays).wait_for()
            page.get_by_label("Type the user's id to confirm").fill("ada")
            page.keyboard.press("Enter")
            counted = (
                "1 thread, 1 cron, 0 assistants and 2 entries of what was known are removed. 1 thread stays, "
                f"as other users have runs there. {stays}"
            )
            page.get_by_role("status").get_by_text(counted).wait_for()
            sound(page)


def test_an_unknown_address_says_so(page: Page, address: str) -> None:
    page.goto(f"{address}#/{quote(HOSTILE)}")
    page.get_by_role("alert").get_by_text("There is no page").wait_for()
    assert page.locator("nav a[aria-current]").count() == 0
    sound(page)
    page.get_by_role("link", name="Now").click()
    page.get_by_role("heading", name="Now", level=1).wait_for()
    page.goto(address)
    page.get_by_role("heading", name="Threads", level=1).wait_for()


def test_durations_are_written_as_the_command_line_writes_them(page: Page, address: str) -> None:
    page.goto(address)
    sizes = (0, 15, 1_500, 9_999, 13_900, 999_999, 1_250_000, 59_990_000, 3_599_700_000, 200_000 * 10**6)
    script = "sizes => import('./dom.js').then((all) => sizes.map(all.duration))"
    assert page.evaluate(script, list(sizes)) == [format_duration(each) for each in sizes]
