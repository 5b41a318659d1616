"""A platform: one context with sub-agents, windows, summaries and facts by LangMem, and the author's
variables."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

import perdure
from perdure.config.store_database import store_of_environment
from perdure.conversation import approximate
from perdure.memory import Memory
from perdure.runtime import Runtime, Settings
from perdure.server import checkpoint_lifespan, perdure_app
from tests.backends import EMPTY
from tests.runtime.graphs import Heard, eventually_stored
from tests.server.applications import listening
from tests.server.talking import talking, text_of
from tests.systems import platform_agents as program
from tests.systems.platform_agents import LIMIT, platform, sub_agent

QUICK = Settings(backoff=0.02, max_backoff=0.05, poll=0.1)
PLACES = ["Rome", "Oslo", "Lima", "Cairo", "Delhi", "Quito", "Tunis", "Hanoi"]

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:PendingDeprecationWarning")


async def say(app: Runtime, context_id: str, user: str, text: str) -> str:
    config = {"configurable": {"langgraph_auth_user": {"identity": user}}}
    run = await app.wait(await app.accept(context_id, text, config=config, coalesce=False), 60)
    assert run.state == "done", run.note
    await app._worker.runner.conversations.wait_for_summaries()
    state = await app.graph("agent").aget_state({"configurable": {"thread_id": context_id}})
    return str(state.values["messages"][-1].text)


def test_sub_agents_on_one_context_have_a_state_each_and_the_platform_remembers_its_users(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'platform.db'}"
    heard = Heard()
    program.prompts.clear()

    async def talk() -> None:
        async with perdure.connect(url, migrate=True) as db:
            for number, place in enumerate(PLACES):
                # Every turn is in a process of its own, as far as it keeps something.
                async with Runtime(db, platform(), settings=QUICK, observers=[heard]) as app:
                    for agent in ("travel", "weather"):
                        text = f"{agent} {place} {'and so on ' * 8}"
                        answer = await say(app, "ctx-1", "ada", text)
                        assert answer.startswith(f"{agent} heard {number + 1}, lastly '{agent} {place}")
                    assert "heard 1," in await say(app, f"ctx-{place}", "bob", f"travel {place}")
            async with Runtime(db, platform(), settings=QUICK, observers=[heard]) as app:
                await say(app, "ctx-2", "ada", "I like green tea")
                memory = Memory(app.store(), "ada")

                async def is_known() -> bool:
                    return bool(await memory.afacts())

                await eventually_stored(is_known)
                assert [fact.text for fact in await memory.afacts()] == ["I like green tea"]
                (summary,) = [one for one in await memory.asummaries() if one.thread == "ctx-1"]
                assert summary.text.startswith("They spoke of Rome")
                await say(app, "ctx-3", "ada", "travel home")
                first = program.prompts[-1][0].text
                assert "I like green tea" in first
                assert "They spoke of Rome" in first
                await say(app, "ctx-4", "bob", "travel home")
                assert all(message.type != "system" for message in program.prompts[-1])
            listed = [one async for one in db.checkpointer().alist({"configurable": {"thread_id": "ctx-1"}})]
            namespaces = {one.config["configurable"]["checkpoint_ns"] for one in listed}
            assert namespaces == {"", "travel", "weather"}
            assert await db.fsck() == []

    asyncio.run(talk())
    assert max(map(approximate, program.prompts)) <= LIMIT
    assert not [fields for name, fields in heard.events if name == "run.attempt_failed"]


def test_agents_that_are_no_subgraphs_have_a_state_each_on_one_context_under_tenants() -> None:
    async def main() -> None:
        async with perdure.connect("memory://") as db:
            store = db.store()
            agents = {
                name: sub_agent(name).builder.compile(checkpointer=db.checkpointer(tenant=name), store=store)
                for name in ("travel", "weather")
            }
            at: Any = {"configurable": {"thread_id": "ctx-1"}}
            for number in range(3):
                for name, agent in agents.items():
                    state = await agent.ainvoke({"messages": [("user", f"{name} {number}")]}, at)
                    assert (
                        state["messages"][-1].text == f"{name} heard {number + 1}, lastly '{name} {number}'"
                    )
            assert len((await agents["travel"].aget_state(at)).values["messages"]) == 6

    asyncio.run(main())


@pytest.mark.slow
def test_agents_of_one_database_behind_a2a_have_a_state_each_on_one_context(tmp_path: Path) -> None:
    """Each agent is a server of its own, as on the author's platform, and all share one database."""
    url = f"sqlite:///{tmp_path / 'platform.db'}"

    def served(name: str) -> FastAPI:
        graphs = {name: sub_agent(name).builder.compile()}
        app = FastAPI(lifespan=checkpoint_lifespan(url, graphs=graphs, serve=True, tenant=name))
        app.mount("", perdure_app(app))
        return app

    async def main() -> None:
        async with perdure.connect(url, migrate=True):
            """Only its schema is wanted."""
        async with AsyncExitStack() as stack:
            talks = {}
            for name in ("travel", "weather"):
                base = await stack.enter_async_context(listening(served(name)))
                talks[name] = await stack.enter_async_context(talking(base, name))
            for number in range(2):
                for name, talk in talks.items():
                    task = await talk.task(f"{name} {number}", context="ctx-1")
                    assert task["contextId"] == "ctx-1"
                    assert text_of(task) == f"{name} heard {number + 1}, lastly '{name} {number}'"

    asyncio.run(main())


AUTHORS = {
    "LANGGRAPH_STORE_TTL_MINUTES": "10080",
    "ENABLE_FACT_EXTRACTION": "false",
    "FACT_EXTRACTION_MODEL": "",
}


@pytest.mark.parametrize(
    ("kind", "variable", "backend"),
    [
        ("postgres", "LANGGRAPH_STORE_POSTGRES_DSN", "postgresql"),
        ("postgres", "POSTGRES_DSN", "postgresql"),
        pytest.param("redis", "LANGGRAPH_STORE_REDIS_URL", "redis", marks=pytest.mark.slow),
        pytest.param("redis", "REDIS_URL", "redis", marks=pytest.mark.slow),
    ],
)
def test_the_authors_variables_name_a_real_store_whose_items_expire(
    kind: str, variable: str, backend: str
) -> None:
    with EMPTY[backend]() as url:
        with perdure.connect_sync(url, migrate=True):
            """Only its schema is wanted."""
        environ = {"PERDURE_DB": "memory://", "LANGGRAPH_STORE_TYPE": kind, variable: url, **AUTHORS}
        with store_of_environment(environ) as store:
            Memory(store, "ada").remember("She sings.")
            assert store.ttl_config is not None
            assert store.ttl_config["default_ttl"] == 10080
        with store_of_environment(environ) as store:
            assert [fact.text for fact in Memory(store, "ada").facts()] == ["She sings."]
            assert Memory(store, "alice").facts() == []
