"""What a person does in a chat of assistant-ui on its adapter for LangGraph."""

from __future__ import annotations

import re

from .driving import Unfulfilled, Visit

_REPLY = r"reply \d+ to {}(?!\w)"


def _open(visit: Visit) -> None:
    visit.page.goto(visit.address)
    visit.page.get_by_placeholder("Say something").wait_for()


def _send(visit: Visit, text: str) -> None:
    visit.page.get_by_placeholder("Say something").fill(text)
    visit.page.get_by_role("button", name="send", exact=True).click()


def _rests(visit: Visit) -> None:
    visit.page.get_by_role("button", name="send", exact=True).wait_for()


def _wait_for_reply(visit: Visit, text: str) -> str:
    """The answer to a text, once it is there."""
    found = visit.page.locator(".ai .body").filter(has_text=re.compile(_REPLY.format(re.escape(text)))).last
    found.wait_for()
    _rests(visit)
    return found.inner_text().strip()


def _thread(visit: Visit) -> str:
    visit.page.wait_for_url(re.compile("thread="))
    return visit.page.url.partition("thread=")[2]


def _begin(visit: Visit) -> None:
    _send(visit, "long one")
    visit.page.get_by_text(re.compile(r"reply \d+ to long one: w0 w1")).wait_for()


def send(visit: Visit) -> None:
    """Send two messages, read two answers, and find them after a reload."""
    _open(visit)
    _send(visit, "one")
    first = _wait_for_reply(visit, "one")
    _send(visit, "two")
    second = _wait_for_reply(visit, "two")
    if visit.statuses(_thread(visit)) != ["success", "success"]:
        raise Unfulfilled(f"the runs are {visit.statuses(_thread(visit))}")
    visit.page.reload()
    visit.sees(first)
    visit.sees(second)


def stream(visit: Visit) -> None:
    """Read an answer before it is over."""
    _open(visit)
    _begin(visit)
    if visit.page.get_by_text("w59 end").count():
        raise Unfulfilled("the answer was there at once")
    visit.sees("w59 end")
    _rests(visit)


def stop(visit: Visit) -> None:
    """Stop an answer, and go on."""
    _open(visit)
    _begin(visit)
    visit.page.get_by_role("button", name="stop", exact=True).click()
    _rests(visit)
    thread_id = _thread(visit)
    visit.until("the run ends", lambda: visit.statuses(thread_id) == ["interrupted"])
    _send(visit, "two")
    _wait_for_reply(visit, "two")


def _edit(visit: Visit, text: str) -> str:
    visit.page.locator(".human").last.get_by_role("button", name="edit").click()
    visit.page.locator(".editing textarea").fill(text)
    visit.page.get_by_role("button", name="save").click()
    return _wait_for_reply(visit, text)


def edit(visit: Visit) -> None:
    """Change the second message: the thread goes on from before it."""
    _open(visit)
    _send(visit, "one")
    before = _wait_for_reply(visit, "one")
    _send(visit, "two")
    _wait_for_reply(visit, "two")
    after = _edit(visit, "instead")
    visit.sees(before)
    state = visit.ask("GET", f"/threads/{_thread(visit)}/state")
    if len(state["values"]["messages"]) != 4:
        raise Unfulfilled(f"the thread has {len(state['values']['messages'])} messages, not 4")
    visit.page.reload()
    visit.sees(after)


def branch(visit: Visit) -> None:
    """Change the second message. The adapter shows one branch; the other stays in the history."""
    _open(visit)
    _send(visit, "one")
    _wait_for_reply(visit, "one")
    _send(visit, "two")
    before = _wait_for_reply(visit, "two")
    after = _edit(visit, "instead")
    states = visit.ask("POST", f"/threads/{_thread(visit)}/history", {"limit": 100})
    ends = {each["content"].strip() for state in states for each in state["values"].get("messages", [])[-1:]}
    if not {before, after} <= ends:
        raise Unfulfilled(f"the branches end with {sorted(ends)}")


def regenerate(visit: Visit) -> None:
    """Ask for another answer to the same message."""
    _open(visit)
    _send(visit, "one")
    before = _wait_for_reply(visit, "one")
    visit.page.locator(".ai").last.get_by_role("button", name="regenerate").click()
    visit.page.get_by_text(before).wait_for(state="detached")
    after = _wait_for_reply(visit, "one")
    state = visit.ask("GET", f"/threads/{_thread(visit)}/state")
    if [each["content"].strip() for each in state["values"]["messages"]] != ["one", after]:
        raise Unfulfilled(f"the thread holds {state['values']['messages']}")


def _decide(visit: Visit, button: str, told: str) -> None:
    visit.page.get_by_role("button", name=button).click()
    visit.page.get_by_text(re.compile(told)).last.wait_for()
    _rests(visit)


def _question(visit: Visit, button: str, told: str) -> None:
    _open(visit)
    _send(visit, "delete a.txt")
    visit.page.locator("#question").wait_for()
    _decide(visit, button, told)


def accept(visit: Visit) -> None:
    """Approve a call of a tool."""
    _question(visit, "approve", r"reply \d+ after: deleted a.txt")


def change(visit: Visit) -> None:
    """Change the arguments of a call, and approve it."""
    _question(visit, "change", "deleted b.txt")


def respond(visit: Visit) -> None:
    """Reject a call, with a reason that the agent reads."""
    _question(visit, "reject", r"reply \d+ after: .*keep it")


def reload(visit: Visit) -> None:
    """Reload while an answer is written: its run ends, as the adapter asks, and the chat goes on."""
    _open(visit)
    _begin(visit)
    thread_id = _thread(visit)
    visit.page.reload()
    visit.until("the run ends", lambda: visit.ask("GET", f"/threads/{thread_id}")["status"] != "busy")
    visit.page.locator(".human .body").get_by_text("long one").wait_for()
    _send(visit, "two")
    _wait_for_reply(visit, "two")


def question_after_reload(visit: Visit) -> None:
    """Reload while a call waits to be approved, and approve it then."""
    _open(visit)
    _send(visit, "delete a.txt")
    visit.page.locator("#question").wait_for()
    _rests(visit)
    _thread(visit)
    visit.page.reload()
    visit.page.locator("#question").wait_for()
    _decide(visit, "approve", r"reply \d+ after: deleted a.txt")


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
