"""``useStream`` of ``@langchain/react`` in Chromium: the event streaming protocol, from another origin."""

from __future__ import annotations

import pytest

from tests.server.acceptance.saying import heard
from tests.server.acceptance.serving import Server, line_to, near
from tests.server.gates import GATES
from tests.server.graphs import DRIPPED
from tests.server.js.browsing import Chat
from tests.server.js.node import Client, eventually

pytestmark = pytest.mark.timeout(240)

PAGE = "current"


def test_t21_messages_are_sent_and_answered(chat: Chat, server: Server, js: Client) -> None:
    chat.open(server.url, "chat")
    chat.send("one")
    chat.shows("one", "echo one")
    chat.has("#state", "idle")
    chat.send("two")
    chat.shows("one", "echo one", "two", "echo two")
    chat.has("#state", "idle")
    chat.reload()
    chat.shows("one", "echo one", "two", "echo two")
    eventually(lambda: js.statuses(chat.thread_id) == ["success"] * 2, "both runs end")


@near
def test_t21_an_answer_is_stopped(chat: Chat, server: Server, js: Client) -> None:
    chat.open(server.url, "drip")
    chat.send("go")
    chat.begins(5)
    chat.page.click("#stop")
    chat.has("#state", "idle")
    eventually(lambda: js.statuses(chat.thread_id) == ["interrupted"], "the run ends")


@near
def test_t21_an_edit_goes_back(chat: Chat, server: Server, js: Client) -> None:
    chat.open(server.url, "chat")
    chat.send("one")
    chat.shows("one", "echo one")
    chat.has("#state", "idle")
    chat.send("two")
    chat.shows("one", "echo one", "two", "echo two")
    chat.has("#state", "idle")
    chat.edit(1, "instead")
    chat.shows("one", "echo one", "instead", "echo instead")
    chat.has("#state", "idle")
    chat.reload()
    chat.shows("one", "echo one", "instead", "echo instead")
    values = js.call("threads.getState", chat.thread_id)["values"]
    assert len(values["messages"]) == 4


def test_t21_a_question_is_answered(chat: Chat, server: Server, js: Client) -> None:
    chat.open(server.url, "ask")
    chat.send("hello")
    chat.has(".asked", '{"question":"really?"}')
    chat.answer("yes")
    chat.shows("hello", "you said yes")
    chat.has("#state", "idle")
    assert chat.page.locator("#question").count() == 0
    eventually(lambda: js.call("threads.get", chat.thread_id)["status"] == "idle", "the thread rests")
    assert heard(js.call("threads.getState", chat.thread_id)["values"]) == ["hello", "you said yes"]


@near
@pytest.mark.parametrize("graph", ["ask", "nested"])
def test_t21_a_question_is_answered_after_a_reload(chat: Chat, server: Server, graph: str) -> None:
    asked, answered = {
        "ask": ('{"question":"really?"}', ["hello", "you said yes"]),
        "nested": ('"deep?"', ["hello", "echo hello", "within: yes", "outside"]),
    }[graph]
    chat.open(server.url, graph)
    chat.send("hello")
    chat.page.wait_for_function("() => document.querySelector('#state').textContent === 'idle'")
    chat.page.wait_for_function("() => location.search.includes('thread=')")
    chat.reload()
    chat.has(".asked", asked)
    chat.answer("yes")
    chat.shows(*answered)
    chat.has("#state", "idle")


def test_t21_a_reload_in_the_middle_of_a_run_loses_nothing(chat: Chat, server: Server, js: Client) -> None:
    chat.open(server.url, "drip")
    chat.send("go")
    before = chat.begins(5)
    assert DRIPPED.startswith(before)
    assert before != DRIPPED
    chat.reload()
    chat.has("#state", "busy")
    assert DRIPPED.startswith(chat.begins(len(before)))
    GATES["drip"].set()
    chat.shows("go", DRIPPED)
    chat.has("#state", "idle")
    eventually(lambda: js.statuses(chat.thread_id) == ["success"], "the run ends, once")


@near
def test_t21_a_line_that_is_cut_is_taken_up(chat: Chat, server: Server, js: Client) -> None:
    with line_to(server) as line:
        chat.open(line.near.url, "drip")
        chat.send("go")
        chat.begins(5)
        line.cut()
        GATES["drip"].set()
        chat.shows("go", DRIPPED)
        chat.has("#state", "idle")
        chat.has("#error", "")
    eventually(lambda: js.statuses(chat.thread_id) == ["success"], "the run ends, once")


@near
def test_t21_a_failure_is_shown(chat: Chat, server: Server) -> None:
    chat.open(server.url, "boom")
    chat.send("hello")
    chat.has("#error", "ValueError: it broke")
    chat.has("#state", "idle")
