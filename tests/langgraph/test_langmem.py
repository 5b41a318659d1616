"""LangMem's own tools, unchanged, on our store: with an index and without it, awaited or not."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.store.base import BaseStore, IndexConfig
from langgraph.store.memory import InMemoryStore
from pydantic import BaseModel

import perdure
from perdure.testing.conformance.meaning import DIMS, embed
from tests.backends import BACKENDS, EMPTY
from tests.conversation.models import Scripted

agents = pytest.importorskip("langchain.agents", reason="pip install 'perdure[conversation]'")
NAMESPACE = ("memories", "{langgraph_user_id}")
INDEX: IndexConfig = {"dims": DIMS, "embed": embed, "fields": ["content"]}


@pytest.fixture(scope="module")
def langmem() -> Any:
    with warnings.catch_warnings():
        # A dependency of LangMem's imports `Send` from where LangGraph had it before.
        warnings.filterwarnings("ignore", "Importing Send from langgraph.constants", DeprecationWarning)
        return pytest.importorskip("langmem")


class Profile(BaseModel):
    """A memory with parts of its own."""

    name: str
    likes: list[str] = []


class Talk:
    """Calls the tools of one user's agent, which is made anew for each call."""

    def __init__(self, store: BaseStore, tools: Sequence[Any], user: str, *, awaited: bool) -> None:
        self.store, self.tools, self.user, self.awaited = store, tools, user, awaited

    def call(self, name: str, **args: Any) -> ToolMessage:
        asks = AIMessage("", tool_calls=[{"name": name, "args": args, "id": "c"}])
        model = Scripted(answers=[asks, AIMessage("done")])
        agent = agents.create_agent(model, list(self.tools), store=self.store)
        config = {"configurable": {"langgraph_user_id": self.user, "thread_id": "t"}}
        given = {"messages": [HumanMessage("go")]}
        state = asyncio.run(agent.ainvoke(given, config)) if self.awaited else agent.invoke(given, config)
        assert [message.type for message in state["messages"]] == ["human", "ai", "tool", "ai"]
        answer = state["messages"][2]
        assert isinstance(answer, ToolMessage)
        return answer

    def manage(self, **args: Any) -> str:
        """The id of the memory that was created, updated or deleted."""
        answer = self.call("manage_memory", **args)
        verb, _, key = str(answer.content).partition(" memory ")
        assert verb.lower() == args.get("action", "create") + "d", answer
        return key

    def found(self, query: str, **args: Any) -> list[tuple[str, Any]]:
        """Ids and contents of the memories that a search lists."""
        answer = self.call("search_memory", query=query, **args)
        listed = json.loads(str(answer.content))
        assert all(entry["namespace"] == ["memories", self.user] for entry in listed)
        return [(entry["key"], entry["value"]["content"]) for entry in listed]


def script(opened: Callable[[], Any], tools: Sequence[Any], *, awaited: bool) -> list[Any]:
    """What two users' agents do, each step with the store as another process has it; what it comes to."""

    def step(user: str, does: Callable[[Talk], Any]) -> Any:
        with opened() as store:
            return does(Talk(store, tools, user, awaited=awaited))

    tea = step("ada", lambda talk: talk.manage(content="likes green tea"))
    step("ada", lambda talk: talk.manage(content="walks in the mountains", action="create"))
    step("bob", lambda talk: talk.manage(content="likes green tea, too"))
    seen = [[text for _, text in step("ada", lambda talk: talk.found("green tea", limit=1))]]
    assert step("ada", lambda talk: talk.found("green tea"))[0][0] == tea
    step("ada", lambda talk: talk.manage(content="likes coffee", action="update", id=tea))
    seen.append([text for _, text in step("ada", lambda talk: talk.found("coffee", limit=5))])
    seen.append([text for _, text in step("ada", lambda talk: talk.found("coffee", limit=5, offset=1))])
    only = {"content": "likes coffee"}
    seen.append([text for _, text in step("ada", lambda talk: talk.found("mountains", filter=only))])
    step("ada", lambda talk: talk.manage(action="delete", id=tea))
    seen.append([text for _, text in step("ada", lambda talk: talk.found("coffee"))])
    seen.append([text for _, text in step("bob", lambda talk: talk.found("coffee"))])
    return seen


@pytest.mark.parametrize("awaited", [False, True], ids=["blocking", "awaited"])
@pytest.mark.parametrize("on", [each for each in BACKENDS if each != "memory"])
def test_with_an_index_they_do_what_they_do_on_the_stock_store(langmem: Any, on: str, awaited: bool) -> None:
    tools = [langmem.create_manage_memory_tool(NAMESPACE), langmem.create_search_memory_tool(NAMESPACE)]
    stock = InMemoryStore(index=INDEX)

    @contextmanager
    def same() -> Iterator[BaseStore]:
        yield stock

    with EMPTY[on]() as url:
        with perdure.connect_sync(url, migrate=True):
            pass

        @contextmanager
        def opened() -> Iterator[BaseStore]:
            with perdure.connect_sync(url) as db:
                yield db.store(index=INDEX)

        ours = script(opened, tools, awaited=awaited)
    assert ours == script(same, tools, awaited=awaited)
    assert ours[0] == ["likes green tea"]
    assert ours[-2:] == [["walks in the mountains"], ["likes green tea, too"]]


@pytest.mark.parametrize("on", ["sqlite", "postgresql"])
def test_without_an_index_memories_are_kept_and_a_search_returns_the_latest(langmem: Any, on: str) -> None:
    tools = [langmem.create_manage_memory_tool(NAMESPACE), langmem.create_search_memory_tool(NAMESPACE)]
    with EMPTY[on]() as url, perdure.connect_sync(url, migrate=True) as db:
        talk = Talk(db.store(), tools, "ada", awaited=False)
        key = talk.manage(content="likes tea")
        talk.manage(content="likes coffee", action="update", id=key)
        (item,) = db.store().search(("memories", "ada"))
        assert (item.key, item.value) == (key, {"content": "likes coffee"})
        assert talk.found("anything") == [(key, "likes coffee")]
        talk.manage(action="delete", id=key)
        assert db.store().search(("memories", "ada")) == []


def test_a_memory_with_a_schema_and_the_items_themselves(langmem: Any) -> None:
    tools = [
        langmem.create_manage_memory_tool(NAMESPACE, schema=Profile, actions_permitted=("create", "update")),
        langmem.create_search_memory_tool(NAMESPACE, response_format="content_and_artifact"),
    ]
    with perdure.connect_sync("memory://") as db:
        whole: IndexConfig = {**INDEX, "fields": ["$"]}
        talk = Talk(db.store(index=whole), tools, "ada", awaited=True)
        key = talk.manage(content={"name": "Ada", "likes": ["tea"]})
        answer = talk.call("search_memory", query="tea")
        (item,) = answer.artifact
        assert (item.key, item.value) == (key, {"content": {"name": "Ada", "likes": ["tea"]}})
        assert json.loads(str(answer.content))[0]["score"] == pytest.approx(item.score)
        refused = talk.call("manage_memory", action="delete", id=key)
        assert refused.status == "error"
        assert len(db.store().search(("memories",))) == 1
