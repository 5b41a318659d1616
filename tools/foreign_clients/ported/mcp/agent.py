"""The agents that the kit's scenarios call as tools, each by the name that its scenario expects."""

from __future__ import annotations

import base64
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage
from langgraph.graph import START, StateGraph, add_messages
from langgraph.pregel import Pregel
from pydantic import BaseModel, ConfigDict

_HELD = base64.b64encode(b"held").decode()


class Talk(TypedDict, total=False):
    """Of the kit's calls none has arguments."""

    messages: Annotated[list[AnyMessage], add_messages]


class address(BaseModel):  # noqa: N801 - as the kit calls it
    street: str = ""
    city: str = ""


_Address = address


class Addressed(BaseModel):
    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"$schema": "https://json-schema.org/draft/2020-12/schema"}
    )
    name: str = ""
    address: _Address | None = None


def _build_graph(content: Any) -> Pregel[Any, Any, Any, Any]:
    def reply(state: Talk) -> dict[str, Any]:
        return {"messages": [AIMessage(content)]}

    return StateGraph(Talk).add_node(reply).add_edge(START, "reply").compile()


def fail(state: Talk) -> dict[str, Any]:
    raise ValueError("This tool intentionally returns an error for testing")


def pass_on(state: Addressed) -> dict[str, Any]:
    return {}


_IMAGE = {"type": "image", "base64": _HELD, "mime_type": "image/png"}
_NOTES = {"type": "text-plain", "text": "This is an embedded resource content.", "title": "embedded"}

text = _build_graph("This is a simple text response for testing.")
image = _build_graph([_IMAGE])
audio = _build_graph([{"type": "audio", "base64": _HELD, "mime_type": "audio/wav"}])
resource = _build_graph([_NOTES])
mixed = _build_graph([{"type": "text", "text": "Multiple content types test:"}, _IMAGE, _NOTES])
failing = StateGraph(Talk).add_node(fail).add_edge(START, "fail").compile()
addressed = StateGraph(Addressed).add_node(pass_on).add_edge(START, "pass_on").compile()
