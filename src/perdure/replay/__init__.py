"""Replay of recorded threads by changed code, without calling anything.

>>> report = await replay(db, graph, "thread")
>>> assert report.is_same, report.differences[0]
"""

from perdure.langgraph.call_recording import record_calls
from perdure.replay.comparison import Difference
from perdure.replay.run import ReplayOptions, ReplayReport, replay, replay_sync

__all__ = ["Difference", "ReplayOptions", "ReplayReport", "record_calls", "replay", "replay_sync"]
