"""What a reader of the files may see, what an intruder may change, and what an error may tell."""

from __future__ import annotations

import base64
import contextlib
import logging
import secrets
import sys
import traceback
import zlib
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.types import ERROR
from langgraph.types import Interrupt

import perdure
from perdure import admin
from perdure.database.base import handle_of
from perdure.database.opening import open_for_reading
from perdure.engine.queue import effect_journal
from perdure.engine.queue.claims import Claim
from perdure.engine.queue.inbox import Accept
from perdure.engine.queue.runs import Ending, HeldRun, finish
from perdure.errors import (
    Corrupt,
    DecryptionError,
    KeyMissing,
    MissingExtra,
    NotAllowed,
    PerdureError,
    Unserialisable,
)
from perdure.langgraph.loop_state import ThreadId
from perdure.model.records import Partition
from perdure.model.runs.messages import Message, dedupe_digest
from perdure.model.runs.queue import Debounce
from perdure.model.values import refs
from perdure.storage.sql import checksums
from tests.langgraph.files import THREAD, File, config, put

CANARY = "canary-8c1f7f0e"
KEY, NEW_KEY = secrets.token_bytes(32), secrets.token_bytes(32)
LONG = f"{CANARY} said at some length, so that it becomes a chunk of its own. " * 40


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path / "threads.db")


def load(db: perdure.SyncDatabase, thread: str = THREAD) -> Any:
    return db.checkpointer().get_tuple(config(thread))


# What stays in the clear when a key is set: ids (tenant, thread, checkpoint, parent, task, loop nonces),
# tags, namespaces and through them node names, the names of channels with pending writes, task paths, source,
# step, run id, versions and sequence numbers, sizes, and keyed digests; of a queue the names of graphs and
# channels, states, times, providers' ids, and digests of dedupe keys, without a key; of documents names,
# collections and times; of events numbers and runs. All else is sealed.
CLEAR = {
    "perdure_thread": {"pk", "tenant", "thread", "space", "total", "head", "commits"},
    "perdure_history": {"one", "id", "state"},
    "perdure_listing": {"t", "tenant", "status", "created_at", "updated_at"},
    "perdure_head": {"t", "namespace", "checkpoint_id", "seq", "version"},
    "perdure_gc": {"t", "version"},
    "perdure_epoch": {"t", "open_run", "version"},
    "perdure_checkpoint": {
        "t", "namespace", "checkpoint_id", "seq", "parent_id", "run_id", "source", "step",
    },
    "perdure_chunk": {"t", "digest", "generation"},
    "perdure_blob": {"t", "digest", "generation"},
    "perdure_pack": {"t", "block", "digest", "generation"},
    "perdure_write": {
        "t", "namespace", "checkpoint_id", "task_id", "idx", "channel", "task_path", "nonce", "version",
    },
    "perdure_tag": {"t", "name", "namespace", "checkpoint_id", "version"},
    "perdure_seal": {"t", "name", "version"},
    "perdure_item": {"t", "key", "created_at", "updated_at", "ttl", "expires_at", "version"},
    "perdure_lane": {
        "t", "name", "due_at", "last", "bound", "since", "ready_at", "run_id", "owner", "epoch",
        "lease_until", "retry_at", "waiting", "stop", "version",
    },
    "perdure_inbox": {"t", "seq", "graph", "channel", "mode", "dedupe", "accepted_at"},
    "perdure_dedupe": {"t", "digest", "seq"},
    "perdure_run": {
        "t", "run_id", "first", "last", "state", "graph", "channel", "epoch", "attempts", "base",
        "started_at", "updated_at", "version",
    },
    "perdure_outbox": {
        "t", "seq", "run_id", "ord", "channel", "state", "attempts", "provider_id", "created_at", "version",
    },
    "perdure_effect": {"t", "run_id", "task_id", "idx"},
    "perdure_document": {"t", "collection", "name", "updated_at", "version"},
    "perdure_event": {"t", "seq", "run_id"},
    "perdure_schema": {"version", "one"},
    "perdure_clock": {"one", "boot", "ahead"},
}  # fmt: skip


def test_the_clear_columns_are_these_and_no_others(file: File) -> None:
    with file.open(KEY):
        tables = [
            n
            for (n,) in file.sql(
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'perdure%'"
            )
        ]
        found = {t: {row[1] for row in file.sql(f"PRAGMA table_info({t})")} - {"body"} for t in tables}
    # The checksum is of what is stored, sealed bodies in their sealed form.
    assert {t: names - {"checksum"} for t, names in found.items()} == CLEAR


