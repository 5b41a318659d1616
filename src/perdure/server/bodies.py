"""What clients send, checked. Keys that are not known are passed over, and null is as good as absent."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Strategy = Literal["enqueue", "reject", "interrupt", "rollback", "coalesce"]
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


def check_text(said: Any) -> Any:
    """What was sent as it is; ``ValueError`` when a text of it, or one in a list of it, has half of a
    character: JSON can have such, and no database has a name like it."""
    for name, value in said.items() if isinstance(said, dict) else ():
        for text in value if isinstance(value, list) else (value,):
            if isinstance(text, str):
                try:
                    text.encode()
                except UnicodeEncodeError:
                    raise ValueError(f"{name} holds half of a character (a lone surrogate)") from None
    return said


class Body(BaseModel):
    """A request's body."""

    model_config = ConfigDict(extra="ignore")

    _has_text = model_validator(mode="before")(check_text)


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _mapping(value: Any) -> Any:
    return {} if value is None else value


Mapped = Annotated[dict[str, Any], BeforeValidator(_mapping)]
page_max: ContextVar[int] = ContextVar("page_max", default=1000)
"""How many entries a page may have, for the request that is being read."""


def _page(value: int) -> int:
    if value > (most := page_max.get()):
        raise ValueError(f"a page has at most {most} entries")
    return value


Page = Annotated[int, Field(ge=1), AfterValidator(_page)]
Offset = Annotated[int, Field(ge=0)]
_TTL_MAX = 1_000_000_000
"""Nineteen centuries, in minutes; a time that is much later has no form."""


class Ttl(Body):
    """How long a thread lives after it was spoken to last, in minutes."""

    ttl: float = Field(gt=0, le=_TTL_MAX)
    strategy: Literal["delete", "keep_latest"] = "delete"


class Ref(Body):
    """A checkpoint."""

    checkpoint_id: str | None = None
    checkpoint_ns: str | None = None
    thread_id: str | None = None


class Command(Body):
    """LangGraph's ``Command``."""

    update: Any = None
    resume: Any = None
    goto: Any = None


class NewRun(Body):
    """A run to be made."""

    assistant_id: str
    input: Any = None
    command: Command | None = None
    metadata: Mapped = Field(default_factory=dict)
    config: Mapped = Field(default_factory=dict)
    context: Mapped = Field(default_factory=dict)
    checkpoint: Ref | None = None
    checkpoint_id: str | None = None
    stream_mode: Annotated[list[RunMode] | None, BeforeValidator(_listed)] = None
    stream_subgraphs: bool | None = None
    stream_resumable: bool | None = None
    interrupt_before: Literal["*"] | list[str] | None = None
    interrupt_after: Literal["*"] | list[str] | None = None
    multitask_strategy: Strategy | None = None
    if_not_exists: Literal["reject", "create"] | None = None
    on_disconnect: Literal["cancel", "continue"] | None = None
    on_completion: Literal["delete", "keep"] | None = None
    after_seconds: Annotated[float, Field(ge=0, le=366 * 86400)] | None = None
    webhook: str | None = None
    durability: Literal["sync", "async", "exit"] | None = None
    checkpoint_during: bool | None = None
    strict_resume: bool | None = None


class NewThread(Body):
    """A thread to be made."""

    thread_id: str | None = None
    metadata: Mapped = Field(default_factory=dict)
    if_exists: Literal["raise", "do_nothing"] | None = None
    ttl: Ttl | None = None
    supersteps: list[dict[str, Any]] | None = None


class ThreadPatch(Body):
    """What is to be changed of a thread."""

    metadata: Mapped = Field(default_factory=dict)
    ttl: Ttl | None = None


class ThreadSearch(Body):
    """Which threads are asked for."""

    metadata: Mapped = Field(default_factory=dict)
    values: Mapped = Field(default_factory=dict)
    ids: list[str] | None = None
    status: Literal["idle", "busy", "interrupted", "error"] | None = None
    limit: Page = 10
    offset: Offset = 0
    sort_by: Literal["thread_id", "status", "created_at", "updated_at", "state_updated_at"] | None = None
    sort_order: Literal["asc", "desc"] | None = None
    select: list[str] | None = None
    extract: Annotated[dict[str, str] | None, Field(max_length=10)] = None


class StateUpdate(Body):
    """New values for a state, as if a node had returned them."""

    values: dict[str, Any] | list[Any] | None = None
    as_node: str | None = None
    checkpoint: Ref | None = None
    checkpoint_id: str | None = None


class StateAt(Body):
    """A checkpoint whose state is asked for."""

    checkpoint: Ref
    subgraphs: bool = False
    select: list[str] | None = None


class History(Body):
    """Which states of the past are asked for. ``before`` is a checkpoint's id, a reference to it, or a
    config of it."""

    limit: Page = 10
    before: str | dict[str, Any] | None = None
    metadata: Mapped = Field(default_factory=dict)
    checkpoint: Ref | None = None
    select: list[str] | None = None
