"""Choice of the demo's chat model, and the packages that it needs.

The order: the model that the caller names; OpenAI's, if the environment has a key; the small model from a
package, which runs in this process. There is no fallback: a chosen model that cannot start is an error with
advice.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from langchain_core.language_models import BaseChatModel

from perdure.demo.errors import INSTALL, BadModel
from perdure.errors import MissingExtra

LOCAL = "local"
OPENAI_DEFAULT = "gpt-4.1-mini"

LOCAL_CONTEXT_TOKENS = 4096
ANSWER_TOKENS = 240
LOCAL_PROMPT_TOKENS = LOCAL_CONTEXT_TOKENS - ANSWER_TOKENS - 128
REMOTE_PROMPT_TOKENS = 16_000


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Provider and its name for the model; the provider ``local`` has one model."""

    provider: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class OpenModel:
    """Chat model that takes calls; ``context_tokens`` is the maximum size of a prompt."""

    chat: BaseChatModel
    label: str
    context_tokens: int


def choose_model(asked: str | None, environ: Mapping[str, str]) -> ModelChoice:
    """Return the model for ``asked`` (``provider:name``, ``local`` or ``None``) without opening it.

    Raises:
        BadModel: ``asked`` has another form.
    """
    if asked is None:
        if environ.get("OPENAI_API_KEY"):
            return ModelChoice(
                "openai", OPENAI_DEFAULT, "OPENAI_API_KEY is set; --model local stays on this machine"
            )
        return ModelChoice(LOCAL, LOCAL, "runs on this machine")
    if asked == LOCAL:
        return ModelChoice(LOCAL, LOCAL, "runs on this machine")
    provider, colon, name = asked.partition(":")
    if not (provider and colon and name):
        raise BadModel(
            f"The model {asked!r} is not of the form provider:name; try openai:{OPENAI_DEFAULT} or local."
        )
    return ModelChoice(provider, name, "asked for by name")


@contextmanager
def open_model(choice: ModelChoice, environ: Mapping[str, str]) -> Iterator[OpenModel]:
    """Open a model that takes calls during the block.

    Opening the local model takes about a second and blocks.

    Raises:
        perdure.errors.MissingExtra: A package is missing.
        BadModel: The model cannot start.
    """
    if choice.provider == LOCAL:
        from perdure.demo import local_model

        require("langchain_openai", "xllamacpp", local_model.PACKAGE)

        with local_model.serve(context_tokens=LOCAL_CONTEXT_TOKENS, answer_tokens=ANSWER_TOKENS) as chat:
            yield OpenModel(chat, f"{local_model.LABEL} ({choice.reason})", LOCAL_PROMPT_TOKENS)
        return
    label = f"{choice.provider}:{choice.name} ({choice.reason})"
    yield OpenModel(_make_remote_model(choice, environ), label, REMOTE_PROMPT_TOKENS)


def require(*modules: str) -> None:
    """Raise :class:`~perdure.errors.MissingExtra` with every missing module and the commands that install the
    demo."""
    absent = [module for module in modules if importlib.util.find_spec(module) is None]
    if absent:
        verb = "is" if len(absent) == 1 else "are"
        raise MissingExtra(f"The demo needs {', '.join(absent)}, which {verb} not installed:{INSTALL}")


def _make_remote_model(choice: ModelChoice, environ: Mapping[str, str]) -> BaseChatModel:
    if choice.provider == "openai":
        if not environ.get("OPENAI_API_KEY"):
            raise BadModel("OPENAI_API_KEY is not set: set it, or use --model local.")
        require("langchain_openai")
        from langchain_openai import ChatOpenAI

        return ChatOpenAI(model=choice.name)
    if importlib.util.find_spec("langchain") is None:
        raise MissingExtra(
            f"Models of {choice.provider} need langchain and the provider's own package: "
            f"pip install langchain langchain-{choice.provider}"
        )
    chat_models = importlib.import_module("langchain.chat_models")
    try:
        chat = chat_models.init_chat_model(choice.name, model_provider=choice.provider)
    except Exception as error:
        raise BadModel(f"The model {choice.provider}:{choice.name} cannot start: {error}") from error
    if not isinstance(chat, BaseChatModel):
        raise BadModel(f"{choice.provider}:{choice.name} is not a chat model.")
    return chat
