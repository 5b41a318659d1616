"""The file that threads are carried in: whole or refused, and a backend to whoever reads it."""

from __future__ import annotations

import os
import random
import stat
import struct
from collections.abc import Callable, Iterable
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ormsgpack
import pytest

import perdure
from perdure import admin
from perdure.admin import new_archive, open_archive
from perdure.database.base import handle_of
from perdure.engine.transfer.transfer_terms import State
from perdure.errors import BadArchive, Corrupt, DecryptionError, NotAllowed, NotFound, Unavailable
from perdure.model.ops import (
    Check,
    Commit,
    Committed,
    Delete,
    Drop,
    Expect,
    Fetch,
    FindRuns,
    FindThreads,
    Get,
    Put,
    Range,
    Refused,
)
from perdure.model.records import CHECKPOINT, CHUNK, GC, HEAD, KINDS, TAG, Partition
from perdure.storage.archive import FORMAT, Archive
from tests.engine.transfer.test_transfer import grow, in_memory
from tests.langgraph import graphs
from tests.langgraph.session import config

THREAD = Partition("tenant", "thread \x00 é")
KEY = bytes(range(32))
MAGIC = b"perdure threads\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "threads.perdure"


def export(path: Path, *, key: bytes | None = None) -> perdure.SyncDatabase:
    source = in_memory()
    grow(source, "t", 3)
    source.tag("t", "tag")
    with new_archive(path, encryption_key=key) as archive:
        admin.move(source, Partition("", "t"), archive)
    return source


@pytest.mark.parametrize("key", [None, KEY])
def test_what_was_written_is_read(path: Path, key: bytes | None) -> None:
    source = export(path, key=key)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]
    assert (b"turn 1" in path.read_bytes()) == (key is None)
    with open_archive(path, encryption_key=KEY) as archive:
        assert admin.partitions(archive, None) == [Partition("", "t")]
        assert archive.digest("t").agrees(source.digest("t"))
        assert archive.fsck("t") == []
        target = in_memory(bytes(32))
        assert admin.move(archive, Partition("", "t"), target, Partition("x", "y")).found is State.ABSENT
    saver = target.checkpointer(tenant="x")
    after = graphs.chain(saver).get_state(config("y")).values
    assert after == graphs.chain(source.checkpointer()).get_state(config("t")).values


def test_every_byte_counts(path: Path) -> None:
    """Whatever single byte is changed, and wherever the file is cut, it is refused."""
    export(path)
    whole = path.read_bytes()
    step = max(1, len(whole) // 400)
    other = path.with_name("other")
    for at in [*range(0, len(whole), step), *range(len(whole) - 60, len(whole))]:
        other.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(BadArchive, match="other"):
            Archive.read(other)
        other.write_bytes(whole[:at])
        with pytest.raises(BadArchive, match="ends early"):
            Archive.read(other)
    other.write_bytes(whole + b"\0")
    with pytest.raises(BadArchive, match="was changed"):
        Archive.read(other)


@pytest.mark.parametrize(
    ("off", "told"),
    [(1, r"newer perdure: .*{}; upgrade perdure"), (-1, r"earlier perdure: .*{}\. .* --all --as history`")],
)
def test_another_format_says_so(path: Path, monkeypatch: pytest.MonkeyPatch, off: int, told: str) -> None:
    monkeypatch.setattr("perdure.storage.archive.FORMAT", FORMAT + off)
    export(path)
    monkeypatch.undo()
    formats = rf"format {FORMAT + off}, this release \(perdure {version('perdure')}\) reads {FORMAT}"
    with pytest.raises(BadArchive, match=told.format(formats)):
        Archive.read(path)


def test_what_is_no_export_is_refused(path: Path) -> None:
    for content in (b"", b"{}", b"perdure thread", b"SQLite format 3\0" * 100):
        path.write_bytes(content)
        with pytest.raises(BadArchive):
            Archive.read(path)
    with pytest.raises(NotFound, match="no file"):
        Archive.read(path.with_name("none"))
    with pytest.raises(Unavailable, match="cannot be read"):
        Archive.read(path.parent)


def test_a_sealed_file_needs_its_key(path: Path) -> None:
    export(path, key=KEY)
    for key in (None, bytes(32)):
        with (
            pytest.raises(DecryptionError, match=r"threads\.perdure is encrypted"),
            open_archive(path, encryption_key=key),
        ):
            pass


def test_a_rotated_key_opens_a_file_that_the_old_one_sealed(path: Path) -> None:
    export(path, key=KEY)
    with open_archive(path, encryption_key=[bytes(32), KEY]) as archive:
        assert archive.fsck("t") == []


def test_a_failed_export_leaves_nothing(path: Path) -> None:
    with pytest.raises(ZeroDivisionError), new_archive(path):
        raise ZeroDivisionError
    assert list(path.parent.iterdir()) == []
    path.write_bytes(b"what was there before")
    with pytest.raises(ZeroDivisionError), new_archive(path):
        raise ZeroDivisionError
    assert path.read_bytes() == b"what was there before"
    with pytest.raises(Unavailable, match="cannot be written"), new_archive(path / "below"):
        pass


@pytest.mark.parametrize("place", ["folder", "pipe", "link"])
def test_what_is_no_file_is_not_replaced(path: Path, place: str) -> None:
    if place == "folder":
        path.mkdir()
    elif place == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path.parent)
    before = path.lstat().st_ino
    with pytest.raises(NotAllowed, match="is a directory or a device; name a file"), new_archive(path):
        pass
    assert path.lstat().st_ino == before
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_is_overwritten_while_it_is_read_is_refused(path: Path) -> None:
    export(path)
    whole = path.read_bytes()
    dice = random.Random(1)
    with open_archive(path) as archive:
        for _ in range(200):
            cut = dice.randrange(len(whole))
            # Into the same file, as a copy does; a rename would leave the open one as it is.
            path.write_bytes(whole[:cut] + dice.randbytes(dice.choice([0, len(whole) - cut])))
            try:
                archive.digest("t")
            except (BadArchive, Corrupt):
                continue
            assert whole[:cut] == path.read_bytes()[:cut]


