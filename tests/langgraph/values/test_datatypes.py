"""Data types come back as they were, or are refused before they are stored; no row builds anything else."""

from __future__ import annotations

import inspect
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import ormsgpack
import pydantic
import pytest
from langchain_core.language_models import FakeListChatModel

from perdure.errors import Corrupt, TypeNotAllowed, TypeNotFound, Unreadable, Unserialisable
from perdure.langgraph.values.datatypes import is_data
from perdure.langgraph.values.roundtrip import is_same
from perdure.langgraph.values.serde import Serde
from perdure.model.values import refs
from tests.forking import fork_server
from tests.langgraph import shapes
from tests.langgraph.shapes import GOOD, REFUSED, UNFINDABLE, Colour, Order, Slim

OWN = [cls for cls in vars(shapes).values() if isinstance(cls, type) and cls.__module__ == shapes.__name__]
REMEDIES = ("perdure.Codec(", "top level", "under that name", "keep its name in the state")


def named(value: Any) -> str:
    return type(value).__qualname__


@pytest.mark.parametrize("value", GOOD, ids=named)
def test_a_data_type_comes_back_as_it_was(value: Any) -> None:
    body = Serde().payload([value, {"deep": value}])
    for serde in (Serde(), Serde([type(value), *OWN])):
        first, deep = serde.value(*body)
        assert is_same(value, first)
        assert is_same(value, deep["deep"])


@pytest.mark.parametrize("value", REFUSED, ids=named)
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: {"deep": [v]}], ids=["bare", "deep"])
def test_what_would_not_come_back_is_refused_before_it_is_stored(value: Any, wrap: Any) -> None:
    with pytest.raises((Unserialisable, TypeNotAllowed)) as caught:
        Serde().payload(wrap(value))
    assert any(text in str(caught.value) for text in REMEDIES)


@pytest.mark.parametrize("value", UNFINDABLE, ids=named)
def test_an_object_of_a_class_to_which_no_name_leads_comes_back_as_plain_data(value: Any) -> None:
    fields = {name: getattr(value, name) for name in inspect.get_annotations(type(value))}
    assert Serde().value(*Serde().payload({"deep": [value]})) == {"deep": [fields]}
    with pytest.raises(TypeNotAllowed):
        Serde("listed").payload([value])


def test_the_name_of_a_class_made_in_a_function_is_refused_with_what_to_do() -> None:
    with pytest.raises(Unserialisable, match=r"Local.*is made inside a function; move it to the top level"):
        Serde().types.name(type(shapes.local()))


def test_only_the_first_object_of_a_type_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    class Made(pydantic.BaseModel):
        x: int

        def model_post_init(self, context: Any) -> None:
            made.append(self.x)

    Made.__qualname__ = "Made"
    monkeypatch.setattr(sys.modules[__name__], "Made", Made, raising=False)
    serde = Serde()
    values = [Made(x=n) for n in range(5)]
    made.clear()
    serde.pack(values)
    assert made == [0]


def test_an_object_that_is_changed_while_it_is_read_back_is_not_refused() -> None:
    class Changing(list[int]):
        pass

    serde = Serde()
    value = Slim(text="x", more=[1])
    real = serde._unpack_ext

    def unpack(code: int, data: bytes) -> Any:
        found = real(code, data)
        value.more.append(2)
        return found

    serde._unpack_ext = unpack
    assert serde.pack(value)


# Hostile rows


def ext(code: int, *inner: Any) -> bytes:
    return ormsgpack.packb(ormsgpack.Ext(code, ormsgpack.packb(inner)))


