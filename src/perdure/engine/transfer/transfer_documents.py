"""Transfer of one of a server's lists, such as its assistants or its crons: document by document.

The documents of a list are independent. Each arrives after its earlier versions, and those that only the
target has stay there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from perdure.engine.complete_reads import read_all
from perdure.engine.queue import crons
from perdure.engine.requests import try_commit
from perdure.engine.threads.thread_digest import ATTEMPTS, Digest, compute_thread_digest
from perdure.engine.transact import split_into_batches
from perdure.engine.transfer.same_database import refuse_same_database
from perdure.engine.transfer.transfer_terms import (
    Exists,
    State,
    TransferOptions,
    TransferResult,
    run_at_source,
    run_at_target,
)
from perdure.errors import Conflict, Contention, NotFound
from perdure.model.ops import Delete, Expect, Op, Put, Range
from perdure.model.program import Program
from perdure.model.records import DOCUMENT, Key, Partition, Record
from perdure.model.runs.queue import CRONS

_Records = Mapping[Key, Record]
_Documents = dict[Key, dict[Key, Record]]
"""By the key of each document its record and those of its earlier versions, by their keys."""


class _Compared(NamedTuple):
    """Documents of both sides, and how they compare."""

    source: _Documents
    target: _Documents
    result: TransferResult


def compare_documents(
    partition: Partition, target: Partition, terms: TransferOptions
) -> Program[TransferResult]:
    """Compare a list with the target's; nothing is changed. Raises as ``move_documents`` does."""
    return (yield from _compare(partition, target, terms)).result


def move_documents(
    partition: Partition, target: Partition, terms: TransferOptions
) -> Program[TransferResult]:
    """Transfer the documents of a list to the target; those that only the target has stay.

    Raises:
        NotFound: the source has no such list.
        Exists: the target has a different document of the same name, and ``replace`` is false.
        Conflict: others write to the same documents at the target, or the target is the source.
        Contention: the source keeps being written to.
    """
    found: State | None = None
    versions: dict[Key, int] = {}
    sent: set[Key] = set()
    written = 0
    for _ in range(ATTEMPTS):
        source, held, result = yield from _compare(partition, target, terms)
        if found is None:
            found = result.found
            versions = {record.key: record.version for each in held.values() for record in each.values()}
            if found is State.DIFFERENT and not terms.replace:
                raise Exists(
                    f"the list of {target.thread} is at the target already, with other contents under the "
                    "same names; it was left as it is. Pass --replace to bring it up to date"
                )
            if found is State.DIFFERENT:
                yield from refuse_same_database(partition, target, terms)
        stale = [key for key in held if key in sent and key not in source]
        if result.found is State.SAME and not stale:
            if target.thread == CRONS:
                yield from run_at_target(crons.arm(target, terms.first_version))
            return TransferResult(found, result.digest, written, result.kept)
        for key, records in source.items():
            if not _is_same(records, held.get(key, {})):
                written += yield from run_at_target(
                    _send(target, key, (records, held.get(key, {})), versions, terms)
                )
                sent.add(key)
        for key in stale:
            yield from run_at_target(_send(target, key, ({}, held[key]), versions, terms))
    raise Contention(
        f"the list of {partition.thread} keeps being written to; stop its writers, or move it later"
    )


def _compare(partition: Partition, target: Partition, terms: TransferOptions) -> Program[_Compared]:
    digest: Digest = yield from run_at_source(compute_thread_digest(partition, terms.source, terms.report))
    source = yield from run_at_source(_read_documents(partition))
    held = yield from run_at_target(_read_documents(target))
    # A history without its document was left by an interruption, and is never returned to a reader.
    source = {key: records for key, records in source.items() if key in records}
    if not source:
        raise NotFound(f"the list of {partition.thread} is not at the source; there is nothing to move")
    arrived = [key for key in source if key in held.get(key, {})]
    if any(not _is_same(source[key], held[key]) for key in arrived):
        state = State.DIFFERENT
    elif len(arrived) == len(source):
        state = State.SAME
    elif arrived:
        state = State.PARTIAL
    else:
        state = State.ABSENT
    kept = sum(key in records and key not in source for key, records in held.items())
    return _Compared(source, held, TransferResult(state, digest, kept=kept))


def _read_documents(partition: Partition) -> Program[_Documents]:
    (found,) = yield from read_all(partition, Range(DOCUMENT))
    out: _Documents = {}
    for record in found:
        collection, is_past, name = record.key[0].partition("/")
        if not is_past:
            name = record.key[1]
        out.setdefault((collection, name), {})[record.key] = record
    return out


def _is_same(one: _Records, other: _Records) -> bool:
    return one.keys() == other.keys() and all(
        record.body == other[key].body and dict(record.fields) == dict(other[key].fields)
        for key, record in one.items()
    )


def _send(
    target: Partition,
    key: Key,
    sides: tuple[_Records, _Records],
    versions: dict[Key, int],
    terms: TransferOptions,
) -> Program[int]:
    """Write the records of a document, the document itself after its versions, and remove those that are not
    its own.

    Args:
        target: the list at the target.
        key: the document.
        sides: its records at the source, and at the target.
        versions: the versions at the target that this transfer has read or written, which is changed.
        terms: the options.
    """
    wanted, held = sides
    ops: list[Op] = []
    for each in sorted(wanted, key=lambda name: name == key):
        record, expected = wanted[each], versions.get(each, 0)
        # The version is new: no reader of an earlier document of this name expects it.
        version = max(terms.first_version, expected + 1)
        put = Put(DOCUMENT, each, record.fields, record.body, expect=expected or Expect.ABSENT)
        ops.append(put._replace(version=version))
        versions[each] = version
    ops += [Delete(DOCUMENT, each, versions.pop(each, held[each].version)) for each in held.keys() - wanted]
    for batch in split_into_batches(ops, terms.budget):
        if not (yield from try_commit(target, batch)):
            raise Conflict(
                f"the list of {target.thread} is written to at the target while it arrives; move it again"
            )
    return sum(len(record.body) for record in wanted.values())