def test_a_file_in_the_clear_is_refused_where_a_sealed_one_is_expected(path: Path) -> None:
    export(path)
    with (
        pytest.raises(DecryptionError, match=r"threads\.perdure is in the clear, although a key was given"),
        open_archive(path, encryption_key=KEY, sealed_only=True),
    ):
        pass
    path.unlink()
    export(path, key=KEY)
    with open_archive(path, encryption_key=KEY, sealed_only=True) as archive:
        assert archive.fsck("t") == []


def test_of_two_exports_to_one_name_the_second_is_refused(path: Path) -> None:
    source = export(path)
    with new_archive(path) as first:
        admin.move(source, Partition("", "t"), first)
        with pytest.raises(Unavailable, match=r"another export to .* is under way"), new_archive(path):
            pass
    with open_archive(path) as archive:
        assert archive.digest("t").agrees(source.digest("t"))
    assert list(path.parent.iterdir()) == [path]


def test_what_an_earlier_export_left_open_to_all_is_made_private(path: Path) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(b"x" * 1_000_000)
    part.chmod(0o666)
    with new_archive(path) as archive:
        assert stat.S_IMODE(part.stat().st_mode) == 0o600
        assert part.stat().st_size < 1000
        assert admin.partitions(archive, None) == []
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    Archive.read(path).close()


def test_a_link_in_the_place_of_an_export_is_not_followed(path: Path) -> None:
    precious = path.with_name("precious")
    precious.write_bytes(b"precious")
    part = path.with_name(f"{path.name}.part")
    part.symlink_to(precious)
    with pytest.raises(Unavailable, match="cannot be written"), new_archive(path):
        pass
    assert precious.read_bytes() == b"precious"
    assert part.is_symlink()
    assert not path.exists()


Frame = list[Any]


def frames(data: bytes) -> list[Frame]:
    at, out = len(MAGIC), []
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        out.append(ormsgpack.unpackb(data[at + 4 : at + 4 + size]))
        at += 4 + size
    return out


def packed(frames: Iterable[Any]) -> bytes:
    """A file of frames, with a checksum that is right."""
    out = MAGIC
    for frame in frames:
        data = ormsgpack.packb(frame)
        out += struct.pack(">I", len(data)) + data
    end = ormsgpack.packb([3, blake2b(out, digest_size=32, person=b"perdure.archive").digest()])
    return out + struct.pack(">I", len(end)) + end


