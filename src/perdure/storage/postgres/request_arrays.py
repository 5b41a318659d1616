"""The transport of operations: the assignment of columns to the arrays that a round trip carries.

A round trip carries counts and three long arrays, of integers, of texts and of bytes. Operations of one kind
and one action, or reads of one shape, form a section: its columns follow each other in those arrays, each as
long as the section has rows. The counts begin with the numbers that occur once. Then they have, for each
section that is present, its number and the number of its rows. Both ends are generated from the same
declarations: the functions in the database (``functions``) and the packing of the arrays (``codec``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

from perdure.model.records import KINDS, Kind

Slot = Literal["n", "s", "b"]
"""The array that carries a column: numbers, strings, bytes."""

Action = Literal["check", "put", "delete"]

_ACTIONS: tuple[Action, ...] = ("check", "put", "delete")

_SLOTS: dict[str, Slot] = {"integer": "n", "text": "s", "bytes": "b"}

EXPECT_NOTHING, EXPECT_ABSENT, EXPECT_PRESENT, EXPECT_VERSION = range(4)


class SectionColumn(NamedTuple):
    """A column of a section."""

    name: str
    slot: Slot


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """Operations of one kind and action. A check's row has the number of its job, its own number in the
    job from 1, the expectation, the version that it names, and as JSON the fields that must be unchanged."""

    kind: Kind
    action: Action
    columns: tuple[SectionColumn, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ReadShape:
    """Reads of one kind that differ only in values: the length of the key's prefix, the order, and ``after``,
    True if they continue after a position. A prefix that is a whole key reads one record."""

    kind: Kind
    depth: int
    by: str | None = None
    reverse: bool = False
    after: bool = False

    @property
    def order(self) -> tuple[str, ...]:
        if self.by:
            return (self.by,)
        return tuple(c.name for c in self.kind.key[self.depth :])

    @property
    def columns(self) -> tuple[SectionColumn, ...]:
        """Item number, partition number, limit, flag for bodies; prefix; position to continue after."""
        kinds = {c.name: c.kind for c in (*self.kind.key, *self.kind.fields)}
        section_columns = [SectionColumn(name, "n") for name in ("i_", "p_", "limit_", "bodies_")]
        section_columns += [SectionColumn(c.name, _SLOTS[c.kind]) for c in self.kind.key[: self.depth]]
        if self.after:
            section_columns += [SectionColumn(f"after_{name}", _SLOTS[kinds[name]]) for name in self.order]
        return tuple(section_columns)


def _list_sections(kind: Kind) -> list[Section]:
    key = tuple(SectionColumn(c.name, _SLOTS[c.kind]) for c in kind.key)
    fields = tuple(SectionColumn(c.name, _SLOTS[c.kind]) for c in kind.fields)
    job = SectionColumn("j_", "n")
    check = (
        job,
        SectionColumn("o_", "n"),
        SectionColumn("expect_", "n"),
        SectionColumn("version_", "n"),
        SectionColumn("unchanged_", "s"),
        *key,
    )
    put = (job, *key, *fields)
    if kind.versioned:
        put = (*put, SectionColumn("version", "n"))
    if kind.body:
        put = (*put, SectionColumn("body", "b"))
    return [Section(kind, "check", check), Section(kind, "put", put), Section(kind, "delete", (job, *key))]


def _list_shapes(kind: Kind) -> list[ReadShape]:
    out = [ReadShape(kind, len(kind.key))]
    for reverse in (False, True):
        for after in (False, True):
            out += [ReadShape(kind, depth, None, reverse, after) for depth in range(len(kind.key))]
            out += [ReadShape(kind, len(kind.key) - 1, by, reverse, after) for by in kind.by]
    return out


SECTIONS: tuple[Section, ...] = tuple(
    section
    for action in _ACTIONS
    for kind in KINDS
    for section in _list_sections(kind)
    if section.action == action
)
"""All sections, in the order of their execution: nothing is written before everything is checked."""

SECTION_OF: dict[tuple[Kind, Action], int] = {(s.kind, s.action): n for n, s in enumerate(SECTIONS)}

SHAPES: tuple[ReadShape, ...] = tuple(shape for kind in KINDS for shape in _list_shapes(kind))
SHAPE_OF: dict[tuple[Kind, int, str | None, bool, bool], int] = {
    (s.kind, s.depth, s.by, s.reverse, s.after): n for n, s in enumerate(SHAPES)
}


@cache
def answer_slots(kind: Kind) -> tuple[tuple[str, str, Slot], ...]:
    """Return for each column of a kind in the order of ``Kind.columns``: its name, the answer's column that
    carries it, and its array. Kinds share the columns of an answer."""
    slots: dict[str, Slot] = {c.name: _SLOTS[c.kind] for c in (*kind.key, *kind.fields)}
    slots["version"] = "n"
    used = {"n": 0, "s": 0, "b": 0}
    out: list[tuple[str, str, Slot]] = []
    for name in kind.columns():
        if name == "body":
            out.append((name, "body", "b"))
            continue
        slot = slots[name]
        used[slot] += 1
        out.append((name, f"{slot}{used[slot]}", slot))
    return tuple(out)


def _list_answer_columns() -> tuple[tuple[str, Slot], ...]:
    columns: set[tuple[str, Slot]] = set()
    for kind in KINDS:
        columns |= {(answer, slot) for _, answer, slot in answer_slots(kind) if answer != "body"}
    shared: list[tuple[str, Slot]] = sorted(columns)
    return (("i", "n"), *shared, ("body", "b"))


ANSWER: tuple[tuple[str, Slot], ...] = _list_answer_columns()
"""The columns of an answer to a fetch: the item's number, the columns that all kinds share, and the body."""
