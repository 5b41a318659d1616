"""``useStream`` of ``@langchain/langgraph-sdk/react`` in Chromium: what agent-chat-ui does with it."""

from __future__ import annotations

import json

import pytest

from tests.server.acceptance.saying import heard
from tests.server.acceptance.serving import Server, line_to, near
from tests.server.gates import GATES
from tests.server.graphs import DRIPPED
from tests.server.js.browsing import Chat
from tests.server.js.node import Client, eventually

pytestmark = pytest.mark.timeout(240)

PAGE = "legacy"


def test_t21_messages_are_sent_and_answered(chat: Chat, server: Server, js: Client) -> None:
    chat.open(server.url, "chat")
    chat.send("one")
    chat.shows("one", "echo one")
    chat.has("#state", "idle")
    chat.send("two")
    chat.shows("one", "echo one", "two", "echo two")
    chat.has("#state", "idle")
    values = js.call("threads.getState", chat.thread_id)["values"]
    assert heard(values) == ["one", "echo one", "two", "echo two"]
    chat.reload()
    chat.shows("one", "echo one", "two", "echo two")
    assert js.statuses(chat.thread_id) == ["success"] * 2


@near
@pytest.mark.parametrize("reconnect", ["yes", "no"])
def test_t21_an_answer_is_stopped(chat: Chat, server: Server, js: Client, reconnect: str) -> None:
    chat.open(server.url, "drip", reconnect=reconnect)
    chat.send("go")
    chat.begins(5)
    chat.page.click("#stop")
    chat.has("#state", "idle")
    eventually(lambda: js.statuses(chat.thread_id) == ["interrupted"], "the run ends")
    assert any("/cancel" in asked for asked in chat.asked) == (reconnect == "yes")
    assert heard(js.call("threads.getState", chat.thread_id)["values"]) == ["go"]


def test_t21_an_edit_is_a_branch_and_branches_are_switched(chat: Chat, server: Server, js: Client) -> None:
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
    chat.has(".at", "2/2")
    chat.page.click(".previous")
    chat.shows("one", "echo one", "two", "echo two")
    chat.has(".at", "1/2")
    # The conversation goes on in the branch that is shown.
    going_on = ["one", "echo one", "two", "echo two", "three", "echo three"]
    chat.watches()
    chat.send("three")
    eventually(lambda: going_on in chat.showed(), "the answer is shown")
    # With a run's end the hook goes back to the branch that was begun last, whichever the run was in.
    chat.shows("one", "echo one", "instead", "echo instead")
    chat.has("#state", "idle")
    assert heard(js.call("threads.getState", chat.thread_id)["values"]) == going_on
    chat.reload()
    chat.shows("one", "echo one", "instead", "echo instead")
    chat.has(".at", "2/2")
    chat.page.click(".previous")
    chat.shows(*going_on)
    assert js.statuses(chat.thread_id) == ["success"] * 4


@near
def test_t21_the_first_message_is_edited(chat: Chat, server: Server) -> None:
    chat.open(server.url, "chat")
    chat.send("one")
    chat.shows("one", "echo one")
    chat.has("#state", "idle")
    chat.edit(0, "first")
    chat.shows("first", "echo first")
    chat.has(".at", "2/2")
    chat.page.click(".previous")
    chat.shows("one", "echo one")
    chat.has(".at", "1/2")
    chat.edit(0, "second")
    chat.shows("second", "echo second")


def test_t21_a_question_is_answered(chat: Chat, server: Server, js: Client) -> None:
    chat.open(server.url, "ask")
    chat.send("hello")
    chat.has(".asked", '{"question":"really?"}')
    chat.has("#state", "idle")
    chat.reload()
    chat.has(".asked", '{"question":"really?"}')
    chat.shows("hello")
    chat.answer("yes")
    chat.shows("hello", "you said yes")
    chat.has("#state", "idle")
    assert chat.page.locator("#question").count() == 0
    assert js.call("threads.get", chat.thread_id)["status"] == "idle"


@near
def test_t21_a_question_of_a_subgraph_is_answered(chat: Chat, server: Server) -> None:
    chat.open(server.url, "nested")
    chat.send("hello")
    chat.has(".asked", '"deep?"')
    chat.answer("yes")
    chat.shows("hello", "echo hello", "within: yes", "outside")


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
    assert js.statuses(chat.thread_id) == ["success"]
    joins = [asked for asked in chat.asked if asked.startswith("GET") and "/stream" in asked]
    assert len(joins) == 1


@near
def test_t21_what_a_graph_writes_is_told_again_after_a_reload(chat: Chat, server: Server) -> None:
    chat.open(server.url, "walk")
    chat.send('{"steps": 16, "gated": 5}')
    chat.page.wait_for_function("() => document.querySelector('#custom').textContent.includes(':3}')")
    chat.reload()
    chat.page.wait_for_function("() => document.querySelector('#custom').textContent.includes(':3}')")
    GATES["walk"].set()
    chat.has("#custom", json.dumps([{"step": n} for n in range(16)], separators=(",", ":")))
    chat.has("#state", "idle")


@near
def test_t21_a_line_that_is_cut_is_taken_up_across_origins(chat: Chat, server: Server, js: Client) -> None:
    with line_to(server) as line:
        # Without reconnectOnMount there is no way back but the one that ``Location`` names.
        chat.open(line.near.url, "drip", reconnect="no", resumable="yes")
        chat.send("go")
        chat.begins(5)
        line.cut()
        GATES["drip"].set()
        chat.shows("go", DRIPPED)
        chat.has("#state", "idle")
        chat.has("#error", "")
    assert js.statuses(chat.thread_id) == ["success"]
    assert any(asked.startswith("GET") and "/stream" in asked for asked in chat.asked)


@near
def test_t21_a_failure_is_shown(chat: Chat, server: Server) -> None:
    chat.open(server.url, "boom")
    chat.send("hello")
    chat.has("#error", "it broke")
    chat.has("#state", "idle")
