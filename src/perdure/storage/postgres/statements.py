"""The statements that are sent: calls of the functions in the database, and the pages of ``Find``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from perdure.model.ops import ApplicationStatement, Find, FindItems, FindListed, FindRecords, FindThreads
from perdure.model.records import DOCUMENT, INDEXED, ITEM, KINDS, LANE
from perdure.storage.postgres import codec
from perdure.storage.postgres.functions import NOW
from perdure.storage.postgres.schema import SCHEMA_VERSION, quote
from perdure.storage.postgres.url import PostgresUrl
from perdure.storage.sql import searches

_TEXT, _BIGINT, _BYTEA = 25, 20, 17
_TYPES = {str: _TEXT, int: _BIGINT, bytes: _BYTEA}


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement and the types of its parameters, which travel in binary if ``binary``, else as text."""

    name: bytes
    sql: bytes
    types: tuple[int, ...]
    binary: bool = True


class Statements:
    """The statements of a schema."""

    def __init__(self, settings: PostgresUrl) -> None:
        schema, version = quote(settings.schema), SCHEMA_VERSION
        self._schema = schema
        self._tables = searches.Tables(f"{schema}.thread", f"{schema}.listing", f"{schema}.{DOCUMENT.name}")
        self.commit = make_statement(f"SELECT {schema}.commit_{version}($1, $2, $3, $4)", codec.ARRAYS)
        self.fetch = make_statement(f"SELECT * FROM {schema}.fetch_{version}($1, $2, $3, $4)", codec.ARRAYS)
        texts = (_TEXT, _TEXT, _TEXT, _BIGINT, _BIGINT)
        self._find_by_index = {
            kind: make_statement(
                f"SELECT * FROM {schema}.{index}_{version}($1, $2, $3)",
                (_TEXT if index == "runs" else _BIGINT, _BIGINT, _TEXT),
                binary=False,
            )
            for index, kind in INDEXED.items()
        }
        columns = ", ".join(f"r.{column.name}" for column in (*LANE.key, *LANE.fields))
        self._find_due_since = make_statement(
            f"SELECT p.tenant, p.thread, p.space, {columns} FROM {schema}.{LANE.name} r"
            f" CROSS JOIN LATERAL (SELECT * FROM {schema}.thread h WHERE h.pk = r.t OFFSET 0) p"
            f" WHERE r.{LANE.index} <= $1 AND r.{LANE.index} >= $4 AND ($3::text IS NULL OR p.tenant = $3)"
            f" ORDER BY r.{LANE.index} LIMIT $2",
            (_BIGINT, _BIGINT, _TEXT, _BIGINT),
            binary=False,
        )
        self.now = make_statement(f"SELECT {NOW}", (), binary=False)
        self.drop = make_statement(f"SELECT {schema}.drop_{version}($1, $2, $3, $4, $5)", texts, binary=False)
        # The checks lock the thread's row until the end of the statement, which also removes the row.
        self.drop_if = make_statement(
            f"SELECT c.z, CASE WHEN c.z[1] = 0 THEN {schema}.drop_{version}($5, $6, $7, $8, $9) END"
            f" FROM (SELECT {schema}.commit_{version}($1, $2, $3, $4) AS z OFFSET 0) c",
            (*codec.ARRAYS, *texts),
        )

    def make_drop_empty(self, names: Sequence[bytes | None]) -> ApplicationStatement:
        """Return the statement that removes a partition without records."""
        empty = " AND ".join(
            f"NOT EXISTS (SELECT FROM {self._schema}.{kind.name} r WHERE r.t = h.pk)" for kind in KINDS
        )
        sql = (
            f"DELETE FROM {self._schema}.thread h"
            f" WHERE h.tenant = $1 AND h.thread = $2 AND h.space = $3 AND {empty}"
        )
        text = "the removal of a name without records"
        return ApplicationStatement(
            text=text, sql=sql, values=tuple(names), types=(_TEXT,) * 3, formats=(0,) * 3, size=len(sql)
        )

    def find(self, effect: Find) -> tuple[Statement, list[bytes | None]]:
        """Return the statement of a ``Find`` and its parameters, as text."""
        if isinstance(effect, FindRecords):
            low, high = effect.span
            tenant: bytes | None = None
            if effect.tenant is not None:
                tenant = to_text(effect.tenant)
            values = [to_text(high), to_text(effect.limit), tenant]
            if low in (None, high):
                return self._find_by_index[effect.kind], values
            return self._find_due_since, [*values, to_text(low)]
        parameters: list[str | int | bytes] = []

        def bind(value: str | int | bytes) -> str:
            parameters.append(value)
            return f"${len(parameters)}"

        syntax = searches.BodySyntax(
            bind,
            holds=lambda body, part: f"position({bind(part)} IN {body}) > 0",
            ends=lambda body, part: (
                f"substring({body} FROM octet_length({body}) - {len(part) - 1}) = {bind(part)}"
            ),
        )
        if isinstance(effect, FindThreads):
            sql = searches.select_threads(effect, self._tables, bind)
        elif isinstance(effect, FindListed):
            sql = searches.select_listed(effect, self._tables, syntax)
        elif isinstance(effect, FindItems):
            sql = self._write_item_query(effect, syntax)
        else:
            raise TypeError(f"not a request to PostgreSQL: {type(effect).__name__}")
        types = tuple(_TYPES[type(p)] for p in parameters)
        return make_statement(sql, types, binary=False), [to_text(p) for p in parameters]

    def _write_item_query(self, effect: FindItems, syntax: searches.BodySyntax) -> str:
        where = searches.write_item_conditions(effect, syntax)
        columns = ", ".join(f"i.{name}" for name in ITEM.columns())
        return (
            f"SELECT p.tenant, p.thread, p.space, {columns} FROM {self._schema}.thread p"
            f" JOIN {self._schema}.item i ON i.t = p.pk WHERE {where} ORDER BY {searches.ORDER}"
            f" LIMIT {syntax.bind(effect.limit)} OFFSET {syntax.bind(effect.skip)}"
        )


def make_statement(sql: str, types: tuple[int, ...], *, binary: bool = True) -> Statement:
    """Return a statement, under a name of its own."""
    name = f"perdure_{sha256(sql.encode()).hexdigest()[:16]}"
    return Statement(name.encode(), sql.encode(), types, binary)


def to_text(value: str | int | bytes) -> bytes:
    """Return a value as text."""
    if isinstance(value, bytes):
        return b"\\x" + value.hex().encode()
    return (codec.escape(value) if isinstance(value, str) else str(value)).encode()
