"""Models of request bodies. Unknown keys are ignored, and null counts as absent."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from contextvars import ContextVar
from math import isfinite
from typing import Annotated, Any, Literal

import ormsgpack
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from perdure.model.arguments import check_run_config
from perdure.model.filters import has_more_than
from perdure.model.runs.messages import replace_surrogates
from perdure.model.runs.payloads import check_command, holds_anything
from perdure.model.values.json_values import is_deeper
from perdure.server.thread_ids import refuse_lane

Strategy = Literal["enqueue", "reject", "interrupt", "rollback", "coalesce", "steer"]
RunMode = Literal[
    "values",
    "updates",
    "messages",
    "messages-tuple",
    "custom",
    "tasks",
    "checkpoints",
    "debug",
    "events",
]
RUN_MODES: tuple[RunMode, ...] = RunMode.__args__  # type: ignore[attr-defined]


_INTEGERS = range(-(2**63), 2**64)
"""Integers that a value of a graph can have: MessagePack supports no others."""

_NOT_FINITE = (b"\xcb\x7f\xf0", b"\xcb\xff\xf0", b"\xcb\x7f\xf8", b"\xcb\xff\xf8")
"""Beginnings of the infinite numbers and of NaN in MessagePack. Bytes of another number may be the same."""


def check_values(data: Any) -> Any:
    """Return the data unchanged. ``ValueError``, with the place, if a value at any depth cannot be stored, or
    cannot be shown to all clients again: text with half of a character, an integer of more than 64 bits, a
    number that is not finite."""
    try:
        packed = ormsgpack.packb(data)
        if not any(beginning in packed for beginning in _NOT_FINITE):
            return data
    except (ormsgpack.MsgpackEncodeError, TypeError):
        # The error does not name the place, and may have another cause.
        pass
    if (found := _find_unfit(data)) is not None:
        place, fault = found
        raise PydanticCustomError("unfit_value", "{place} {fault}", {"place": place, "fault": fault})
    return data


DEPTH = 64
"""Maximum nesting depth of a body. Much deeper values cannot be encoded again: every response that lists such
a value would fail."""


def check_depth(data: Any) -> Any:
    """Return the data unchanged. ``ValueError`` if it is nested deeper than ``DEPTH`` levels."""
    if is_deeper(data, DEPTH):
        raise ValueError(f"the data is nested deeper than {DEPTH} levels; send it as text")
    return data


_Place = tuple[Any, str | int]
"""Place of a value: the place of its container, None for the data as a whole, and its name or index there."""


def _find_unfit(data: Any) -> tuple[str, str] | None:
    """Return the place of a value that cannot be stored, and what it is; None if there is none."""
    unchecked: list[tuple[Any, _Place | None]] = [(data, None)]
    while unchecked:
        value, place = unchecked.pop()
        if (fault := _describe_unfit(value)) is not None:
            return _write_place(place) or "it", fault
        if isinstance(value, dict):
            for name in value:
                if (fault := _describe_unfit(name)) is not None:
                    return _write_place((place, name)), f"is a name that {fault}"
        if isinstance(value, dict | list):
            parts = value.items() if isinstance(value, dict) else enumerate(value)
            unchecked += [(part, (place, name)) for name, part in parts]
    return None


def _describe_unfit(value: Any) -> str | None:
    match value:
        case str() if any("\ud800" <= character <= "\udfff" for character in value):
            return "holds half of a character (a lone surrogate), which cannot be stored; leave it out"
        case int() if value not in _INTEGERS:
            return "is a whole number with more than 64 bits, which cannot be stored; send it as text"
        case float() if not isfinite(value):
            return "is not a finite number, which cannot be stored; send it as text"
        case _:
            return None


def _write_place(place: _Place | None) -> str:
    names: list[str] = []
    while place is not None:
        place, name = place
        names.append(str(name))
    return replace_surrogates(".".join(reversed(names)))


class Body(BaseModel):
    """A request's body."""

    model_config = ConfigDict(extra="ignore")

    _has_depth = model_validator(mode="before")(check_depth)
    _has_values = model_validator(mode="before")(check_values)


def _to_list(value: Any) -> Any:
    if isinstance(value, str):
        return [value]
    return value


def _to_mapping(value: Any) -> Any:
    if value is None:
        return {}
    return value


Mapped = Annotated[dict[str, Any], BeforeValidator(_to_mapping)]

