"""Options of a run beside its input, which are stored with a message for the worker that takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, cast, get_args

from perdure.errors import Corrupt
from perdure.model.arguments import (
    check_run_config,
    refuse_text,
    require_mapping,
    require_text,
    require_whole,
)

StreamMode = Literal[
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
"""Stream modes of a run: LangGraph's own, but its ``messages`` is named ``messages-tuple``, and ``messages``
has the accumulated messages; ``events`` are LangChain's, ``protocol`` those of the event streaming
protocol."""

WEBHOOK = "webhook"
"""Channel of the runs that have a webhook, and of no others."""

CLOSED = "closed"
"""State in the notice of a run whose question another message has closed."""

OF_CHECKPOINTS = frozenset({"checkpoint_id", "checkpoint_ns", "checkpoint_map"})
"""Configurable names by which LangGraph addresses a checkpoint."""

OnFailure = Literal["rollback", "keep"]
Durability = Literal["sync", "async", "exit"]


def describe_unknown_modes(unknown: Sequence[object], known: Sequence[str], of: str = "a run") -> str:
    """Return the text of the error for unknown stream modes, which lists the known ones."""
    asked = " or ".join(map(repr, unknown))
    return f"there is no stream mode {asked} of {of}; there are {', '.join(known)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Events that a run publishes.

    Args:
        modes: The stream modes.
        subgraphs: True to include the events of subgraphs.
        kept: True to store the events with the thread, so that they can be followed from anywhere and again.
            Otherwise only the process ``by`` can follow them, and they are stored only if another process
            works on the run.
        by: The process that asked for the events.

    Raises:
        ValueError: A mode is unknown, or there is none.
        TypeError: The modes are text.
    """

    modes: tuple[StreamMode, ...]
    subgraphs: bool = False
    kept: bool = True
    by: str = ""

    def __post_init__(self) -> None:
        refuse_text("modes", self.modes)
        known = get_args(StreamMode)
        if unknown := [mode for mode in self.modes if mode not in known]:
            raise ValueError(describe_unknown_modes(unknown, known))
        if not self.modes:
            raise ValueError(f"no stream mode is named; there are {', '.join(known)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a run, all as plain JSON data.

    Args:
        config: LangGraph's config. If it names a checkpoint among its configurable values, that is the
            ``checkpoint_id``.
        context: LangGraph's context.
        checkpoint_id: The checkpoint to start from, if not the thread's latest: the run forks the thread
            there.
        interrupt_before: Names of nodes, or ``"*"``.
        interrupt_after: Names of nodes, or ``"*"``.
        durability: LangGraph's durability, in place of the agent's.
        stream: The events that the run publishes.
        attempts: The number of attempts at a graph that raises, in place of the worker's setting.
        on_failure: The treatment of a failed run's checkpoints, in place of the worker's setting.
        webhook: The URL that is notified of the run's end in any final state, in place of replies; it
            requires the channel ``WEBHOOK``.
        notice_if_closed: True to send a notice to the webhook also when a question of the run is closed by
            another message, with the state ``CLOSED``; the run of an answer without a webhook gets this one.
        about: Data of the caller, which is returned unchanged.

    Raises:
        ValueError: An option is invalid, or two checkpoints or one of a subgraph are named.
        TypeError: An option is of another type.
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
    notice_if_closed: bool | None = None
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        self._require_types()
        check_run_config(self.config)
        configurable = self.config.get("configurable") or {}
        reserved = [key for key in configurable if str(key).startswith("__")]
        if reserved:
            raise ValueError(f"the configurable keys {reserved} are not a caller's to set; leave them out")
        if self.checkpoint_id is not None:
            require_text("checkpoint_id", self.checkpoint_id)
        if not OF_CHECKPOINTS.isdisjoint(configurable):
            # With these in its config every attempt would begin at the checkpoint again, instead of going on.
            rest = {name: value for name, value in configurable.items() if name not in OF_CHECKPOINTS}
            object.__setattr__(self, "checkpoint_id", _choose_start(self.checkpoint_id, configurable))
            object.__setattr__(self, "config", {**self.config, "configurable": rest})
        if self.durability not in _DURABILITIES:
            raise ValueError(f"durability is 'sync', 'async' or 'exit', not {self.durability!r}")
        if self.on_failure not in _ON_FAILURE:
            raise ValueError(f"on_failure is 'rollback' or 'keep', not {self.on_failure!r}")
        if self.attempts is not None and self.attempts < 1:
            raise ValueError(f"attempts is {self.attempts}; it has to be at least 1")

    def _require_types(self) -> None:
        require_mapping("config", self.config)
        require_mapping("about", self.about)
        if self.attempts is not None:
            require_whole("attempts", self.attempts)
        for name in ("checkpoint_id", "webhook"):
            if getattr(self, name) is not None:
                require_text(name, getattr(self, name))
        if self.stream is not None and not isinstance(cast(object, self.stream), StreamOptions):
            raise TypeError(f"stream is StreamOptions(…), not {type(self.stream).__name__}")

    def dump(self) -> dict[str, Any]:
        """Return the options as they are stored with a message, without those that are not set."""
        given = {name: value for name in _PLAIN if (value := getattr(self, name)) not in (None, {})}
        if self.stream is not None:
            given["stream"] = {**asdict(self.stream), "modes": list(self.stream.modes)}
        return given

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Options:
        """Return the options that were stored with a message.

        Raises:
            Corrupt: The stored data are not options of this release.
        """
        if stored == {}:
            return _DEFAULT
        try:
            return cls._parse(stored)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise Corrupt(
                f"the options that are stored with a message cannot be read ({type(error).__name__}): "
                "another release stored them, or they were damaged. Send the message again"
            ) from error

    @classmethod
    def read_if_readable(cls, stored: Mapping[str, Any]) -> Options:
        """Return the same as ``read``, or no options instead of the error, for steps that have to end a run
        in any case."""
        try:
            return cls.read(stored)
        except Corrupt:
            return _DEFAULT

    @classmethod
    def _parse(cls, stored: Mapping[str, Any]) -> Options:
        given = {name: stored[name] for name in _PLAIN if name in stored}
        if (stream := stored.get("stream")) is not None:
            parts = {name: stream[name] for name in ("subgraphs", "kept", "by")}
            given["stream"] = StreamOptions(modes=tuple(stream["modes"]), **parts)
        return cls(**given)


def _choose_start(checkpoint_id: str | None, configurable: Mapping[str, Any]) -> str | None:
    """Return the checkpoint that a run's options name beside the config or in it, ``None`` for none."""
    named = configurable.get("checkpoint_id")
    if named is not None:
        require_text("checkpoint_id in the config", named)
    if configurable.get("checkpoint_ns") or configurable.get("checkpoint_map"):
        raise ValueError(
            "a run starts from a checkpoint of its thread, not of a subgraph; leave checkpoint_ns and "
            "checkpoint_map out of the config"
        )
    if checkpoint_id and named and checkpoint_id != named:
        raise ValueError("the options and the config name two checkpoints to start from; name one")
    return checkpoint_id or named or None


_DURABILITIES = (None, *get_args(Durability))
_ON_FAILURE = (None, *get_args(OnFailure))
_DEFAULT = Options()
_PLAIN = tuple(each.name for each in fields(Options) if each.name != "stream")
