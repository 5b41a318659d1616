"""How a run is to be invoked, beside its input: stored with a message, for the worker that takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from perdure.errors import Corrupt

Told = Literal[
    "values",
    "updates",
    "messages",
    "messages-tuple",
    "custom",
    "tasks",
    "checkpoints",
    "debug",
    "events",
    "protocol",
]
"""What a run can tell while it goes on: LangGraph's stream modes; ``messages-tuple`` is its ``messages``, of
which ``messages`` here is the accumulated form; ``events`` are LangChain's, ``protocol`` those of the event
streaming protocol."""

WEBHOOK = "webhook"
"""The channel of runs that have a webhook, and of no others."""

OnFailure = Literal["rollback", "keep"]
Durability = Literal["sync", "async", "exit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """What a run tells: ``modes``, with those of its ``subgraphs`` or without. ``kept`` stores it with the
    thread, so that it can be followed from anywhere and again; else only the process ``by`` which it was
    asked for can follow it, and it is stored when another process works on the run."""

    modes: tuple[Told, ...]
    subgraphs: bool = False
    kept: bool = True
    by: str = ""

    def __post_init__(self) -> None:
        unknown = [mode for mode in self.modes if mode not in get_args(Told)]
        if unknown or not self.modes:
            asked = ", ".join(map(repr, unknown)) or "nothing"
            raise ValueError(f"a run can tell {', '.join(get_args(Told))}; it was asked for {asked}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a run is to be invoked. All of it has to be plain JSON data.

    ``config`` and ``context`` are LangGraph's. ``checkpoint_id`` is where the run starts from, if not from
    the thread's latest checkpoint: then it forks the thread. ``interrupt_before`` and ``interrupt_after``
    name nodes, or are ``"*"``. ``attempts`` is how often a graph that raises is tried, and ``on_failure``
    what is left of a run that failed, where the worker's settings are not to say it. ``webhook`` is where the
    run's end is told, however it ends, in place of replies; it goes with the channel ``WEBHOOK``. ``about``
    is the caller's own and is given back as it is.
    """

    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    context: Any = None
    checkpoint_id: str | None = None
    interrupt_before: str | Sequence[str] | None = None
    interrupt_after: str | Sequence[str] | None = None
    durability: Durability | None = None
    stream: StreamOptions | None = None
    attempts: int | None = None
    on_failure: OnFailure | None = None
    webhook: str | None = None
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        reserved = [key for key in self.config.get("configurable") or {} if key.startswith("__")]
        if reserved:
            raise ValueError(f"the configurable keys {reserved} are not a caller's to set; leave them out")
        if self.durability not in (None, *get_args(Durability)):
            raise ValueError(f"durability is 'sync', 'async' or 'exit', not {self.durability!r}")
        if self.on_failure not in (None, *get_args(OnFailure)):
            raise ValueError(f"on_failure is 'rollback' or 'keep', not {self.on_failure!r}")
        if self.attempts is not None and self.attempts < 1:
            raise ValueError(f"attempts is {self.attempts}; it has to be at least 1")

    def stored(self) -> dict[str, Any]:
        """As it is stored with a message; what says nothing is left out."""
        said: dict[str, Any] = {
            name: getattr(self, name)
            for name in _PLAIN
            if getattr(self, name) is not None and getattr(self, name) != {}
        }
        if self.stream is not None:
            said["stream"] = {
                "modes": list(self.stream.modes),
                "subgraphs": self.stream.subgraphs,
                "kept": self.stream.kept,
                "by": self.stream.by,
            }
        return said

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Options:
        """Read what was stored with a message. ``Corrupt`` when these are no options of this release."""
        try:
            return cls._of(stored)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise Corrupt(
                f"the options that are stored with a message cannot be read ({type(error).__name__}): "
                "another release stored them, or they were damaged. Send the message again"
            ) from error

    @classmethod
    def read_if_readable(cls, stored: Mapping[str, Any]) -> Options | None:
        """As ``read``, ``None`` instead of the error: for what a run has to end with in any case."""
        try:
            return cls.read(stored)
        except Corrupt:
            return None

    @classmethod
    def _of(cls, stored: Mapping[str, Any]) -> Options:
        stream = stored.get("stream")
        return cls(
            **{name: stored[name] for name in _PLAIN if name in stored},
            stream=None
            if stream is None
            else StreamOptions(
                modes=tuple(stream["modes"]),
                subgraphs=stream["subgraphs"],
                kept=stream["kept"],
                by=stream["by"],
            ),
        )


_PLAIN = (
    "config",
    "context",
    "checkpoint_id",
    "interrupt_before",
    "interrupt_after",
    "durability",
    "attempts",
    "on_failure",
    "webhook",
    "about",
)
