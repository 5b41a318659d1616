"""The pictures of the pages in docs/images, taken of the real pages over real servers.

    python -m tools.take_screenshots

The answers are written below instead of by a model, so that the pictures change only with the page. Needs
playwright and a Chromium on the PATH, as the page's tests do.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

import perdure
from perdure.database.base import handle_of
from perdure.database.opening import open_for_reading
from perdure.inspector.access import LocalAccess
from tests.inspector.browsing import served
from tests.inspector.staging import fill
from tests.server.browsing import Site, act, answered, ask, browsing, launched

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "images"
WIDE = {"width": 1280, "height": 800}

QUESTION = "How do I try a flaky call again in Python, without a library?"
FIRST = "And if it hangs?"
EDITED = "And if it hangs? At most two seconds, please."

ANSWERS = {
    QUESTION: """Catch what may pass by itself, and wait a little longer each time:

```python
def again(call, times=5, pause=0.2):
    for attempt in range(times - 1):
        try:
            return call()
        except ConnectionError:
            time.sleep(pause * 2**attempt * random.random())
    return call()
```

The chance in the pause keeps many clients from coming back **at the same moment**.""",
    FIRST: "Give the call a timeout of its own; a retry helps only against calls that return.",
    EDITED: "Wrap it: `asyncio.wait_for(call(), 2)` raises `TimeoutError`, which you add to the `except`.",
}


async def _answer(state: MessagesState) -> dict[str, Any]:
    said = state["messages"][-1].text
    if said.startswith("Send"):
        interrupt({"question": "May I send it to all 12 of them?"})
    return {"messages": [AIMessage(ANSWERS.get(said, "Gladly."))]}


def main() -> int:
    """Take them; the exit code."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        print("There is no chromium on the PATH; install one.", file=sys.stderr)
        return 1
    graph = StateGraph(MessagesState).add_node("answer", _answer).add_edge(START, "answer").compile()
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        site = Site(f"sqlite:///{folder}/threads.db", {"chat": graph})
        try:
            how = {"viewport": WIDE, "reduced_motion": "reduce", "device_scale_factor": 1}
            with launched(chromium) as browser:
                with browsing(browser, **how) as page:
                    page.goto(site.page)
                    page.locator("#graph option").first.wait_for(state="attached")
                    _converse(page)
                    _take(page)
                _inspect(browser, f"sqlite:///{folder}/inspected.db", how)
        finally:
            site.stop()
    return 0


def _converse(page: Page) -> None:
    others = (
        "A name for a cat that fears nobody",
        "Send the minutes to the board",
        "Tides, for a child of six",
    )
    for text in others:
        ask(page, text)
        page.locator(".message.assistant, .question").first.wait_for()
        page.locator("#stop").wait_for(state="hidden")
        page.keyboard.press("Control+k")
    ask(page, QUESTION)
    answered(page, 1)
    ask(page, FIRST)
    answered(page, 2)
    act(page.locator(".message.user").nth(1), "edit")
    page.get_by_label("Your message, edited").fill(EDITED)
    page.keyboard.press("Enter")
    page.locator(".branch").wait_for()
    page.get_by_text("Wrap it").first.wait_for()
    answered(page, 2)


def _take(page: Page) -> None:
    page.mouse.move(700, 20)
    page.locator("#text").focus()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.screenshot(path=PICTURES / f"chat-{scheme}.png")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 390, "height": 844})
    page.locator("#messages").evaluate("() => document.activeElement.blur()")
    page.screenshot(path=PICTURES / "chat-phone.png")


def _inspect(browser: Browser, url: str, how: dict[str, Any]) -> None:
    with perdure.connect_sync(url, migrate=True) as database:
        fill(database)
    database = open_for_reading(url)
    access = LocalAccess(handle_of(database), "", url=url)
    with served(access) as address, browsing(browser, **how) as page:
        page.goto(f"{address}#/thread?id=plain")
        page.locator("a[data-checkpoint]", has_text="update").nth(2).click()
        page.locator(".change.edited").wait_for()
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=PICTURES / f"inspector-{scheme}.png")
        page.emulate_media(color_scheme="light")
        page.set_viewport_size({"width": 390, "height": 844})
        page.screenshot(path=PICTURES / "inspector-phone.png")
    database.close()


if __name__ == "__main__":
    sys.exit(main())