ITEMS_MAX = 1000
"""Maximum number of ids in a request, so that the work of one request is bounded."""
NAMES_MAX = 100
"""Maximum number of names, labels or conditions in a request."""
_PATH_MAX = 1000
"""Maximum length of a path to a value, which is followed in each thread of a page."""


def read_run_id(value: str) -> str:
    """Return the id of a run as it is stored. Text that is not a UUID, and so the id of
    no run, is returned unchanged."""
    try:
        return str(uuid.UUID(value))
    except ValueError:
        return value


RunId = Annotated[str, AfterValidator(read_run_id)]
"""The id of a run, a UUID in any of its forms."""

ThreadIds = Annotated[list[Annotated[str, AfterValidator(refuse_lane)]], Field(max_length=ITEMS_MAX)]
RunIds = Annotated[list[RunId], Field(max_length=ITEMS_MAX)]
Names = Annotated[list[str], Field(max_length=NAMES_MAX)]
Conditions = Annotated[dict[str, Any], Field(max_length=NAMES_MAX), BeforeValidator(_to_mapping)]


def _check_lists(value: dict[str, Any]) -> dict[str, Any]:
    unchecked: list[Any] = [value]
    while unchecked:
        container = unchecked.pop()
        if isinstance(container, list) and len(container) > NAMES_MAX:
            raise ValueError(
                f"a list in it has {len(container)} entries, and a condition at most {NAMES_MAX} in each"
            )
        unchecked += [part for part in _list_parts(container) if isinstance(part, dict | list)]
    return value


def _list_parts(container: Any) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


Contents = Annotated[Conditions, AfterValidator(_check_lists)]
"""Content that the JSON data of an object has to have. Its lists are short: each of their entries is compared
with each entry of a list in the data."""


def _check_size(value: dict[str, Any]) -> dict[str, Any]:
    if has_more_than(ITEMS_MAX, value):
        raise ValueError(f"a filter has at most {ITEMS_MAX} conditions and values in all")
    return value


ItemFilter = Annotated[Contents, AfterValidator(_check_size)]
"""Filter over the store's items, each of which is compared with all of it."""
Modes = Annotated[list[RunMode] | None, Field(max_length=NAMES_MAX), BeforeValidator(_to_list)]
Breakpoints = Literal["*"] | Names | None


def _check_config(value: dict[str, Any]) -> dict[str, Any]:
    check_run_config(value)
    return value


Config = Annotated[dict[str, Any], BeforeValidator(_to_mapping), AfterValidator(_check_config)]
"""LangGraph's config. Its own parts are checked; the values in ``configurable`` and ``metadata`` are not."""
page_max: ContextVar[int] = ContextVar("page_max", default=1000)
"""Maximum number of entries in a page, for the current request."""
body_max: ContextVar[int] = ContextVar("body_max", default=4 * 1024 * 1024)
"""Maximum size of a request's body in bytes, for the current request."""


def _check_page(value: int) -> int:
    if value > (most := page_max.get()):
        raise ValueError(f"a page has at most {most} entries")
    return value


Page = Annotated[int, Field(ge=1), AfterValidator(_check_page)]
Offset = Annotated[int, Field(ge=0, le=1 << 53)]
_TTL_MAX = 1_000_000_000
"""Maximum time to live, nineteen centuries in minutes; much later times cannot be represented."""


class Ttl(Body):
    """Time to live of a thread after its last activity, in minutes."""

    ttl: float = Field(gt=0, le=_TTL_MAX)
    strategy: Literal["delete", "keep_latest"] = "delete"


class Ref(Body):
    """A checkpoint."""

    checkpoint_id: str | None = None
    checkpoint_ns: str | None = None
    thread_id: str | None = None


class Command(Body):
    """LangGraph's ``Command``. A ``resume`` of null is an answer; an ``update`` or ``goto`` of null counts as
    absent."""

    update: Any = None
    resume: Any = None
    goto: Any = None

    @property
    def is_answer(self) -> bool:
        """True if ``resume`` is given."""
        return "resume" in self.model_fields_set

    @model_validator(mode="after")
    def _check_parts(self) -> Command:
        if not holds_anything(self.dump_sent()):
            raise ValueError(
                "the command holds nothing: no resume, no update and no goto; leave it out to go on"
            )
        check_command(self.dump_sent())
        if isinstance(self.goto, list) and len(self.goto) > ITEMS_MAX:
            raise ValueError(f"goto names {len(self.goto)} nodes, and a command has at most {ITEMS_MAX}")
        return self

    @model_serializer
    def dump_sent(self) -> dict[str, Any]:
        """Return the fields that were given."""
        parts = {"update": self.update, "goto": self.goto}
        given = {name: part for name, part in parts.items() if part is not None}
        if self.is_answer:
            return {**given, "resume": self.resume}
        return given