def fill(db: perdure.SyncDatabase) -> None:
    """The canary wherever a user's words can be, short and long."""
    saver = db.checkpointer()
    for size, text in (("short", CANARY), ("long", LONG)):
        messages = [
            HumanMessage(text, id="1"),
            AIMessage(
                "",
                id="2",
                tool_calls=[{"name": "t", "args": {"query": text}, "id": "c", "type": "tool_call"}],
            ),
            ToolMessage("r", tool_call_id="c", id="3", artifact={"deep": [text]}),
        ]
        values = {
            "messages": messages,
            "plain": text,
            "state": {text: text, "x": [text]},
            "bytes": text.encode(),
        }
        at = put(
            saver, values, config(f"{THREAD}-{size}"), name=size, custom=text, writes={"node": {text: 1}}
        )
        saver.put_writes(at, [("__interrupt__", [Interrupt(value=text, id="i")])], "task-a")
        saver.put_writes(at, [("__resume__", [text]), ("messages", messages), ("plain", text)], "task-b")
        saver.put_writes(at, [("__error__", f"ValueError({text})")], "task-c")
        queue(db, f"{THREAD}-{size}", text)


def queue(db: perdure.SyncDatabase, thread: str, text: str) -> None:
    """The same words as a message, in its options and its dedupe key, and in what a run, its side effects and
    its replies say."""
    at = Partition("", thread)
    message = Message(
        "id", {text: text}, "g", "chat", options={"config": {text: text}}, dedupe=dedupe_digest(text)
    )
    handle_of(db).run(
        Accept(at, message, 1, Debounce(), "enqueue", 10, handle_of(db).draw_version()).store(None)
    )
    held = handle_of(db).run(Claim(at, "w", {"g"}, 2, 10, 5, handle_of(db).draw_version()).take(None))
    assert isinstance(held, HeldRun)
    handle_of(db).run(effect_journal.note(at, held.run.id, "task:effect", 0, text.encode(), held.epoch))
    handle_of(db).run(
        finish(
            held, Ending("failed", {"error": text}, [{"content": text}]), 3, handle_of(db).draw_version(), 90
        )
    )


FORMS = [
    CANARY.encode(),
    CANARY.encode("utf-16-le"),
    CANARY.encode("utf-16-be"),
    CANARY.encode("utf-32-le"),
    CANARY.encode().hex().encode(),
    *(base64.b64encode(b"\0" * skip + CANARY.encode())[4:-4] for skip in range(3)),
]


def forms_in(data: bytes) -> list[bytes]:
    found = [form for form in FORMS if form in data]
    for at in range(len(data) - 2):
        if data[at : at + 2] in (b"\x78\x9c", b"\x78\x01", b"\x78\xda", b"\x1f\x8b"):
            with contextlib.suppress(zlib.error):
                found += [
                    form for form in FORMS if form in zlib.decompressobj(47).decompress(data[at:], 1 << 16)
                ]
    return found


@pytest.mark.parametrize("closed", [False, True], ids=["while open", "after closing"])
def test_what_a_user_typed_is_in_no_file(file: File, closed: bool) -> None:
    with file.open(KEY) as db:
        fill(db)
        open_content = file.content()
        db.checkpointer().prune([f"{THREAD}-short"])
        db.checkpointer().delete_thread(f"{THREAD}-long")
        pruned = file.content()
    assert forms_in(file.content() if closed else open_content + pruned) == []
    assert KEY not in open_content
    assert KEY not in file.content()


def test_the_search_for_the_canary_finds_it_without_a_key(file: File) -> None:
    with file.open() as db:
        fill(db)
        assert CANARY.encode() in forms_in(file.content())
    assert forms_in(zlib.compress(CANARY.encode() * 9)) == [CANARY.encode()]


# Rows that were changed.


@pytest.fixture
def two(file: File) -> File:
    """Two threads of equal content, and one of another tenant, all sealed."""
    for tenant in ("", "other"):
        with file.open(KEY, tenant=tenant) as db:
            for thread in (THREAD, "second"):
                saver = db.checkpointer()
                at = put(
                    saver,
                    {"messages": [HumanMessage(LONG, id="1")], "text": CANARY},
                    config(thread),
                    run_id="r",
                )
                put(
                    saver,
                    {"messages": [HumanMessage(LONG, id="1")], "text": CANARY},
                    at,
                    name="c2",
                    run_id="r",
                )
                last = config(thread, checkpoint_id="c2")
                saver.put_writes(last, [("text", "one"), ("plain", LONG)], "task")
                saver.put_writes(last, [("text", "two")], "task2")
                saver.put_writes(last, [(ERROR, "three")], "task3")
    return file


def the(kind: str, more: str = "", thread: str = THREAD, tenant: str = "") -> str:
    where = f"t = (SELECT pk FROM perdure_thread WHERE thread = '{thread}' AND tenant = '{tenant}')"
    return f"FROM perdure_{kind} WHERE {where} {more}"


