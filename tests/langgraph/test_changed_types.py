"""A value whose class has changed since it was stored is named: the class, what it lacks, and the channel."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

import perdure
from perdure.errors import Corrupt, TypeNotFound, Unreadable
from perdure.langgraph.reading.readable_states import aread_state
from perdure.langgraph.values.serde import Serde

HEAD = "import dataclasses, enum, typing, collections, pydantic, pydantic.v1, langchain_core.messages as m\n"
"""What the application's module imports."""

CHANGES: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "member removed": (
        "class Kind(enum.Enum):\n    old = 'antique'\n    new = 'modern'",
        "class Kind(enum.Enum):\n    new = 'modern'",
        "Kind.old",
        ("application.Kind", "'antique'"),
    ),
    "member with a tuple removed": (
        "class Kind(enum.Enum):\n    old = (1, 2)\n    new = 2",
        "class Kind(enum.Enum):\n    new = 2",
        "Kind.old",
        ("application.Kind", "[1, 2]"),
    ),
    "flag removed": (
        "class Kind(enum.Flag, boundary=enum.STRICT):\n    old = 4\n    new = 1",
        "class Kind(enum.Flag, boundary=enum.STRICT):\n    new = 1",
        "Kind.old",
        ("application.Kind", "4"),
    ),
    "field of a data class removed": (
        "@dataclasses.dataclass\nclass Kind:\n    size: int = 1\n    weight: int = 2",
        "@dataclasses.dataclass\nclass Kind:\n    size: int = 1",
        "Kind()",
        ("application.Kind", "'weight'", "no field"),
    ),
    "field of a data class added": (
        "@dataclasses.dataclass\nclass Kind:\n    size: int = 1",
        "@dataclasses.dataclass\nclass Kind:\n    weight: int\n    size: int = 1",
        "Kind()",
        ("application.Kind", "'weight'", "needs the field"),
    ),
    "data class that refuses the value": (
        "@dataclasses.dataclass\nclass Kind:\n    size: int = 1",
        "@dataclasses.dataclass\nclass Kind:\n    size: int = 1\n"
        "    def __post_init__(self): assert self.size > 1, 'secret'",
        "Kind()",
        ("application.Kind", "AssertionError"),
    ),
    "field of a named tuple removed": (
        "class Kind(typing.NamedTuple):\n    size: int = 1\n    weight: int = 2",
        "class Kind(typing.NamedTuple):\n    size: int = 1",
        "Kind()",
        ("application.Kind", "'weight'"),
    ),
    "enum that became a data class": (
        "class Kind(enum.Enum):\n    old = 'antique'",
        "@dataclasses.dataclass\nclass Kind:\n    size: int",
        "Kind.old",
        ("application.Kind",),
    ),
    "data class that became an enum": (
        "@dataclasses.dataclass\nclass Kind:\n    size: int = 1",
        "class Kind(enum.Enum):\n    old = 'antique'",
        "Kind()",
        ("application.Kind",),
    ),
    "data class that became a model": (
        "@dataclasses.dataclass\nclass Kind:\n    size: int = 1",
        "class Kind(pydantic.BaseModel):\n    size: int = 1",
        "Kind()",
        ("application.Kind",),
    ),
    "nested": (
        "class Kind(enum.Enum):\n    old = 'antique'\n@dataclasses.dataclass\nclass Box:\n    kind: Kind",
        "class Kind(enum.Enum):\n    new = 'modern'\n@dataclasses.dataclass\nclass Box:\n    kind: Kind",
        "{'a': [Box(Kind.old)]}",
        ("application.Kind", "'antique'"),
    ),
    "class removed": ("class Kind(enum.Enum):\n    old = 1", "", "Kind.old", ("application.Kind",)),
}
READ: dict[str, tuple[str, str, str]] = {
    "field of a model removed": (
        "class Kind(pydantic.BaseModel):\n    size: int = 1\n    weight: int = 2",
        "class Kind(pydantic.BaseModel):\n    size: int = 1",
        "Kind()",
    ),
    "field of a strict model removed": (
        "class Kind(pydantic.BaseModel, extra='forbid'):\n    size: int = 1\n    weight: int = 2",
        "class Kind(pydantic.BaseModel, extra='forbid'):\n    size: int = 1",
        "Kind()",
    ),
    "field of an old model removed": (
        "class Kind(pydantic.v1.BaseModel):\n    size: int = 1\n    weight: int = 2",
        "class Kind(pydantic.v1.BaseModel):\n    size: int = 1",
        "Kind()",
    ),
    "field of a message removed": (
        "class Kind(m.HumanMessage):\n    size: int = 1\n    weight: int = 2",
        "class Kind(m.HumanMessage):\n    size: int = 1",
        "Kind('hello')",
    ),
}


