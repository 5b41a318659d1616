"""The statements that are sent: calls of the functions in the database, and the pages of ``Find``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import cast

from perdure.model.ops import Find
from perdure.model.records import INDEXED, INTERNAL, INTERNAL_END, ITEM, LANE, RESERVED
from perdure.storage.postgres import codec
from perdure.storage.postgres.functions import NOW
from perdure.storage.postgres.schema import SCHEMA_VERSION, quoted
from perdure.storage.postgres.url import PostgresUrl
from perdure.storage.sql.item_search import ORDER, ItemSyntax, item_conditions
from perdure.storage.sql.listing import NOT_IDLE

_TEXT, _BIGINT, _BYTEA = 25, 20, 17
_TYPES = {str: _TEXT, int: _BIGINT, bytes: _BYTEA}
_LISTED = "p.tenant, p.thread, p.space, l.created_at, l.updated_at, l.status"


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement and the types of its parameters, which travel in binary if ``binary``, else as text."""

    name: bytes
    sql: bytes
    types: tuple[int, ...]
    binary: bool = True


class Statements:
    """The statements of a schema."""

    def __init__(self, place: PostgresUrl) -> None:
        schema, version = quoted(place.schema), SCHEMA_VERSION
        self._schema = schema
        self.commit = call(f"SELECT {schema}.commit_{version}($1, $2, $3, $4)", codec.ARRAYS)
        self.fetch = call(f"SELECT * FROM {schema}.fetch_{version}($1, $2, $3, $4)", codec.ARRAYS)
        texts = (_TEXT, _TEXT, _TEXT, _BIGINT, _BIGINT)
        self._found = {
            index: call(
                f"SELECT * FROM {schema}.{index}_{version}($1, $2, $3)",
                (_TEXT if index == "runs" else _BIGINT, _BIGINT, _TEXT),
                binary=False,
            )
            for index in INDEXED
        }
        columns = ", ".join(f"r.{column.name}" for column in (*LANE.key, *LANE.fields))
        self._since = call(
            f"SELECT p.tenant, p.thread, p.space, {columns} FROM {schema}.{LANE.name} r"
            f" CROSS JOIN LATERAL (SELECT * FROM {schema}.thread h WHERE h.pk = r.t OFFSET 0) p"
            f" WHERE r.{LANE.index} <= $1 AND r.{LANE.index} >= $4 AND ($3::text IS NULL OR p.tenant = $3)"
            f" ORDER BY r.{LANE.index} LIMIT $2",
            (_BIGINT, _BIGINT, _TEXT, _BIGINT),
            binary=False,
        )
        self.now = call(f"SELECT {NOW}", (), binary=False)
        self.drop = call(f"SELECT {schema}.drop_{version}($1, $2, $3, $4, $5)", texts, binary=False)
        # The checks lock the thread's row until the end of the statement, in which it is removed.
        self.drop_if = call(
            f"SELECT c.z, CASE WHEN c.z[1] = 0 THEN {schema}.drop_{version}($5, $6, $7, $8, $9) END"
            f" FROM (SELECT {schema}.commit_{version}($1, $2, $3, $4) AS z OFFSET 0) c",
            (*codec.ARRAYS, *texts),
        )

    def find(self, effect: Find) -> tuple[Statement, list[bytes | None]]:
        """Return the statement of a ``Find`` and its parameters, as text."""
        if effect.index == "threads":
            return self._threads(effect)
        if effect.index == "listed":
            return self._find_listed(effect)
        if effect.index == "items":
            return self._items(effect)
        value = effect.value if effect.index == "runs" else effect.until
        tenant = None if effect.tenant is None else sent(effect.tenant)
        if effect.since is not None:
            return self._since, [sent(value), sent(effect.limit), tenant, sent(effect.since)]
        return self._found[effect.index], [sent(value), sent(effect.limit), tenant]

    def _threads(self, effect: Find) -> tuple[Statement, list[bytes | None]]:
        where, parameters = ["p.space = $1"], cast("list[str | int | bytes]", [effect.space])

        def add(condition: str, *values: str) -> None:
            numbers = [f"${len(parameters) + n}" for n in range(1, len(values) + 1)]
            where.append(condition.format(*numbers))
            parameters.extend(values)

        after = effect.after
        if effect.tenant is not None:
            add("p.tenant = {}", effect.tenant)
            if after is not None:
                add("p.thread > {}", after.thread)
        elif after is not None:
            add("(p.tenant, p.thread) > ({}, {})", after.tenant, after.thread)
        if effect.prefix:
            add("p.thread >= {} AND p.thread < {}", effect.prefix, effect.prefix_end)
        if effect.space == RESERVED.space:
            where.append("NOT (p.tenant = '' AND p.thread = '')")
        parameters.append(effect.limit)
        return _call(
            f"SELECT {_LISTED} FROM {self._schema}.thread p"
            f" LEFT JOIN {self._schema}.listing l ON l.t = p.pk WHERE {' AND '.join(where)}"
            f" ORDER BY p.space, p.tenant, p.thread LIMIT ${len(parameters)}",
            parameters,
        )

    def _find_listed(self, effect: Find) -> tuple[Statement, list[bytes | None]]:
        where = ["l.tenant = $1", "NOT (p.thread >= $2 AND p.thread < $3)"]
        parameters = cast("list[str | int | bytes]", [effect.tenant, INTERNAL, INTERNAL_END])
        if effect.value:
            where.append("l.status = $4")
            parameters.append(effect.value)
            if effect.value != "idle":
                # So that the server knows that the index has these rows.
                where.append(f"l.{NOT_IDLE}")
        parameters += [effect.limit, effect.skip]
        direction, last = "DESC" if effect.reverse else "ASC", len(parameters)
        return _call(
            f"SELECT {_LISTED} FROM {self._schema}.listing l JOIN {self._schema}.thread p ON p.pk = l.t"
            f" WHERE {' AND '.join(where)} ORDER BY l.{effect.by} {direction}, l.t {direction}"
            f" LIMIT ${last - 1} OFFSET ${last}",
            parameters,
        )

    def _items(self, effect: Find) -> tuple[Statement, list[bytes | None]]:
        parameters: list[str | int | bytes] = []

        def bind(value: str | int | bytes) -> str:
            parameters.append(value)
            return f"${len(parameters)}"

        where = item_conditions(
            effect, ItemSyntax(bind, holds=lambda part: f"position({bind(part)} IN i.body) > 0")
        )
        columns = ", ".join(f"i.{name}" for name in ITEM.columns())
        return _call(
            f"SELECT p.tenant, p.thread, p.space, {columns} FROM {self._schema}.thread p"
            f" JOIN {self._schema}.item i ON i.t = p.pk WHERE {where} ORDER BY {ORDER}"
            f" LIMIT {bind(effect.limit)} OFFSET {bind(effect.skip)}",
            parameters,
        )


def call(sql: str, types: tuple[int, ...], *, binary: bool = True) -> Statement:
    """Return a statement, under a name of its own."""
    name = f"perdure_{sha256(sql.encode()).hexdigest()[:16]}"
    return Statement(name.encode(), sql.encode(), types, binary)


def _call(sql: str, parameters: Sequence[str | int | bytes]) -> tuple[Statement, list[bytes | None]]:
    types = tuple(_TYPES[type(p)] for p in parameters)
    return call(sql, types, binary=False), [sent(p) for p in parameters]


def sent(value: str | int | bytes) -> bytes:
    """Return a value as text."""
    if isinstance(value, bytes):
        return b"\\x" + value.hex().encode()
    return (codec.escaped(value) if isinstance(value, str) else str(value)).encode()
