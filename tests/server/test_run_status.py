"""The status of a run while it is claimed only to be ended.

Covers perdure.server.responses.
"""

from __future__ import annotations

from dataclasses import replace

from perdure.model.runs.messages import OPEN, Message, Run
from perdure.runtime import Standing
from perdure.server.responses import run_status

MESSAGE = Message("m", {}, "agent", seq=1).withdraw("interrupt")
RUN = Run("m", 1, 1, OPEN, "agent", "", 1, 1, None, 0, 0)


def test_a_run_that_was_cancelled_while_it_waited_never_counts_as_running() -> None:
    assert MESSAGE.is_withdrawn
    assert run_status(Standing(MESSAGE, None)) == run_status(Standing(MESSAGE, RUN)) == "interrupted"
    assert run_status(Standing(replace(MESSAGE, mode="enqueue"), RUN)) == "running"
