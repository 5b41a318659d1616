"""An error of a provider's model names the package that is missing, or that raised it, and never its text."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest

from perdure.config.models import load_model_or_function
from perdure.errors import BadSetting, EmbeddingFailed
from perdure.langgraph.search import model_failures
from perdure.langgraph.search.embedding import TextEmbedder
from perdure.langgraph.search.model_failures import describe_failure, describe_unmade


def raised(call: Callable[[], Any]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def wrapped(name: str) -> None:
    """Fail as LangChain does without a package: with an error whose cause is the import."""
    try:
        import_module(name)
    except ImportError as error:
        raise ImportError("install it") from error


def refuse(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("secret", request=request)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda: import_module("langchain_nowhere.x"),
            "needs the package langchain-nowhere: pip ",
        ),
        (
            lambda: wrapped("langchain_nowhere"),
            "needs the package langchain-nowhere: pip install ",
        ),
        (
            lambda: import_module("nowhere_at_all"),
            "needs the package of the module nowhere_at_all, ",
        ),
        (
            lambda: httpx.Client(transport=httpx.MockTransport(refuse)).get("http://x"),
            "Error in httpx",
        ),
        (lambda: json.loads("{secret"), "raised JSONDecodeError in tests"),
    ],
)
def test_the_package_is_named(call: Callable[[], Any], told: str) -> None:
    said = describe_failure(raised(call))
    assert told in said
    assert "secret" not in said


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("gpt", "which names no provider and its model"),
        ("nowhere:m", "LangChain knows no provider 'nowhere'; check its spelling"),
        (
            "openai:m",
            "which raised OpenAIError in openai; check that the provider's key is in the environment",
        ),
    ],
)
def test_a_model_of_a_provider_says_why_it_is_not_made(
    named: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="embed is") as index:
        TextEmbedder(named, 2, None)
    assert told in str(index.value)
    with pytest.raises(BadSetting) as setting:
        load_model_or_function("memory.model", named, Path())
    assert told in str(setting.value)


@pytest.mark.parametrize(
    ("named", "packages"),
    [
        ("openai:m", "langchain-openai"),
        ("bedrock:m", "langchain-aws"),
        ("google_genai:m", "langchain-google-genai"),
    ],
)
def test_without_langchain_both_packages_are_named(
    named: str, packages: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_failures, "find_spec", lambda name: None)
    told = describe_unmade(named, ValueError("could not load"))
    assert told == f"which needs LangChain and the provider's package: pip install langchain {packages}"


def test_a_function_that_lacks_a_module_names_it() -> None:
    def embed(texts: Any) -> Any:
        return import_module("nowhere_at_all")

    with pytest.raises(EmbeddingFailed, match="needs the package of the module nowhere_at_all"):
        TextEmbedder(embed, 2, None).embed(["tea"], ())
