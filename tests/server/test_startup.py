"""A server as its configuration opens it: what is said of a graph there is said of its assistant."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from perdure.server.app import create_app
from perdure.server.config import load
from perdure.server.hosting.startup import import_graphs, open_state
from tests.server.acceptance.serving import run

GRAPHS = """\
from langgraph.graph import START, MessagesState, StateGraph

graph = StateGraph(MessagesState).add_node("turn", lambda state: {}).add_edge(START, "turn").compile()
"""


AUTH = """\
import langgraph_sdk

auth = langgraph_sdk.Auth()


@auth.authenticate
async def user() -> str:
    return "ada"
"""


@pytest.mark.parametrize("name", ["perdure.toml", "langgraph.json"])
@run
async def test_the_description_of_a_graph_is_that_of_its_assistant(
    name: str, tmp_path: Path, nothing_is_set: None
) -> None:
    # A module of its own for each: they stay loaded.
    module = f"described_by_{name.partition('.')[0]}"
    (tmp_path / f"{module}.py").write_text(GRAPHS)
    file = tmp_path / name
    file.write_text(
        f'{{"graphs": {{"support": {{"path": "./{module}.py:graph", "description": "Answers customers"}},'
        f' "plain": "./{module}.py:graph"}}}}'
        if name.endswith("json")
        else f'[graphs]\nplain = "./{module}.py:graph"\n'
        f'support = {{ path = "./{module}.py:graph", description = "Answers customers" }}\n'
    )
    database = f"sqlite:///{tmp_path / 'threads.db'}"
    config = load(file=file, db=database, development=True, environ={})
    async with open_state(config, works=False) as host:
        app = create_app(None, config.http)
        app.state.perdure = host
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
            found = (await http.post("/assistants/search", json={})).json()
            described = {one["name"]: one["description"] for one in found}
            assert described == {"support": "Answers customers", "plain": None}
            support = (await http.get("/assistants/support")).json()
            assert support["description"] == "Answers customers"
            assert support["metadata"] == {"created_by": "system"}
            # It stays the description of a version that changes something else, until it is changed, too.
            changed = await http.patch("/assistants/support", json={"name": "Desk"})
            assert changed.json()["description"] == "Answers customers"
            changed = await http.patch("/assistants/support", json={"description": "Answers all"})
            assert changed.json()["description"] == "Answers all"
            versions = (await http.post("/assistants/support/versions", json={})).json()
            assert [one["description"] for one in versions] == ["Answers all", *["Answers customers"] * 2]


def test_a_graph_may_run_an_event_loop_while_it_is_imported(tmp_path: Path, nothing_is_set: None) -> None:
    loops = "import asyncio\nasyncio.run(asyncio.sleep(0))\n"
    (tmp_path / "fetches_tools.py").write_text(loops + GRAPHS)
    (tmp_path / "fetches_keys.py").write_text(loops + AUTH)
    file = tmp_path / "perdure.toml"
    file.write_text('[graphs]\na = "./fetches_tools.py:graph"\n[auth]\npath = "./fetches_keys.py:auth"\n')
    database = f"sqlite:///{tmp_path / 'threads.db'}"
    config = load(file=file, db=database, development=True, environ={})

    async def is_open() -> bool:
        async with open_state(config, works=False) as host:
            return host.chats == []

    import_graphs(config)
    assert asyncio.run(is_open())
