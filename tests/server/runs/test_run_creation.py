"""What a graph is given with a run: its context, and what can be configured."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph_sdk.errors import BadRequestError
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from perdure.runtime import Standing
from perdure.runtime.tenant import TenantRuntime
from tests.server.acceptance.serving import eventually
from tests.server.hosting import run, serving


class _Seen(TypedDict, total=False):
    context: Any
    kind: str
    said: dict[str, Any]


@dataclass(kw_only=True)
class _Prompted:
    prompt: str = "as usual"
    searches: int = field(default=3)


class _Modelled(BaseModel):
    model_config = ConfigDict(extra="forbid")
    model: str = "small"
    searches: int = Field(3, validation_alias="most")


class _Moody(TypedDict, total=False):
    mood: str


@dataclass
class _Required:
    prompt: str


def _telling(schema: Any) -> Any:
    def tell(state: _Seen, runtime: Runtime[Any], config: RunnableConfig) -> _Seen:
        context = runtime.context
        own = ("prompt", "searches", "model", "mood", "most", "other")
        configurable = {k: v for k, v in config.get("configurable", {}).items() if k in own}
        held = context if isinstance(context, dict | None) else vars(context)
        return {"context": held, "kind": type(context).__name__, "said": configurable}

    builder = StateGraph(_Seen, context_schema=schema)
    builder.add_node("tell", cast(Any, tell))
    builder.add_edge(START, "tell")
    return builder.compile()


def _graphs() -> dict[str, Any]:
    schemas = {
        "prompted": _Prompted,
        "modelled": _Modelled,
        "moody": _Moody,
        "required": _Required,
        "free": None,
    }
    return {name: _telling(schema) for name, schema in schemas.items()}


DEFAULT = {"prompt": "as usual", "searches": 3}


@run
async def test_a_graph_with_a_context_schema_gets_an_instance_of_it(near: str) -> None:
    async with serving(near, of=_graphs()) as served:
        client = await served.client()

        async def seen(graph: str, **given: Any) -> Any:
            return await client.runs.wait(None, graph, input={}, **given)

        told = await seen("prompted")
        assert told == {"context": DEFAULT, "kind": "_Prompted", "said": {}}
        told = await seen("modelled")
        assert told["context"] == {"model": "small", "searches": 3}
        # What the schema lacks is dropped, of both when it came as context.
        told = await seen("prompted", context={"prompt": "be brief", "other": 1})
        assert told["context"] == {**DEFAULT, "prompt": "be brief"}
        assert told["said"] == {"prompt": "be brief"}
        told = await seen("prompted", config={"configurable": {"prompt": "be brief", "other": 1}})
        assert told["context"] == {**DEFAULT, "prompt": "be brief"}
        assert told["said"] == {"prompt": "be brief", "other": 1}
        told = await seen("modelled", context={"most": 7, "other": 1})
        assert told["context"] == {"model": "small", "searches": 7}
        told = await seen("moody", config={"configurable": {"mood": "calm", "other": 1}})
        assert (told["context"], told["kind"]) == ({"mood": "calm"}, "dict")
        told = await seen("free", context={"mood": "calm", "other": 1})
        assert told["context"] == told["said"] == {"mood": "calm", "other": 1}


@run
async def test_the_context_is_no_way_to_pass_for_another_or_to_reach_what_is_langgraph_s(near: str) -> None:
    def tell(state: _Seen, config: RunnableConfig) -> _Seen:
        return {"said": {k: str(v) for k, v in config.get("configurable", {}).items()}}

    builder = StateGraph(_Seen)
    builder.add_node("tell", cast(Any, tell))
    builder.add_edge(START, "tell")
    async with serving(near, of={"tell": builder.compile()}) as served:
        client = await served.client()
        wrong: Any = {"thread_id": "x", "langgraph_auth_user_id": "root", "__pregel_read": 1, "mine": "yes"}
        for given in ({"context": wrong}, {"config": {"configurable": wrong}}):
            told = (await client.runs.wait(None, "tell", input={}, **given))["said"]  # type: ignore[call-overload]
            assert told["mine"] == "yes"
            assert told["thread_id"] != "x"
            assert told.get("langgraph_auth_user_id") in (None, "")
            assert told["__pregel_read"] != "1"


@run
async def test_a_context_that_lacks_what_its_schema_requires_fails_the_run_by_name(near: str) -> None:
    async with serving(near, of=_graphs()) as served:
        client = await served.client()
        told: Any = await client.runs.wait(None, "required", input={}, raise_error=False)
        assert told["__error__"]["error"] == "TypeError"
        told = await client.runs.wait(None, "required", input={}, context={"prompt": "x"})
        assert told["kind"] == "_Required"


@run
async def test_an_assistant_s_context_and_configuration_are_one(near: str) -> None:
    async with serving(near, of=_graphs()) as served:
        client = await served.client()
        made = await client.assistants.create("prompted", context={"prompt": "its own"})
        assert made["config"].get("configurable") == {"prompt": "its own"}
        told: Any = await client.runs.wait(None, made["assistant_id"], input={})
        assert told["context"] == {**DEFAULT, "prompt": "its own"}
        told = await client.runs.wait(None, made["assistant_id"], input={}, context={"searches": 9})
        assert told["context"] == {"prompt": "its own", "searches": 9} == told["said"]
        told = await client.runs.wait(None, made["assistant_id"], input={}, context={"prompt": "the run's"})
        assert told["context"]["prompt"] == told["said"]["prompt"] == "the run's"
        changed = await client.assistants.update(
            made["assistant_id"], config={"configurable": {"searches": 5}}
        )
        assert changed["context"] == {"searches": 5}
        told = await client.runs.wait(None, made["assistant_id"], input={})
        assert told["context"] == {**DEFAULT, "searches": 5}
        changed = await client.assistants.update(made["assistant_id"], context={"searches": 6})
        assert changed["config"].get("configurable") == {"searches": 6}
        with pytest.raises(BadRequestError):
            await client.assistants.create("prompted", context={"a": 1}, config={"configurable": {"b": 1}})


def test_a_short_run_without_a_thread_is_read_before_its_thread_is_removed(
    near: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = TenantRuntime.find

    async def late(self: TenantRuntime, thread_id: str, run_id: str) -> Standing | None:
        while (found := await find(self, thread_id, run_id)) is not None and not found.is_over:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for _ in range(50):  # the thread has time to go
            if (found := await find(self, thread_id, run_id)) is None:
                break
            await asyncio.sleep(0.01)
        return found

    monkeypatch.setattr(TenantRuntime, "find", late)

    @run
    async def asked() -> None:
        async with serving(near, of=_graphs()) as served:
            client = await served.client()
            made = await client.runs.create(None, "free", input={})
            assert made["status"] == "pending"

            async def is_gone() -> bool:
                return not await client.threads.search(ids=[made["thread_id"]])

            await eventually(is_gone)

    asked()
