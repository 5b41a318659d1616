"""What the chat page shows of messages beside their text: formulas, code, images, files, reasoning, progress;
and steering, search, the panel of what is stored, and what accessibility checks find.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from perdure.server.config import RequestLimits
from tests.inspector.browsing import findings
from tests.server.acceptance.saying import said
from tests.server.browsing import Site, act, answered, ask, bodies, browsing, wait_for
from tests.server.gates import GATES
from tests.server.typists import graphs

if TYPE_CHECKING:
    from playwright.sync_api import Browser, FilePayload, Page

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

DOT = (
    "iVBORw0KGgoAAAANSUhEUgAAAAoAAAAKCAYAAACNMs+9AAAAFUlEQVR42mNk+M9Qz0AEYBxVSF+FABJADveWkH6oAAAAAElFTkSuQmCC"
)
EVIL_NAME = '<img src=x onerror="window.ran=1">.md'
RICH = rf"""say The sum $\sum_{{k=1}}^n k = \frac{{n(n+1)}}{{2}}$ costs $5 or $10:

$$\int_0^\infty e^{{-x^2}}\,dx = \frac{{\sqrt{{\pi}}}}{{2}}$$

$$\href{{javascript:window.ran=1}}{{x}}$$

$$\def\a{{\a\a}}\a$$

```python
def greet(name):
    return "<script>window.ran=1</script>"
```

```html
<img src=x onerror="window.ran=1">
```

