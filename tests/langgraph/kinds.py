"""State of the user's own types, and a program that runs it as LangGraph's strict mode asks."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any

from langchain_core.messages import HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from pydantic import BaseModel
from typing_extensions import TypedDict

import perdure


class Mood(Enum):
    CALM = "calm"
    CROSS = "cross"


class Address(BaseModel):
    street: str
    number: int


class Person(BaseModel):
    name: str
    home: Address | None = None
    moods: list[Mood] = []


@dataclass
class Order:
    item: str
    buyer: Person
    notes: list[str] = field(default_factory=list)


class Stranger(BaseModel):
    name: str


class Shop(TypedDict):
    messages: Annotated[list[Any], add_messages]
    order: Order
    people: dict[str, Person]


PERSON = Person(name="Ada", home=Address(street="Main", number=3), moods=[Mood.CALM, Mood.CROSS])
GIVEN: dict[str, Any] = {
    "messages": [HumanMessage("hello", id="h1")],
    "order": Order("tea", PERSON, ["hot"]),
    "people": {"ada": PERSON},
}


def shop(saver: Any) -> Any:
    """A graph that changes what it is given a little, and hands the rest on."""

    def serve(state: Shop) -> Any:
        order = state["order"]
        assert type(order) is Order
        assert type(order.buyer) is Person
        return {"order": Order(order.item, order.buyer, [*order.notes, "served"])}

    graph = StateGraph(Shop)
    graph.add_node("serve", serve)
    graph.add_edge(START, "serve")
    graph.add_edge("serve", END)
    return graph.compile(checkpointer=saver)


def expect(state: Any, notes: list[str]) -> None:
    """What every way of storing the state has to give back."""
    assert state["order"] == Order("tea", PERSON, notes)
    assert state["people"] == {"ada": PERSON}
    assert type(state["people"]["ada"].home) is Address
    assert [message.content for message in state["messages"]] == ["hello"]


def main(url: str) -> None:
    """Two turns, each with a database opened anew; no type is allowed by name."""
    at = {"configurable": {"thread_id": "t"}}
    with perdure.connect_sync(url, migrate=True) as db:
        expect(shop(db.checkpointer()).invoke(GIVEN, at), ["hot", "served"])
    with perdure.connect_sync(url) as db:
        graph = shop(db.checkpointer())
        expect(graph.get_state(at).values, ["hot", "served"])
        expect(graph.invoke({"messages": []}, at), ["hot", "served", "served"])


if __name__ == "__main__":
    main(sys.argv[1])
