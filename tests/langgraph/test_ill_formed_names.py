"""A name with half of a character, of too many bytes, or without any, is refused in the same way on every
backend, whatever it names and whoever passes it, and nothing is stored.

Covers perdure.model.well_formed.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint

import perdure
from perdure import admin
from perdure.errors import OverMaximum, Unserialisable
from perdure.history import NewTurn
from perdure.model.well_formed import NAME_MAX
from perdure.runtime import Runtime
from tests import backends
from tests.runtime.graphs import Talk, go

BAD = "a\ud800b"
ROW = {"role": "user", "content": "x"}


def at(**given: Any) -> Any:
    return {"configurable": {"thread_id": "t", "checkpoint_ns": "", **given}}


def made(**given: Any) -> Any:
    return {**empty_checkpoint(), **given}


def acts(db: perdure.SyncDatabase) -> Iterator[tuple[str, Callable[[], object]]]:
    saver, store, histories = db.checkpointer(), db.store(), db.history()

    def listed(config: Any) -> object:
        return list(saver.list(config))

    there = saver.put(at(), made(channel_values={"x": 1}, channel_versions={"x": 1}), {}, {"x": 1})
    checkpoint_id = there["configurable"]["checkpoint_id"]
    own: dict[str, tuple[Any, Any, Any]] = {
        "thread": (at(thread_id=BAD), made(), {}),
        "namespace": (at(checkpoint_ns=BAD), made(), {}),
        "checkpoint": (at(), made(id=BAD), {}),
        "parent": (at(checkpoint_id=BAD), made(), {}),
        "channel": (at(), made(channel_values={BAD: 1}, channel_versions={BAD: 1}), {}),
        "channel without a version": (at(), made(channel_values={BAD: 1}), {}),
        "channel without a value": (at(), made(channel_versions={BAD: 1}), {}),
        "version": (at(), made(channel_versions={"x": BAD}), {}),
        "node": (at(), made(versions_seen={BAD: {"x": 1}}), {}),
        "channel seen": (at(), made(versions_seen={"n": {BAD: 1}}), {}),
        "version seen": (at(), made(versions_seen={"n": {"x": BAD}}), {}),
        "channel updated": (at(), made(updated_channels=[BAD]), {}),
        "time": (at(), made(ts=BAD), {}),
        "run": (at(), made(), {"run_id": BAD}),
        "source": (at(), made(), {"source": BAD}),
        "root": (at(checkpoint_ns="n"), made(), {"parents": {"": BAD}}),
    }
    for name, (config, checkpoint, metadata) in own.items():
        new = dict(checkpoint["channel_versions"])
        yield f"put: {name}", partial(saver.put, config, checkpoint, metadata, new)
    for name, config, channel, task, path in (
        ("thread", at(thread_id=BAD, checkpoint_id=checkpoint_id), "x", "t", ""),
        ("namespace", at(checkpoint_ns=BAD, checkpoint_id=checkpoint_id), "x", "t", ""),
        ("checkpoint", at(checkpoint_id=BAD), "x", "t", ""),
        ("channel", there, BAD, "t", ""),
        ("task", there, "x", BAD, ""),
        ("path", there, "x", "t", BAD),
    ):
        yield (
            f"write: {name}",
            partial(saver.put_writes, config, [(channel, 1)], task, path),
        )
    for name in ("thread_id", "checkpoint_ns", "checkpoint_id"):
        yield f"get: {name}", partial(saver.get_tuple, at(**{name: BAD}))
        yield f"list: {name}", partial(listed, at(**{name: BAD}))
    yield "list: before", lambda: list(saver.list(at(), before=at(checkpoint_id=BAD)))
    yield "delete", lambda: saver.delete_thread(BAD)
    yield "delete a run", lambda: saver.delete_for_runs([BAD])
    yield "prune", lambda: saver.prune([BAD])
    yield "copy from", lambda: saver.copy_thread(BAD, "z")
    yield "copy to", lambda: saver.copy_thread("t", BAD)
    yield "tenant", lambda: db.checkpointer(tenant=BAD).get_tuple(at())
    yield "tenant of a put", lambda: db.checkpointer(tenant=BAD).put(at(), made(), {}, {})
    yield "tenant of a store", lambda: db.store(tenant=BAD).put(("a",), "k", {})
    yield "tenant of a history", lambda: db.history(tenant=BAD).load("s")
    yield "tenant of a check", lambda: admin.partitions(db, BAD)
    yield "key", lambda: store.put(("a",), BAD, {})
    yield "key to get", lambda: store.get(("a",), BAD)
    yield "key to delete", lambda: store.delete(("a",), BAD)
    yield "session", lambda: histories.load(BAD)
    yield "session of a turn", lambda: histories.update(BAD, lambda _: NewTurn([ROW]))
    yield "session to delete", lambda: histories.delete(BAD)
    yield "tag: thread", lambda: db.tag(BAD, "n")
    yield "tag: name", lambda: db.tag("t", BAD)
    yield "tag: checkpoint", lambda: db.tag("t", "n", checkpoint_id=BAD)
    yield "untag", lambda: db.untag("t", BAD)
    yield "tags", lambda: db.tags(BAD)
    yield "fork: checkpoint", lambda: db.fork("t", BAD)
    yield "fork: thread", lambda: db.fork(BAD, checkpoint_id)
    yield "timeline", lambda: db.timeline("t", namespace=BAD)
    for name in ("fsck", "repair", "export", "show", "timeline", "measure", "digest"):
        yield name, partial(getattr(db, name), BAD)


def contents(db: perdure.SyncDatabase) -> Any:
    return {p: admin.digest_of(db, p).hex for p in admin.partitions(db, None)}


@pytest.mark.parametrize("backend", backends.BACKENDS)
def test_it_is_refused_by_name_and_changes_nothing(backend: str) -> None:
    with backends.EMPTY[backend]() as url, perdure.connect_sync(url, migrate=True) as db:
        taken, refusals, before = list[str](), dict[str, str](), None
        for name, act in acts(db):
            before = before or contents(db)
            try:
                act()
            except Unserialisable as error:
                refusals[name] = str(error)
            else:
                taken.append(name)
        assert taken == []
        assert [name for name, told in refusals.items() if "lone surrogate" not in told] == []
        assert contents(db) == before


@pytest.mark.parametrize("backend", backends.BACKENDS)
def test_a_runtime_refuses_it(backend: str) -> None:
    async def main() -> None:
        with backends.EMPTY[backend]() as url, perdure.connect_sync(url, migrate=True) as db:
            async with Runtime(db, Talk().graph, works=False, observers=[]) as runtime:
                for act in (
                    lambda: runtime.accept(BAD, "x"),
                    lambda: runtime.submit(BAD, {"messages": []}),
                    lambda: runtime.run_until_idle(BAD),
                ):
                    with pytest.raises(Unserialisable, match="lone surrogate"):
                        await act()
            assert contents(db) == {}

    go(main())


@pytest.mark.parametrize("backend", backends.BACKENDS)
def test_all_backends_take_names_up_to_the_same_length(backend: str) -> None:
    # Random text, as a database may compress what repeats.
    longest = secrets.token_hex(NAME_MAX)
    with backends.EMPTY[backend]() as url, perdure.connect_sync(url, migrate=True) as db:
        saver, store = db.checkpointer(), db.store()
        for size, is_taken in ((NAME_MAX, True), (NAME_MAX + 1, False)):
            name = longest[:size]
            puts: tuple[Callable[[], object], ...] = (
                partial(saver.put, at(thread_id=name), made(), {}, {}),
                partial(store.put, ("a",), name, {"b": 1}),
                # The end of a label takes a byte.
                partial(store.put, (name[1:],), "k", {"b": 1}),
                partial(db.history().update, name, lambda _: NewTurn([ROW])),
            )
            for put in puts:
                if is_taken:
                    put()
                    continue
                with pytest.raises(OverMaximum, match=f"at most {NAME_MAX} are taken"):
                    put()
        assert store.get(("a",), longest[:NAME_MAX]) is not None
        assert {t.thread_id for t in db.threads()} == {longest[:NAME_MAX]}


@pytest.mark.parametrize("backend", backends.BACKENDS)
def test_empty_ids_of_threads_are_refused_everywhere(backend: str) -> None:
    with backends.EMPTY[backend]() as url, perdure.connect_sync(url, migrate=True) as db:
        saver = db.checkpointer()
        saver.put(at(), made(), {}, {})
        before = contents(db)
        for act in (
            lambda: saver.copy_thread("t", ""),
            lambda: saver.copy_thread("", "t2"),
            lambda: saver.delete_thread(""),
            lambda: saver.prune([""]),
            lambda: db.tag("t", ""),
        ):
            with pytest.raises(ValueError, match="empty"):
                act()
        assert contents(db) == before


@pytest.mark.parametrize("backend", backends.BACKENDS)
def test_runs_are_removed_by_their_uuids(backend: str) -> None:
    run_id = uuid.uuid4()
    with backends.EMPTY[backend]() as url, perdure.connect_sync(url, migrate=True) as db:
        saver = db.checkpointer()
        saver.put(at(), made(), {"run_id": str(run_id)}, {})
        for wrong in (5, None, b"x"):
            with pytest.raises(TypeError, match=r"run_ids takes (texts or UUIDs|ids, none of)"):
                saver.delete_for_runs([run_id, wrong])  # type: ignore[list-item]
        with pytest.raises(TypeError, match="run_ids takes a sequence of ids, not NoneType"):
            saver.delete_for_runs(None)  # type: ignore[arg-type]
        assert saver.get_tuple(at()) is not None
        saver.delete_for_runs([run_id])
        assert saver.get_tuple(at()) is None