@pytest.fixture
def application() -> Iterator[ModuleType]:
    module = ModuleType("application")
    sys.modules["application"] = module
    yield module
    del sys.modules["application"]


def deploy(module: ModuleType, source: str) -> None:
    for name in [name for name in vars(module) if not name.startswith("__")]:
        delattr(module, name)
    exec(HEAD + source, vars(module))  # noqa: S102 - the application's code


def graph(database: perdure.SyncDatabase, value: Any) -> Any:
    class State(TypedDict, total=False):
        kept: Any
        other: str

    builder = StateGraph(State)
    builder.add_node("keep", lambda state: {"kept": value, "other": "sound"})
    builder.add_edge(START, "keep")
    return builder.compile(checkpointer=database.checkpointer())


CONFIG: Any = {"configurable": {"thread_id": "t"}}


@pytest.mark.parametrize("name", CHANGES)
def test_a_class_that_does_not_take_what_is_stored_is_named(
    application: ModuleType, tmp_path: Any, name: str
) -> None:
    before, after, value, named = CHANGES[name]
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    deploy(application, before)
    with perdure.connect_sync(url, migrate=True) as database:
        graph(database, eval(value, vars(application))).invoke({"other": "first"}, CONFIG)  # noqa: S307
    deploy(application, after)
    with perdure.connect_sync(url) as database:
        there = graph(database, None)
        for read in (
            lambda: there.get_state(CONFIG),
            lambda: list(there.get_state_history(CONFIG)),
            lambda: asyncio.run(aread_state(there, CONFIG)),
            lambda: there.invoke({"other": "more"}, CONFIG),
        ):
            with pytest.raises(Unreadable) as caught:
                read()
            assert all(each in str(caught.value) for each in (*named, "channel 'kept'")), caught.value
            assert "secret" not in str(caught.value)
        assert isinstance(caught.value, TypeNotFound) is (name == "class removed")
    deploy(application, before)
    with perdure.connect_sync(url) as database:
        assert graph(database, None).get_state(CONFIG).values["other"] == "sound"


@pytest.mark.parametrize("name", READ)
def test_a_model_is_read_as_its_class_is_now(application: ModuleType, tmp_path: Any, name: str) -> None:
    before, after, value = READ[name]
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    deploy(application, before)
    with perdure.connect_sync(url, migrate=True) as database:
        graph(database, eval(value, vars(application))).invoke({"other": "first"}, CONFIG)  # noqa: S307
    deploy(application, after)
    with perdure.connect_sync(url) as database:
        found = graph(database, None).get_state(CONFIG).values["kept"]
        assert (type(found), found.size) == (vars(application)["Kind"], 1)


def test_a_codec_that_does_not_load_its_earlier_form_is_named() -> None:
    def load(dumped: Any) -> Any:
        return Special(dumped["number"])

    class Special:
        def __init__(self, number: int) -> None:
            self.number = number

    old = perdure.Codec(Special, lambda given: {"number": given.number}, load, name="special")
    body = Serde(codecs=[old]).pack([Special(4)])

    def changed(dumped: Any) -> Any:
        return Special(dumped["secret"])

    new = Serde(
        codecs=[perdure.Codec(Special, lambda given: {"secret": given.number}, changed, name="special")]
    )
    with pytest.raises(Unreadable, match=r"codec of special .*KeyError"):
        new.unpack(body)


def test_a_damaged_value_of_the_standard_library_is_corrupt() -> None:
    import ormsgpack

    body = ormsgpack.packb(ormsgpack.Ext(0, ormsgpack.packb(["uuid", "UUID", "no uuid"])))
    with pytest.raises(Corrupt):
        Serde().unpack(body)
