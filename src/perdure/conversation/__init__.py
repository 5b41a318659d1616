"""View of a conversation for a model: windows that are always valid, repair, and running summaries."""

from typing import TYPE_CHECKING, Any

from perdure.conversation.counting import Counter, approximate, counter_of
from perdure.conversation.fitted_model import FittedModel, fit_model
from perdure.conversation.hook import pre_model_hook, summary_node
from perdure.conversation.policy import Conversation
from perdure.conversation.repair import NO_RESULT, Change, RepairedMessages, repair
from perdure.conversation.summary import SUMMARY_PROMPT, ModelSummarizer, Summarize, Summary
from perdure.conversation.window import Limit, TokensByPart, Window, window
from perdure.errors import MissingExtra

if TYPE_CHECKING:
    from perdure.conversation.middleware import ConversationMiddleware

__all__ = [
    "NO_RESULT",
    "SUMMARY_PROMPT",
    "Change",
    "Conversation",
    "ConversationMiddleware",
    "Counter",
    "FittedModel",
    "Limit",
    "ModelSummarizer",
    "RepairedMessages",
    "Summarize",
    "Summary",
    "TokensByPart",
    "Window",
    "approximate",
    "counter_of",
    "fit_model",
    "pre_model_hook",
    "repair",
    "summary_node",
    "window",
]


def __getattr__(name: str) -> Any:
    if name != "ConversationMiddleware":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from perdure.conversation.middleware import ConversationMiddleware
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "langchain":
            raise
        raise MissingExtra(
            "ConversationMiddleware needs LangChain: pip install 'perdure[conversation]'"
        ) from error
    return ConversationMiddleware
