"""Steps between schema versions: what a deploy did to the channels, nodes and types of a graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

Converter = Callable[[Any], Any]
"""A pure function from the stored value in plain data to the new value."""

FIRST = 2
"""The lowest version that a step can lead to."""
_CHANNELS_OWN = ("__", "branch:", "join:")
_NODE_MARKS = (":", "|", "+")


@dataclass(frozen=True, slots=True)
class _Renamed:
    version: int
    old: str
    new: str
    made_by: ClassVar[str]

    def __str__(self) -> str:
        return f"{self.made_by}({self.version}, {self.old!r}, {self.new!r})"


class ChannelRenamed(_Renamed):
    """Step that renames a channel; made by ``rename_channel``."""

    __slots__ = ()
    made_by = "rename_channel"


class NodeRenamed(_Renamed):
    """Step that renames a node; made by ``rename_node``."""

    __slots__ = ()
    made_by = "rename_node"


class TypeRenamed(_Renamed):
    """Step that renames a type of stored values; made by ``rename_type``."""

    __slots__ = ()
    made_by = "rename_type"


@dataclass(frozen=True, slots=True)
class ChannelConverted:
    """Step that converts the values of a channel; made by ``convert``."""

    version: int
    channel: str
    value: Converter
    update: Converter
    allow_none: bool = False

    def __str__(self) -> str:
        return f"convert({self.version}, {self.channel!r})"


@dataclass(frozen=True, slots=True)
class ChannelDropped:
    """Step that drops a channel; made by ``drop``."""

    version: int
    channel: str

    def __str__(self) -> str:
        return f"drop({self.version}, {self.channel!r})"


Step = ChannelRenamed | NodeRenamed | TypeRenamed | ChannelConverted | ChannelDropped


def rename_channel(version: int, old: str, new: str) -> ChannelRenamed:
    """Return the step that gives a channel another name; its value stays.

    Args:
        version: The schema version that the step leads to.
        old: The channel's old name.
        new: Its new name.

    Raises:
        ValueError: The version is below 2, or a name is LangGraph's own.
    """
    _require_version(version)
    _require_channel(old)
    _require_channel(new)
    _require_different(old, new)
    return ChannelRenamed(version, old, new)


def rename_node(version: int, old: str, new: str) -> NodeRenamed:
    """Return the step that gives a node another name; what waits in it stays and can be answered.

    Args:
        version: The schema version that the step leads to.
        old: The node's old name.
        new: Its new name.

    Raises:
        ValueError: The version is below 2, or a name cannot be a node's.
    """
    _require_version(version)
    for name in (old, new):
        _require_text(name, "node")
        if name.startswith("__") or any(mark in name for mark in _NODE_MARKS):
            raise ValueError(
                f"{name!r} cannot be renamed as a node: names that start with '__' are LangGraph's own, and "
                "':', '|' and '+' separate the names of nodes"
            )
    _require_different(old, new)
    return NodeRenamed(version, old, new)


def rename_type(version: int, old: str, new: str) -> TypeRenamed:
    """Return the step that gives a type another name, under which stored values are found.

    Stored values keep the name that they were stored with, so the step stays declared as long as threads
    hold such values.

    Args:
        version: The schema version that the step leads to.
        old: The type's old module and name, e.g. ``app.models.Order``.
        new: Its new module and name.

    Raises:
        ValueError: The version is below 2, or a name has no module.
    """
    _require_version(version)
    for name in (old, new):
        _require_text(name, "type")
        if "." not in name.strip("."):
            raise ValueError(f"{name!r} names no type: write module and name, e.g. 'app.models.Order'")
    _require_different(old, new)
    return TypeRenamed(version, old, new)


def convert(
    version: int,
    channel: str,
    function: Converter,
    *,
    update: Converter | None = None,
    allow_none: bool = False,
) -> ChannelConverted:
    """Return the step that converts the values of a channel.

    The functions have to be pure. They get plain data: lists, dicts, scalars, messages and the standard
    library's values; any other object comes as a dict of its fields, or as its value if it is an enum. The
    result replaces the channel's value; no reducer sees it. ``None`` for a value is refused when the step is
    applied, as a function that changes its argument and returns nothing would lose the value.

    Args:
        version: The schema version that the step leads to.
        channel: The channel, by its name after the earlier steps.
        function: Returns the new value for the stored one.
        update: Returns the new update for one that a node has written and that is not applied yet; by default
            ``function``. A channel with a reducer needs one whose updates have another form than its value.
        allow_none: The functions return ``None`` for some values on purpose.

    Raises:
        ValueError: The version is below 2, or the channel is LangGraph's own.
        TypeError: A function cannot be called.
    """
    _require_version(version)
    _require_channel(channel)
    for each in (function, function if update is None else update):
        if not callable(each):
            raise TypeError(f"convert({version}, {channel!r}) takes a function of the value, not {each!r}")
    return ChannelConverted(version, channel, function, function if update is None else update, allow_none)


def drop(version: int, channel: str) -> ChannelDropped:
    """Return the step that drops a channel and its value.

    Args:
        version: The schema version that the step leads to.
        channel: The channel, by its name after the earlier steps.

    Raises:
        ValueError: The version is below 2, or the channel is LangGraph's own.
    """
    _require_version(version)
    _require_channel(channel)
    return ChannelDropped(version, channel)


def _require_version(version: object) -> None:
    if type(version) is not int or version < FIRST:
        raise ValueError(
            f"a step leads to a schema version from {FIRST} on, not to {version!r}: threads that no version "
            "is declared for are of version 1"
        )


def _require_text(name: object, what: str) -> None:
    if not isinstance(name, str) or not name:
        raise ValueError(f"the name of a {what} is text, not {name!r}")


def _require_channel(name: str) -> None:
    _require_text(name, "channel")
    if name.startswith(_CHANNELS_OWN):
        raise ValueError(
            f"the channel {name!r} is LangGraph's own; it is moved together with the nodes, by rename_node"
        )


def _require_different(old: str, new: str) -> None:
    if old == new:
        raise ValueError(f"a step renames {old!r} to itself; leave it out")
