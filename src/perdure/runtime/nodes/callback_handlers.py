"""Callback handlers of the runtime's own, beside those of a config."""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import BaseCallbackHandler, Callbacks
from langchain_core.runnables.config import merge_configs, var_child_runnable_config


class NodesOnly(BaseCallbackHandler):
    """Handler that learns of nodes and tools. Models are ignored: for a handler without
    ``on_chat_model_start`` LangChain would render all that is sent to a model as text."""

    run_inline = True
    ignore_llm: Any = True
    ignore_chat_model: Any = True


def with_handlers(callbacks: Callbacks, *handlers: BaseCallbackHandler) -> Callbacks:
    """Return the callbacks of a config together with handlers, which graphs called inside inherit, too."""
    if isinstance(callbacks, list):
        return [*callbacks, *handlers]
    if callbacks is None and var_child_runnable_config.get() is None:
        return [*handlers]
    # A manager, or the callbacks of an enclosing call.
    return merge_configs({"callbacks": callbacks}, {"callbacks": [*handlers]}).get("callbacks")