![dot](data:image/png;base64,{DOT}) ![far](https://example.com/x.png) ![bad](javascript:window.ran=1)
![svg](data:image/svg+xml;base64,PHN2Zy8+)"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    GATES.clear()
    folder = tmp_path_factory.mktemp("page")
    served = Site(f"sqlite:///{folder}/page.db", graphs(), limits=RequestLimits(body_bytes=100_000))
    yield served
    served.stop()


@pytest.fixture
def page(browser: Browser, site: Site) -> Iterator[Page]:
    with browsing(browser, viewport={"width": 1280, "height": 800}, reduced_motion="reduce") as opened:
        opened.goto(site.page)
        opened.locator("#graph option").first.wait_for(state="attached")
        opened.select_option("#graph", "chat")
        yield opened


def attach(page: Page, *files: FilePayload) -> None:
    page.set_input_files("#files", list(files))


def contents(site: Site, page: Page) -> list[Any]:
    """The stored contents of the messages of the shown thread."""
    values = site.ask("GET", f"/threads/{page.url.partition('#')[2]}/state")["values"]
    return [message["content"] for message in values["messages"]]


def test_code_formulas_and_images_are_shown_and_nothing_in_them_runs(page: Page, site: Site) -> None:
    foreign: list[str] = []
    own = (site.page.removesuffix("chat/"), "data:")
    page.on("request", lambda one: None if one.url.startswith(own) else foreign.append(one.url))
    page.fill("#text", RICH)
    page.press("#text", "Enter")
    answered(page, 1)
    answer = page.locator(".message.assistant")
    answer.locator("math").nth(1).wait_for()
    answer.locator("pre .hl-keyword", has_text="def").wait_for()
    answer.locator("pre .hl-tag").first.wait_for()
    assert "costs $5 or $10:" in answer.inner_text()
    # What is not a formula, or is more than one, stays as its source.
    assert answer.locator(".formula:not(:has(math))").all_inner_texts() == [
        r"\href{javascript:window.ran=1}{x}",
        r"\def\a{\a\a}\a",
    ]
    assert answer.locator("img").evaluate_all("found => found.map((one) => one.alt)") == ["dot"]
    assert answer.locator("a").evaluate_all("found => found.map((one) => one.href)") == [
        "https://example.com/x.png"
    ]
    allowed = "a, button, code, details, div, figcaption, figure, img, p, path, pre, span, summary, svg"
    strange = answer.evaluate(
        """(at, allowed) => [...at.querySelectorAll("*")]
            .filter((one) => !one.matches(allowed) && one.namespaceURI !== "http://www.w3.org/1998/Math/MathML")
            .map((one) => one.outerHTML)""",
        allowed,
    )
    assert strange == []
    assert page.evaluate("window.ran") is None
    assert foreign == []


def test_files_are_sent_shown_and_kept_by_an_edit(page: Page, site: Site) -> None:
    attach(
        page,
        {"name": "dot.png", "mimeType": "image/png", "buffer": base64.b64decode(DOT)},
        {"name": EVIL_NAME, "mimeType": "text/markdown", "buffer": b"<script>window.ran=1</script>"},
        {"name": "paper.pdf", "mimeType": "application/pdf", "buffer": b"%PDF-1.4"},
        {"name": "gone.txt", "mimeType": "text/plain", "buffer": b"gone"},
    )
    page.get_by_role("button", name="Remove gone.txt").click()
    attach(page, {"name": "large.pdf", "mimeType": "application/pdf", "buffer": b"x" * 90_000})
    page.get_by_role("alert").get_by_text("large.pdf has 90 kB, and").wait_for()
    attach(page, {"name": "tool.bin", "mimeType": "application/octet-stream", "buffer": b"\0\xff"})
    page.get_by_role("alert").get_by_text("tool.bin cannot be attached").wait_for()
    ask(page, "What are these?")
    answered(page, 1)
    text = f'Attached file "{EVIL_NAME.replace(chr(34), chr(39))}":\n\n<script>window.ran=1</script>'
    parts = [
        {"type": "image", "base64": DOT, "mime_type": "image/png", "extras": {"filename": "dot.png"}},
        {"type": "text", "text": text},
        {"type": "file", "base64": "JVBERi0xLjQ=", "mime_type": "application/pdf", "filename": "paper.pdf"},
    ]
    assert contents(site, page)[0] == [{"type": "text", "text": "What are these?"}, *parts]
    page.reload()
    mine = page.locator(".message.user")
    mine.locator("img[alt='dot.png']").wait_for()
    assert mine.locator(".body").inner_text() == "What are these?"
    assert mine.locator(".file").inner_text().startswith("paper.pdf")
    mine.locator(".files summary").click()
    mine.get_by_text("<script>window.ran=1</script>").wait_for()
    act(mine, "edit")
    page.get_by_label("Your message, edited").fill("And now?")
    page.keyboard.press("Enter")
    page.locator(".branch").wait_for()
    answered(page, 1)
    assert contents(site, page)[0] == [{"type": "text", "text": "And now?"}, *parts]
    assert page.evaluate("window.ran") is None


def test_reasoning_is_folded_and_a_failed_answer_can_be_kept(page: Page, site: Site) -> None:
    ask(page, "think It is so.")
    answered(page, 1)
    thought = page.locator(".reasoning:visible")
    assert (thought.locator("summary").inner_text(), bodies(page)[1]) == ("Reasoning", "It is so.")
    assert not thought.locator(".thoughts").is_visible()
    thought.locator("summary").press("Enter")
    assert thought.locator(".thoughts").inner_text() == "Let me see. Yes!"
    ask(page, "fail Some words")
    page.locator("#notice", has_text="ConnectionError").wait_for()
    page.reload()
    page.locator(".message.cut", has_text="Some words").wait_for()
    page.get_by_role("button", name="Keep it as the answer").click()
    page.locator(".message:not(.cut)", has_text="Stopped here").wait_for()
    assert contents(site, page)[-2:] == ["fail Some words", "Some words"]
    ask(page, "and on")
    page.locator(".message", has_text="You said: and on").wait_for()


def test_what_was_written_before_a_queued_message_stays_where_it_was(page: Page) -> None:
    ask(page, "hold back")
    page.locator(".message.writing", has_text="back").wait_for()
    ask(page, "hold next")
    page.get_by_text("Queued: next").wait_for()
    page.get_by_role("button", name="Stop the answer").click()
    page.locator(".message.writing", has_text="next").wait_for()
    assert page.locator(".message.cut .body").all_inner_texts() == ["back"]
    GATES["next"].set()
    answered(page, 2)
    assert bodies(page) == ["hold back", "back", "hold next", "next"]


def test_progress_is_shown_and_a_message_joins_the_open_answer(page: Page, site: Site) -> None:
    page.select_option("#graph", "working")
    ask(page, "tides")
    progress = page.get_by_role("group", name="Progress")
    progress.get_by_text("Reading the plan").wait_for()
    GATES["plan"].set()
    progress.locator('[data-state="now"]', has_text="look_up").wait_for()
    assert progress.locator('[data-state="done"]').all_inner_texts() == ["plan"]
    page.fill("#text", "and moons")
    page.press("#text", "Control+Enter")
    page.get_by_text("Joins the answer at its next step").wait_for()
    page.reload()
    page.get_by_text("Joins the answer at its next step").wait_for()
    page.get_by_label("When the message is taken up").select_option("now")
    ask(page, "and stars")
    wait_for("both", lambda: page.get_by_text("Joins the answer at its next step").count() == 2)
    GATES["tool"].set()
    page.locator(".message", has_text="Heard: tides, and moons, and stars").wait_for()
    answered(page, 1)
    assert progress.count() == 0
    assert len(contents(site, page)) == 6


def test_conversations_are_found_by_their_titles_and_messages(page: Page, site: Site) -> None:
    for number, text in enumerate(("A lighthouse and the sea", "Nothing of the kind")):
        run = {"assistant_id": "chat", "input": said(text), "stream_mode": "messages-tuple"}
        thread = f"found-{number}"
        site.ask("POST", "/threads", json={"thread_id": thread, "metadata": {"title": f"Title {number}"}})
        made = site.ask("POST", f"/threads/{thread}/runs", json=run)
        site.ask("GET", f"/threads/{thread}/runs/{made['run_id']}/join")
    page.keyboard.press("Control+Shift+F")
    page.keyboard.type("SEA lighthouse")
    page.get_by_role("status").get_by_text("1 found").wait_for()
    row = page.locator(".thread")
    assert row.all_inner_texts() == ["Title 0\n…said: A lighthouse and the sea\nJust now"]
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.locator(".message", has_text="You said: A lighthouse").wait_for()
    page.fill("#find", "no such words")
    page.get_by_text("Nothing found").wait_for()
    page.press("#find", "Escape")
    wait_for("the whole list", lambda: row.count() >= 2)
    page.fill("#find", "title 1")
    page.get_by_role("status").get_by_text("1 found").wait_for()


def test_the_panel_and_the_way_to_the_inspector(page: Page, site: Site) -> None:
    ask(page, "one")
    answered(page, 1)
    page.get_by_role("button", name="What is stored").click()
    panel = page.get_by_role("region", name="What is stored")
    wait_for("the messages", lambda: "Messages stored\n2" in panel.inner_text())
    panel.get_by_text("Step “answer” ended; its checkpoint is stored").wait_for()
    assert panel.get_by_role("button").count() == 0  # a process is ended in development only
    page.get_by_role("link", name="This conversation in the inspector").click()
    page.get_by_role("main").get_by_text(page.url.partition("id=")[2], exact=True).wait_for()


def test_axe_finds_nothing_serious(page: Page) -> None:
    page.fill("#text", RICH)
    page.press("#text", "Enter")
    answered(page, 1)
    page.locator("math").first.wait_for()
    page.locator(".hl-keyword").first.wait_for()
    ask(page, "think It is so.")
    answered(page, 2)
    page.get_by_role("button", name="What is stored").click()
    page.locator("#stored dl").wait_for()
    attach(page, {"name": "notes.md", "mimeType": "text/markdown", "buffer": b"notes"})
    page.get_by_role("button", name="Remove notes.md").wait_for()
    page.locator(".reasoning:visible summary").click()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert findings(page) == [], scheme
    page.set_viewport_size({"width": 390, "height": 844})
    assert findings(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") == 390