def refused(file: File, key: Any = KEY, kind: type[PerdureError] = Corrupt) -> str:
    # Checksums are against accidents: an attacker who changes a row makes its checksum right.
    with patch.object(checksums, "matches", return_value=True), file.open(key) as db:
        with pytest.raises(kind) as caught:
            load(db)
        assert THREAD in str(caught.value)
        text = "".join(traceback.format_exception(caught.value))
        assert CANARY not in text
        for secret in (KEY, NEW_KEY):
            assert secret.hex() not in text
            assert repr(secret)[2:-1] not in text
        return str(caught.value)


HEADS = {"checkpoint": "AND checkpoint_id = 'c2'", "chunk": "", "write": ""}


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize(
    "how", ["cut", "cut to nothing", "flip first", "flip middle", "flip last", "clear", "longer"]
)
def test_a_damaged_row_is_refused(two: File, kind: str, how: str) -> None:
    rows = (
        two.sql(f"SELECT rowid, body {the(kind, HEADS[kind])}")
        if kind != "write"
        else [(None, body) for (body,) in two.sql(f"SELECT body {the(kind)}")]
    )
    for rowid, body in rows:
        new = bytearray(body)
        if how == "cut":
            del new[-1:]
        elif how == "cut to nothing":
            new.clear()
        elif how == "clear":
            new = bytearray(refs.inline(refs.MSGPACK, b"\xa5plain"))
        elif how == "longer":
            new += b"\0"
        else:
            new[{"flip first": 0, "flip middle": len(new) // 2, "flip last": -1}[how]] ^= 1
        where = "body = ?" if rowid is None else "rowid = ?"
        two.sql(
            f"UPDATE perdure_{kind} SET body = ? WHERE {where}", bytes(new), body if rowid is None else rowid
        )
    refused(two, kind=DecryptionError)


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("checkpoint", the("checkpoint", "AND checkpoint_id = 'c2'", "second")),
        ("checkpoint", the("checkpoint", "AND checkpoint_id = 'c2'", THREAD, "other")),
        ("checkpoint", the("checkpoint", "AND checkpoint_id = 'c1'")),
        ("checkpoint", the("chunk", "LIMIT 1")),
        ("checkpoint", the("write", "LIMIT 1")),
        ("chunk", the("chunk", "LIMIT 1", "second")),
        ("chunk", the("checkpoint", "LIMIT 1")),
        ("write", the("write", "LIMIT 1", "second")),
        ("write", the("chunk", "LIMIT 1")),
        ("write", the("write", "AND idx = -1")),
        ("write", the("write", "AND task_id = 'task2'")),
    ],
)
def test_a_row_put_in_anothers_place_is_refused(two: File, kind: str, source: str) -> None:
    ((body,),) = two.sql(f"SELECT body {source}")
    condition = the(kind, "AND idx = 0 AND task_id = 'task'" if kind == "write" else HEADS[kind]).split(
        "WHERE", 1
    )[1]
    two.sql(f"UPDATE perdure_{kind} SET body = ? WHERE {condition}", body)
    refused(two, kind=DecryptionError)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("checkpoint", "parent_id = NULL"),
        ("checkpoint", "parent_id = 'c9'"),
        ("checkpoint", "run_id = 'another'"),
        ("checkpoint", "source = 'fork'"),
        ("checkpoint", "step = 7"),
        ("checkpoint", "seq = 77"),
        ("write", "channel = '__resume__'"),
        ("write", "task_path = 'x'"),
        ("write", "nonce = 'x'"),
        ("write", "task_id = 'other'"),
    ],
)
def test_a_changed_clear_column_is_refused(two: File, kind: str, change: str) -> None:
    where = the(kind, HEADS[kind] or "AND idx = 0 AND task_id = 'task'").split("WHERE", 1)[1]
    two.sql(f"UPDATE perdure_{kind} SET {change} WHERE {where}")
    refused(two, kind=DecryptionError)


def test_a_row_that_is_gone_is_corrupt(two: File) -> None:
    two.sql(f"DELETE {the('chunk')}")
    refused(two)


# Keys.


@pytest.mark.parametrize(
    ("key", "reason"), [(NEW_KEY, "needs the key"), (None, "encryption_key")], ids=["wrong", "missing"]
)
def test_an_encrypted_database_does_not_open_without_its_key(two: File, key: Any, reason: str) -> None:
    """It does not even open: a put without a read would store a row in the clear beside sealed ones."""
    before = two.content()
    with pytest.raises(DecryptionError, match=reason) as caught, two.open(key):
        pass
    assert repr(KEY) not in str(caught.value)
    assert two.content() == before


