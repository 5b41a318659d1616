"""Divides the removal of a thread's checkpoints into commits that a backend has room for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from perdure.engine.threads.thread_state import HeadView
from perdure.engine.transact import Budget
from perdure.model.heads import ROOT
from perdure.model.ops import Check, Delete, Expect, Op, Put
from perdure.model.records import CHECKPOINT, HEAD

_GUARDS = 3
"""Operations of each part beside its own: on the collection generation, the open run and the root's head."""


def parts(
    found: Mapping[str, HeadView],
    moved: Sequence[Op],
    changes: Mapping[str, Sequence[Sequence[Op]]],
    budget: Budget,
) -> Iterator[list[Op]]:
    """Divide a plan into commits, each with the operations or checks on the heads that it depends on.

    Args:
        found: The heads by namespace, as they were read.
        moved: The operations on heads: moved first, or removed with their namespace.
        changes: The other operations by namespace, in the order in which they are to be committed. Each group
            goes into one commit if that has room for it.
        budget: The limits of one commit.
    """
    heads: dict[str, Check] = {ROOT: Check(HEAD, (ROOT,), Expect.ABSENT)}
    # What goes from a namespace without a head must not have got one meanwhile.
    heads |= {ns: Check(HEAD, (ns,), Expect.ABSENT) for ns in changes}
    heads |= {ns: Check(HEAD, (ns,), head.version) for ns, head in found.items()}
    room = _room(budget)
    part: dict[str, Op] = {}
    ops: list[Op] = []
    held = 0

    def whole() -> list[Op]:
        return [*{ROOT: heads[ROOT], **part}.values(), *ops]

    leaving = {op.key[0]: op for op in moved if isinstance(op, Delete)}
    for move in sorted((op for op in moved if isinstance(op, Put)), key=lambda op: op.key):
        if len(part) == room:
            yield whole()
            part = {}
        part[move.key[0]], heads[move.key[0]] = move, Check(HEAD, move.key, move.version)
    together = _together(leaving)
    for namespace in dict.fromkeys((*together, *changes, *leaving)):
        groups = _head_last(changes.get(namespace, ()), found.get(namespace))
        if namespace in leaving and (namespace not in together or namespace == together[0]):
            mates = together if namespace in together else [namespace]
            needed = sum(1 + sum(map(len, changes.get(mate, ()))) for mate in mates)
            if (part or ops) and len(part) + len(ops) + needed > room:
                yield whole()
                part, ops, held = {}, [], 0
        for number, group in enumerate(groups, 1):
            checked = namespace in heads and namespace not in part
            grown = held + sum(map(_size, group))
            fits = len(part) + len(ops) + len(group) + checked <= room and grown <= budget.bytes
            if (part or ops) and not fits:
                yield whole()
                part, ops, held = {}, [], 0
            for left, op in zip(range(len(group) - 1, -1, -1), group, strict=True):
                # A group may be too large for any commit.
                if ops and (len(part) + len(ops) + 1 > room or held + _size(op) > budget.bytes):
                    yield whole()
                    part, ops, held = {}, [], 0
                if namespace in heads and namespace not in part:
                    part[namespace] = heads[namespace]
                if not left and number == len(groups) and namespace in leaving:
                    part[namespace] = leaving[namespace]
                    heads[namespace] = Check(HEAD, (namespace,), Expect.ABSENT)
                ops.append(op)
                held += _size(op)
    if part or ops:
        yield whole()


def too_large(leaving: Collection[str], counts: Mapping[str, int], budget: Budget) -> set[str]:
    """Return the namespaces that go as a whole, but do not fit one commit with what has to go with them.

    Args:
        leaving: The namespaces that lose their heads.
        counts: Operations by namespace, without the one on the head.
        budget: The limits of one commit.
    """
    room = _room(budget)
    together = _together(leaving)
    out = {namespace for namespace in leaving if namespace not in together and counts[namespace] + 1 > room}
    if sum(counts[namespace] + 1 for namespace in together) > room:
        out.update(together)
    return out


def _together(leaving: Collection[str]) -> list[str]:
    """Return the namespaces that go together, the root last: if the root goes, the subgraphs whose state a
    new run of the thread would find under the names of their nodes."""
    if ROOT not in leaving:
        return []
    return [*sorted(ns for ns in leaving if ns != ROOT and ":" not in ns), ROOT]


def _room(budget: Budget) -> int:
    return max(2, budget.ops - _GUARDS)


def _size(op: Op) -> int:
    return len(op.body) if isinstance(op, Put) else 0


def _head_last(groups: Sequence[Sequence[Op]], head: HeadView | None) -> list[Sequence[Op]]:
    """Return the groups of a namespace, with the removal of its head's checkpoint at the end."""
    last = None if head is None else head.checkpoint_id
    return sorted(
        groups,
        key=lambda group: (
            isinstance(group[-1], Delete) and group[-1].kind is CHECKPOINT and group[-1].key[1] == last
        ),
    )
