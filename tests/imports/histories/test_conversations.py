"""Conversations as neutral JSON: out of one database, into another, and on."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure.errors import BadUrl, NotAllowed, NotFound
from perdure.history.neutral_messages import to_neutral
from perdure.imports.histories.conversations import HistorySource, read_history
from tests.imports import parity, threads

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAME = st.text("abcdef_", min_size=1, max_size=6)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
CONTENT = TEXT | st.lists(
    st.builds(lambda text: {"type": "text", "text": text}, TEXT), min_size=1, max_size=3
)
CALL = st.fixed_dictionaries({"id": NAME, "name": NAME, "args": st.dictionaries(TEXT, PLAIN, max_size=2)})
MORE: dict[str, Any] = {"id": NAME, "tags": st.lists(NAME, min_size=1, max_size=2, unique=True)}
MESSAGES = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "system"]), "content": CONTENT}, optional=MORE
        ),
        st.fixed_dictionaries(
            {"role": st.just("assistant"), "content": CONTENT},
            optional={**MORE, "tool_calls": st.lists(CALL, min_size=1, max_size=2)},
        ),
        st.fixed_dictionaries(
            {"role": st.just("tool"), "content": CONTENT, "tool_call_id": NAME}, optional=MORE
        ),
    ),
    min_size=1,
    max_size=6,
)


def chat(saver: Any) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("reply", lambda state: {"messages": [AIMessage(f"{len(state['messages'])} so far")]})
    return builder.add_edge(START, "reply").compile(checkpointer=saver)


@settings(max_examples=200 if parity.FULL else 15, deadline=None)
@given(MESSAGES)
def test_a_conversation_goes_from_one_database_to_another_unchanged(messages: list[Any]) -> None:
    expected = to_neutral(messages)
    with tempfile.TemporaryDirectory() as folder, perdure.connect_sync("memory://") as first:
        path = Path(folder) / "ada.json"
        path.write_text(json.dumps(messages))
        (report,) = parity.imported(HistorySource(path), first)
        assert (report.state, report.verified) == ("imported", report.checkpoints)
        out = read_history(first, "ada")
        assert out == expected
        path.write_text(json.dumps(out))
        with perdure.connect_sync(f"sqlite:///{folder}/second.db", migrate=True) as second:
            parity.imported(HistorySource(path), second)
            assert read_history(second, "ada") == expected
            assert second.fsck("ada") == []


def test_a_graph_goes_on_and_what_came_since_is_imported_again(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    words = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    lines = [{"thread_id": "ada", "messages": words}, {"thread_id": "bob", "messages": words}]
    path.write_text("\n".join(map(json.dumps, lines)))
    with perdure.connect_sync("memory://") as db:
        assert {r.state for r in parity.imported(HistorySource(path), db)} == {"imported"}
        lines[0]["messages"] = [*words, {"role": "user", "content": "and now?"}]
        path.write_text("\n".join(map(json.dumps, lines)))
        assert [r.state for r in parity.imported(HistorySource(path), db)] == ["extended", "unchanged"]
        assert read_history(db, "ada") == to_neutral(lines[0]["messages"])  # type: ignore[arg-type]
        graph = chat(db.checkpointer())
        assert graph.get_state(threads.config("ada")).next == ()
        state = graph.invoke({"messages": [{"role": "user", "content": "go"}]}, threads.config("ada"))
        assert state["messages"][-1].content == "4 so far"
        assert db.fsck("ada") == []


@given(st.data())
@settings(max_examples=60 if parity.FULL else 10, deadline=None)
def test_a_growing_conversation_goes_on_wherever_it_ended(data: st.DataObject) -> None:
    messages = data.draw(MESSAGES)
    ends = sorted({*data.draw(st.lists(st.integers(1, len(messages)), max_size=3)), len(messages)})
    with tempfile.TemporaryDirectory() as folder, perdure.connect_sync("memory://") as db:
        path = Path(folder) / "ada.json"
        before = 0
        for end in ends:
            path.write_text(json.dumps(messages[:end]))
            (report,) = parity.imported(HistorySource(path), db)
            assert (report.state, report.why) == ("extended" if before else "imported", "")
            assert report.checkpoints == end - before
            assert read_history(db, "ada") == to_neutral(messages[:end])
            before = end
        # An older file brings nothing and takes nothing away.
        path.write_text(json.dumps(messages[: ends[0]]))
        (report,) = parity.imported(HistorySource(path), db)
        assert report.state == "unchanged", report
        assert read_history(db, "ada") == to_neutral(messages)


def test_a_thread_that_is_in_a_file_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    words = [{"role": "user", "content": "hello"}]
    lines = [{"thread_id": name, "messages": words} for name in ("ada", "bob", "ada")]
    path.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(BadUrl, match="line 3: thread 'ada' is on line 1 already; join"):
        HistorySource(path)


def test_what_is_no_conversation_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    with pytest.raises(BadUrl, match="is not a file"):
        HistorySource(path)
    path.write_text('{"thread_id": 1}')
    with pytest.raises(BadUrl, match="line 1: not an object with thread_id"):
        HistorySource(path)
    path.write_text("{")
    with pytest.raises(BadUrl, match="line 1: not JSON"):
        HistorySource(path)
    path.write_text('[{"role": "king", "content": "x"}]')
    with perdure.connect_sync("memory://") as db:
        (report,) = parity.imported(HistorySource(path), db)
        assert (report.state, "role of message 0" in report.why) == ("skipped", True)
        with pytest.raises(NotFound, match="there is no thread 'bad'"):
            read_history(db, "bad")
        threads.SHAPES["delta"].make(threads.long(db.checkpointer()), "delta")
        with pytest.raises(NotFound, match="has no channel 'messages'"):
            read_history(db, "delta")
        with pytest.raises(NotAllowed, match="is a DeltaChannel"):
            read_history(db, "delta", channel="said")


@pytest.mark.parametrize(
    "content", [b'[{"role": "user", "content": "caf\xe9"}]', b'{"thread_id": "\xe9"}', b"\xff\xfe["]
)
def test_a_file_that_is_not_utf_8_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "talks.json"
    path.write_bytes(content)
    with pytest.raises(BadUrl, match="not JSON"):
        HistorySource(path).outline("talks")


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a":' * 100_000])
def test_a_file_that_is_nested_too_deeply_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "talks.json"
    path.write_text(content)
    with pytest.raises(BadUrl, match="nested too deeply"):
        HistorySource(path).outline("talks")


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "talks.json"
    messages = [{"role": "user", "content": "caf\u00e9"}]
    for text in (json.dumps(messages), json.dumps({"thread_id": "talks", "messages": messages})):
        path.write_text(text, encoding="utf-8-sig")
        source = HistorySource(path)
        assert list(source.threads()) == ["talks"]
        assert len(source.outline("talks").checkpoints) == 1
