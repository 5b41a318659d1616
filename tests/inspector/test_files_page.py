"""The files of an agent on the inspector's page, in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import perdure
from perdure.database.base import handle_of
from perdure.database.opening import open_for_reading
from perdure.inspector.access import LocalAccess
from tests.inspector.browsing import served
from tests.inspector.staging import HOSTILE
from tests.inspector.test_files import AT, FILES, LARGE, graph
from tests.server.browsing import browsing, launched, wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator


ORDER = sorted(FILES)


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with launched(chromium) as opened:
        yield opened


@pytest.mark.slow
def test_files_can_be_opened_on_the_page_and_no_text_becomes_markup(browser: Browser, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    with perdure.connect_sync(url, migrate=True) as database:
        graph(database.checkpointer()).invoke({"files": FILES}, AT)
    with served(LocalAccess(handle_of(open_for_reading(url)), "")) as address, browsing(browser) as page:
        page.goto(f"{address}#/thread?id=t&view=files")
        page.locator(".files li").nth(3).wait_for()
        assert page.locator(".files code").all_text_contents() == ORDER
        page.get_by_text("/report.md").click()
        report = page.locator(".files li").nth(ORDER.index("/report.md")).locator("pre")
        wait_for("the text", lambda: report.text_content() == HOSTILE)
        page.get_by_text("/large.txt").click()
        text = page.locator(".files li").nth(ORDER.index("/large.txt")).locator("pre")
        wait_for("the beginning", lambda: text.text_content())
        more = page.get_by_role("button", name="More of it")
        while more.count() and more.first.is_visible():
            before = text.text_content()
            more.first.click()
            wait_for("more of the text", partial(_is_changed, text, before))
        assert text.text_content() == LARGE
        page.get_by_text("/photo.png").click()
        page.get_by_text("This file is not text.").wait_for()
        assert "owned" not in page.title()


def _is_changed(text: Locator, before: str | None) -> bool:
    return text.text_content() != before
