"""Effect of the steps after a version on each name and value: the steps between two versions, composed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from perdure.schema.steps import (
    ChannelConverted,
    ChannelDropped,
    ChannelRenamed,
    NodeRenamed,
    Step,
    TypeRenamed,
)

BRANCH = "branch:to:"
"""Start of the channel by which LangGraph starts a node; the node's name follows."""
_JOIN = "join:"


class Changes:
    """The steps from one version to another, in order.

    Args:
        steps: The steps.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = tuple(steps)
        self._nodes = [step for step in self.steps if isinstance(step, NodeRenamed)]

    @property
    def rename_nodes(self) -> bool:
        """True if one of the steps gives a node another name."""
        return bool(self._nodes)

    def rename_node(self, name: str) -> str:
        """Return the present name of a node."""
        for step in self._nodes:
            if step.old == name:
                name = step.new
        return name

    def rename_channel(self, name: str) -> str | None:
        """Return the present name of a channel, ``None`` if it was dropped. Channels that LangGraph derives
        from names of nodes are renamed with them."""
        if name.startswith(BRANCH):
            return BRANCH + self.rename_node(name.removeprefix(BRANCH))
        if name.startswith(_JOIN):
            starts, _, end = name.removeprefix(_JOIN).rpartition(":")
            return f"{_JOIN}{'+'.join(map(self.rename_node, starts.split('+')))}:{self.rename_node(end)}"
        for step in self.steps:
            if isinstance(step, ChannelRenamed) and step.old == name:
                name = step.new
            elif isinstance(step, ChannelDropped) and step.channel == name:
                return None
        return name

    def find_former_name(self, name: str) -> str | None:
        """Return the name of a channel before the steps, ``None`` if the channel is newer than the steps."""
        for step in reversed(self.steps):
            if isinstance(step, ChannelRenamed) and step.new == name:
                name = step.old
            elif isinstance(step, ChannelRenamed | ChannelDropped) and name == _find_old_name(step):
                return None
        return name

    def conversions(self, name: str) -> list[ChannelConverted]:
        """Return the conversions of a channel's values, by its name before all steps."""
        out: list[ChannelConverted] = []
        for step in self.steps:
            if isinstance(step, ChannelRenamed) and step.old == name:
                name = step.new
            elif isinstance(step, ChannelDropped) and step.channel == name:
                return []
            elif isinstance(step, ChannelConverted) and step.channel == name:
                out.append(step)
        return out

    def affects(self, name: str) -> bool:
        """Return True if a channel is renamed, dropped or converted."""
        return self.rename_channel(name) != name or bool(self.conversions(name))


def _find_old_name(step: ChannelRenamed | ChannelDropped) -> str:
    """Return the name that a step takes away."""
    if isinstance(step, ChannelRenamed):
        return step.old
    return step.channel


def list_renamed_types(steps: Iterable[Step]) -> Mapping[str, str]:
    """Return the present name of each type that steps rename, by every earlier name."""
    out: dict[str, str] = {}
    for step in steps:
        if isinstance(step, TypeRenamed):
            out = {old: step.new if new == step.old else new for old, new in out.items()}
            out[step.old] = step.new
    return out
