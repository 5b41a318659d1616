"""What a model sees of a conversation: windows that are always valid, repair, and running summaries."""

from perdure.conversation.counting import Counter, approximate, counter_of
from perdure.conversation.fitted import FittedModel, fitted
from perdure.conversation.repair import NO_RESULT, Change, RepairedMessages, repair
from perdure.conversation.window import Limit, Summary, TokensByPart, Window, window

__all__ = [
    "NO_RESULT",
    "Change",
    "Counter",
    "FittedModel",
    "Limit",
    "RepairedMessages",
    "Summary",
    "TokensByPart",
    "Window",
    "approximate",
    "counter_of",
    "fitted",
    "repair",
    "window",
]
