"""Settings of memories and of the store's database: what is honoured, and what stops the start."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.config.resolve import ResolvedConfig, resolve_config
from perdure.config.store_database import store_of_environment
from perdure.config.worker import load as load_worker
from perdure.errors import BadSetting
from perdure.memory import Memory, ModelExtractor
from perdure.memory.policy import verified_user
from perdure.server.config import load
from perdure.server.hosting.startup import open_state

APP = """\
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from perdure.memory import MemoryPolicy
from perdure.runtime import Agent

model = FakeListChatModel(responses=["{}"])


def facts(request):
    return []


def turn(state):
    return {"messages": [AIMessage("noted")]}


graph = StateGraph(MessagesState).add_node("turn", turn).add_edge(START, "turn").compile()
own = Agent(graph, memory=MemoryPolicy(user="me", newest=1))
verified = Agent(graph, memory=MemoryPolicy())
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "memory_app.py").write_text(APP)
    yield tmp_path
    sys.modules.pop("memory_app", None)


def resolved(**environ: str) -> ResolvedConfig:
    return resolve_config(file=None, flags={}, environ=environ, has_key=False)


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({}, None),
        ({"REDIS_URL": "redis://elsewhere/0"}, None),
        ({"PERDURE_STORE_DATABASE_URL": "sqlite:///s.db"}, "sqlite:///s.db"),
        ({"LANGGRAPH_STORE_TYPE": "redis", "REDIS_URL": "redis://a/0"}, "redis://a/0"),
        (
            {
                "LANGGRAPH_STORE_TYPE": "redis",
                "REDIS_URL": "redis://a/0",
                "LANGGRAPH_STORE_REDIS_URL": "redis://b/0",
            },
            "redis://b/0",
        ),
        ({"LANGGRAPH_STORE_TYPE": "postgres", "POSTGRES_DSN": "postgresql://u@a/d"}, "postgresql://u@a/d"),
        (
            {"LANGGRAPH_STORE_TYPE": "postgres", "LANGGRAPH_STORE_POSTGRES_DSN": "postgresql://u@b/d"},
            "postgresql://u@b/d",
        ),
        ({"LANGGRAPH_STORE_TYPE": "memory", "LANGGRAPH_DEV": "1"}, "memory://"),
    ],
)
def test_the_stores_database_is_the_named_one(
    project: Path, environ: dict[str, str], url: str | None
) -> None:
    assert resolved(**environ).store_url() == url


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"LANGGRAPH_STORE_TYPE": "redis"}, "LANGGRAPH_STORE_REDIS_URL or REDIS_URL"),
        ({"LANGGRAPH_STORE_TYPE": "postgres"}, "LANGGRAPH_STORE_POSTGRES_DSN or POSTGRES_DSN"),
        ({"LANGGRAPH_STORE_TYPE": "mongo"}, "LANGGRAPH_STORE_TYPE is 'mongo'"),
        ({"LANGGRAPH_STORE_TYPE": "memory"}, "lost at a restart"),
        ({"LANGGRAPH_STORE_REDIS_URL": "redis://a/0"}, "LANGGRAPH_STORE_TYPE=redis"),
        ({"LANGGRAPH_STORE_POSTGRES_DSN": "postgresql://a"}, "LANGGRAPH_STORE_TYPE=postgres"),
        (
            {"LANGGRAPH_STORE_TYPE": "redis", "PERDURE_STORE_DATABASE_URL": "sqlite:///s.db"},
            "leave one out",
        ),
        ({"LANGGRAPH_STORE_TTL_MINUTES": "soon"}, "LANGGRAPH_STORE_TTL_MINUTES is 'soon'"),
        ({"LANGGRAPH_STORE_TTL_MINUTES": "0"}, "LANGGRAPH_STORE_TTL_MINUTES is '0'"),
    ],
)
def test_settings_of_the_store_that_cannot_work_stop_the_start(
    project: Path, environ: dict[str, str], message: str
) -> None:
    with pytest.raises(BadSetting, match=message):
        resolved(**environ).store_url()


def test_the_time_to_live_of_the_environment_expires_items(project: Path) -> None:
    environ = {"PERDURE_DB": "memory://", "LANGGRAPH_STORE_TTL_MINUTES": "0.001"}
    with store_of_environment(environ) as store:
        memory = Memory(store, "ada")
        memory.remember("She sings.")
        assert store.ttl_config is not None

        async def gone() -> None:
            async with asyncio.timeout(30):
                # A search would renew the item.
                while store.search(memory.namespace, refresh_ttl=False):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

        asyncio.run(gone())


