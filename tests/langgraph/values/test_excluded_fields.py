"""Fields that are excluded from a model's dumps are not stored."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from pydantic import BaseModel, ConfigDict, Field, v1
from typing_extensions import TypedDict

import perdure

SECRET = "a-secret-token"


class Login(BaseModel):
    user: str
    token: str = Field(default="", exclude=True)


class Session(BaseModel):
    login: Login
    logins: list[Login] = []


class Needed(BaseModel):
    user: str
    token: str = Field(exclude=True)


class Tool(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    name: str
    lock: Any = Field(default=None, exclude=True)


class Old(v1.BaseModel):
    user: str
    token: str = v1.Field("", exclude=True)


class State(TypedDict, total=False):
    value: Any


@pytest.mark.parametrize(
    ("value", "loaded"),
    [
        (Login(user="ada", token=SECRET), Login(user="ada")),
        (
            Session(login=Login(user="ada", token=SECRET), logins=[Login(user="bob", token=SECRET)]),
            Session(login=Login(user="ada"), logins=[Login(user="bob")]),
        ),
        (Needed(user="ada", token=SECRET), Needed.model_construct(user="ada")),
        (Tool(name="search", lock=threading.Lock()), Tool(name="search")),
        (Old(user="ada", token=SECRET), Old(user="ada")),  # type: ignore[call-arg]
    ],
    ids=["a secret", "in a model", "without a default", "a lock", "of pydantic's first version"],
)
def test_an_excluded_field_is_not_stored_and_loads_as_its_default(
    tmp_path: Path, value: Any, loaded: Any
) -> None:
    builder: Any = StateGraph(State)
    builder.add_node("set", lambda state: {"value": value}).add_edge(START, "set")
    with perdure.connect_sync(f"sqlite:///{tmp_path}/f.db", migrate=True) as db:
        graph = builder.compile(checkpointer=db.checkpointer())
        config: Any = {"configurable": {"thread_id": "t"}}
        graph.invoke({"value": None}, config)
        found = graph.get_state(config).values["value"]
    assert type(found) is type(loaded)
    assert found.__dict__ == loaded.__dict__
    assert not any(SECRET.encode() in file.read_bytes() for file in tmp_path.iterdir())
