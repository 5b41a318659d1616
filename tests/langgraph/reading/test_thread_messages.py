"""The conversation of a thread, read without its types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES

import perdure
from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.errors import BadSetting
from perdure.langgraph.reading.thread_messages import MessagesPage, load_messages, load_title
from perdure.langgraph.reading.thread_steps import load_steps
from perdure.model.model_calls import Price, Prices
from perdure.model.records import Partition

AT: Any = {"configurable": {"thread_id": "t"}}
PRICES = Prices({"m": Price(1.0, 1.0)}, "EUR")


@pytest.fixture
def database() -> Iterator[SyncDatabase]:
    with perdure.connect_sync("memory://") as opened:
        yield opened


class Values(TypedDict):
    numbers: list[int]


class Said(TypedDict):
    messages: list[Any]


def echo(database: SyncDatabase, *answers: BaseMessage) -> Any:
    """A graph that says all of these, a step each."""
    built = StateGraph(MessagesState)
    before = START
    for number, said in enumerate(answers):
        built.add_node(f"n{number}", lambda _, said=said: {"messages": [said.model_copy()]})
        built.add_edge(before, f"n{number}")
        before = f"n{number}"
    return built.compile(checkpointer=database.checkpointer())


def read(database: SyncDatabase, cursor: str = "", limit: int = 40) -> MessagesPage:
    handle = handle_of(database)
    return handle.run(load_messages(Partition("", "t"), handle.digest, PRICES, cursor, limit))


def test_messages_are_read_with_calls_results_and_reasoning(database: SyncDatabase) -> None:
    usage: Any = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    thought: Any = [
        {"type": "thinking", "thinking": "Let me see."},
        {"type": "text", "text": "I look."},
        {"type": "image_url", "image_url": {"url": "data:"}},
    ]
    call: Any = {"name": "look", "args": {"at": 1}, "id": "c"}
    answer = AIMessage(
        thought, id="a", tool_calls=[call], usage_metadata=usage, response_metadata={"model_name": "m"}
    )
    result = ToolMessage("nothing", tool_call_id="c", name="look", status="error")
    other = AIMessage("Done.", additional_kwargs={"reasoning_content": "It failed."})
    echo(database, answer, result, other).invoke({"messages": [HumanMessage("  Look\nthere  ")]}, AT)
    page = read(database)
    said, called, found, last = page.messages
    assert (page.title, page.total, page.start, page.cursor) == ("Look there", 4, 0, None)
    assert (said["role"], said["text"]) == ("human", "  Look\nthere  ")
    assert (called["text"], called["reasoning"], called["parts"]) == ("I look.", "Let me see.", thought[2:])
    assert called["tool_calls"] == [{"name": "look", "id": "c", "args": {"at": 1}}]
    assert (called["usage"]["cost"], called["usage"]["currency"]) == (pytest.approx(15e-6), "EUR")
    assert (found["tool_call_id"], found["status"], found["name"]) == ("c", "error", "look")
    assert (last["text"], last["reasoning"], last["usage"]) == ("Done.", "It failed.", None)


def test_each_message_has_the_time_at_which_it_was_said(database: SyncDatabase) -> None:
    # None of them has an id when it is written, and two are alike.
    app = echo(database, AIMessage("yes"), ToolMessage("r", tool_call_id="c"))
    for _ in range(3):
        app.invoke({"messages": [HumanMessage("and?")]}, AT)
    handle = handle_of(database)
    steps = handle.run(load_steps(Partition("", "t"), handle.digest)).steps[::-1]
    expected = [step.ended_at for step in steps if step.source == "input" or step.nodes]
    assert [each["at"] for each in read(database).messages] == expected
    assert expected == sorted(expected, key=lambda at: at or 0)
    assert [each["node"] for each in read(database).messages] == [None, "n0", "n1"] * 3


@pytest.mark.parametrize("limit", [1, 2, 5, 40])
def test_pages_go_back_to_the_beginning(database: SyncDatabase, limit: int) -> None:
    app = echo(database, AIMessage("yes"))
    for number in range(6):
        app.invoke({"messages": [HumanMessage(f"question {number}")]}, AT)
    whole = read(database)
    found: list[Any] = []
    cursor: str | None = ""
    while cursor is not None:
        page = read(database, cursor, limit)
        found = [*page.messages, *found]
        cursor = page.cursor
    assert [each["id"] for each in found] == [each["id"] for each in whole.messages]
    assert [each["at"] for each in found] == [each["at"] for each in whole.messages]


def test_a_long_text_is_cut_and_a_long_title_too(database: SyncDatabase) -> None:
    echo(database, AIMessage("x" * 100_000)).invoke({"messages": [HumanMessage("word " * 50)]}, AT)
    page = read(database)
    assert page.messages[1]["text"].endswith("… (100,000 characters)")
    assert len(page.title) <= 80
    assert page.title.endswith("…")


def test_a_state_without_messages_has_no_conversation(database: SyncDatabase) -> None:
    values: Any = StateGraph(Values).add_node("n", lambda _: {"numbers": [1]}).add_edge(START, "n")
    values.compile(checkpointer=database.checkpointer()).invoke({"numbers": []}, AT)
    assert read(database) == MessagesPage(None, [], 0, 0, "", None)
    app = echo(database, RemoveMessage(REMOVE_ALL_MESSAGES))
    app.invoke({"messages": [HumanMessage("hello")]}, {"configurable": {"thread_id": "empty"}})
    handle = handle_of(database)
    assert handle.run(load_title(Partition("", "empty"), handle.digest)) == ""
    assert handle.run(load_title(Partition("", "none"), handle.digest)) == ""


@pytest.mark.parametrize(
    "cursor", ["x", "1:x:0", ":3:0", "-1::0", "1:2", "1:2:3:4", "9" * 40, "1.5::0", "\u0663::0"]
)
def test_a_cursor_that_no_page_gave_is_refused(database: SyncDatabase, cursor: str) -> None:
    with pytest.raises(BadSetting, match="the cursor has to come from an earlier page"):
        read(database, cursor)


def test_large_parts_and_arguments_are_named_by_their_size(database: SyncDatabase) -> None:
    small, large = {"type": "image", "base64": "A" * 60_000}, {"type": "image", "base64": "A" * 100_000}
    called = {"name": "save", "id": "c1", "args": {"text": "A" * 100_000}}
    said = {"type": "ai", "content": [small, large], "tool_calls": [called]}
    put(database, *[said] * 30)
    messages = read(database).messages
    note = {"type": "image", "too_large": "100,017 characters"}
    assert messages[-1]["parts"] == [small, note]
    assert messages[-1]["tool_calls"][0]["args"] == {"too_large": "100,006 characters"}
    assert messages[0]["parts"] == [{"type": "image", "too_large": "60,017 characters"}, note]
    assert len(str(messages)) < 1_100_000


@pytest.mark.parametrize("calls", [7, "search", {"name": "search"}, [None, 7, "search"], None])
def test_tool_calls_of_another_form_are_none(database: SyncDatabase, calls: object) -> None:
    said = {"type": "ai", "content": "", "tool_calls": calls, "invalid_tool_calls": calls}
    put(database, said)
    assert read(database).messages[0]["tool_calls"] == []


def test_a_tool_call_in_openais_form_has_its_name(database: SyncDatabase) -> None:
    called = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    put(database, {"role": "assistant", "content": None, "tool_calls": [called]})
    assert read(database).messages[0]["tool_calls"] == [{"name": "search", "id": "c1", "args": "{}"}]


def put(database: SyncDatabase, *messages: dict[str, Any]) -> None:
    """Store messages as plain data."""
    built = StateGraph(Said).add_node("n", lambda _: {"messages": list(messages)}).add_edge(START, "n")
    built.compile(checkpointer=database.checkpointer()).invoke({"messages": []}, AT)
