"""Graphs are chosen by name or by place, with the schema that a server would give them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.config.graph_choice import ChosenGraph, choose_graphs
from perdure.errors import BadSetting, GraphLoadError

APP = """
from langgraph.graph import START, MessagesState, StateGraph
from perdure.runtime import Agent
from perdure.schema import Schema

graph = StateGraph(MessagesState).add_node("n", lambda state: {}).add_edge(START, "n").compile()
schema = Schema(3)
agent = Agent(graph, schema=Schema(2))
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Each test's module is one of its own, as in a process of its own.
    monkeypatch.delitem(sys.modules, "app_of_choice", raising=False)
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "app_of_choice.py").write_text(APP)
    monkeypatch.chdir(folder)
    return folder


def chosen(*words: str, **options: Any) -> list[ChosenGraph]:
    return choose_graphs(words, **{"file": None, "environ": {}, **options})


async def version(graph: ChosenGraph, **options: Any) -> int | None:
    schema = (await graph.load(**options)).schema
    return None if schema is None else schema.version


@pytest.mark.anyio
@pytest.mark.parametrize(
    "schema", ['schema = "./app_of_choice.py:schema"\n', '[schema]\nmain = "./app_of_choice.py:schema"\n']
)
async def test_a_graph_of_the_settings_has_their_schema(here: Path, schema: str) -> None:
    graphs = '[graphs]\nmain = "./app_of_choice.py:graph"\n'
    (here / "perdure.toml").write_text(schema + graphs if schema.startswith("schema") else graphs + schema)
    for word in (
        "main",
        "./app_of_choice.py:graph",
        "app_of_choice.py:graph",
        f"{here}/app_of_choice.py:graph",
        "x=./app_of_choice.py:graph",
    ):
        (found,) = chosen(word)
        assert await version(found) == 3, word
        assert await version(found, with_settings=False) is None
    assert [(each.word, each.other) for each in chosen()] == [("main", "./app_of_choice.py:graph")]
    assert chosen("./app_of_choice.py:graph")[0].other == "main"


@pytest.mark.anyio
async def test_langgraph_json_and_a_file_elsewhere_do_as_well(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = here / "langgraph.json"
    file.write_text(
        json.dumps(
            {"graphs": {"main": "./app_of_choice.py:graph"}, "schema": {"main": "./app_of_choice.py:schema"}}
        )
    )
    assert await version(chosen("main")[0]) == 3
    monkeypatch.chdir(tmp_path)
    assert await version(chosen("main", file=file)[0]) == 3
    assert await version(chosen("project/app_of_choice.py:graph", file=file)[0]) == 3


@pytest.mark.anyio
async def test_another_graph_has_no_schema_of_the_settings(here: Path) -> None:
    (here / "perdure.toml").write_text(
        '[graphs]\nmain = "./app_of_choice.py:graph"\n[schema]\nmain = "./app_of_choice.py:schema"\n'
    )
    (found,) = chosen("./app_of_choice.py:agent")
    assert found.other is None
    assert await version(found) == 2
    (here / "perdure.toml").unlink()
    assert await version(chosen("./app_of_choice.py:graph")[0]) is None


@pytest.mark.anyio
async def test_what_cannot_be_chosen_is_refused(here: Path) -> None:
    with pytest.raises(BadSetting, match="which graph"):
        chosen()
    file = here / "perdure.toml"
    file.write_text(
        '[graphs]\nmain = "./app_of_choice.py:graph"\n[schema]\nother = "./app_of_choice.py:schema"\n'
    )
    with pytest.raises(BadSetting, match="names 'other', which is not a graph"):
        chosen("main")
    file.write_text('schema = "./app_of_choice.py:graph"\n')
    with pytest.raises(GraphLoadError, match="is not a Schema"):
        await chosen("./app_of_choice.py:graph")[0].load()
    file.write_text('schema = "./app_of_choice.py:schema"\n')
    with pytest.raises(BadSetting, match="another schema"):
        await chosen("./app_of_choice.py:agent")[0].load()
