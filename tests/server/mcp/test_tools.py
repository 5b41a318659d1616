"""Input of a graph as arguments of a tool."""

from __future__ import annotations

from typing import Any

from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph
from pydantic import BaseModel
from typing_extensions import TypedDict

from perdure.server.mcp.tools import ToolInput, input_of
from perdure.server.resources import Caller
from tests.server.hosting import run, serving


class Cup(BaseModel):
    size: int


class Order(TypedDict):
    cup: Cup
    note: str


@entrypoint()
async def double(number: int) -> int:
    return 2 * number


def graphs() -> dict[str, Any]:
    builder: Any = StateGraph(Order)
    order = builder.add_node("turn", lambda state: {"note": "done"}).add_edge(START, "turn").compile()
    return {"double": double, "order": order}


@run
async def test_arguments_are_the_fields_of_the_input_or_the_input_itself() -> None:
    async with serving("memory://", of=graphs()) as served:
        host = served.host
        user = await host.gate.authenticate(None)  # type: ignore[arg-type]
        caller = Caller(host, user, host.runtime.for_tenant(user.tenant))
        order = await input_of(caller, "order")
        assert set(order.schema["properties"]) == {"cup", "note"}
        assert order.schema["$defs"]["Cup"]["required"] == ["size"]
        assert order.of({"note": "hot"}) == {"note": "hot"}
        number = await input_of(caller, "double")
        assert number == ToolInput(number.schema, is_wrapped=True)
        assert number.schema["required"] == ["input"]
        assert number.schema["properties"]["input"]["type"] == "integer"
        assert number.of({"input": 4}) == 4
