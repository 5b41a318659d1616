"""What the log says of a graph that raises: its type and place, and the message only for debugging."""

from __future__ import annotations

import logging

import pytest

from perdure.runtime.observers import Logs
from tests.runtime.graphs import Storage, Talk, go, settings, working


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_the_place_is_logged_always_and_the_message_for_debugging(
    memory: Storage, talk: Talk, caplog: pytest.LogCaptureFixture, level: int
) -> None:
    talk.error = RuntimeError("a user's words")

    async def main() -> None:
        one = settings(attempts=1)
        async with working(memory.database(), talk.graph, settings=one, observers=[Logs()]) as runtime:
            run = await runtime.wait(await runtime.accept("ada", "boom"), 30)
            assert (run.note["kind"], run.note["error"]) == ("RuntimeError", "RuntimeError: a user's words")

    with caplog.at_level(level, logger="perdure.failures"):
        go(main())
    assert "error=RuntimeError place=graphs.py:" in caplog.text
    assert ("a user's words" in caplog.text) == (level == logging.DEBUG)
    assert ("Traceback" in caplog.text) == (level == logging.DEBUG)
