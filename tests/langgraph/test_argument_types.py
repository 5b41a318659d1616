"""Arguments of another type are refused before anything is asked, with the same error on every backend.

Covers perdure.langgraph.store_arguments, perdure.langgraph.listing, perdure.model.arguments.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from math import inf, nan
from typing import Any, cast

import numpy as np
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.store.base import BaseStore, ListNamespacesOp

from perdure.storage.memory import MemoryDriver
from perdure.testing.conformance import Backend
from tests.backends import BACKENDS, fresh

HOME = ("items",)
WRONG_NUMBERS: tuple[Any, ...] = (1.5, 2.0, nan, inf, True, "2", [])
CONFIG: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
AT: Any = {"configurable": {**CONFIG["configurable"], "checkpoint_id": "c"}}


def search(store: BaseStore, **how: Any) -> list[str]:
    return [item.key for item in store.search(HOME, **how)]


@pytest.mark.parametrize("on", BACKENDS)
def test_a_store_takes_whole_numbers_only_and_any_of_them(on: str) -> None:
    with fresh(on) as driver:
        store = Backend(driver).store()
        store.put(HOME, "k", {"a": 1})
        for wrong in (*WRONG_NUMBERS, None):
            for name in ("limit", "offset"):
                with pytest.raises(TypeError, match=f"{name} is a whole number, not"):
                    store.search(HOME, **{name: wrong})
                with pytest.raises(TypeError, match=f"{name} is a whole number, not"):
                    store.list_namespaces(**{name: wrong})
            if wrong is not None:
                with pytest.raises(TypeError, match="max_depth is a whole number, not"):
                    store.list_namespaces(max_depth=wrong)
        for large in (1 << 53, 1 << 63, 10**30):
            assert search(store, limit=large) == ["k"]
            assert search(store, limit=large, filter={"a": {"$gt": 0}}) == ["k"]
            assert search(store, offset=large) == []
            assert search(store, offset=large, limit=large, filter={"a": 1}) == []
            assert store.list_namespaces(limit=large, max_depth=large) == [HOME]
            assert store.list_namespaces(offset=large) == []
        assert search(store, limit=np.int64(1), offset=np.int64(0)) == ["k"]


@pytest.mark.parametrize("on", BACKENDS)
def test_a_listing_of_checkpoints_takes_whole_numbers_only(on: str) -> None:
    with fresh(on) as driver:
        saver = Backend(driver).saver()
        saved = saver.put(CONFIG, empty_checkpoint(), {"source": "loop", "step": 0}, {})
        configs: list[Any] = [CONFIG, {"configurable": {"thread_id": "t"}}, saved]
        for config in configs:
            for wrong in WRONG_NUMBERS:
                with pytest.raises(TypeError, match="limit is a whole number, not"):
                    list(saver.list(config, limit=wrong))
            for limit, number in ((None, 1), (1 << 70, 1), (1, 1), (0, 0), (-1, 0)):
                assert len(list(saver.list(config, limit=limit))) == number


NO_LIST: tuple[Any, ...] = (None, 3, "ab", b"ab", [None], ["ab", None], ["ab", ["ab"]], [True])
NO_ID: tuple[Any, ...] = (None, True, ["ab"], b"ab", {"ab": 1}, 1.5)


@pytest.mark.parametrize("is_async", [False, True])
def test_maintenance_of_threads_names_an_argument_of_another_type_and_changes_nothing(is_async: bool) -> None:
    backend = Backend(MemoryDriver())
    saver: Any = backend.saver()
    for thread in ("ab", "a", "b", "3"):
        here: Any = {"configurable": {**CONFIG["configurable"], "thread_id": thread}}
        saver.put(here, empty_checkpoint(), {"source": "loop", "step": 0, "run_id": thread}, {})

    def call(name: str, *given: Any, **named: Any) -> None:
        if is_async:
            asyncio.run(getattr(saver, f"a{name}")(*given, **named))
        else:
            getattr(saver, name)(*given, **named)

    def read() -> list[str]:
        every = backend.saver(may_list_all_threads=True).list(None)
        return sorted(one.config["configurable"]["thread_id"] for one in every)

    before = read()
    for wrong in NO_LIST:
        with pytest.raises(TypeError, match=r"thread_ids takes .*; (for one \w+ write|pass)"):
            call("prune", wrong, strategy="delete")
        with pytest.raises(TypeError, match=r"run_ids takes .*; (for one \w+ write|pass)"):
            call("delete_for_runs", wrong)
    for wrong in NO_ID:
        with pytest.raises(TypeError, match=r"thread_id takes one id, .*; pass"):
            call("delete_thread", wrong)
        with pytest.raises(TypeError, match=r"source_thread_id takes one id, .*; pass"):
            call("copy_thread", wrong, "new")
        with pytest.raises(TypeError, match=r"target_thread_id takes one id, .*; pass"):
            call("copy_thread", "ab", wrong)
    assert read() == before
    call("prune", (uuid.UUID(int=1), 3), strategy="delete")
    call("delete_thread", 3)
    assert read() == ["a", "ab", "b"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.search(HOME, query=["a"]), "query is text, not list"),
        (lambda s: s.put(HOME, "k", {"a": 2}, ttl="5"), "a ttl is a number of minutes, not '5'"),
        (lambda s: s.batch([ListNamespacesOp(cast(Any, ("a",)))]), "of the type MatchCondition, not 'a'"),
    ],
    ids=["query", "ttl", "match_conditions"],
)
def test_a_store_names_the_argument_of_another_type(call: Callable[[Any], Any], message: str) -> None:
    store = Backend(MemoryDriver()).store()
    store.put(HOME, "k", {"a": 1})
    with pytest.raises(TypeError, match=message):
        call(store)
    with pytest.raises(ValueError, match="number of minutes above 0, not True"):
        store.put(HOME, "k", {"a": 2}, ttl=True)
    assert [item.value for item in store.search(HOME)] == [{"a": 1}]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.get_tuple("t"), "a config is a dict, not 't'"),
        (lambda s: s.get_tuple({"configurable": "t"}), "configurable of a config is a dict"),
        (
            lambda s: s.get_tuple({"configurable": {"thread_id": "t", "checkpoint_ns": 5}}),
            "checkpoint_ns of a config is text, not 5",
        ),
        (
            lambda s: s.get_tuple({"configurable": {"thread_id": "t", "checkpoint_id": ("c",)}}),
            "checkpoint_id of a config is text",
        ),
        (lambda s: list(s.list(CONFIG, filter="loop")), "filter of checkpoints is a dict of metadata"),
        (lambda s: list(s.list(CONFIG, before="c")), "a config is a dict, not 'c'"),
        (
            lambda s: list(s.list(CONFIG, before={"configurable": {"checkpoint_id": 5}})),
            "checkpoint_id of a config is text, not 5",
        ),
        (lambda s: s.put_writes(AT, [("a", 1)], None), "id and the path of a task and the channels"),
        (lambda s: s.put_writes(AT, [("a", 1)], 5), "id and the path of a task and the channels"),
        (lambda s: s.put_writes(AT, [(5, 1)], "task"), "id and the path of a task and the channels"),
        (
            lambda s: s.put(CONFIG, {**empty_checkpoint(), "id": 5}, {"step": 0}, {}),
            "the id of a checkpoint is text, not 5",
        ),
    ],
)
def test_a_saver_names_the_argument_of_another_type(call: Callable[[Any], Any], message: str) -> None:
    saver = Backend(MemoryDriver()).saver()
    with pytest.raises(TypeError, match=message):
        call(saver)
    assert list(saver.list({"configurable": {"thread_id": "t"}})) == []
