"""The wrapped model: the same model in every use, which is sent windows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic import BaseModel, Field, SecretStr

from perdure.conversation import Limit, Window, counter_of, fit_model
from perdure.errors import MessageTooLong
from tests.conversation.histories import anthropic_client
from tests.conversation.models import Scripted


class Streaming(Scripted):
    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        self.sent.append(messages)
        for word in ("a", "b", "c"):
            yield ChatGenerationChunk(message=AIMessageChunk(content=word))


@tool
def look(at: str) -> str:
    """Look at something."""
    return f"saw {at}"


LONG = [
    message
    for n in range(20)
    for message in (HumanMessage("x" * 40, id=f"h{n}"), AIMessage("y" * 40, id=f"a{n}"))
]
TALK = [*LONG, HumanMessage("last", id="last")]


def test_the_model_is_sent_a_window() -> None:
    model = Scripted()
    assert fit_model(model, 200).invoke(TALK).content == "fine"
    assert model.sent[0][-1].id == "last"
    assert 1 < len(model.sent[0]) < len(TALK)


def test_async_and_other_forms_of_input() -> None:
    model = Scripted()
    asyncio.run(fit_model(model, 200).ainvoke(TALK))
    fit_model(model, 200).invoke("hello")
    (
        ChatPromptTemplate.from_messages([("system", "Be brief."), ("user", "{q}")]) | fit_model(model, 200)
    ).invoke({"q": "hi"})
    assert [len(sent) > 0 for sent in model.sent] == [True] * 3
    assert [message.type for message in model.sent[2]] == ["system", "human"]


def test_what_does_not_fit_is_refused_before_the_model_is_called() -> None:
    model = Scripted()
    with pytest.raises(MessageTooLong, match="last"):
        fit_model(model, 50).invoke([HumanMessage("x" * 999, id="last")])
    assert model.sent == []


def test_tools_are_bound_as_the_model_binds_them_and_count() -> None:
    model = Scripted()
    seen: list[Window] = []
    fit_model(model, 400, on_window=seen.append).bind_tools([look], tool_choice="any").invoke(TALK)
    assert model.given == [{"tools": [{"name": "look", "about": "Look at something."}], "tool_choice": "any"}]
    assert seen[0].tokens.tools > 5


def test_structured_output_is_the_model_s_own() -> None:
    class Place(BaseModel):
        """A place."""

        name: str

    call = {"name": "Place", "args": {"name": "Rhine"}, "id": "1"}

    class Structured(Scripted):
        def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
            return self.bind(tools=list(tools))

    model = Structured(answers=[AIMessage("", tool_calls=[call])])
    assert fit_model(model, 300).with_structured_output(Place).invoke(TALK) == Place(name="Rhine")
    assert 1 < len(model.sent[0]) < len(TALK)


def test_streams_come_through() -> None:
    model = Streaming()
    chunks = [chunk.content for chunk in fit_model(model, 200).stream(TALK)]
    assert chunks[:3] == ["a", "b", "c"]

    async def collected() -> list[Any]:
        return [chunk.content async for chunk in fit_model(model, 200).astream(TALK)]

    assert asyncio.run(collected())[:3] == ["a", "b", "c"]
    assert all(1 < len(sent) < len(TALK) for sent in model.sent)


def test_a_model_that_does_not_stream_answers_at_once() -> None:
    call = {"name": "look", "args": {"at": "x"}, "id": "1"}
    model = fit_model(Scripted(answers=[AIMessage("", tool_calls=[call])]), 200)
    (whole,) = list(model.stream("hi"))
    assert whole.tool_calls[0]["args"] == {"at": "x"}

    async def events() -> list[str]:
        return [event["event"] async for event in model.astream_events("hi", version="v2")]

    assert "on_chat_model_end" in asyncio.run(events())


def test_any_graph_runs_with_it_unchanged() -> None:
    call = {"name": "look", "args": {"at": "x" * 50}, "id": ""}
    model = Scripted(
        answers=[*(AIMessage("", tool_calls=[{**call, "id": f"c{n}"}]) for n in range(12)), AIMessage("done")]
    )
    bound = fit_model(model, 150).bind_tools([look])

    async def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await bound.ainvoke([SystemMessage("Be brief."), *state["messages"]])]}

    builder = StateGraph(MessagesState)
    builder.add_node("think", think)
    builder.add_node("tools", ToolNode([look]))
    builder.add_edge(START, "think")
    builder.add_conditional_edges("think", tools_condition, {"tools": "tools", END: END})
    builder.add_edge("tools", "think")
    # A call of an earlier run was never answered: the stock graph is refused by the provider from then on.
    history = [
        HumanMessage("q", id="q"),
        AIMessage("", tool_calls=[{**call, "id": "lost"}], id="a"),
        HumanMessage("go", id="g"),
    ]
    compiled: Any = builder.compile()
    state = asyncio.run(compiled.ainvoke({"messages": history}))
    assert state["messages"][-1].content == "done"
    assert len(model.sent) == 13
    assert sum(isinstance(message, ToolMessage) for message in state["messages"]) == 12
    assert all(sent[0].type == "system" and sent[1].type == "human" for sent in model.sent)


def test_the_model_s_own_settings_hold() -> None:
    model = Scripted(tags=["x"], metadata={"a": 1}, disable_streaming=True)
    wrapped = fit_model(model, 100)
    assert (wrapped.tags, wrapped.metadata, wrapped.disable_streaming) == (["x"], model.metadata, True)
    assert wrapped._llm_type == "scripted"
    assert wrapped._get_ls_params() == model._get_ls_params()


def test_a_model_with_tools_bound_is_refused() -> None:
    with pytest.raises(TypeError, match=r"fit_model\(model, limit\).bind_tools"):
        fit_model(Scripted().bind_tools([look]), 100)  # type: ignore[arg-type]


def test_the_model_s_own_counter_is_used_on_request_and_once_a_message() -> None:
    class Counting(Scripted):
        asked: list[int] = Field(default_factory=list)

        def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Any = None) -> int:
            self.asked.append(len(messages))
            return 10 * len(messages)

    model = Counting()
    wrapped = fit_model(model, Limit(100), counter="model")
    wrapped.invoke(TALK)
    assert len(model.sent[0]) <= 10
    first = len(model.asked)
    wrapped.invoke([*TALK, AIMessage("ok", id="new"), HumanMessage("more", id="more")])
    assert len(model.asked) == first + 2


def test_a_model_without_a_counter_of_its_own_is_refused() -> None:
    with pytest.raises(ValueError, match="Scripted has no token counter of its own"):
        fit_model(Scripted(), 100, counter="model")
    client = anthropic_client()
    assert counter_of(client) == client.get_num_tokens_from_messages


def test_the_real_clients_take_it() -> None:
    wrapped = fit_model(ChatOpenAI(model="gpt-5", api_key=SecretStr("-")), 1000)
    bound = wrapped.bind_tools([look])
    assert bound.kwargs["tools"][0]["function"]["name"] == "look"  # type: ignore[attr-defined]
    assert wrapped._llm_type == "openai-chat"
