"""Every example runs alone, and has a page at ``/``; in Chromium each page does what its README tells.

Covers examples.database, examples.page.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from examples.database import database_of
from examples.movies.accounts import secret_of
from examples.movies.database import open_engine
from perdure.errors import BadSetting
from tests.server.browsing import browsing, launched, wait_for
from tests.servers.ports import free_port

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(file.parent.name for file in (ROOT / "examples").glob("*/app.py"))
NAMED = ("PERDURE_DB", "DATABASE_URL", "MOVIES_SECRET", "PLATFORM_SECRET", "WINGMAN_MODEL", "ROUTER_MODEL")

pytestmark = pytest.mark.timeout(180)


@contextmanager
def alone(name: str, folder: Path) -> Iterator[str]:
    """An example in a process of its own, in an empty folder, without a variable that is meant for it."""
    port = free_port()
    environment = {key: value for key, value in os.environ.items() if key not in NAMED}
    environment["PYTHONPATH"] = str(ROOT)
    arguments = ["--factory", f"examples.{name}.app:create_app", "--port", str(port)]
    with subprocess.Popen(
        [sys.executable, "-m", "uvicorn", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            told = ""
            for line in process.stdout:
                told += line
                if "Uvicorn running on" in line:
                    break
            assert "Uvicorn running on" in told, told
            yield f"http://127.0.0.1:{port}"
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=60)
            assert "Traceback" not in told + rest, told + rest
            assert process.returncode == 0, told + rest
        finally:
            process.kill()


@pytest.mark.parametrize("name", NAMES)
def test_each_example_has_a_page_whose_parts_are_there(name: str, tmp_path: Path) -> None:
    created: Any = importlib.import_module(f"examples.{name}.app").create_app(
        f"sqlite:///{tmp_path / 'example.db'}"
    )

    async def main() -> None:
        transport = httpx.ASGITransport(created)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            page = await client.get("/")
            assert page.status_code == 200
            assert "script-src 'self'" in page.headers["content-security-policy"]
            parts = re.findall(r'(?:src|href)="(page/[^"]+)"', page.text)
            assert len(parts) == 2
            for part in (*parts, "page/example.js", "page/api.js"):
                found = await client.get(f"/{part}")
                assert found.status_code == 200, part
                assert "innerHTML" not in found.text

    asyncio.run(main())


def test_an_example_keeps_its_threads_where_it_is_told_or_in_a_file_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in NAMED:
        monkeypatch.delenv(name, raising=False)
    assert database_of("movies") == ("sqlite:///movies.db", True)
    monkeypatch.setenv("DATABASE_URL", "postgresql://there/db")
    assert database_of("movies") == ("postgresql://there/db", False)
    monkeypatch.setenv("PERDURE_DB", "sqlite:///other.db")
    assert database_of("movies") == ("sqlite:///other.db", False)
    assert database_of("movies", "memory://") == ("memory://", False)


def test_the_movies_sign_with_one_secret_over_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MOVIES_SECRET", raising=False)
    engine = open_engine(f"sqlite:///{tmp_path / 'movies.db'}")
    made = secret_of(engine)
    assert len(made) == 64
    assert secret_of(engine) == made
    (file,) = tmp_path.iterdir()
    assert file.name == "movies.app.secret"
    assert file.stat().st_mode & 0o077 == 0, "nobody else may read it"
    assert secret_of(engine, "mine") == "mine"
    with pytest.raises(BadSetting, match="openssl rand -hex 32"):
        secret_of(open_engine("postgresql://me@127.0.0.1/movies"))


def _log(page: Page) -> list[str]:
    return page.locator(".entry").all_inner_texts()


def _say(page: Page, text: str, answers: int = 1) -> list[str]:
    """Write a text, and return the entries that it brought, its own first."""
    before = page.locator(".entry").count()
    page.fill("#text", text)
    page.press("#text", "Enter")
    page.locator(".entry").nth(before + answers).wait_for()
    assert page.locator("#fault").is_hidden()
    return _log(page)[before:]


def _press(page: Page, label: str) -> str:
    page.get_by_role("button", name=label).click()
    page.locator("#send:enabled").wait_for()
    return page.inner_text("#shown")


def _edge(page: Page) -> None:
    assert _say(page, "one")[1] == "This is the first message here."
    page.get_by_role("button", name="Anchor this state").click()
    page.locator("#shown", has_text="checkpoint_id").wait_for()
    assert _say(page, "more")[1] == "I have 3 messages before me."
    page.fill("#field-anchor", "approved")
    assert _say(page, "from there")[1].startswith("I have 3 messages before me.")


def _movies(page: Page) -> None:
    said = _say(page, "what shall I watch?")
    assert said[1].startswith("1: Watch Stalker: three men")
    page.get_by_role("button", name="What is stored").click()
    page.locator(".entry", has_text="Stalker").wait_for()
    assert _log(page) == said


def _platform(page: Page) -> None:
    page.get_by_role("button", name="Sign in as ada").click()
    page.wait_for_url("**/chat/")
    page.locator("#graph").select_option("guide")
    page.fill("#text", "I drink green tea")
    page.press("#text", "Enter")
    page.locator(".message.assistant", has_text="Noted.").wait_for()


def _researcher(page: Page) -> None:
    said = _say(page, "durable threads")
    assert "publish" in said[1]
    assert "waits for your decision" in said[1]
    page.get_by_role("button", name="To-dos and files").click()
    page.locator("#shown", has_text="Above all, see /notes/risks.md").wait_for()
    page.get_by_role("button", name="Approve").click()
    page.locator(".entry", has_text="The report is in /report.md.").wait_for()
    page.reload()
    page.locator(".entry").nth(1).wait_for()
    assert _log(page) == ["durable threads", "The report is in /report.md."]


def _supervisor(page: Page) -> None:
    for way in ("HTTP", "Telegram", "WhatsApp"):
        page.locator("#field-by").select_option(way)
        assert _say(page, "hello")[1].startswith("Hello! Ask me about your order.")
        order = _say(page, "Where is my order?")[1]
        assert order.startswith("This is what I found: Order 4711 left on Monday")
    page.get_by_role("button", name="What the models cost").click()
    page.locator("#shown", has_text='"dollars"').wait_for()


def _wingman(page: Page) -> None:
    said = _say(page, "What is a lease?", answers=4)
    assert said[1] == "I am not sure, but I think it has to do with threads."
    assert said[3] == "A lease is the claim of one worker on a thread for a limited time."
    page.reload()
    page.locator(".entry").nth(4).wait_for()
    assert [text.split("\n")[0] for text in _log(page)] == [text.split("\n")[0] for text in said]


TRIED = {
    "edge": _edge,
    "movies": _movies,
    "platform": _platform,
    "researcher": _researcher,
    "supervisor": _supervisor,
    "wingman": _wingman,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_each_example_runs_alone_and_is_tried_on_its_page(chromium: str, name: str, tmp_path: Path) -> None:
    with alone(name, tmp_path) as address, launched(chromium) as browser, browsing(browser) as page:
        page.goto(address)
        TRIED[name](page)
    assert (tmp_path / f"{name}.db").exists(), "its threads are in a file of its own"
    with alone(name, tmp_path) as address:
        wait_for("a second start", lambda: httpx.get(address, trust_env=False).status_code == 200)