def test_a_store_that_cannot_be_opened_is_not_replaced(project: Path) -> None:
    environ = {"LANGGRAPH_STORE_TYPE": "redis", "REDIS_URL": "redis://127.0.0.1:1/0", "LANGGRAPH_DEV": "1"}
    with pytest.raises(perdure.PerdureError, match=r"127\.0\.0\.1"), store_of_environment(environ):
        raise AssertionError


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"ENABLE_FACT_EXTRACTION": "true"}, "FACT_EXTRACTION_MODEL"),
        ({"ENABLE_FACT_EXTRACTION": "perhaps"}, "ENABLE_FACT_EXTRACTION is 'perhaps'"),
        ({"PERDURE_MEMORY_NEWEST": "3"}, "memory.enabled"),
        ({"PERDURE_MEMORY_ENABLED": "true", "PERDURE_MEMORY_NEWEST": "-1"}, "PERDURE_MEMORY_NEWEST"),
    ],
)
def test_settings_of_a_memory_that_cannot_work_stop_the_start(
    project: Path, environ: dict[str, str], message: str
) -> None:
    environ = {"PERDURE_DB": "memory://", **environ}
    with pytest.raises(BadSetting, match=message):
        load_worker(file=None, graphs=["./memory_app.py:graph"], environ=environ)


def policies(environ: dict[str, str], *graphs: str) -> dict[str, Any]:
    """Start a server; return the memories of its graphs."""
    environ = {"PERDURE_DB": "memory://", "LANGGRAPH_DEV": "1", **environ}
    config = load(file=None, graphs=graphs or ["./memory_app.py:graph"], environ=environ)

    async def started() -> dict[str, Any]:
        async with open_state(config) as state:
            return {name: agent.memory for name, agent in state.runtime.graphs.items()}

    return asyncio.run(started())


def test_facts_are_extracted_by_the_named_model(project: Path) -> None:
    environ = {"ENABLE_FACT_EXTRACTION": "true", "PERDURE_MEMORY_USER": "me", "PERDURE_MEMORY_TOKENS": "70"}
    made = policies(
        {**environ, "FACT_EXTRACTION_MODEL": "./memory_app.py:model"},
        "a=./memory_app.py:graph",
        "b=./memory_app.py:own",
    )
    assert isinstance(made["a"].extract, ModelExtractor)
    assert (made["a"].user, made["a"].tokens) == ("me", 70)
    assert (made["b"].newest, made["b"].extract) == (1, None)
    function = policies({**environ, "FACT_EXTRACTION_MODEL": "./memory_app.py:facts"})["agent"].extract
    assert function.__name__ == "facts"
    off = policies({"PERDURE_MEMORY_USER": "me", "PERDURE_MEMORY_ENABLED": "true"})["agent"]
    assert off.extract is None
    assert policies({})["agent"] is None


def test_a_server_without_authentication_needs_one_user(project: Path) -> None:
    with pytest.raises(BadSetting, match="PERDURE_MEMORY_USER"):
        policies({"PERDURE_MEMORY_ENABLED": "true"})
    with pytest.raises(BadSetting, match="PERDURE_MEMORY_USER"):
        policies({}, "./memory_app.py:verified")
    assert verified_user({}) is None


def test_the_store_of_a_server_may_be_another_database(project: Path) -> None:
    with perdure.connect_sync("sqlite:///store.db", migrate=True) as database:
        Memory(database.store(), "me").remember("She sings.")
    environ = {
        "PERDURE_DB": "sqlite:///threads.db",
        "LANGGRAPH_DEV": "1",
        "PERDURE_STORE_DATABASE_URL": "sqlite:///store.db",
        "PERDURE_MEMORY_ENABLED": "true",
        "PERDURE_MEMORY_USER": "me",
    }
    config = load(file=None, graphs=["./memory_app.py:graph"], environ=environ)
    assert "store.db" not in repr(config)

    async def body() -> None:
        async with open_state(config) as state:
            runtime = state.runtime
            await runtime.wait(await runtime.accept("t", "Hello"))
            found = await runtime.graph("agent").aget_state({"configurable": {"thread_id": "t"}})
            assert "She sings." in found.values["messages"][0].text

    asyncio.run(body())
    with perdure.connect_sync("sqlite:///threads.db") as database:
        assert Memory(database.store(), "me").facts() == []
