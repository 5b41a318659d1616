"""What a stored row may do, and what odd characters do to what is stored."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import Any

import ormsgpack
import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import Checkpoint, empty_checkpoint

import perdure
from perdure.database.base import handle_of
from perdure.errors import Unreadable, Unserialisable
from perdure.model.checkpoint import CheckpointRecord
from perdure.model.ops import Commit, Fetch, Put, Range
from perdure.model.records import CHECKPOINT, CHUNK, WRITE, Partition
from perdure.model.values import refs
from perdure.model.values.chunks import Digester
from tests.langgraph.files import THREAD, File, config, put
from tests.langgraph.savers import DRIVERS, opened
from tests.pairwise import pairwise


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path / "threads.db")


def load(db: perdure.SyncDatabase, thread: str = THREAD) -> Any:
    return db.checkpointer().get_tuple(config(thread))


# A row that names code.


def call(module: str, name: str, argument: Any, code: int = 0, *more: str) -> bytes:
    return ormsgpack.packb(ormsgpack.Ext(code, ormsgpack.packb((module, name, argument, *more))))


@pytest.fixture
def trap(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was executed or imported; the names below are all watched."""
    import os
    import subprocess

    import perdure.storage.sqlite.driver  # noqa: F401 - what it imports is made with eval

    ran: list[Any] = []
    for owner, name in ((os, "system"), (subprocess, "Popen"), (builtins, "eval")):
        monkeypatch.setattr(owner, name, lambda *a, **k: ran.append(a))
    return ran


EVIL = {
    "one argument": call("os", "system", "touch pwned"),
    "positional": call("subprocess", "Popen", (["touch", "pwned"],), 1),
    "by keyword": call("subprocess", "Popen", {"args": ["touch", "pwned"]}, 2),
    "a method": call("os", "path", "x", 3, "join"),
    "a method of an allowed type": call("datetime", "datetime", 0, 3, "fromtimestamp"),
    "pydantic 1": call("builtins", "eval", {"source": "1"}, 4),
    "pydantic 2": call("builtins", "eval", {"source": "1"}, 5, "model_validate_json"),
    "nested in an allowed type": call(
        "builtins", "set", ormsgpack.Ext(0, ormsgpack.packb(("os", "system", "x")))
    ),
    "in a list": b"\x91" + call("os", "system", "touch pwned"),
    "in a snapshot": ormsgpack.packb(ormsgpack.Ext(7, call("os", "system", "touch pwned"))),
    "a module that is not imported": call("antigravity", "fly", "x"),
}


@pairwise(
    allow=["imported", "listed"],
    kind=EVIL,
    place=["chunk", "inline", "element", "write", "metadata", "extra"],
)
def test_a_stored_row_that_names_code_is_refused_and_nothing_runs(
    file: File, trap: list[Any], kind: str, place: str, allow: Any
) -> None:
    body = EVIL[kind]
    with file.open() as db:
        at = put(db.checkpointer(), {"messages": [HumanMessage("x", id="1")], "text": "y"})
        db.checkpointer().put_writes(at, [("messages", "z")], "task")
        thread, driver = Partition(db.tenant, THREAD), handle_of(db).driver
        (checkpoint,), (write,) = driver.perform(Fetch(thread, (Range(CHECKPOINT), Range(WRITE))))
        record = CheckpointRecord.read(checkpoint)
        digest = Digester()(body)
        driver.perform(Commit(thread, (Put(CHUNK, (digest,), {"generation": 0}, body),)))
        if place == "write":
            held = refs.chunk(refs.MSGPACK, digest)
            driver.perform(
                Commit(thread, (Put(WRITE, write.key, write.fields, held, version=write.version),))
            )
        else:
            changes: dict[str, dict[str, Any]] = {
                "chunk": {"refs": {"text": refs.chunk(refs.MSGPACK, digest)}},
                "inline": {"refs": {"text": refs.inline(refs.MSGPACK, body)}},
                "element": {
                    "refs": {
                        "messages": refs.tree(refs.LIST, 1, b"", refs.entry(refs.chunk(refs.MSGPACK, digest)))
                    }
                },
                "metadata": {"metadata": b"\x81\xa4evil" + body},
                "extra": {"extra": b"\x81\xa4evil" + body},
            }
            driver.perform(Commit(thread, (record._replace(**changes[place]).put(),)))
        saver = db.checkpointer(allow=allow)
        for read in (lambda: saver.get_tuple(config()), lambda: list(saver.list(config()))):
            with pytest.raises(Unreadable) as caught:
                read()
            assert THREAD in str(caught.value)
            named = ("os", "subprocess", "builtins", "datetime", "antigravity")
            assert any(name in str(caught.value) for name in named)
    assert trap == []
    assert "antigravity" not in sys.modules


