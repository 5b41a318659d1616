"""What a person does in agent-inbox."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from urllib.parse import urlencode

from .driving import Unfulfilled, Visit

_INBOX = "tried"
_TAB = {"inbox": "interrupted", "limit": "10", "offset": "0"}
"""What the page adds to an address without it, by several changes at once of which each undoes the others',
so that it may load itself again and again."""
_VIEW = {"agent_inbox": _INBOX, **_TAB}


def _start_waiting(visit: Visit, about: str) -> str:
    """A new thread that asks a person about something."""
    thread_id: str = visit.ask("POST", "/threads", {})["thread_id"]
    said = {"messages": [{"type": "human", "content": about}]}
    visit.ask("POST", f"/threads/{thread_id}/runs/wait", {"assistant_id": "inbox", "input": said})
    return thread_id


def _open(visit: Visit, thread_id: str = "") -> None:
    """The list, or one thread, in a browser that knows the inbox already."""
    held = [
        {"id": _INBOX, "graphId": "inbox", "deploymentUrl": visit.server, "name": "Tried", "selected": True}
    ]
    kept = f"localStorage.setItem('inbox:agent_inboxes', {json.dumps(json.dumps(held))})"
    visit.page.add_init_script(kept)
    view = {**_VIEW, "view_state_thread_id": thread_id} if thread_id else _VIEW
    visit.page.goto(f"{visit.address}/?{urlencode(view)}")


def _wait_for_end(visit: Visit, thread_id: str, told: str) -> None:
    """Wait until the thread rests, and its last message is this."""
    visit.until("the thread rests", lambda: visit.ask("GET", f"/threads/{thread_id}")["status"] == "idle")
    values = visit.ask("GET", f"/threads/{thread_id}/state")["values"]
    if values["messages"][-1]["content"] != told:
        raise Unfulfilled(f"the thread ends with {values['messages'][-1]['content']!r}, not with {told!r}")


def add(visit: Visit) -> None:
    """Name the server and the graph in the page's own form, and see what waits."""
    _start_waiting(visit, "a first look")
    visit.page.goto(f"{visit.address}/?{urlencode(_TAB)}")
    form = visit.page.get_by_role("dialog")
    form.locator("#graph-id").fill("inbox")
    form.locator("#deployment-url").fill(visit.server)
    form.get_by_role("button", name="Add Inbox").click()
    visit.sees("An e-mail about a first look")


def _answer(visit: Visit, about: str, act: Callable[[Visit], None], told: str) -> None:
    thread_id = _start_waiting(visit, about)
    _open(visit, thread_id)
    visit.sees("Respond to assistant")
    act(visit)
    _wait_for_end(visit, thread_id, told)


def _accept(visit: Visit) -> None:
    visit.page.get_by_role("button", name="Accept", exact=True).click()


def _change(visit: Visit) -> None:
    visit.page.locator("textarea").first.fill("another subject")
    visit.page.get_by_role("button", name="Submit", exact=True).click()


def _respond(visit: Visit) -> None:
    visit.page.get_by_placeholder("Your response here...").fill("not today")
    visit.page.get_by_role("button", name="Send Response").click()


def _ignore(visit: Visit) -> None:
    visit.page.get_by_role("button", name="Ignore", exact=True).click()


def resolve(visit: Visit) -> None:
    """Mark a thread as resolved: it ends where it is."""
    thread_id = _start_waiting(visit, "to be resolved")
    _open(visit, thread_id)
    visit.page.get_by_role("button", name="Mark as Resolved").click()
    visit.until("the thread rests", lambda: visit.ask("GET", f"/threads/{thread_id}")["status"] == "idle")


def find_in_list(visit: Visit) -> None:
    """Find a thread in the list, and find it gone from there once it is answered.

    It is opened by its address: built for production with its version of Next.js, the page's router puts the
    address back that the list has when a row is clicked, and asks no server for anything.
    """
    thread_id = _start_waiting(visit, "the list")
    _open(visit)
    row = visit.page.get_by_text("An e-mail about the list").first
    row.wait_for()
    _open(visit, thread_id)
    visit.sees("Respond to assistant")
    _accept(visit)
    _wait_for_end(visit, thread_id, "accept: the list")
    _open(visit)
    loaded = visit.page.get_by_text("Requires Action").or_(visit.page.get_by_text("No threads found"))
    loaded.first.wait_for()
    row.wait_for(state="detached")


def reload(visit: Visit) -> None:
    """Reload with an answer half written, and answer then."""
    thread_id = _start_waiting(visit, "a reload")
    _open(visit, thread_id)
    visit.page.get_by_placeholder("Your response here...").fill("lost")
    visit.page.reload()
    _respond(visit)
    _wait_for_end(visit, thread_id, "response: not today")


ACTIONS: dict[str, Callable[[Visit], None]] = {
    "add the inbox": add,
    "list": find_in_list,
    "accept": partial(_answer, about="accepting", act=_accept, told="accept: accepting"),
    "change": partial(_answer, about="changing", act=_change, told="edit: another subject"),
    "respond": partial(_answer, about="responding", act=_respond, told="response: not today"),
    "ignore": partial(_answer, about="ignoring", act=_ignore, told="ignore: None"),
    "resolve": resolve,
    "reload": reload,
}
