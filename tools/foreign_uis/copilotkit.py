"""What a person does in CopilotKit's chat, whose runtime speaks to the server by AG-UI's adapter."""

from __future__ import annotations

import json
import re
import uuid
from urllib.request import urlopen

from .driving import PATIENCE_S, Unfulfilled, Visit

_REPLY = r"reply \d+ to {}(?!\w)"

EXPECTED = {
    r"^404 GET \S+/threads/[^/]+$": "the adapter looks for a thread, and makes it when there is none",
    r"^404 POST \S+/cancel\?": "the adapter cancels a run twice, and ignores what the second call says",
}


def note_failures(visit: Visit) -> None:
    """Note which requests of the runtime to the server failed since this was asked last."""
    with urlopen(f"{visit.address}/failures", timeout=PATIENCE_S) as answer:  # noqa: S310 - on loopback
        visit.failures.server.extend(json.load(answer))


def _open(visit: Visit) -> str:
    """Open a new thread; its id."""
    thread_id = str(uuid.uuid4())
    visit.page.goto(f"{visit.address}/?thread={thread_id}")
    visit.page.get_by_placeholder("Say something").wait_for()
    # What is said before the page knows its runtime is lost.
    visit.page.wait_for_load_state("networkidle")
    return thread_id


def _send(visit: Visit, text: str) -> None:
    box = visit.page.get_by_placeholder("Say something")
    box.fill(text)

    def is_taken() -> bool:
        box.press("Enter")
        return not box.input_value()

    # It takes nothing before it knows its runtime, and while it ends what was stopped.
    visit.until(f"{text!r} is sent", is_taken)


def _wait_for_runs(visit: Visit, thread_id: str, runs: int) -> None:
    """Wait until so many runs of a thread have ended."""

    def is_reached() -> bool:
        found = visit.statuses(thread_id)
        return len(found) == runs and not {"pending", "running"} & set(found)

    visit.until(f"{runs} runs end", is_reached)


def _wait_for_reply(visit: Visit, text: str) -> str:
    found = visit.page.locator(".copilotKitAssistantMessage").filter(
        has_text=re.compile(_REPLY.format(re.escape(text)))
    )
    found.last.wait_for()
    return found.last.inner_text().strip()


def _begin(visit: Visit) -> None:
    _send(visit, "long one")
    visit.page.get_by_text(re.compile(r"reply \d+ to long one: w0 w1")).wait_for()


def send(visit: Visit) -> None:
    """Send two messages, and read two answers."""
    thread_id = _open(visit)
    _send(visit, "one")
    _wait_for_reply(visit, "one")
    _wait_for_runs(visit, thread_id, 1)
    _send(visit, "two")
    _wait_for_reply(visit, "two")
    _wait_for_runs(visit, thread_id, 2)
    if visit.statuses(thread_id) != ["success", "success"]:
        raise Unfulfilled(f"the runs are {visit.statuses(thread_id)}")


def stream(visit: Visit) -> None:
    """Read an answer before it is over."""
    _open(visit)
    _begin(visit)
    if visit.page.get_by_text("w59 end").count():
        raise Unfulfilled("the answer was there at once")
    visit.sees("w59 end")


def stop(visit: Visit) -> None:
    """Stop an answer, and go on."""
    thread_id = _open(visit)
    _begin(visit)
    visit.page.get_by_test_id("copilot-chat-stop-button").or_(
        visit.page.locator('[data-test-id="copilot-chat-request-in-progress"], .copilotKitInputControlButton')
    ).last.click()
    visit.until("the run ends", lambda: visit.statuses(thread_id) == ["interrupted"])
    _send(visit, "two")
    _wait_for_reply(visit, "two")


def regenerate(visit: Visit) -> None:
    """Ask for another answer to the same message."""
    thread_id = _open(visit)
    _send(visit, "one")
    before = _wait_for_reply(visit, "one")
    _wait_for_runs(visit, thread_id, 1)
    visit.page.locator(".copilotKitAssistantMessage").last.hover()
    visit.page.get_by_role("button", name="Regenerate response").last.click()
    _wait_for_runs(visit, thread_id, 2)

    def is_new() -> bool:
        replies = visit.page.get_by_text(re.compile(_REPLY.format("one"))).all_inner_texts()
        return any(reply.strip() not in before for reply in replies)

    # The adapter keeps the first answer in view, below the new one.
    visit.until("another answer", is_new)


def _question(visit: Visit, button: str, told: str) -> None:
    thread_id = _open(visit)
    _send(visit, "delete a.txt")
    visit.page.locator("#question").wait_for()
    _wait_for_runs(visit, thread_id, 1)
    visit.page.get_by_role("button", name=button).click()
    visit.page.get_by_text(re.compile(told)).last.wait_for()
    _wait_for_runs(visit, thread_id, 2)


def accept(visit: Visit) -> None:
    """Approve a call of a tool."""
    _question(visit, "approve", r"reply \d+ after: deleted a.txt")


def change(visit: Visit) -> None:
    """Change the arguments of a call, and approve it."""
    _question(visit, "change", r"deleted b.txt")


def respond(visit: Visit) -> None:
    """Reject a call, with a reason that the agent reads."""
    _question(visit, "reject", r"reply \d+ after: .*keep it")


def reload(visit: Visit) -> None:
    """Reload while an answer is written, and go on in the thread."""
    thread_id = _open(visit)
    _begin(visit)
    visit.page.reload()
    visit.page.get_by_placeholder("Say something").wait_for()
    _wait_for_runs(visit, thread_id, 1)
    _send(visit, "two")
    _wait_for_reply(visit, "two")
    _wait_for_runs(visit, thread_id, 2)


ACTIONS = {
    "send": send,
    "stream": stream,
    "stop": stop,
    "regenerate": regenerate,
    "accept": accept,
    "change": change,
    "respond": respond,
    "reload": reload,
}
