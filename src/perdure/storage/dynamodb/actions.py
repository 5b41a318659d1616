"""Translates the operations of a commit to actions of a transaction. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from perdure.model.ops import Check, Delete, Expect, Expectation, Op, Put
from perdure.model.records import Partition
from perdure.storage.dynamodb.items import (
    ABSENT,
    PRESENT,
    Item,
    PartitionRoot,
    attribute,
    expiry_of,
    fields_of,
    item_of,
    key_of,
    make_catalogue_attributes,
    make_root_key,
)


@dataclass(slots=True)
class Expression:
    """Conditions and assignments of one action, with the names and values that they use."""

    conditions: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    values: Item = field(default_factory=dict)
    sets: list[str] = field(default_factory=list)
    removes: list[str] = field(default_factory=list)

    def add_name(self, attribute: str) -> str:
        self.names[f"#{attribute}"] = attribute
        return f"#{attribute}"

    def add_value(self, value: Item) -> str:
        name = f":v{len(self.values)}"
        self.values[name] = value
        return name

    def update(self) -> str:
        """Return the assignments and removals."""
        parts = (("SET ", self.sets), ("REMOVE ", self.removes))
        return " ".join(word + ", ".join(expressions) for word, expressions in parts if expressions)

    def build(self) -> Item:
        """Return the parameters of an action, without empty ones."""
        out: Item = {}
        if self.conditions:
            out["ConditionExpression"] = " AND ".join(self.conditions)
        if self.names:
            out["ExpressionAttributeNames"] = self.names
        if self.values:
            out["ExpressionAttributeValues"] = self.values
        return out


def make_root_action(
    table: str,
    partition: Partition,
    root: PartitionRoot,
    incarnation: bytes,
    revision: bytes,
    members: Sequence[tuple[Op, Item, Learned]],
    *,
    after: bytes = b"",
) -> Item:
    """Return the action on the root item, which is part of every commit.

    It checks that the partition still has its incarnation, sets its new revision, and carries out the
    operations on records inside the root.

    Args:
        table: The table's name.
        partition: The partition.
        root: Its root as last known.
        incarnation: Its incarnation, new if it has none.
        revision: The new revision; empty for a commit without puts and deletes, which only checks.
        members: The operations on records inside the root, the attributes that carry their bodies, and the
            facts from the last attempt.
        after: The revision that the root must still have; empty for any.
    """
    e = Expression()
    if root.incarnation:
        e.conditions.append(f"inc = {e.add_value({'B': incarnation})}")
    else:
        e.conditions.append("attribute_not_exists(inc)")
    if after:
        e.conditions.append(f"rev = {e.add_value({'B': after})}")
    for op, body, seen in members:
        if isinstance(op, Check) and op.expect is Expect.ANY:
            continue
        _add_embedded(e, op, op.kind.name, body, seen)
        if op.kind.expires and isinstance(op, Put) and (expiry := expiry_of(op)):
            # The root may only expire while it names no dead incarnation: if the service removed it, their
            # items would be left for ever.
            e.conditions.append("attribute_not_exists(dead)")
            e.sets.append(f"x = {e.add_value(expiry['x'])}")
        elif op.kind.expires and not isinstance(op, Check):
            e.removes.append("x")
    target = {
        "TableName": table,
        "Key": make_root_key(partition),
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    if not revision:
        return {"ConditionCheck": {**target, **e.build()}}
    e.sets.append(f"rev = {e.add_value({'B': revision})}")
    if not root.incarnation:
        e.sets.append(f"inc = {e.add_value({'B': incarnation})}")
        e.sets += [
            f"{e.add_name(n)} = {e.add_value(v)}" for n, v in make_catalogue_attributes(partition).items()
        ]
    return {"Update": {**target, "UpdateExpression": e.update(), **e.build()}}


# Operations


class Learned(NamedTuple):
    """Facts from a failed attempt about the item of an operation.

    Attributes:
        parts: The parts of the record's body.
        grown: True if the record's growing field is greater than the operation's value for it.
    """

    parts: tuple[bytes, int] | None = None
    grown: bool = False


def action_of(
    table: str, partition: Partition, incarnation: bytes, op: Op, body: Item, seen: Learned
) -> Item:
    """Return the action of the operation on an item other than the root.

    Args:
        table: The table's name.
        partition: The partition.
        incarnation: Its incarnation.
        op: The operation.
        body: The attributes that carry its body.
        seen: The facts from the last attempt.
    """
    e = Expression()
    key = key_of(partition, incarnation, op.kind, op.key)
    expect(e, op.expect, PRESENT, ABSENT, "v")
    if isinstance(op, Delete):
        require_unchanged(e, op, PRESENT, "")
    _require_parts(e, op, "p", seen)
    common: Item = {"TableName": table, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    if isinstance(op, Put) and op.kind.grows is not None and op.expect is not Expect.ABSENT:
        grows = e.add_name(op.kind.grows)
        size = e.add_value({"N": str(op.fields[op.kind.grows])})
        if seen.grown:
            e.conditions.append(f"{grows} >= {size}")
            return {"ConditionCheck": {**common, "Key": key, **e.build()}}
        e.conditions.append(f"({ABSENT} OR {grows} <= {size})")
    if isinstance(op, Put):
        item = {**item_of(partition, incarnation, op), **body}
        return {"Put": {**common, "Item": item, **e.build()}}
    if isinstance(op, Check):
        if not e.conditions:
            e.conditions.append(f"({PRESENT} OR {ABSENT})")
        return {"ConditionCheck": {**common, "Key": key, **e.build()}}
    return {"Delete": {**common, "Key": key, **e.build()}}


def _add_embedded(e: Expression, op: Op, name: str, body: Item, seen: Learned) -> None:
    """Add an operation on a record that is an attribute of an item.

    Args:
        e: The action's expression to extend.
        op: The operation.
        name: The attribute.
        body: The attributes that carry the record's body.
        seen: The facts from the last attempt.
    """
    path = e.add_name(name)
    expect(e, op.expect, f"attribute_exists({path})", f"attribute_not_exists({path})", f"{path}.v")
    if isinstance(op, Delete):
        require_unchanged(e, op, f"attribute_exists({path})", f"{path}.")
        e.removes.append(path)
    _require_parts(e, op, f"{path}.p", seen)
    if isinstance(op, Put):
        attributes = {"v": {"N": str(op.version)}, **fields_of(op.kind, op.fields), **body}
        e.sets.append(f"{path} = {e.add_value({'M': attributes})}")


def _require_parts(e: Expression, op: Op, path: str, seen: Learned) -> None:
    """Add the condition that the body of a record that is overwritten is in the parts that were seen."""
    if not op.kind.body or isinstance(op, Check) or op.expect is Expect.ABSENT:
        return
    if seen.parts:
        e.conditions.append(f"{path} = {e.add_value({'B': seen.parts[0]})}")
    else:
        e.conditions.append(f"attribute_not_exists({path})")


def expect(e: Expression, expected: Expectation, present: str, absent: str, version: str) -> None:
    """Add the condition of an expectation.

    Args:
        e: The expression to extend.
        expected: The expectation.
        present: The condition that the record exists.
        absent: The condition that it does not exist.
        version: The path of its version.
    """
    if expected is Expect.PRESENT:
        e.conditions.append(present)
    elif expected is Expect.ABSENT:
        e.conditions.append(absent)
    elif isinstance(expected, int):
        e.conditions.append(f"{version} = {e.add_value({'N': str(expected)})}")


def require_unchanged(e: Expression, op: Delete, present: str, path: str) -> None:
    """Add the conditions of a delete that requires fields to be unchanged.

    Args:
        e: The expression to extend.
        op: The delete.
        present: The condition that the record exists.
        path: The prefix of its attributes.
    """
    columns = {column.name: column for column in op.kind.fields}
    for name, value in op.unchanged.items():
        stored = f"{path}{e.add_name(name)}"
        if value is None:
            e.conditions += [present, f"attribute_not_exists({stored})"]
        else:
            e.conditions.append(f"{stored} = {e.add_value(attribute(columns[name], value))}")