def test_a_database_in_the_clear_does_not_open_with_a_key(file: File) -> None:
    with file.open() as db:
        put(db.checkpointer(), {"text": CANARY})
    with pytest.raises(DecryptionError, match="in the clear"), file.open(KEY):
        pass
    with file.open() as db:
        assert load(db).checkpoint["channel_values"]["text"] == CANARY


def test_an_empty_database_takes_the_first_key(file: File) -> None:
    with file.open():
        pass
    with file.open(KEY) as db:
        assert list(db.threads()) == []
    with pytest.raises(DecryptionError), file.open():
        pass


@pytest.mark.packs_late
def test_keys_rotate(two: File) -> None:
    def names() -> set[bytes]:
        return {digest for (digest,) in two.sql(f"SELECT digest {the('chunk')}")}

    before = names()
    with two.open([NEW_KEY, KEY]) as db:
        assert load(db).checkpoint["channel_values"]["text"] == CANARY
        admin.rotate_keys(db, data_key=True)
        saver = db.checkpointer()
        found = saver.get_tuple(config())
        assert found is not None
        messages = [HumanMessage(LONG, id="1"), HumanMessage("new", id="2")]
        put(saver, {"messages": messages}, found.config, name="c3")
        put(db.checkpointer(), {"text": "born under the new key" * 9}, config("young"))
    # What was there keeps its name, and is stored once.
    assert before <= names()
    with two.open(NEW_KEY) as db:
        assert [m.content for m in load(db).checkpoint["channel_values"]["messages"]] == [LONG, "new"]
        assert load(db, "young").checkpoint["channel_values"]["text"].startswith("born")
        assert load(db, "second").checkpoint["channel_values"]["text"] == CANARY
    with pytest.raises(KeyMissing, match="needs the key"), two.open(KEY):
        pass


def test_a_second_key_opens_for_reading_and_replaces_nothing(two: File) -> None:
    with contextlib.closing(open_for_reading(two.url, encryption_key=[NEW_KEY, KEY])) as db:
        assert load(db).checkpoint["channel_values"]["text"] == CANARY
        with pytest.raises(NotAllowed):
            admin.rotate_keys(db)
    with two.open(KEY) as db:
        """The old key alone opens it still."""
        assert load(db).checkpoint["channel_values"]["text"] == CANARY


@pytest.mark.parametrize("bad", [b"", b"short", bytes(31), [], [KEY, b"x"]], ids=range(5))
def test_a_key_of_the_wrong_size_is_refused(file: File, bad: Any) -> None:
    with pytest.raises(ValueError, match="32 random bytes") as caught, file.open(bad):
        pass
    assert repr(KEY) not in str(caught.value)


def test_without_the_extra_the_error_has_the_install_command(
    file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n.split(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(MissingExtra, match=r"pip install .*perdure\[encryption\]"), file.open(KEY):
        pass
    with file.open() as db:
        put(db.checkpointer(), {"text": "no key, no extra"})


def test_equal_words_have_other_names_in_another_database(tmp_path: Path) -> None:
    names = []
    for place, key in enumerate([None, KEY, NEW_KEY, KEY]):
        file = File(tmp_path / f"{place}.db")
        with file.open(key) as db:
            put(db.checkpointer(), {"text": LONG})
        names.append({digest for (digest,) in file.sql("SELECT digest FROM perdure_chunk")})
    assert all(names)
    assert len(set.union(*names)) == sum(map(len, names))


# Errors and logs.


def test_neither_errors_nor_logs_repeat_what_was_typed(
    file: File, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    caplog.set_level(logging.DEBUG)
    told: list[str] = []
    with file.open(KEY) as db:
        fill(db)
        saver = db.checkpointer()
        for value in (
            {CANARY: object()},
            [CANARY, 1j],
            {CANARY: "\ud800", "\ud800": CANARY},
            {CANARY: 2**70},
        ):
            with pytest.raises(Unserialisable) as caught:
                put(saver, {"text": value}, config(f"{THREAD}-short", checkpoint_id="short"), name="c9")
            told.append(str(caught.value))
        file.sql("UPDATE perdure_chunk SET body = substr(body, 1, 40)")
        with pytest.raises(Corrupt) as spoiled:
            db.checkpointer().get_tuple(config(f"{THREAD}-long"))
        told.append("".join(traceback.format_exception(spoiled.value)))
        stale = config(ThreadId.of(f"{THREAD}-short", epoch=3), checkpoint_id="elsewhere")
        with pytest.raises(PerdureError) as conflict:
            put(saver, {"text": CANARY}, stale, name="c8")
        told.append(str(conflict.value))
    told += [r.getMessage() for r in caplog.records] + [str(w.message) for w in recwarn]
    assert [text for text in told if CANARY in text] == []
