"""Which code is a project's own, and what a traceback of it looks like."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure.runtime.failures.own_code import is_own, list_own_files, list_own_places, write_traceback


def test_python_and_packages_and_perdure_are_not_the_project_s(tmp_path: Path) -> None:
    assert is_own(__file__)
    assert is_own(str(tmp_path / "agent.py"))
    assert not is_own(f"{sysconfig.get_path('stdlib')}/json/__init__.py")
    assert not is_own(f"{sysconfig.get_path('purelib')}/langgraph/graph/state.py")
    assert not is_own(str(tmp_path / ".venv" / "lib" / "python3.12" / "site-packages" / "mine.py"))
    assert not is_own(perdure.__file__)
    assert not is_own("<frozen importlib._bootstrap>")
    assert __file__ in list_own_files()
    assert not any("site-packages" in file for file in list_own_files())


def test_frames_of_the_project_come_first_also_those_below_a_library() -> None:
    def broken(state: MessagesState) -> dict[str, object]:
        raise LookupError("no such city")

    graph = StateGraph(MessagesState).add_node(broken).add_edge(START, "broken").compile()
    with pytest.raises(LookupError) as caught:
        graph.invoke({"messages": []})
    text = write_traceback(caught.value)
    own, libraries = text.split("Frames of libraries")
    assert own.startswith("Traceback of your code (most recent call last):\n")
    assert own.count("test_own_code.py") == 2
    assert "in broken" in own
    assert "LookupError: no such city\n" in own
    assert "langgraph" not in own
    assert "langgraph" in libraries
    assert list_own_places(caught.value) == {__file__}


def test_causes_and_groups_are_shown_in_the_same_form_and_notes_too() -> None:
    def fail() -> None:
        try:
            raise KeyError("first".upper())
        except KeyError as error:
            raise ExceptionGroup(
                "both", [ValueError("second".upper()), TypeError("third".upper())]
            ) from error

    with pytest.raises(ExceptionGroup) as caught:
        fail()
    caught.value.add_note("a remedy")
    text = write_traceback(caught.value)
    places = [text.index(words) for words in ("both", "a remedy", "SECOND", "THIRD", "Caused by", "FIRST")]
    assert places == sorted(places)


def test_a_file_that_cannot_be_parsed_is_a_place_of_its_error(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    with pytest.raises(SyntaxError) as caught:
        compile("def (", str(path), "exec")
    assert list_own_places(caught.value) == {__file__, str(path)}
    assert write_traceback(caught.value).count("SyntaxError") == 1


def test_a_circle_of_causes_has_an_end() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert "first" in write_traceback(first)
    assert list_own_places(first) == set()