NAMES, KIND_NAME, ROW_KEY, FIELDS, VERSION, BODY = range(1, 7)
MALFORMED: dict[str, tuple[str, Callable[[Frame], object]]] = {
    "a version in words": ("head", lambda f: f.__setitem__(VERSION, "x")),
    "no version": ("checkpoint", lambda f: f.__setitem__(VERSION, None)),
    "a version that is a truth": ("head", lambda f: f.__setitem__(VERSION, True)),
    "a body of text": ("checkpoint", lambda f: f.__setitem__(BODY, "x")),
    "no body": ("pack", lambda f: f.__setitem__(BODY, None)),
    "a field too few": ("checkpoint", lambda f: f[FIELDS].pop()),
    "a number in the place of text": ("head", lambda f: f[FIELDS].__setitem__(0, 5)),
    "text in the place of a number": ("checkpoint", lambda f: f[FIELDS].__setitem__(0, b"1")),
    "nothing where something must be": ("checkpoint", lambda f: f[FIELDS].__setitem__(0, None)),
    "a key of the wrong type": ("pack", lambda f: f.__setitem__(ROW_KEY, [5])),
    "a key too short": ("checkpoint", lambda f: f[ROW_KEY].pop()),
    "a kind that is none": ("head", lambda f: f.__setitem__(KIND_NAME, ["head"])),
    "a name too many": ("head", lambda f: f[NAMES].append(b"x")),
    "a name that is a number": ("head", lambda f: f[NAMES].__setitem__(1, 5)),
    "an end too early": ("head", lambda f: f.pop()),
    "one part too many": ("head", lambda f: f.append(b"")),
    "a removal with a body": ("head", lambda f: f.__setitem__(0, 2)),
    "a frame of a sort that is not known": ("head", lambda f: f.__setitem__(0, 7)),
    "format 0": ("", lambda f: f.__setitem__(1, 0)),
    "a format that is a truth": ("", lambda f: f.__setitem__(1, True)),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_file_with_a_right_checksum_is_refused_before_anything_is_written(
    path: Path, what: str
) -> None:
    export(path)
    kind, change = MALFORMED[what]
    *content, _ = frames(path.read_bytes())
    path.write_bytes(packed(content))
    Archive.read(path).close()
    change(next(f for f in content if (f[KIND_NAME] if len(f) > 2 else "") == kind))
    path.write_bytes(packed(content))
    target = in_memory()
    with pytest.raises(BadArchive), open_archive(path) as archive:
        admin.move(archive, Partition("", "t"), target)
    assert admin.partitions(target, None) == []


def test_it_keeps_the_verbs_of_a_backend(path: Path) -> None:
    archive = Archive.create(path)
    checkpoint = {"seq": 1, "parent_id": None, "run_id": "r", "source": "loop", "step": -1}
    first = Commit(
        THREAD,
        (
            Put(GC, (), expect=Expect.ABSENT, version=1),
            Put(CHECKPOINT, ("", "b"), {**checkpoint, "seq": 1}, b"body"),
            Put(CHECKPOINT, ("", "a"), {**checkpoint, "seq": 2}, b"body"),
            Put(TAG, ("gone",), {"namespace": "", "checkpoint_id": "a"}, version=1),
        ),
    )
    assert isinstance(archive.perform(first), Committed)
    assert archive.perform(first) == Refused(GC, ())
    guarded = Commit(THREAD, (Check(GC, (), 1), Delete(TAG, ("gone",), Expect.PRESENT)))
    assert isinstance(archive.perform(guarded), Committed)
    assert archive.perform(guarded) == Refused(TAG, ("gone",))
    archive.finish()
    archive.close()
    again = Archive.read(path)
    with pytest.raises(TypeError):
        again.perform(FindRuns(None, "run"))
    ranges = (
        Range(CHECKPOINT, ("",)),
        Range(CHECKPOINT, ("",), reverse=True, after=("", "b"), bodies=False),
        Range(CHECKPOINT, ("",), "seq", reverse=True, limit=1),
        Range(CHECKPOINT, ("",), "seq", after=1),
        Range(TAG),
        Get(GC, ()),
        Get(HEAD, ("",)),
    )
    found = again.perform(Fetch(THREAD, ranges))
    assert [[r.key[-1] if r.key else r.version for r in rows] for rows in found] == [
        ["a", "b"], ["a"], ["a"], ["a"], [], [1], [],
    ]  # fmt: skip
    assert found[0][0].fields == {**checkpoint, "seq": 2}
    assert (found[0][0].body, found[1][0].body) == (b"body", b"")
    assert [f.partition for f in again.perform(FindThreads("tenant"))] == [THREAD]
    assert again.perform(FindThreads(None, after=THREAD)) == ()
    with pytest.raises(Unavailable, match="read, not written"):
        again.perform(first)
    again.close()
    again.close()


def test_every_kind_can_be_written(path: Path) -> None:
    values = {"text": "té\udcff", "integer": 1 << 52, "bytes": b"\xff"}
    archive = Archive.create(path)
    puts = [
        Put(
            kind,
            tuple(values[c.kind] for c in kind.key),
            {c.name: None if c.nullable else values[c.kind] for c in kind.fields},
            b"body" if kind.body else b"",
            version=3 if kind.versioned else 0,
        )
        for kind in KINDS
    ]
    archive.perform(Commit(THREAD, tuple(puts)))
    archive.finish()
    archive.close()
    again = Archive.read(path)
    for put in puts:
        ((found,),) = again.perform(Fetch(THREAD, (Get(put.kind, put.key),)))
        assert found[:5] == (put.kind, put.key, put.fields, put.version, put.body)
    assert CHUNK in KINDS
    again.close()


def test_the_thread_that_was_written_last_is_taken_back_without_a_trace(path: Path, tmp_path: Path) -> None:
    source = in_memory()
    grow(source, "kept", 2)
    grow(source, "left", 3)
    for file, names in (path, ("kept", "left")), (tmp_path / "other", ("kept",)):
        with new_archive(file) as archive:
            for name in names:
                admin.move(source, Partition("", name), archive)
            if file == path:
                handle_of(archive).driver.perform(Drop(Partition("", "left")))
                assert admin.partitions(archive, None) == [Partition("", "kept")]
                # It can be written again, and what is before it cannot be taken back.
                admin.move(source, Partition("", "left"), archive)
                with pytest.raises(TypeError):
                    handle_of(archive).driver.perform(Drop(Partition("", "kept")))
                handle_of(archive).driver.perform(Drop(Partition("", "left")))
                handle_of(archive).driver.perform(Drop(Partition("", "never there")))
    assert b"left" not in path.read_bytes()
    with open_archive(path) as archive, open_archive(tmp_path / "other") as other:
        assert archive.digest("kept").agrees(other.digest("kept"))
        assert archive.fsck("kept") == []
