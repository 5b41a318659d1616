"""Limits in the inspector: what is used, and no keys of users for who may not see all threads.

Covers perdure.inspector.overview.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import perdure
from perdure.database.base import handle_of
from perdure.database.handle import DatabaseHandle
from perdure.database.opening import open_for_reading
from perdure.inspector.access import LocalAccess, Sees
from perdure.inspector.api import view
from perdure.limits import LimitReached, SharedLimit
from perdure.runtime.limits.limiter import CallTurn, limiter_of
from tests.inspector.browsing import findings, served
from tests.inspector.staging import HOSTILE
from tests.server.browsing import browsing, launched

if TYPE_CHECKING:
    from playwright.sync_api import Browser


class OfOneUser(LocalAccess):
    """The rights of one user."""

    async def authorize_listing(self) -> Sees | None:
        return lambda metadata: metadata.get("user_id") == "ada"


def use(handle: DatabaseHandle) -> None:
    """Use a limit of a user, and one of all, of which a place is held and one call waits."""
    limiter = limiter_of(handle)
    limiter.declare({"each": SharedLimit(by=("user",), rate=60), "all": SharedLimit(concurrency=1)})
    limiter.acquire_blocking(CallTurn([("each", {"user": HOSTILE}, "")]), "", 20)
    limiter.acquire_blocking(CallTurn([("all", {}, "")]), "", 20)
    with pytest.raises(LimitReached):
        limiter.acquire_blocking(CallTurn([("all", {}, "")]), "", 1.6)


def test_a_viewer_sees_what_is_used_and_the_keys_of_users_only_if_all_threads_are_theirs() -> None:
    async def main() -> None:
        async with perdure.connect("memory://") as db:
            await asyncio.to_thread(use, handle_of(db))
            access = LocalAccess(handle_of(db), "")
            found = await view(access, "limits", {})
            assert {each["limit"] for each in found["limits"]} == {"each", "all"}
            assert (found["cursor"], found["set"]) == (None, [])
            (whole,) = (await view(access, "limits", {"limit": "all"}))["limits"]
            assert whole["concurrency"] == {"most": 1, "used": 1}
            assert whole["waiting"] == 1
            shown = await view(OfOneUser(handle_of(db), ""), "limits", {})
            assert [each["limit"] for each in shown["limits"]] == ["all"]

    asyncio.run(main())


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with launched(chromium) as opened:
        yield opened


@pytest.mark.slow
def test_the_page_shows_limits_and_no_name_becomes_markup(browser: Browser, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    with perdure.connect_sync(url, migrate=True) as db:
        use(handle_of(db))
    with served(LocalAccess(handle_of(open_for_reading(url)), "")) as address, browsing(browser) as page:
        page.goto(f"{address}#/threads")
        page.get_by_role("link", name="Limits").click()
        page.get_by_role("heading", name="Limits").wait_for()
        cells = page.locator("tbody tr")
        cells.first.wait_for()
        assert HOSTILE in page.locator("table").inner_text()
        assert "left at once, 60 a minute" in page.locator("table").inner_text()
        assert "owned" not in page.title()
        assert findings(page) == []
