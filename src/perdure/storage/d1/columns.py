"""The form of columns and values in statements for Cloudflare D1, and of rows in its answers.

Rows are sent as one JSON parameter a statement, whatever their number. Bytes are hexadecimal digits. In
answers integers are text, because JavaScript's numbers are exact only up to 2^53.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from perdure.errors import TooLarge, Unserialisable
from perdure.model.records import Column, Kind, Partition
from perdure.storage.sql import checksums
from perdure.storage.sql.schema import PREFIX, SCHEMA_VERSION

Statement = tuple[str, tuple[str | None, ...]]
"""SQL with parameters ``?1``, ``?2``…, all of them text."""

Rows = list[list[Any]]

VALUE_BYTES = 1_900_000
"""Maximum number of bytes of one parameter; D1 takes 2,000,000 bytes."""


def catalogue(version: int) -> str:
    """Return the name of the table of threads in a schema version. It contains the version: a process of an
    earlier release that still has the database open finds no table after a migration, so that
    it neither reads records that it cannot understand nor writes beside them."""
    return f"{PREFIX}thread_{version}"


CATALOGUE = catalogue(SCHEMA_VERSION)

PARTITION = f"(SELECT pk FROM {CATALOGUE} WHERE space = ?1 AND tenant = ?2 AND thread = ?3)"
"""The number of the partition that the first three parameters name."""


@lru_cache(maxsize=64)
def columns_of(kind: Kind, *, bodies: bool = True) -> tuple[Column, ...]:
    """Return the columns of a kind in the order of ``Kind.columns``, then the checksum."""
    out = [*kind.key, *kind.fields]
    if kind.versioned:
        out.append(Column("version", "integer"))
    if kind.body and bodies:
        out.append(Column("body", "bytes"))
    out.append(Column(checksums.NAME, "integer", nullable=True))
    return tuple(out)


def output(columns: Iterable[Column], start: int = 0, alias: str = "x") -> str:
    """Return the columns in forms that JSON can carry, with unique names: equal ones would be merged."""
    forms = {"text": "{}.{}", "integer": "CAST({}.{} AS TEXT)", "bytes": "hex({}.{})"}
    names = [f"{forms[c.kind].format(alias, c.name)} AS c{n}" for n, c in enumerate(columns, start)]
    return ", ".join(names) or "1 AS c0"


def values_of(columns: Sequence[Column], row: Sequence[Any]) -> tuple[Any, ...]:
    """Return a row of ``output`` as Python values."""
    readers: dict[str, Callable[[Any], Any]] = {"text": str, "integer": int, "bytes": bytes.fromhex}
    return tuple(
        None if value is None else readers[column.kind](value)
        for column, value in zip(columns, row, strict=False)
    )


def from_row(column: Column, place: int) -> str:
    """Return the expression for a value of the JSON row ``r``."""
    if column.kind == "bytes":
        return f"unhex(r.value ->> {place})"
    return f"r.value ->> {place}"


def from_parameter(column: Column, parameter: int) -> str:
    forms = {"text": "?{}", "integer": "CAST(?{} AS INTEGER)", "bytes": "unhex(?{})"}
    return forms[column.kind].format(parameter)


def place_of(partition: Partition) -> tuple[str, str, str]:
    return partition.space, partition.tenant, partition.thread


def to_json_row(values: Iterable[Any]) -> list[Any]:
    """Return values in forms that JSON can carry."""
    return list(map(_to_json, values))


def _to_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, int):
        return to_sql_integer(value)
    return value


def to_sql_integer(value: int) -> int:
    if not -(1 << 63) <= value < 1 << 63:
        raise TooLarge(f"the number {value} has more than 64 bits, which D1 cannot hold; write a smaller one")
    return value


def pack_rows(kind: Kind, rows: Sequence[Sequence[Any]]) -> Iterator[tuple[str, int]]:
    """Yield JSON arrays of the rows, each as large as a parameter may be, with the number of its rows."""
    texts: list[str] = []
    total = 0
    for row in rows:
        text = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
        try:
            size = len(text.encode()) + 1
        except UnicodeEncodeError as error:
            raise Unserialisable(
                f"a {kind.name} has text that is not well-formed Unicode (a lone surrogate); "
                "D1 cannot hold it"
            ) from error
        if size > VALUE_BYTES:
            raise TooLarge(
                f"one {kind.name} takes {size // 2:,} bytes; D1 takes at most {VALUE_BYTES // 2:,} a "
                "record; write a smaller value"
            )
        if texts and total + size > VALUE_BYTES:
            yield f"[{','.join(texts)}]", len(texts)
            texts, total = [], 0
        texts.append(text)
        total += size
    if texts:
        yield f"[{','.join(texts)}]", len(texts)


def weight(statements: Iterable[Statement]) -> int:
    """Return roughly the bytes that statements take in a request; raise ``Unserialisable`` for text that
    cannot be sent."""
    try:
        return sum(
            len(text) + sum(len(p.encode()) for p in given if p is not None) for text, given in statements
        )
    except UnicodeEncodeError as error:
        raise Unserialisable(
            "a name or id has text that is not well-formed Unicode (a lone surrogate); D1 cannot hold it"
        ) from error
