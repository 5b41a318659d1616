"""Classes of every kind that a program may keep in its state, and objects of them."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import ipaddress
import pathlib
import re
import uuid
import zoneinfo
from typing import Any, Generic, NamedTuple, TypeVar

import pydantic
from langchain_core.agents import AgentAction, AgentActionMessageLog, AgentFinish
from langchain_core.documents import Document
from langchain_core.documents.base import Blob
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, Generation
from langchain_core.prompt_values import ChatPromptValue, StringPromptValue
from langgraph.types import Command, Interrupt, Send
from pydantic import v1

T = TypeVar("T")


class Order(pydantic.BaseModel):
    class Status(enum.Enum):
        OPEN = "open"
        PAID = "paid"

    class Line(pydantic.BaseModel):
        item: str
        count: int = 1

    status: Status = Status.OPEN
    lines: list[Line] = []


class Animal(pydantic.BaseModel):
    name: str


class Dog(Animal):
    tricks: tuple[str, ...] = ()


class Owner(pydantic.BaseModel):
    pet: Animal
    anything: Any = None


class Aliased(pydantic.BaseModel):
    first: str = pydantic.Field(alias="firstName")
    second: int = pydantic.Field(default=0, validation_alias="secondNumber")
    hidden: str = pydantic.Field(default="", exclude=True)


class Rooted(pydantic.RootModel[list[int]]):
    pass


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, frozen=True, extra="forbid")
    when: datetime.datetime
    ident: uuid.UUID
    colour: Order.Status

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def year(self) -> int:
        return self.when.year


class Box(pydantic.BaseModel, Generic[T]):
    content: T


IntBox = Box[int]


class Parsed(pydantic.BaseModel):
    words: list[str]

    @pydantic.field_validator("words", mode="before")
    @classmethod
    def split(cls, value: Any) -> Any:
        return value.split(",")


class Hashed(pydantic.BaseModel):
    """Its validator changes what it is given, every time."""

    secret: str

    @pydantic.field_validator("secret")
    @classmethod
    def hashed(cls, value: str) -> str:
        return f"#{value}"


class Kept(pydantic.BaseModel):
    token: pydantic.SecretStr


class Old(v1.BaseModel):
    name: str
    inner: Any = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Slim:
    text: str
    more: Any = None


@dataclasses.dataclass(eq=False)
class Unequal:
    text: str


@dataclasses.dataclass
class Derived:
    given: int
    derived: int = dataclasses.field(init=False, default=0)


@dataclasses.dataclass
class Counted:
    """It counts how often it is made."""

    count: int

    def __post_init__(self) -> None:
        self.count += 1


@pydantic.dataclasses.dataclass
class Checked:
    count: int


class Colour(enum.Enum):
    RED = (255, 0, 0)
    BLUE = (0, 0, 255)
    AZURE = (0, 0, 255)  # noqa: PIE796 - an alias


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    YES = "yes"


class Rights(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()


class Odd(enum.Enum):
    LIST = ["a"]  # noqa: RUF012 - a value that is not hashable


class Pair(NamedTuple):
    left: int
    right: Any = None


Loose = collections.namedtuple("Loose", "a b")


class MyMessage(HumanMessage):
    colour: Order.Status = Order.Status.OPEN


class Moment(datetime.datetime):
    """As pandas.Timestamp: a datetime, and not only that."""


class Name(str):
    __slots__ = ()


class Trouble(Exception):
    pass


def lying() -> Any:
    """A class that claims to be in a module that has no such class."""
    return dataclasses.make_dataclass("Nowhere", ["x"], namespace={"__module__": "json"})(1)


def renamed() -> Any:
    """A class that claims the name of another."""
    return dataclasses.make_dataclass("Slim", ["x"], namespace={"__module__": __name__})(1)


def local() -> Any:
    @dataclasses.dataclass
    class Local:
        x: int

    return Local(1)


NOON = datetime.datetime(2020, 1, 1, 12, tzinfo=datetime.UTC)
GOOD: list[Any] = [
    Order(status=Order.Status.PAID, lines=[Order.Line(item="tea")]),
    Order.Status.OPEN,
    Owner(pet=Dog(name="Rex", tricks=("sit",)), anything=[Dog(name="x"), {"k": Order.Status.PAID}]),
    Aliased.model_validate({"firstName": "a", "secondNumber": 3, "hidden": "h"}),
    Rooted([1, 2]),
    Strict(when=NOON, ident=uuid.UUID(int=1), colour=Order.Status.OPEN),
    Box[str](content="x"), IntBox(content=3),
    Parsed(words="a,b"),  # type: ignore[arg-type]
    Kept(token=pydantic.SecretStr("s")),
    pydantic.SecretStr("s"),
    Old(name="o", inner=Old(name="i")),
    Slim(text="x", more={"deep": (Slim(text="y"), {1, 2})}),
    Unequal("x"),
    Checked(3),
    Colour.RED, Colour.AZURE, Level.LOW, Word.YES, Rights.READ | Rights.WRITE,
    Pair(1, Pair(2)), Loose(1, 2),
    MyMessage(content="hi", id="1", colour=Order.Status.PAID),
    Document(page_content="x", metadata={"when": datetime.date(2020, 1, 1)}),
    AgentAction("find", {"q": "x"}, "log"), AgentFinish({"answer": 42}, "log"),
    AgentActionMessageLog(tool="t", tool_input="x", log="", message_log=[AIMessage("a", id="2")]),
    Blob(data=b"bytes", mimetype="text/plain"), Generation(text="x"),
    ChatGeneration(message=AIMessage("a", id="2")),
    StringPromptValue(text="x"), ChatPromptValue(messages=[HumanMessage("h", id="1")]),
    Send("node", Slim(text="x")), Interrupt(value=Slim(text="x"), id="i"),
    Command(update={"x": Slim(text="y")}),
    zoneinfo.ZoneInfo("Europe/Berlin"), decimal.Decimal("1.50"), decimal.Decimal("sNaN"), uuid.UUID(int=5),
    {"a"}, frozenset({1}), collections.deque([1, "x"]), re.compile("a+", re.IGNORECASE),
    pathlib.Path("/a/b"), ipaddress.IPv4Address("1.2.3.4"), datetime.timedelta(1), float("nan"),
    Name("x"), Trouble("no"),
]  # fmt: skip
"""What has to come back as it was, but for what MessagePack itself changes."""

REFUSED: list[Any] = [
    Hashed(secret="x"), Derived(1), Counted(1), Odd.LIST, Moment(2020, 1, 1), object(), Slim, Order.Status,
]  # fmt: skip
"""What would not come back."""
UNFINDABLE: list[Any] = [lying(), renamed(), local()]
"""Objects of classes to which no name leads."""
