"""Packs requests into the arrays of one round trip, and unpacks its answer. Pure.

Values are sent in PostgreSQL's binary format. Any text can be stored: NUL, which a text of PostgreSQL cannot
contain, is written as two characters, so that different texts stay different and sort as before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from struct import Struct
from typing import Any, NamedTuple, cast

from perdure.model.ops import Check, Commit, Delete, Expect, Fetch, Get, ListedThread, Op, Put, Range, Stage
from perdure.model.records import Key, Kind, Partition, Record
from perdure.model.values.compression import compress_body
from perdure.storage.postgres.request_arrays import (
    ANSWER,
    EXPECT_ABSENT,
    EXPECT_NOTHING,
    EXPECT_PRESENT,
    EXPECT_VERSION,
    SECTION_OF,
    SECTIONS,
    SHAPE_OF,
    SHAPES,
    SectionColumn,
    answer_slots,
)

Value = bytes | None
Values = tuple[bytes, bytes, bytes, bytes]
"""Counts, numbers, texts and bytes, each an array in binary."""

_HEADER = Struct(">iiIii")
_EMPTY = Struct(">iiI")
_NUMBER = Struct(">iq")
_LENGTH = Struct(">i")
_NULL = b"\xff\xff\xff\xff"
_NUMBERS, _TEXTS, _BYTES = 20, 25, 17
ARRAYS = (1016, 1016, 1009, 1001)
"""The types of ``Values``."""

_EXPECTED: dict[Any, tuple[int, int]] = {
    Expect.ANY: (EXPECT_NOTHING, 0),
    Expect.ABSENT: (EXPECT_ABSENT, 0),
    Expect.PRESENT: (EXPECT_PRESENT, 0),
}

Write = Commit | Stage


def escape(text: str) -> str:
    """Return text in its stored form, without NUL: different texts stay different and sort as before."""
    if "\0" in text or "\x01" in text:
        return text.replace("\x01", "\x01\x02").replace("\0", "\x01\x01")
    return text


def unescape(text: str) -> str:
    """Return the text of its stored form; the inverse of ``escape``."""
    if "\x01" in text:
        return text.replace("\x01\x01", "\0").replace("\x01\x02", "\x01")
    return text


@dataclass(slots=True)
class _Arrays:
    """The long arrays under construction: numbers in ``n``, texts in ``s``, bytes in ``b``. Partitions are
    numbered in sorted order, in which they are locked."""

    parts: list[Partition]
    n: list[int | None] = field(default_factory=list)
    s: list[str | None] = field(default_factory=list)
    b: list[bytes | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        for column in (0, 1, 2):
            self.s.extend(part[column] for part in self.parts)

    def add(self, columns: tuple[SectionColumn, ...], rows: list[tuple[Any, ...]]) -> None:
        for (_, slot), values in zip(columns, zip(*rows, strict=True), strict=True):
            if slot == "n":
                self.n.extend(values)
            elif slot == "s":
                self.s.extend(values)
            else:
                self.b.extend(values)

    def values(self, counts: list[int]) -> Values:
        return pack_numbers(counts), pack_numbers(self.n), pack_texts(self.s), pack_blobs(self.b)


def pack_numbers(values: Sequence[int | None]) -> bytes:
    """Return an array of integers in binary."""
    pack = _NUMBER.pack
    return pack_array(_NUMBERS, len(values), b"".join([_NULL if v is None else pack(8, v) for v in values]))


def pack_texts(values: Sequence[str | None]) -> bytes:
    """Return an array of texts in binary."""
    sent = [None if s is None else escape(s).encode() for s in values]
    return _pack_array(_TEXTS, sent)


def pack_blobs(values: Sequence[bytes | None]) -> bytes:
    """Return an array of bytes in binary."""
    return _pack_array(_BYTES, values)


def _pack_array(oid: int, values: Sequence[bytes | None]) -> bytes:
    length = _LENGTH.pack
    parts = chain.from_iterable((_NULL,) if v is None else (length(len(v)), v) for v in values)
    return pack_array(oid, len(values), b"".join(parts))


def pack_array(oid: int, count: int, items: bytes) -> bytes:
    """Return an array in binary format; each of ``items`` begins with its length.

    Args:
        oid: The OID of the elements' type.
        count: The number of elements.
        items: The elements in binary format, one after the other.
    """
    if count:
        return _HEADER.pack(1, 1, oid, count, 1) + items
    return _EMPTY.pack(0, 0, oid)


# Writing


def pack_writes(writes: Sequence[Write], deadline: int) -> Values:
    """Return the parameters of ``commit_N`` for requests, which become jobs numbered from 1 in this order.
    Within a round, sections are executed in the order of ``SECTIONS``, checks first.

    Args:
        writes: The requests.
        deadline: The time on the server's clock, in microseconds, after which execution must not begin.
    """
    arrays = _Arrays(sorted({write.partition for write in writes}))
    number_of = {part: n for n, part in enumerate(arrays.parts, 1)}
    arrays.n.extend(number_of[write.partition] for write in writes)
    counts = [len(arrays.parts), len(writes), deadline]
    for jobs in _rounds(writes):
        rows: dict[int, list[tuple[Any, ...]]] = {}
        for job, write in jobs:
            if isinstance(write, Commit):
                _add_checks(rows, job, write.ops)
            _add_ops(rows, job, write.ops)
        for section in sorted(rows):
            counts += (section, len(rows[section]))
            arrays.add(SECTIONS[section].columns, rows[section])
    return arrays.values(counts)


def _rounds(writes: Sequence[Write]) -> list[list[tuple[int, Write]]]:
    """Split jobs into rounds: a job that uses a record that an earlier job writes is in a later round."""
    jobs = list(enumerate(writes, 1))
    if len({write.partition for write in writes}) == len(writes):
        return [jobs]
    rounds: list[list[tuple[int, Write]]] = []
    touched: dict[tuple[Partition, Kind, Key], tuple[int, int]] = {}
    for job, write in jobs:
        round_number = 0
        for op in write.ops:
            read, written = touched.get((write.partition, op.kind, op.key), (-1, -1))
            round_number = max(round_number, written + 1, 0 if isinstance(op, Check) else read + 1)
        for op in write.ops:
            record = (write.partition, op.kind, op.key)
            read, written = touched.get(record, (-1, -1))
            touched[record] = (max(read, round_number), written if isinstance(op, Check) else round_number)
        if round_number == len(rounds):
            rounds.append([])
        rounds[round_number].append((job, write))
    return rounds


def _add_checks(rows: dict[int, list[tuple[Any, ...]]], job: int, ops: Sequence[Op]) -> None:
    for number, op in enumerate(ops, 1):
        unchanged = getattr(op, "unchanged", None)
        if op.expect is Expect.ANY and not unchanged:
            continue
        expect, version = _EXPECTED.get(op.expect) or (EXPECT_VERSION, op.expect)
        unchanged_json = None
        if unchanged:
            # The JSON text is escaped again like all texts. That changes nothing, as it has no NUL and no
            # control characters.
            unchanged_json = json.dumps(
                {k: escape(v) if isinstance(v, str) else v for k, v in unchanged.items()}
            )
        row = (job, number, expect, version, unchanged_json, *op.key)
        rows.setdefault(SECTION_OF[op.kind, "check"], []).append(row)


def _add_ops(rows: dict[int, list[tuple[Any, ...]]], job: int, ops: Sequence[Op]) -> None:
    for op in ops:
        if isinstance(op, Put):
            kind, fields = op.kind, op.fields
            row = (job, *op.key, *[fields[c.name] for c in kind.fields])
            if kind.versioned:
                row = (*row, op.version)
            if kind.body:
                row = (*row, compress_body(op))
            rows.setdefault(SECTION_OF[kind, "put"], []).append(row)
        elif isinstance(op, Delete):
            rows.setdefault(SECTION_OF[op.kind, "delete"], []).append((job, *op.key))


def unpack_outcomes(value: bytes) -> list[int]:
    """Return the result of ``commit_N``: a number for each job."""
    return [number for _, number in _NUMBER.iter_unpack(value[_HEADER.size :])]


# Reading


def pack_fetches(fetches: Sequence[Fetch]) -> Values:
    """Return the parameters of ``fetch_N``; items are numbered from 0 across all fetches."""
    arrays = _Arrays(sorted({fetch.partition for fetch in fetches}))
    number_of = {part: n for n, part in enumerate(arrays.parts, 1)}
    rows: dict[int, list[tuple[Any, ...]]] = {}
    number = 0
    for fetch in fetches:
        part = number_of[fetch.partition]
        for item in fetch.items:
            if isinstance(item, Get):
                shape = SHAPE_OF[item.kind, len(item.kind.key), None, False, False]
                row: tuple[Any, ...] = (number, part, None, 1, *item.key)
            else:
                shape, row = _pack_range(item, number, part)
            rows.setdefault(shape, []).append(row)
            number += 1
    counts = [len(arrays.parts)]
    for shape, group in rows.items():
        counts += (shape, len(group))
        arrays.add(SHAPES[shape].columns, group)
    return arrays.values(counts)


def _pack_range(item: Range, number: int, part: int) -> tuple[int, tuple[Any, ...]]:
    depth, kind = len(item.prefix), item.kind
    row = (number, part, item.limit, int(item.bodies), *item.prefix)
    if depth == len(kind.key):
        return SHAPE_OF[kind, depth, None, False, False], row
    has_after = item.after is not None
    if has_after:
        if item.by:
            row += (item.after,)
        else:
            row += tuple(item.after[depth:])
    return SHAPE_OF[kind, depth, item.by, item.reverse, has_after], row


class Rows(NamedTuple):
    """An answer: the number of its rows, and a function that reads a value by row and column."""

    number: int
    value: Callable[[int, int], bytes | None]


@cache
def _find_columns(kind: Kind) -> tuple[list[tuple[int, str]], list[tuple[str, int, str]], int, int]:
    """Return the columns of an answer that contain a kind's key, fields, version and body; -1 for a version
    or a body that the kind does not have."""
    column = {name: n for n, (name, _) in enumerate(ANSWER)}
    slots = {name: (column[answer], slot) for name, answer, slot in answer_slots(kind)}
    key = [slots[c.name] for c in kind.key]
    fields = [(c.name, *slots[c.name]) for c in kind.fields]
    version = slots["version"][0] if kind.versioned else -1
    return cast(Any, key), cast(Any, fields), version, slots["body"][0] if kind.body else -1


def unpack_records(fetches: Sequence[Fetch], rows: Rows) -> list[tuple[tuple[Record, ...], ...]]:
    """Return the answers to the fetches, from the rows of ``fetch_N``."""
    items = [item for fetch in fetches for item in fetch.items]
    found: list[list[Record]] = [[] for _ in items]
    value = rows.value
    for row in range(rows.number):
        number = int.from_bytes(value(row, 0) or b"", "big")
        kind = items[number].kind
        key, fields, version, body = _find_columns(kind)
        found[number].append(
            Record(
                kind,
                tuple([_decode(slot, value(row, at)) for at, slot in key]),
                {name: _decode(slot, value(row, at)) for name, at, slot in fields},
                int.from_bytes(value(row, version) or b"", "big", signed=True) if version >= 0 else 0,
                (value(row, body) or b"") if body >= 0 else b"",
            )
        )
    answers = iter(found)
    return [tuple(tuple(next(answers)) for _ in fetch.items) for fetch in fetches]


def _decode(slot: str, value: bytes | None) -> Any:
    if value is None:
        return None
    if slot == "s":
        return unescape(value.decode())
    if slot == "n":
        return int.from_bytes(value, "big", signed=True)
    return value


def count_body_bytes(writes: Iterable[Write]) -> int:
    """Return the total size of the bodies in writes, in bytes."""
    return sum(len(op.body) for write in writes for op in write.ops if isinstance(op, Put))


def read_record(kind: Kind, row: Sequence[bytes | None]) -> Record:
    """Return a record with its version and body, from a row with the columns of ``Kind.columns``."""
    clear_size = len(kind.key) + len(kind.fields)
    version, body = row[clear_size:]
    return read_clear_record(kind, row[:clear_size])._replace(version=_decode("n", version), body=body or b"")


def read_listed(row: Sequence[bytes | None]) -> ListedThread | None:
    """Return a row of the listing, if there is one."""
    created, updated, status, *numbers = row
    if status is None:
        return None
    return ListedThread(
        _decode("n", created),
        _decode("n", updated),
        _decode("s", status),
        *(_decode("n", each) for each in numbers),
    )


def read_clear_record(kind: Kind, row: Sequence[bytes | None]) -> Record:
    """Return a record without version and body, from a row with its key and fields as they are declared."""
    columns = (*kind.key, *kind.fields)
    slots = {"text": "s", "integer": "n", "bytes": "b"}
    values = [_decode(slots[c.kind], value) for c, value in zip(columns, row, strict=True)]
    size = len(kind.key)
    fields = {c.name: value for c, value in zip(kind.fields, values[size:], strict=True)}
    return Record(kind, tuple(values[:size]), fields)
