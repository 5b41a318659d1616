"""Loading of the chat models and functions that settings name, by provider and model or by place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel

from perdure.errors import BadSetting, MissingExtra
from perdure.langgraph.search.model_failures import describe_unmade
from perdure.runtime.agents.loading import find
from perdure.runtime.agents.module_files import names_file


def load_callable(setting: str, place: str, root: Path) -> Any:
    """Return the function or chat model at a place.

    Args:
        setting: The name of the setting, for error messages.
        place: The place.
        root: The project's folder, at which a file's path starts.

    Raises:
        BadSetting: The object is neither a function nor a chat model.
        GraphLoadError: There is no object at the place.
    """
    found = find(place, root=root).found
    if not callable(found) and not isinstance(found, BaseChatModel):
        raise BadSetting(f"{setting}: {place} is not a function, but {type(found).__name__}")
    return found


def load_model_or_function(setting: str, name: str, root: Path) -> Any:
    """Return a chat model by its provider and name, or the function or chat model at a place.

    Args:
        setting: The name of the setting, for error messages.
        name: A provider and its model, such as ``openai:gpt-4o-mini``, or a place.
        root: The project's folder, at which a file's path starts.

    Raises:
        BadSetting: The model or the object cannot be used.
        GraphLoadError: There is no object at the place.
        MissingExtra: A provider is named, and LangChain is not installed.
    """
    if names_file(name) or "." in name.partition(":")[0]:
        return load_callable(setting, name, root)
    try:
        from langchain.chat_models import init_chat_model
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"{setting} is {name!r}, a provider and its model, which needs an extra: "
            'pip install "perdure[conversation]"'
        ) from error
    try:
        return init_chat_model(name)
    except Exception as error:
        # Providers raise errors of their own, e.g. for a missing key. Their texts may quote a key.
        raise BadSetting(
            f"{setting} is {name!r}, {describe_unmade(name, error)}. It is a provider and its model, e.g. "
            "openai:gpt-4o-mini, or a place, e.g. ./models.py:small"
        ) from error