# NUL and lone surrogates.


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("odd", ["a\0b", "a\ud800b", "\udfff", "\0"])
def test_odd_characters_survive_in_what_is_said(driver: str, tmp_path: Path, odd: str) -> None:
    values: dict[str, Any] = {
        "messages": [
            HumanMessage(odd, id="1", additional_kwargs={"k": [odd]}),
            HumanMessage(odd * 400, id="2"),
        ],
        "plain": odd,
        "long": odd * 2000,
        "state": {"k": odd, "deep": [{"er": odd}]},
    }
    with opened(driver, tmp_path) as db:
        saver = db.checkpointer()
        at = put(saver, values, custom=odd, nested={"a": [odd]})
        saver.put_writes(at, [("plain", odd), ("messages", values["messages"])], "task")
        for reader in (saver, db.checkpointer()):
            found = reader.get_tuple(config())
            assert found is not None
            assert found.checkpoint["channel_values"] == values
            assert found.metadata["custom"] == odd  # type: ignore[typeddict-item]
            assert found.metadata["nested"] == {"a": [odd]}  # type: ignore[typeddict-item]
            assert [v for _, _, v in found.pending_writes or []] == [odd, values["messages"]]


NAMES = ["thread", "namespace", "checkpoint", "channel", "node", "run", "source", "task", "written channel"]


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("odd", ["a\0b", "a\ud800b"])
@pytest.mark.parametrize("name", NAMES)
def test_odd_names_are_kept_apart_or_refused(driver: str, tmp_path: Path, name: str, odd: str) -> None:
    def use(text: str, ident: str) -> str:
        return text if name == ident else ident

    def write(saver: perdure.PerdureSaver, text: str) -> Any:
        channel = use(text, "channel")
        checkpoint: Checkpoint = {
            **empty_checkpoint(),
            "id": use(text, "checkpoint"),
            "channel_values": {channel: text},
            "channel_versions": {channel: 1},
            "versions_seen": {use(text, "node"): {channel: 1}},
        }
        meta: Any = {"source": use(text, "source"), "step": 1, "run_id": use(text, "run")}
        thread = "thread" if text == "a" or name == "namespace" else "another"
        at = config(text if name == "thread" else thread, checkpoint_ns=use(text, "namespace"))
        stored = saver.put(at, checkpoint, meta, {channel: 1})
        saver.put_writes(stored, [(use(text, "written channel"), text)], use(text, "task"))
        return saver.get_tuple(at)

    with opened(driver, tmp_path) as db:
        saver = db.checkpointer()
        plain = write(saver, "a")
        try:
            found = write(saver, odd)
        except Unserialisable as error:
            assert ("\ud800" in odd, "surrogate" in str(error)) == (True, True)  # noqa: PT017
        else:
            channels = found.checkpoint["channel_values"]
            assert channels == {use(odd, "channel"): odd}
            assert found.pending_writes[-1] == (use(odd, "task"), use(odd, "written channel"), odd)
            assert name != "thread" or found.config["configurable"]["thread_id"] == odd
        if name in ("thread", "namespace"):
            again = db.checkpointer().get_tuple(plain.config)
            assert again is not None
            assert again.checkpoint["channel_values"] == {"channel": "a"}
