"""Contract of lineage: history by ancestry, references, writes, and isolation of threads."""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.serde.types import ERROR

from perdure.errors import HeadConflict
from perdure.testing.conformance.backend import (
    THREAD,
    Backend,
    at,
    configurable,
    expect_refusal,
    list_ids,
    load,
    long,
    on,
    put,
)
from perdure.testing.conformance.heads import build_asking_graph


class Lineage:
    """Contract of ancestry and references."""

    def test_the_history_of_a_subgraph_follows_ancestry(self, backend: Backend) -> None:
        """A background writer may store a subgraph's checkpoint before the root's checkpoint from which it
        began."""
        saver = backend.saver()
        inner = at(namespace="inner")
        put(saver, at(), "r1")
        step = put(saver, inner, "s1", root="r1")
        step = put(saver, step, "s2", root="r2")
        put(saver, at("r1"), "r2")
        step = put(saver, step, "s3", root="r3")
        put(saver, at("r2"), "r3")
        fresh = backend.saver()
        assert list_ids(fresh, "inner", before=at("r1")) == []
        assert list_ids(fresh, "inner", before=at("r2")) == ["s1"]
        assert list_ids(fresh, "inner", before=at("r3")) == ["s2", "s1"]
        assert list_ids(fresh, "inner", before=at("r3"), limit=1) == ["s2"]

    def test_a_subgraph_s_past_on_one_branch_leaves_out_the_other(self, backend: Backend) -> None:
        saver = backend.saver()
        put(saver, at(), "r1")
        put(saver, at("r1"), "left")
        put(saver, at(namespace="inner"), "s-left", root="left")
        put(saver, at("r1"), "right", source="fork")
        put(saver, at(namespace="inner"), "s-right", root="right")
        put(saver, at("left"), "left2", source="fork")
        put(saver, at("right"), "right2", source="fork")
        fresh = backend.saver()
        assert list_ids(fresh, "inner", before=at("left2")) == ["s-left"]
        assert list_ids(fresh, "inner", before=at("right2")) == ["s-right"]
        assert list_ids(fresh, "inner", before=at("right")) == []

    def test_before_cuts_its_own_namespace_where_it_stands(self, backend: Backend) -> None:
        saver = backend.saver()
        step = at()
        for name in ("c", "a", "d", "b"):
            step = put(saver, step, name)
        assert list_ids(saver, before=at("b")) == ["d", "a", "c"]
        assert list_ids(saver, before=at("a")) == ["c"]
        assert list_ids(saver, before=at("c")) == []
        assert list_ids(saver, before=at("d"), limit=1) == ["a"]

    def test_a_copy_beside_its_original_keeps_its_own_values(self, backend: Backend) -> None:
        """As ``update_state(None, as_node="__copy__")`` puts: on the grandparent, with no new versions."""
        saver = backend.saver()
        put(saver, at(), "c1", {"x": "one " * 50, "y": "same " * 50})
        put(saver, load(saver).config, "c2", {"x": "two " * 50, "y": "same " * 50}, new=["x"])
        original = load(saver)
        assert original.parent_config is not None
        beside = {**configurable(original.config), "checkpoint_id": "c1"}
        values = original.checkpoint["channel_values"]
        put(saver, {"configurable": beside}, "copy", values, new=[], source="fork")
        for reader in (saver, backend.saver()):
            found = load(reader)
            assert found.checkpoint["id"] == "copy"
            assert found.checkpoint["channel_values"] == {"x": "two " * 50, "y": "same " * 50}
            assert found.parent_config is not None
            assert configurable(found.parent_config)["checkpoint_id"] == "c1"

    def test_a_graph_s_copied_checkpoint_has_the_original_s_values(self, backend: Backend) -> None:
        graph = build_asking_graph(backend.saver())
        config = {"configurable": {"thread_id": THREAD}}
        graph.invoke({"notes": ["hello " * 30]}, config)
        before = graph.get_state(config)
        graph.update_state(before.config, None, as_node="__copy__")
        after = build_asking_graph(backend.saver()).get_state(config)
        assert after.values == before.values
        assert after.config["configurable"]["checkpoint_id"] != before.config["configurable"]["checkpoint_id"]

    def test_equal_versions_on_two_branches_are_not_equal_values(self, backend: Backend) -> None:
        saver = backend.saver()
        put(saver, at(), "c1", {"x": "root " * 50})
        put(saver, at("c1"), "left", {"x": "left " * 50}, version=2)
        put(saver, load(saver, at("c1")).config, "right", {"x": "right " * 50}, version=2)
        fresh = backend.saver()
        assert load(fresh, at("left")).checkpoint["channel_values"] == {"x": "left " * 50}
        assert load(fresh, at("right")).checkpoint["channel_values"] == {"x": "right " * 50}

    def test_what_is_done_to_a_loaded_value_stays_with_the_caller(self, backend: Backend) -> None:
        saver = backend.saver()
        put(saver, at(), "c1", {"x": [{"text": "kept " * 30, "tags": ["a"]}]})
        for _ in range(2):
            values: Any = load(saver).checkpoint["channel_values"]
            values["x"][0]["tags"].append("mine")
            values["x"].append({"text": "mine"})
        for reader in (saver, backend.saver()):
            assert load(reader).checkpoint["channel_values"] == {"x": [{"text": "kept " * 30, "tags": ["a"]}]}

    def test_writes_need_no_checkpoint(self, backend: Backend) -> None:
        saver = backend.saver()
        saver.put_writes(at("c1"), [("x", "early " * 30), ("y", 2)], "task")
        assert backend.saver().get_tuple(at()) is None
        put(saver, at(), "c1")
        for reader in (saver, backend.saver()):
            assert load(reader).pending_writes == [("task", "x", "early " * 30), ("task", "y", 2)]

    def test_a_slot_is_written_once_and_a_reserved_one_is_overwritten(self, backend: Backend) -> None:
        saver = backend.saver()
        put(saver, at(), "c1")
        for n in (1, 2):
            saver.put_writes(at("c1"), [("x", n)], "task")
            saver.put_writes(at("c1"), [(ERROR, f"error {n}")], "task")
        writes = load(backend.saver()).pending_writes or []
        assert sorted(writes, key=lambda w: w[1]) == [("task", ERROR, "error 2"), ("task", "x", 1)]

    def test_a_task_that_failed_has_no_output(self, backend: Backend) -> None:
        """A conditional edge failed after the task had a result: with it LangGraph would take the task for
        finished."""
        saver = backend.saver()
        put(saver, at(), "c1")
        saver.put_writes(at("c1"), [("x", 1), (ERROR, "error")], "task")
        assert load(backend.saver()).pending_writes == [("task", ERROR, "error")]

    def test_writes_come_in_the_order_of_their_tasks(self, backend: Backend) -> None:
        saver = backend.saver()
        put(saver, at(), "c1")
        for task, path in (("c", "p2"), ("a", "p3"), ("b", "p1"), ("d", "p1")):
            saver.put_writes(at("c1"), [("x", task), ("y", task)], task, path)
        writes = load(backend.saver()).pending_writes or []
        assert [w[0] for w in writes] == ["b", "b", "d", "d", "c", "c", "a", "a"]

    def test_of_two_runs_of_one_task_the_second_loses(self, backend: Backend) -> None:
        left, right = backend.saver(), backend.saver()
        put(left, at(), "c1")
        a, b = load(left).config, load(right).config
        left.put_writes(a, [("x", "theirs")], "task")
        expect_refusal(HeadConflict, lambda: right.put_writes(b, [("x", "mine")], "task"))
        assert load(backend.saver()).pending_writes == [("task", "x", "theirs")]
        again = load(right).config
        right.put_writes(again, [("x", "mine")], "task")
        assert load(backend.saver()).pending_writes == [("task", "x", "theirs")]

    def test_tenants_and_threads_stay_apart(self, backend: Backend) -> None:
        savers = {tenant: backend.saver(tenant=tenant) for tenant in ("", "acme", "bull")}
        for tenant, saver in savers.items():
            for thread in ("t1", "t2"):
                assert saver.get_tuple(at(thread=thread)) is None
                put(saver, at(thread=thread), "c1", {"x": f"{tenant}/{thread} " * 20})
        savers["acme"].delete_thread("t1")
        for tenant, saver in savers.items():
            assert (saver.get_tuple(at(thread="t1")) is None) is (tenant == "acme")
            found = load(backend.saver(tenant=tenant), at(thread="t2")).checkpoint["channel_values"]
            assert found == {"x": f"{tenant}/t2 " * 20}

    def test_a_deleted_thread_leaves_nothing_to_its_successor(self, backend: Backend) -> None:
        """This also holds if another process deleted it, although the cache of this one still has the deleted
        thread."""
        values = {"x": ["text " * 50, "heard " * 50]}
        for remember in (
            lambda s: put(s, at(), "c1", values),
            lambda s: s.put_writes(at("c1"), [("x", values)], "t"),
        ):
            saver, other = backend.saver(), backend.saver()
            remember(saver)
            other.delete_thread(THREAD)
            assert saver.get_tuple(at()) is None
            put(saver, at(), "c1", values)
            assert load(backend.saver()).checkpoint["channel_values"] == values
            other.delete_thread(THREAD)
            put(saver, at(), "c2", values)
            saver.put_writes(on(at(), "c2"), [("x", values)], "t")
            found = load(backend.saver())
            assert found.checkpoint["channel_values"] == values
            assert found.pending_writes == [("t", "x", values)]
            other.delete_thread(THREAD)

    def test_who_still_writes_to_a_deleted_thread_is_refused(self, backend: Backend) -> None:
        saver = backend.saver()
        put(saver, put(saver, at(), "c1"), "c2")
        step = load(saver).config
        backend.saver().delete_thread(THREAD)
        expect_refusal(HeadConflict, lambda: saver.put_writes(step, [("x", "late")], "task"))
        expect_refusal(HeadConflict, lambda: put(saver, step, "c3"))
        assert backend.saver().get_tuple(at()) is None
        assert backend.chunks() == 0

    def test_no_generation_of_a_deleted_thread_comes_back(self, backend: Backend) -> None:
        """Chunks of a generation, however often raised, are not taken for stored in a later thread."""
        values = {"x": long("text")}
        for raised in range(8):
            saver, tagging = backend.saver(), backend.database()
            put(saver, at(), "c1", values)
            for n in range(raised):
                tagging.tag(THREAD, f"tag {n}")
            put(saver, load(saver).config, "c2", values, version=2)
            backend.saver().delete_thread(THREAD)
            put(saver, at(), "c1", values)
            assert load(backend.saver()).checkpoint["channel_values"] == values
            backend.saver().delete_thread(THREAD)
