"""What a person does in agent-chat-ui."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlencode, urlsplit

from .driving import Unfulfilled, Visit

if TYPE_CHECKING:
    from playwright.sync_api import Locator

_REPLY = r"reply \d+ to {}(?!\w)"


def _open(visit: Visit) -> None:
    visit.page.goto(f"{visit.address}/?{urlencode({'apiUrl': visit.server, 'assistantId': 'agent'})}")
    visit.page.get_by_placeholder("Type your message...").wait_for()


def _send(visit: Visit, text: str) -> None:
    box = visit.page.get_by_placeholder("Type your message...")
    box.fill(text)
    box.press("Enter")


def _rests(visit: Visit) -> None:
    visit.page.get_by_role("button", name="Send", exact=True).wait_for()


def _wait_for_reply(visit: Visit, text: str) -> str:
    """The answer to a text, once it is there."""
    found = visit.page.get_by_text(re.compile(_REPLY.format(re.escape(text)))).first
    found.wait_for()
    _rests(visit)
    return found.inner_text().strip()


def _thread(visit: Visit) -> str:
    visit.page.wait_for_url(re.compile("threadId="))
    return parse_qs(urlsplit(visit.page.url).query)["threadId"][0]


def _message(visit: Visit, text: str) -> None:
    """Move to a message, which shows its buttons."""
    visit.page.get_by_text(text, exact=True).last.hover()


def send(visit: Visit) -> None:
    """Send two messages, read two answers, and find the thread in the list."""
    _open(visit)
    _send(visit, "one")
    _wait_for_reply(visit, "one")
    _send(visit, "two")
    _wait_for_reply(visit, "two")
    thread_id = _thread(visit)
    if visit.statuses(thread_id) != ["success", "success"]:
        raise Unfulfilled(f"the runs are {visit.statuses(thread_id)}")
    visit.page.reload()
    visit.page.get_by_text(re.compile(_REPLY.format("one"))).wait_for()
    visit.page.get_by_text(re.compile(_REPLY.format("two"))).wait_for()


def stream(visit: Visit) -> None:
    """Read an answer before it is over."""
    _open(visit)
    _send(visit, "long one")
    visit.page.get_by_text(re.compile(r"reply \d+ to long one: w0 w1")).wait_for()
    if visit.page.get_by_text("w59 end").count():
        raise Unfulfilled("the answer was there at once")
    visit.sees("w59 end")
    _rests(visit)


def stop(visit: Visit) -> None:
    """Stop an answer, and go on."""
    _open(visit)
    _send(visit, "long one")
    visit.page.get_by_text(re.compile(r"reply \d+ to long one: w0 w1")).wait_for()
    visit.page.get_by_role("button", name="Cancel").click()
    _rests(visit)
    thread_id = _thread(visit)
    visit.until("the run ends", lambda: visit.ask("GET", f"/threads/{thread_id}")["status"] != "busy")
    _send(visit, "two")
    _wait_for_reply(visit, "two")


def edit(visit: Visit) -> None:
    """Change the first message, and switch between the branches."""
    _open(visit)
    _send(visit, "one")
    before = _wait_for_reply(visit, "one")
    _send(visit, "two")
    _wait_for_reply(visit, "two")
    _message(visit, "two")
    visit.page.get_by_role("button", name="Edit").last.click()
    box = visit.page.locator("textarea").first
    box.fill("instead")
    visit.page.get_by_role("button", name="Submit").click()
    _wait_for_reply(visit, "instead")
    visit.sees(before)
    if visit.page.get_by_text(re.compile(_REPLY.format("two"))).count():
        raise Unfulfilled("the message that was changed still has its answer")


def branch(visit: Visit) -> None:
    """Change a message, go back to what it was, and return."""
    _open(visit)
    _send(visit, "one")
    before = _wait_for_reply(visit, "one")
    _message(visit, "one")
    visit.page.get_by_role("button", name="Edit").last.click()
    visit.page.locator("textarea").first.fill("instead")
    visit.page.get_by_role("button", name="Submit").click()
    after = _wait_for_reply(visit, "instead")
    _message(visit, "instead")
    switcher = visit.page.get_by_text("2 / 2").first
    switcher.wait_for()
    switcher.locator("xpath=preceding-sibling::button").click()
    visit.sees(before)
    _message(visit, "one")
    back = visit.page.get_by_text("1 / 2").first
    back.wait_for()
    back.locator("xpath=following-sibling::button").click()
    visit.sees(after)


def regenerate(visit: Visit) -> None:
    """Ask for another answer to the same message."""
    _open(visit)
    _send(visit, "one")
    before = _wait_for_reply(visit, "one")
    visit.page.get_by_text(before).hover()
    visit.page.get_by_role("button", name="Refresh").last.click()
    visit.page.get_by_text(before).wait_for(state="detached")
    after = _wait_for_reply(visit, "one")
    if after == before:
        raise Unfulfilled("the answer is the same")
    visit.page.get_by_text(after).hover()
    visit.page.get_by_text("2 / 2").first.wait_for()


def _wait_for_approval(visit: Visit) -> None:
    """Wait until a call waits to be approved, and the page rests."""
    visit.page.get_by_role("button", name="Approve", exact=True).last.wait_for()
    _rests(visit)


def _type(visit: Visit, box: Locator, text: str) -> None:
    """Type until it stays: what the page learns of the thread meanwhile undoes it."""

    def stays() -> bool:
        box.fill(text)
        visit.page.wait_for_timeout(1000)
        return box.input_value() == text

    visit.until(f"{text!r} stays", stays)


def accept(visit: Visit) -> None:
    """Approve a call of a tool."""
    _open(visit)
    _send(visit, "delete a.txt")
    visit.page.get_by_role("button", name="Approve", exact=True).last.click()
    visit.page.get_by_text(re.compile(r"reply \d+ after: deleted a.txt")).wait_for()
    _rests(visit)


def change(visit: Visit) -> None:
    """Change the arguments of a call, and approve it."""
    _open(visit)
    _send(visit, "delete a.txt")
    _wait_for_approval(visit)
    arguments = visit.page.locator("textarea:not([placeholder])").first
    arguments.wait_for()
    _type(visit, arguments, "b.txt")
    visit.page.get_by_role("button", name="Submit", exact=True).click()
    visit.page.get_by_text(re.compile(r"deleted b.txt$")).last.wait_for()
    _rests(visit)


def respond(visit: Visit) -> None:
    """Reject a call, with a reason that the agent reads."""
    _open(visit)
    _send(visit, "delete a.txt")
    _wait_for_approval(visit)
    _type(visit, visit.page.get_by_placeholder("Share feedback with the agent..."), "keep it")
    visit.page.get_by_role("button", name="Submit rejection").click()
    visit.page.get_by_text(re.compile(r"reply \d+ after: .*keep it")).wait_for()
    _rests(visit)


def reload(visit: Visit) -> None:
    """Reload while an answer is written: the run goes on, and a later look finds its answer."""
    _open(visit)
    _send(visit, "long one")
    visit.page.get_by_text(re.compile(r"reply \d+ to long one: w0 w1")).wait_for()
    thread_id = _thread(visit)
    visit.page.reload()
    visit.page.get_by_text("long one", exact=True).first.wait_for()
    visit.until("the run ends", lambda: visit.ask("GET", f"/threads/{thread_id}")["status"] == "idle")
    if visit.statuses(thread_id) != ["success"]:
        raise Unfulfilled(f"the runs are {visit.statuses(thread_id)}")
    visit.page.reload()
    visit.sees("w59 end")


def question_after_reload(visit: Visit) -> None:
    """Reload while a call waits to be approved, and approve it then."""
    _open(visit)
    _send(visit, "delete a.txt")
    visit.page.get_by_role("button", name="Approve", exact=True).last.wait_for()
    visit.page.reload()
    visit.page.get_by_role("button", name="Approve", exact=True).last.click()
    visit.page.get_by_text(re.compile(r"reply \d+ after: deleted a.txt")).wait_for()


ACTIONS = {
    "send": send,
    "stream": stream,
    "stop": stop,
    "edit": edit,
    "branch": branch,
    "regenerate": regenerate,
    "accept": accept,
    "change": change,
    "respond": respond,
    "reload": reload,
    "question after a reload": question_after_reload,
}
