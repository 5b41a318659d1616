"""The source of functions and fields: found by file and line, names resolved without running code."""

from __future__ import annotations

import ast
import asyncio
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from perdure.audit.source import find_field_source, find_field_spot, find_function_spot, is_library, source_of


class Base(TypedDict):
    first: str


class Derived(Base):
    second: str


@dataclass
class Data:
    third: str = ""


def line_of(text: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return lines.index(text) + 1


def marked(function: Any) -> Any:
    return function


@marked
def decorated(state: Any, other: int = 0) -> Any:
    def inner() -> str:
        return "of another function"

    return interrupt("outer")


pair = (lambda state: {"a": 1}), (lambda state: {"b": 2})


def test_functions_are_found_by_their_line_also_two_lambdas_on_one() -> None:
    source = source_of(decorated)
    assert source is not None
    assert source.parameters == ["state", "other"]
    assert source.locate().line == line_of("def decorated(state: Any, other: int = 0) -> Any:")
    texts = [node.value for node in source.walk() if isinstance(node, ast.Constant)]
    assert texts == ["outer"], "the inner function is another one"
    found = [source_of(each) for each in pair]
    assert [ast.unparse(each.tree.body) for each in found if each is not None] == ["{'a': 1}", "{'b': 2}"]  # type: ignore[arg-type]
    assert source_of(len) is None
    assert source_of(functools.partial(decorated)) is None


def test_names_are_resolved_where_the_function_finds_them() -> None:
    captured = Command

    def asks(state: Any) -> Any:
        from langgraph.types import Send as Sent

        local = state
        return captured, asyncio.sleep, interrupt, local, Sent, state.get, len

    source = source_of(asks)
    assert source is not None
    value = next(node.value for node in source.walk() if isinstance(node, ast.Return))
    assert isinstance(value, ast.Tuple)
    names = [getattr(source.resolve(each), "__name__", None) for each in value.elts]
    assert names == ["Command", "sleep", "interrupt", None, "Send", None, "len"]


def test_a_field_is_found_in_the_class_that_declares_it() -> None:
    assert find_field_spot(Derived, "first").line == line_of("    first: str")
    assert find_field_spot(Derived, "second").line == line_of("    second: str")
    assert find_field_spot(Data, "third").line == line_of('    third: str = ""')
    assert find_field_source(Derived, "first")[0] is Base
    made: Any = TypedDict("made", {"fourth": str})
    assert find_field_source(made, "fourth")[1].line == 0
    assert str(find_field_spot(None, "fifth")) == "?"


def test_spots_are_relative_to_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    line = line_of('    third: str = ""')
    assert str(find_field_spot(Data, "third")) == f"test_source.py:{line}"
    assert find_function_spot(decorated).file == __file__
    assert is_library(interrupt)
    assert not is_library(decorated)
