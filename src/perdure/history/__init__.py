"""Conversations as plain messages: a history for each session, without checkpoints.

Open one with ``Database.history``. The graph that answers runs without a checkpointer, or with a
``DisposableSaver`` whose threads live for one call.
"""

from perdure.history.disposable_saver import DisposableSaver
from perdure.history.histories import Histories, NewTurn, SessionHistory, SyncHistories, TaskBudget
from perdure.history.model_messages import rebuild, tag_by_prefix
from perdure.history.neutral_messages import NeutralCall, NeutralMessage, neutral, to_langchain, to_neutral

__all__ = [
    "DisposableSaver",
    "Histories",
    "NeutralCall",
    "NeutralMessage",
    "NewTurn",
    "SessionHistory",
    "SyncHistories",
    "TaskBudget",
    "neutral",
    "rebuild",
    "tag_by_prefix",
    "to_langchain",
    "to_neutral",
]
