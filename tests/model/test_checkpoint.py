"""Checkpoints and pending writes come back as they were put; a damaged body is refused."""

from datetime import UTC, datetime
from typing import Any

import ormsgpack
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from perdure.errors import Corrupt
from perdure.model.checkpoint import FORMAT, Carried, CarriedWrite, CheckpointRecord, PendingWrite
from perdure.model.ops import Put
from perdure.model.records import CHECKPOINT, Record
from perdure.model.short_forms import KNOWN, PLAIN_METADATA

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
MAYBE = st.one_of(st.none(), NAMES)
VERSIONS = st.one_of(st.integers(0, 2**40), NAMES, st.floats(allow_nan=False))
REFS = st.binary(min_size=1, max_size=40)
SEEN = st.dictionaries(NAMES, st.dictionaries(NAMES, VERSIONS, max_size=4), max_size=4)


@st.composite
def checkpoints(draw: Any) -> CheckpointRecord:
    versions = draw(st.dictionaries(NAMES, VERSIONS, max_size=6))
    stored = [name for name in versions if draw(st.booleans())]
    names = st.one_of(NAMES, st.sampled_from(list(versions))) if versions else NAMES
    carried = st.builds(
        Carried,
        st.one_of(st.none(), REFS),
        st.lists(st.builds(CarriedWrite, NAMES, REFS, st.just(1))).map(tuple),
        st.just(1),
    )
    return CheckpointRecord(
        namespace=draw(NAMES),
        id=draw(NAMES),
        seq=draw(st.integers(0, 2**40)),
        parent_id=draw(MAYBE),
        run_id=draw(MAYBE),
        source=draw(MAYBE),
        step=draw(st.one_of(st.none(), st.integers(-5, 2**40))),
        v=draw(st.integers(0, 9)),
        ts=draw(NAMES),
        versions=versions,
        refs={name: draw(REFS) for name in stored},
        versions_seen={
            node: {draw(names): version for version in seen.values()} for node, seen in draw(SEEN).items()
        },
        updated=draw(st.one_of(st.none(), st.lists(names, max_size=5).map(tuple))),
        metadata=draw(st.binary(max_size=20)),
        extra=draw(st.binary(max_size=20)),
        nonce=draw(NAMES),
        seen=draw(st.lists(NAMES, max_size=3).map(tuple)),
        root=draw(MAYBE),
        root_head=draw(MAYBE),
        cut=draw(st.booleans()),
        deltas=draw(st.lists(NAMES, max_size=3).map(tuple)),
        carried=draw(st.dictionaries(NAMES, carried, max_size=3)),
        prior=draw(MAYBE),
        passed=draw(st.lists(NAMES, max_size=3).map(tuple)),
        schema=draw(st.integers(1, 2**20)),
    )


def stored(put: Put) -> Record:
    return Record(put.kind, put.key, put.fields, put.version, put.body)


@given(checkpoints())
def test_a_checkpoint_comes_back(checkpoint: CheckpointRecord) -> None:
    back = CheckpointRecord.read(stored(checkpoint.put()))
    assert back == checkpoint
    assert list(back.versions) == list(checkpoint.versions)
    assert list(back.refs) == list(checkpoint.refs)


@given(checkpoints())
def test_a_checkpoint_names_every_reference_it_holds(checkpoint: CheckpointRecord) -> None:
    held = set(checkpoint.refs.values())
    for carried in checkpoint.carried.values():
        held |= {w.ref for w in carried.writes} | ({carried.seed} if carried.seed is not None else set())
    assert set(checkpoint.references()) == held


@given(checkpoints(), st.data())
def test_a_body_cut_short_is_corrupt(checkpoint: CheckpointRecord, data: st.DataObject) -> None:
    put = checkpoint.put()
    cut = data.draw(st.integers(0, len(put.body) - 1))
    with pytest.raises(Corrupt):
        CheckpointRecord.read(Record(put.kind, put.key, put.fields, 0, put.body[:cut]))


@given(checkpoints(), st.data())
def test_a_changed_body_is_read_or_corrupt_and_nothing_else(
    checkpoint: CheckpointRecord, data: st.DataObject
) -> None:
    put = checkpoint.put()
    at = data.draw(st.integers(0, len(put.body) - 1))
    body = bytearray(put.body)
    body[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        CheckpointRecord.read(Record(put.kind, put.key, put.fields, 0, bytes(body)))
    except Corrupt as error:
        assert checkpoint.id in str(error)  # noqa: PT017 - either outcome is right


def test_another_format_is_named() -> None:
    fields = {"seq": 1, "parent_id": None, "run_id": None, "source": None, "step": None}
    with pytest.raises(Corrupt, match="format 4"):
        CheckpointRecord.read(Record(CHECKPOINT, ("", "c"), fields, 0, b"\xdc\x00\x11\x04" + b"\xc0" * 16))


WRITES = st.builds(
    PendingWrite, NAMES, NAMES, NAMES, st.integers(-5, 9), NAMES, NAMES, NAMES, REFS, st.integers(1, 9)
)


@given(st.lists(WRITES))
def test_writes_are_applied_by_path_then_task_then_place(writes: list[PendingWrite]) -> None:
    ordered = sorted(writes, key=lambda w: w.sort_key)
    assert [(w.task_path, w.task_id, w.idx) for w in ordered] == sorted(
        (w.task_path, w.task_id, w.idx) for w in writes
    )


@given(
    st.one_of(
        st.text(max_size=40),
        st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat),
        st.datetimes().map(datetime.isoformat),
        st.datetimes(timezones=st.timezones()).map(datetime.isoformat),
    )
)
def test_a_time_comes_back_as_it_was_written(ts: str) -> None:
    assume(ts.isascii())
    assert CheckpointRecord.read(stored(_example(ts).put())).ts == ts


def _example(ts: str) -> CheckpointRecord:
    versions = {"__start__": 1, "messages": 2}
    return CheckpointRecord(
        namespace="",
        id="c",
        seq=1,
        parent_id=None,
        run_id=None,
        source=None,
        step=0,
        v=4,
        ts=ts,
        versions=versions,
        refs={"messages": b"\x01\x90"},
        versions_seen={"__start__": versions},
        updated=None,
        metadata=b"",
    )


@pytest.mark.parametrize("number", [FORMAT - 1, FORMAT + 1])
def test_a_body_of_another_format_is_refused(number: int) -> None:
    record = stored(_example("2026-11-25T19:08:21.534021+00:00").put())
    _, *parts = ormsgpack.unpackb(record.body)
    with pytest.raises(Corrupt, match=f"format {number}; this release reads {FORMAT}"):
        CheckpointRecord.read(record._replace(body=ormsgpack.packb([number, *parts])))


def test_what_most_checkpoints_have_is_stored_shortly_and_comes_back() -> None:
    known = dict.fromkeys((*KNOWN, "branch:to:answer", "branch:to:other"), 1)
    example = _example("2026-11-25T19:08:21.534021+00:00")._replace(
        versions=known,
        versions_seen={"__input__": {}, "answer": {"branch:to:answer": 1}},
        updated=("branch:to:answer", "gone"),
        metadata=PLAIN_METADATA,
        nonce="46693f7a1d7d0964",
        seen=("46693f7a1d7d0964", "46693F7A1D7D0964", "x"),
    )
    assert CheckpointRecord.read(stored(example.put())) == example
    assert len(example._replace(seen=()).put().body) < 100
    assert len(example._replace(seen=(), nonce="x" * 16).put().body) > 100 - 8
