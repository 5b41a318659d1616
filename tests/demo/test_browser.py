"""The page in a real browser, over the real process and model, through kill -9 in the middle of an answer."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.demo.endpoint import STEPS, endpoint
from tests.demo.process import need_the_parts, running
from tests.server.browsing import answered, ask, bodies, browsing, launched, wait_for, written
from tests.servers.ports import free_port

if TYPE_CHECKING:
    from playwright.sync_api import Page

LONG = "Tell me a story of a lighthouse keeper and the sea."
PATIENCE_MS = 120_000

pytestmark = pytest.mark.timeout(360)


def words(*texts: str) -> list[str]:
    """The words of messages, without what Markdown makes of their marks and of the numbers of a list."""
    return re.findall(r"[^\W_]+", re.sub(r"(?m)^\s*\d+[.)] ", "", "\n".join(texts)))


@pytest.fixture
def page(chromium: str) -> Iterator[Page]:
    need_the_parts()
    with launched(chromium) as browser, browsing(browser) as shown:
        shown.set_default_timeout(PATIENCE_MS)
        yield shown


@pytest.mark.slow
def test_an_open_page_outlives_the_process(page: Page, tmp_path: Path) -> None:
    port = free_port()
    with running(tmp_path / "demo.db", port) as demo:
        page.goto(demo.address)
        page.locator("#model", has_text=re.compile("^SmolLM2")).wait_for()
        ask(page, "What is the capital of France?")
        answered(page, 1)
        first = bodies(page)[1]
        ask(page, LONG)
        written(page, 40)
        demo.kill()
        page.locator("#notice", has_text="The server does not answer.").wait_for()
        ask(page, "Thank you!")
        page.get_by_text("Waits for the server").wait_for()
    with running(tmp_path / "demo.db", port) as demo:
        page.locator(".message.user", has_text="Thank you!").wait_for()
        answered(page, 5)
        (thread,) = demo.threads()
        wait_for("the answers", lambda: demo.status(thread) == "idle", 240)
        page.locator(".message.writing").wait_for(state="detached")
        page.locator("#notice").wait_for(state="hidden")
        assert bodies(page)[:3] == ["What is the capital of France?", first, LONG]
        said = demo.said(thread)
        assert [kind for kind, _ in said[:4]] == ["human", "ai", "human", "ai"]
        assert [kind for kind, _ in said[-2:]] == ["human", "ai"]
        assert [text for kind, text in said if kind == "human"][2:] == ["Thank you!"]
        assert words(*[text for _, text in said]) == words(*bodies(page))


@pytest.mark.slow
def test_the_page_kills_the_process_and_another_one_goes_on(page: Page, tmp_path: Path) -> None:
    """The genuine small model, killed by the button once the outline and a paragraph are stored."""
    with running(tmp_path / "demo.db", free_port()) as demo:
        page.goto(demo.address)
        page.locator("#model", has_text=re.compile("^SmolLM2")).wait_for()
        first = demo.ask("GET", "/chat/process.json")["pid"]
        kill = page.get_by_role("button", name="Kill the server process")
        kill.wait_for()
        assert "steps that ended stay, and the one under way is done again" in page.inner_text("#crash")
        ask(page, LONG)
        page.locator(".progress li[data-state=done]", has_text="paragraph 1").wait_for()
        written(page, 20)
        kept = bodies(page)[1:3]
        kill.click()
        notice = page.locator(
            "#notice", has_text="is done again. Stored before, and kept: “outline”, “paragraph 1”"
        )
        notice.wait_for()
        answered(page, 3)
        page.locator("#notice", has_text="was done again.").wait_for()
        second = demo.ask("GET", "/chat/process.json")["pid"]
        assert second != first
        (thread,) = demo.threads()
        assert bodies(page)[1:3] == kept
        assert words(*[text for _, text in demo.said(thread)]) == words(*bodies(page))
        page.get_by_role("button", name="What is stored").click()
        page.get_by_text(f"Process {first} was killed with SIGKILL").wait_for()
        page.get_by_text(f"Process {second} took over").wait_for()
        page.get_by_text("Attempt 2 began, from the last stored checkpoint").wait_for()
        page.get_by_text("Kept: outline, paragraph 1").wait_for()


@pytest.mark.slow
@pytest.mark.parametrize(("step", "place"), [("outline", 0), ("paragraph 2", 5), ("paragraph 3", 11)])
def test_the_page_says_which_step_is_done_again_and_which_stay(
    page: Page, tmp_path: Path, step: str, place: int
) -> None:
    reached, released = threading.Event(), threading.Event()

    def hold(topic: str, at: str, call: int, word: int) -> None:
        if (at, word) == (step, place) and topic == "topic-1":
            reached.set()
            released.wait(60)

    with endpoint(hold) as model, running(tmp_path / "demo.db", free_port(), model) as demo:
        page.goto(demo.address)
        ask(page, "Tell me a story about topic-1")
        assert reached.wait(60)
        cut = f"topic-1/{step[-1]}/1/{place - 1}"
        if place:
            page.get_by_text(cut).wait_for()
        page.get_by_role("button", name="Kill the server process").click()
        ended = STEPS[: STEPS.index(step)]
        kept = f"Stored before, and kept: {', '.join(f'“{name}”' for name in ended)}."
        page.locator(
            "#notice", has_text=f"The server process was interrupted during “{step}”, which is"
        ).wait_for()
        released.set()
        answered(page, len(STEPS))
        sentence = f"The server process was interrupted during “{step}”, which was done again. "
        page.locator(
            "#notice", has_text=sentence + (kept if ended else "No step had ended before it.")
        ).wait_for()
        (thread,) = demo.threads()
        assert words(*[text for _, text in demo.said(thread)]) == words(*bodies(page))
        assert page.get_by_text(cut).count() == 0, "it is not told twice"
        ask(page, "Tell me a story about topic-2")
        answered(page, 2 * len(STEPS))
        page.locator("#notice").wait_for(state="hidden")


@pytest.mark.slow
def test_the_page_shows_what_was_remembered_and_forgets_it(page: Page, tmp_path: Path) -> None:
    with running(tmp_path / "demo.db", free_port()) as demo:
        page.goto(demo.address)
        page.locator("#model", has_text=re.compile("^SmolLM2")).wait_for()
        ask(page, "My name is Ada. What is the capital of France?")
        answered(page, 1)
        known = page.request
        while not known.get(f"{demo.address}/memory").json()["facts"]:
            page.wait_for_timeout(100)
        page.locator("#new-thread").click()
        ask(page, "Hello!")
        answered(page, 1)
        remembered = page.locator(".message.memory li")
        remembered.get_by_text("My name is Ada.").wait_for()
        remembered.get_by_role("button", name="Forget").click()
        page.locator(".message.memory li", has_text="Forgotten").wait_for()
        assert known.get(f"{demo.address}/memory").json()["facts"] == []
        page.reload()
        page.locator(".message.memory li", has_text="Forgotten").wait_for()
