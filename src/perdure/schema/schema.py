"""The schema of an application: its version, and the steps that lead to it from every older version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from perdure.model.heads import UNVERSIONED
from perdure.schema.changes import Changes, list_renamed_types
from perdure.schema.steps import (
    ChannelConverted,
    ChannelDropped,
    ChannelRenamed,
    NodeRenamed,
    Step,
    TypeRenamed,
)

_KINDS = (ChannelRenamed, NodeRenamed, TypeRenamed, ChannelConverted, ChannelDropped)


@dataclass(frozen=True)
class Schema:
    """Schema version of an application, and the declared steps between its versions.

    Every checkpoint records the version of the application that stored it; one without a version, as an
    application without a schema stores it, is of version 1. A version without steps is a compatible change.

    Args:
        version: The version of this application's graph, from 1.
        steps: The steps, in the order in which they are applied. A step names channels and nodes as they
            were called after the steps before it.

    Raises:
        ValueError: A step is of a later version, out of order, or contradicts an earlier one.
        TypeError: An element of ``steps`` is not a step.
    """

    version: int = UNVERSIONED
    steps: Sequence[Step] = ()
    _since: dict[int, Changes] = field(
        default_factory=dict[int, Changes], init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if type(self.version) is not int or self.version < UNVERSIONED:
            raise ValueError(f"a schema version is a whole number from 1, not {self.version!r}")
        object.__setattr__(self, "steps", tuple(self.steps))
        before: Step | None = None
        for step in self.steps:
            if not isinstance(cast(object, step), _KINDS):
                raise TypeError(
                    f"{step!r} is not a step; make steps with rename_channel, rename_node, rename_type, "
                    "convert and drop of perdure.schema"
                )
            if step.version > self.version:
                raise ValueError(
                    f"{step} is of a later version than the schema, which is {self.version}; raise the "
                    "schema's version"
                )
            if before is not None and step.version < before.version:
                raise ValueError(f"{step} comes after {before}; write the steps in the order of versions")
            before = step
        _Names().apply(self.steps)

    def since(self, version: int) -> Changes:
        """Return the changes after a version."""
        found = self._since.get(version)
        if found is None:
            found = self._since[version] = Changes([s for s in self.steps if s.version > version])
        return found

    def at(self, version: int) -> Schema:
        """Return the schema as it was at an older version, e.g. to serve pinned threads by the graph of that
        version."""
        if not UNVERSIONED <= version <= self.version:
            raise ValueError(f"this schema has the versions 1 to {self.version}, not {version}")
        return Schema(version, [step for step in self.steps if step.version <= version])

    @property
    def types(self) -> Mapping[str, str]:
        """The current name of each renamed type, by every earlier name."""
        return list_renamed_types(self.steps)


class _Names:
    """The names that steps add, use and remove. A step contradicts earlier ones if it refers to a name that
    was removed, or gives a name that is taken."""

    def __init__(self) -> None:
        self._removed: dict[tuple[str, str], Step] = {}
        self._present: dict[tuple[str, str], Step] = {}

    def apply(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if isinstance(step, ChannelRenamed):
                self._rename("channel", step.old, step.new, step)
            elif isinstance(step, NodeRenamed):
                self._rename("node", step.old, step.new, step)
            elif isinstance(step, TypeRenamed):
                self._rename("type", step.old, step.new, step)
            elif isinstance(step, ChannelDropped):
                self._remove("channel", step.channel, step)
            else:
                self._use("channel", step.channel, step)

    def _rename(self, what: str, old: str, new: str, step: Step) -> None:
        self._remove(what, old, step)
        # A type's old names stay its own, as stored values keep the name that they were stored with.
        if what == "type":
            taken = self._removed.get((what, new))
        else:
            taken = self._present.get((what, new))
        if taken is not None:
            raise ValueError(f"{step} gives the {what} a name that {taken} refers to; choose another name")
        self._removed.pop((what, new), None)
        self._present[what, new] = step

    def _remove(self, what: str, name: str, step: Step) -> None:
        self._use(what, name, step)
        self._present.pop((what, name), None)
        self._removed[what, name] = step

    def _use(self, what: str, name: str, step: Step) -> None:
        remover = self._removed.get((what, name))
        if remover is not None:
            raise ValueError(
                f"{step} refers to the {what} {name!r}, which {remover} renamed or removed; use the name "
                "that it has after that step"
            )
        self._present[what, name] = step
