"""Names under which subgraphs that keep their state from run to run are stored.

LangGraph calls the namespace of such a subgraph by its node. Names of nodes change, and a name that one node
gives up may be given to another. So a name that a node got at version 2 is stored with that version,
``name+2``; a name without one belongs to the node that had it first. Stored records are never moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perdure.schema.steps import NodeRenamed, Step

_LEVEL, _TASK, _SINCE = "|", ":", "+"


def is_by_name(namespace: str) -> bool:
    """Return True if a namespace is that of a subgraph which keeps its state from run to run."""
    return bool(namespace) and _TASK not in namespace


class NamespaceNames:
    """Stored and present names of the namespaces without task ids, by the steps of a whole schema.

    Args:
        steps: All steps, in order.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self._renames = [step for step in steps if isinstance(step, NodeRenamed)]

    @property
    def are_plain(self) -> bool:
        """True if no node was ever renamed: every namespace is stored under its present name."""
        return not self._renames

    def find_stored(self, name: str) -> Iterator[str]:
        """Yield the names under which a namespace may be stored: first the name of a new one, then former
        names, latest first.

        Args:
            name: The present name.

        Raises:
            ValueError: A node in it has the name under which the state of a renamed node is stored.
        """
        for level in name.split(_LEVEL):
            self._refuse_taken(level)
        levels = [list(self._trace(level)) for level in name.split(_LEVEL)]
        last = ""
        # The shortest list ends it: before one of its nodes existed there was no such namespace.
        for each in zip(*levels, strict=False):
            joined = _LEVEL.join(each)
            if joined != last:
                yield joined
            last = joined

    def rename(self, stored: str) -> str:
        """Return the present name of a stored namespace. A namespace whose node is gone keeps its stored
        name."""
        return _LEVEL.join(map(self._rename_level, stored.split(_LEVEL)))

    def _refuse_taken(self, name: str) -> None:
        node, mark, version = name.rpartition(_SINCE)
        for step in self._renames:
            if mark and version == str(step.version) and node in (step.old, step.new):
                raise ValueError(
                    f"the node {name!r} cannot keep its state: that of the node {node!r} "
                    f"is stored under that name, because of {step}; give the node {name!r} another name"
                )

    def _trace(self, name: str) -> Iterator[str]:
        """Yield the stored names of a node, backwards: that of the last version, then the one before each
        rename, as long as the node existed. Names that it had only between two steps of one version are left
        out, as they were never in use."""
        for place in range(len(self._renames), -1, -1):
            around = self._renames[max(place - 1, 0) : place + 1]
            if place == 0 or len({step.version for step in around}) == len(around):
                yield self._mark(name, place)
            if place == 0:
                return
            step = self._renames[place - 1]
            if step.new == name:
                name = step.old
            elif step.old == name:
                return

    def _mark(self, name: str, place: int) -> str:
        """Return the stored name of the node that is called ``name`` after ``place`` renames."""
        given = next((step for step in reversed(self._renames[:place]) if name in (step.old, step.new)), None)
        if given is None:
            return name
        return f"{name}{_SINCE}{given.version}"

    def _rename_level(self, stored: str) -> str:
        name, mark, version = stored.rpartition(_SINCE)
        if not mark or not version.isdigit():
            name, since = stored, 0
        else:
            since = int(version)
            if not any(step.version == since and name in (step.old, step.new) for step in self._renames):
                return stored
        for step in self._renames:
            if step.version <= since:
                continue
            if step.new == name:
                return stored
            if step.old == name:
                name = step.new
        return name
