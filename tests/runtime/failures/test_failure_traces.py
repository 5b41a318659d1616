"""Tracebacks that are stored with failed runs: the application's frames first, and of bounded size."""

from __future__ import annotations

import asyncio
import json

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import RetryPolicy

from perdure.model.records import EVENT
from perdure.model.runs.messages import NODE, TRACEBACK
from perdure.runtime.failures.failure_traces import TRACEBACK_MAX, make_failure_note, write_traceback
from perdure.runtime.options import Options, StreamOptions
from tests.runtime.graphs import Storage, go, settings, working


def _raised(error: BaseException, depth: int = 0, cause: BaseException | None = None) -> BaseException:
    def fail(left: int) -> None:
        if left:
            fail(left - 1)
        raise error from cause

    try:
        fail(depth)
    except BaseException as raised:
        return raised
    raise AssertionError


def test_frames_of_the_application_come_first() -> None:
    def parse(state: MessagesState) -> None:
        json.loads("{")

    builder = StateGraph(MessagesState).add_node("parse", parse).add_edge(START, "parse")
    with pytest.raises(json.JSONDecodeError) as caught:
        builder.compile().invoke({"messages": []})
    text = write_traceback(caught.value)
    own, _, others = text.partition("frames of libraries:")
    assert own.startswith("JSONDecodeError: Expecting property name")
    assert 'in parse\n    json.loads("{")' in own
    assert "pregel" not in own
    assert "pregel" in others
    assert "decoder.py" in others


def test_causes_follow() -> None:
    cause = _raised(KeyError("inner"))
    text = write_traceback(_raised(RuntimeError("outer"), cause=cause))
    assert text.index("RuntimeError: outer") < text.index("caused by KeyError: 'inner'")
    silent = RuntimeError("alone")
    silent.__context__, silent.__suppress_context__ = cause, True
    assert "caused by" not in write_traceback(silent)
    loop = RuntimeError("a loop")
    loop.__cause__ = loop
    assert write_traceback(loop) == "RuntimeError: a loop\n"


def _fail(state: MessagesState) -> None:
    raise ConnectionError


def test_the_note_has_the_node_that_raised_the_error() -> None:
    team = StateGraph(MessagesState)
    team.add_node("it's a writer", _fail, retry_policy=RetryPolicy(max_attempts=2, initial_interval=0.01))
    team.add_edge(START, "it's a writer")
    graph = StateGraph(MessagesState).add_node("team", team.compile()).add_edge(START, "team").compile()
    with pytest.raises(ConnectionError) as caught:
        graph.invoke({"messages": []})
    assert make_failure_note(caught.value)[NODE] == "team|it's a writer"
    assert NODE not in make_failure_note(_raised(ConnectionError()))


@pytest.mark.parametrize("message", ["x" * 100_000, "€" * 50_000, "\ud800" * 9])
def test_its_size_is_bounded(message: str) -> None:
    error = _raised(RuntimeError(message), depth=300, cause=_raised(RuntimeError(message), depth=300))
    text = write_traceback(error)
    assert len(text.encode()) <= TRACEBACK_MAX
    assert "frames before these]" in text
    json.dumps(make_failure_note(error), ensure_ascii=False).encode()


def test_it_is_stored_with_the_run_and_not_sent_to_clients(near: Storage) -> None:
    def second(state: MessagesState) -> None:
        raise RuntimeError("boom")

    graph = StateGraph(MessagesState).add_node("second", second).add_edge(START, "second").compile()

    async def main() -> None:
        async with working(near.database(), graph, settings=settings(attempts=1)) as runtime:
            options = Options(stream=StreamOptions(modes=("updates",)))
            ticket = await runtime.submit("ada", {"messages": []}, options=options)
            run = await runtime.wait(ticket, 30)
            assert "in second" in run.note[TRACEBACK]
            assert (run.note["error"], run.note["kind"]) == ("RuntimeError: boom", "RuntimeError")
            told = b"".join(row.body for row in near.rows("ada", EVENT))
            assert b"boom" in told
            assert b"in second" not in told

    go(asyncio.wait_for(main(), 60))


def test_an_error_whose_text_cannot_be_made_has_its_type() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    note = make_failure_note(Mute())
    assert note["error"] == "Mute: (its text cannot be read: RuntimeError)"
    assert note["traceback"].startswith(note["error"])