class Lazy(types.ModuleType):
    """A module that imports when it is asked for what it does not have."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked for")


class Plain:
    """A class of the program that is not a data type."""

    made = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        type(self).made += 1


class Registry(type):
    """A class of classes that answers for every name."""

    def __getattr__(cls, name: str) -> Any:
        raise AssertionError(f"{name} was asked for")


class Answering(metaclass=Registry):
    pass


class Holder:
    @property
    def value(self) -> Any:
        raise AssertionError("a property was read")

    @staticmethod
    def call(*_: Any) -> Any:
        raise AssertionError("a function was called")


ABSENT = "wsgiref.simple_server"
HERE = __name__
HOSTILE: dict[str, bytes] = {
    "a function": ext(0, "os", "system", "touch /tmp/hostile"),
    "a built-in": ext(0, "builtins", "eval", "1/0"),
    "an import": ext(0, "builtins", "__import__", ABSENT),
    "a class that acts": ext(1, "subprocess", "Popen", ["true"]),
    "a module not imported": ext(2, ABSENT, "WSGIServer", {}),
    "a submodule": ext(0, "os", "path.join", "a"),
    "a module's own lookup": ext(0, "lazy_for_tests", "Anything", 1),
    "a class of the program": ext(2, HERE, "Plain", {"x": 1}),
    "a class's own lookup": ext(0, HERE, "Answering.inner", 1),
    "a property": ext(0, HERE, "Holder.value", 1),
    "a static method": ext(0, HERE, "Holder.call", 1),
    "a method of a type": ext(3, "pathlib", "Path", "/etc/passwd", "read_text"),
    "another method of a model": ext(3, shapes.__name__, "Slim", "x", "__class__"),
    "a pickle": ext(3, "pickle", "loads", b"cos\nsystem\n(S'true'\ntR."),
    "a type of types": ext(1, "builtins", "type", ["X", [], {}]),
    "an enum made of a row": ext(2, "enum", "Enum", {"value": "X", "names": ["A"]}),
    "an enum by its other calls": ext(2, shapes.__name__, "Colour", {"value": "X", "names": ["A"]}),
    "the base of models": ext(5, "pydantic.main", "BaseModel", {"x": 1}, "model_validate_json"),
    "a model of a language model": ext(
        5, FakeListChatModel.__module__, "FakeListChatModel", {"responses": ["x"]}, "model_validate_json"
    ),
    "a model by position": ext(1, shapes.__name__, "Order", [1]),
    "no name": ext(2, 1, None, {}),
    "too short": ext(2, "os"),
    "an empty name": ext(0, "", "", 1),
    "dunder names": ext(0, shapes.__name__, "Slim.__init__.__globals__", 1),
    "a foreign exception": ext(0, "builtins", "SystemExit", 3),
    "a codec that is not there": ext(65, "pandas.DataFrame", b"x"),
    "an unknown code": ext(99, "os", "system", "x"),
}


@pytest.mark.parametrize("mode", ["imported", "listed", "a list"])
@pytest.mark.parametrize("body", HOSTILE.values(), ids=list(HOSTILE))
def test_a_hostile_row_builds_and_calls_and_imports_nothing(
    body: bytes, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lazy_for_tests", Lazy("lazy_for_tests"))
    monkeypatch.delitem(sys.modules, ABSENT, raising=False)
    serde = Serde([Slim, Colour] if mode == "a list" else mode)  # type: ignore[arg-type]
    before, made = set(sys.modules), Plain.made
    with pytest.raises((Unreadable, Corrupt)):
        serde.unpack(body)
    assert set(sys.modules) == before
    assert Plain.made == made
    serde.unreadable(refs.MSGPACK, body)
    assert set(sys.modules) == before


def test_what_is_a_data_type(monkeypatch: pytest.MonkeyPatch) -> None:
    class Settings(pydantic.BaseModel):
        """In the place of the class that reads files and the environment when it is made."""

    module = types.ModuleType("pydantic_settings")
    vars(module)["BaseSettings"] = Settings
    monkeypatch.setitem(sys.modules, "pydantic_settings", module)
    data = {type(value) for value in GOOD if type(value).__module__ == shapes.__name__}
    assert [cls for cls in data - {shapes.Name, shapes.Trouble} if not is_data(cls)] == []
    for bad in (Plain, Holder, FakeListChatModel, Settings, shapes.Moment, int, object, 3, Colour.RED):
        assert not is_data(bad)


def test_validators_run_on_what_a_row_says_where_they_can() -> None:
    body = ext(5, shapes.__name__, "Order.Line", {"item": "tea", "count": "3"}, "model_validate_json")
    assert Serde().unpack(body) == Order.Line(item="tea", count=3)
    # What they refuse is handed back as it is stored: a field that was set later, without validation.
    line = Order.Line(item="tea")
    line.__dict__["count"] = "many"
    assert Serde().unpack(Serde().pack(line)).count == "many"


def test_in_a_listed_mode_no_other_data_type_is_built() -> None:
    body = Serde().pack([Slim(text="x"), Colour.RED])
    for serde in (Serde("listed"), Serde([Colour])):
        with pytest.raises(TypeNotAllowed, match=r"shapes\.Slim is not allowed .*allow=\[Slim\]"):
            serde.unpack(body)
    assert [str(e).split(" ")[2] for e in Serde("listed").unreadable(refs.MSGPACK, body)] == [
        f"{shapes.__name__}.Slim",
        f"{shapes.__name__}.Colour",
    ]


def test_one_type_alone_is_no_mode() -> None:
    with pytest.raises(ValueError, match=r"allow=\[TheType\]"):
        Serde("Slim")  # type: ignore[arg-type]


# Names


PROGRAM = """
import sys
import enum
import perdure
from pydantic import BaseModel
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

class Contact(BaseModel):
    name: str

class State(TypedDict):
    contact: Contact

def graph(saver):
    builder = StateGraph(State)
    builder.add_node("a", lambda state: {"contact": Contact(name=state["contact"].name + "!")})
    return builder.add_edge(START, "a").add_edge("a", END).compile(checkpointer=saver)

if __name__ == "__main__":
    with perdure.connect_sync(sys.argv[1], migrate=True) as db:
        at = {"configurable": {"thread_id": "t"}}
        print(graph(db.checkpointer()).invoke({"contact": Contact(name="Ada")}, at)["contact"].name)
"""
READER = """
import sys
import perdure
import agent

with perdure.connect_sync(sys.argv[1]) as db:
    found = agent.graph(db.checkpointer()).get_state({"configurable": {"thread_id": "t"}}).values["contact"]
    assert type(found) is agent.Contact, found
    print(found.name)
"""


def program(folder: Path, name: str, text: str, *args: str) -> str:
    (folder / name).write_text(text)
    code, printed = fork_server().run([name, *args], cwd=folder, environ=os.environ)
    assert code == 0, printed
    return printed.strip()


def test_a_class_of_a_script_is_found_by_a_program_that_imports_the_script(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    assert program(tmp_path, "agent.py", PROGRAM, url) == "Ada!"
    assert program(tmp_path, "reader.py", READER, url) == "Ada!"
    assert program(tmp_path, "agent.py", PROGRAM, url) == "Ada!"


def test_a_class_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    body = Serde().pack(Slim(text="x"))
    monkeypatch.delattr(shapes, "Slim")
    with pytest.raises(TypeNotFound, match=r"shapes\.Slim, which is not in this program.*alias"):
        Serde().unpack(body)
    monkeypatch.setattr(shapes, "Slim", Order.Line, raising=False)
    with pytest.raises(Unreadable, match=r"Order\.Line has no field 'text'"):
        Serde().unpack(body)


def test_plain_data_needs_none_of_this() -> None:
    value = json.loads('{"a": [1, 2.5, null, true, {"b": "c"}]}')
    assert Serde("listed").value(*Serde("listed").payload(value)) == value