class NewRun(Body):
    """A run to create. ``thread_id``, or ``context_id``, is used where the path names no thread."""

    assistant_id: str
    thread_id: str | None = None
    context_id: str | None = None
    input: Any = None
    command: Command | None = None
    metadata: Mapped = Field(default_factory=dict)
    config: Config = Field(default_factory=dict)
    context: Mapped = Field(default_factory=dict)
    checkpoint: Ref | None = None
    checkpoint_id: str | None = None
    stream_mode: Modes = None
    stream_subgraphs: bool | None = None
    stream_resumable: bool | None = None
    interrupt_before: Breakpoints = None
    interrupt_after: Breakpoints = None
    multitask_strategy: Strategy | None = None
    if_not_exists: Literal["reject", "create"] | None = None
    on_disconnect: Literal["cancel", "continue"] | None = None
    on_completion: Literal["delete", "keep"] | None = None
    after_seconds: Annotated[float, Field(ge=0, le=366 * 86400)] | None = None
    webhook: str | None = None
    durability: Literal["sync", "async", "exit"] | None = None
    checkpoint_during: bool | None = None
    strict_resume: bool | None = None


class SuperstepUpdate(Body):
    """Update of a step with which a thread begins: values as if a node had returned them, or a command."""

    values: Any = None
    command: Command | None = None
    as_node: str | None = None

    @field_validator("command", mode="before")
    @classmethod
    def _drop_empty(cls, command: Any) -> Any:
        """Return a command without an answer of null, which clients send for none; an empty one is absent."""
        if isinstance(command, dict):
            return {name: part for name, part in command.items() if part is not None} or None
        return command

    @model_validator(mode="after")
    def _check_command(self) -> SuperstepUpdate:
        if self.command is not None and self.command.is_answer:
            raise ValueError("the command of a superstep has no resume: no run waits for an answer")
        if self.command is not None and self.values is not None:
            raise ValueError("a superstep's update has values or a command; put the values into its update")
        return self


class Superstep(Body):
    """Updates of one step with which a thread begins."""

    updates: list[SuperstepUpdate] = Field(default_factory=list[SuperstepUpdate], max_length=ITEMS_MAX)


class NewThread(Body):
    """A thread to create. ``context_id`` is another name for ``thread_id``."""

    thread_id: str | None = None
    context_id: str | None = None
    metadata: Mapped = Field(default_factory=dict)
    if_exists: Literal["raise", "do_nothing"] | None = None
    ttl: Ttl | None = None
    supersteps: Annotated[list[Superstep] | None, Field(max_length=ITEMS_MAX)] = None


class ThreadPatch(Body):
    """Changes of a thread."""

    metadata: Mapped = Field(default_factory=dict)
    ttl: Ttl | None = None


class ThreadSearch(Body):
    """Conditions, order and page of a search for threads."""

    metadata: Contents = Field(default_factory=dict)
    values: Contents = Field(default_factory=dict)
    ids: ThreadIds | None = None
    status: Literal["idle", "busy", "interrupted", "error"] | None = None
    limit: Page = 10
    offset: Offset = 0
    sort_by: Literal["thread_id", "status", "created_at", "updated_at", "state_updated_at"] | None = None
    sort_order: Literal["asc", "desc"] | None = None
    select: Names | None = None
    extract: Annotated[
        dict[str, Annotated[str, Field(max_length=_PATH_MAX)]] | None, Field(max_length=10)
    ] = None


class StateUpdate(Body):
    """New values for a state, as if a node had returned them."""

    values: dict[str, Any] | list[Any] | None = None
    as_node: str | None = None
    checkpoint: Ref | None = None
    checkpoint_id: str | None = None


class StateAt(Body):
    """A checkpoint whose state is requested."""

    checkpoint: Ref
    subgraphs: bool = False
    select: Names | None = None


class NewTag(Body):
    """The checkpoint to tag; the latest of the namespace by default."""

    checkpoint_id: str | None = None
    checkpoint_ns: str = ""


class History(Body):
    """Conditions and page of a thread's past states. ``before`` is a checkpoint's id, a reference to it,
    or a config of it."""

    limit: Page = 10
    before: str | dict[str, Any] | None = None
    metadata: Contents = Field(default_factory=dict)
    checkpoint: Ref | None = None
    select: Names | None = None
