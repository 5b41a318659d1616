"""Chat models and functions that a setting names, by provider and model or by place."""

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
        BadSetting: The object is neither.
        GraphLoadError: There is no object at the place.
    """
    found = find(place, root=root).found
    if not callable(found) and not isinstance(found, BaseChatModel):
        raise BadSetting(f"{setting}: {place} is not a function, but {type(found).__name__}")
    return found


def model_or_function(setting: str, named: str, root: Path) -> Any:
    """Return a chat model by its provider and name, or what ``load_callable`` returns for a place.

    Args:
        setting: The name of the setting, for error messages.
        named: A provider and its model, such as ``openai:gpt-4o-mini``, or a place.
        root: The project's folder, at which a file's path starts.

    Raises:
        BadSetting: It cannot be used.
        GraphLoadError: There is no object at the place.
        MissingExtra: A provider is named, and LangChain is not installed.
    """
    if names_file(named) or "." in named.partition(":")[0]:
        return load_callable(setting, named, root)
    try:
        from langchain.chat_models import init_chat_model
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"{setting} is {named!r}, a provider and its model, which needs an extra: "
            'pip install "perdure[conversation]"'
        ) from error
    try:
        return init_chat_model(named)
    except Exception as error:
        # Providers raise errors of their own, e.g. without a key; what they repeat may be one.
        raise BadSetting(
            f"{setting} is {named!r}, {describe_unmade(named, error)}. It is a provider and its model, e.g. "
            "openai:gpt-4o-mini, or a place, e.g. ./models.py:small"
        ) from error
