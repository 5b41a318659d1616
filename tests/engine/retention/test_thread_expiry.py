"""When a thread expires: what keeps it, and which rule decides."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perdure
from perdure import Retention, RetentionRules
from perdure.database.base import handle_of
from perdure.engine import documents
from perdure.engine.retention.thread_expiry import EXPIRED, Clocks, ExpiryFacts, read_expiry_facts
from perdure.engine.retention.thread_removal import remove_expired
from perdure.model.ops import Expect
from perdure.model.records import OF_THREAD, Partition
from perdure.model.retention_policy import ThreadTtl
from tests.langgraph import graphs
from tests.langgraph.session import config

HERE = Partition("", "a")
RULES = RetentionRules(Retention(idle="1m"))
AT_REST = ExpiryFacts(
    is_busy=False,
    has_queues=False,
    is_tagged=False,
    active_at=1_000_000,
    metadata={},
    ttl=None,
    checks=(),
    missing=None,
    claim=None,
    has_head=True,
    generation=1,
    has_document=True,
    ended_at=None,
)


def rest(**changes: Any) -> ExpiryFacts:
    fields = {name: getattr(AT_REST, name) for name in ExpiryFacts.__slots__}
    return ExpiryFacts(**{**fields, **changes})


@pytest.mark.parametrize(
    ("thread", "rules", "at"),
    [
        (rest(), RULES, 61_000_000),
        (rest(is_busy=True), RULES, None),
        (rest(is_tagged=True), RULES, None),
        (rest(is_tagged=True), RetentionRules(Retention(idle="1m", keep_tagged=False)), 61_000_000),
        (rest(active_at=None), RULES, None),
        (rest(), RetentionRules(Retention(keep_last=1)), None),
        (rest(), RetentionRules(), None),
        (rest(ttl={"strategy": "delete", "expires_at": 7}), RULES, 7),
        (rest(ttl={"strategy": "delete", "expires_at": 7}), RetentionRules(), 7),
        (rest(ttl={"strategy": "delete", "expires_at": 7}, is_busy=True), RULES, None),
        (rest(ttl={"strategy": "keep_latest", "expires_at": 7}), RULES, None),
        (rest(ttl={"strategy": "delete", "expires_at": 7}, is_tagged=True), RULES, None),
        (rest(ttl={"strategy": "delete", "expires_at": 7}, is_tagged=True), RetentionRules(), None),
        (
            rest(ttl={"strategy": "delete", "expires_at": 7}, is_tagged=True),
            RetentionRules(Retention(idle="1m", keep_tagged=False)),
            7,
        ),
        (
            rest(
                ttl={"strategy": "delete", "expires_at": 7},
                is_tagged=True,
                metadata={"retention": "of another deployment"},
            ),
            RULES,
            None,
        ),
    ],
)
def test_a_thread_expires_by_its_own_time_or_its_policy(
    thread: ExpiryFacts, rules: RetentionRules, at: int | None
) -> None:
    assert thread.expires_at(rules) == at


POLICIES = st.builds(
    Retention,
    keep_last=st.sampled_from([None, 3]),
    idle=st.sampled_from([None, "1m"]),
    keep_tagged=st.booleans(),
)
STRATEGIES = st.sampled_from(["delete", "keep_latest"])
THREADS = st.builds(
    rest,
    is_busy=st.booleans(),
    is_tagged=st.booleans(),
    active_at=st.sampled_from([None, 0]),
    metadata=st.sampled_from([{}, {"retention": "named"}, {"retention": "unknown"}]),
    ttl=st.none() | st.fixed_dictionaries({"strategy": STRATEGIES, "expires_at": st.sampled_from([30, 90])}),
    has_document=st.booleans(),
)


@given(
    THREADS,
    st.none() | POLICIES,
    POLICIES,
    st.none() | st.builds(ThreadTtl, st.just(1.0), strategy=STRATEGIES),
    st.sampled_from([0, 59_999_999, 60_000_000]),
    st.sampled_from([0, 60_000_000]),
)
def test_what_happens_to_a_thread_follows_from_its_own_end_its_policy_and_the_usual_one(
    thread: ExpiryFacts,
    default: Retention | None,
    named: Retention,
    usual: ThreadTtl | None,
    database: int,
    host: int,
) -> None:
    # A time to live of its own stands in its document.
    thread = replace(thread, has_document=thread.has_document or thread.ttl is not None)
    rules = RetentionRules(default, {"named": named}, usual_ttl=usual)
    clocks = Clocks(database, host)
    own = thread.ttl if thread.ttl and thread.ttl["expires_at"] <= database else None
    if thread.metadata.get("retention") == "unknown":
        # Only what comes before the policy decides.
        if own is None or thread.is_busy or (own["strategy"] == "delete" and thread.is_tagged):
            with pytest.raises(LookupError):
                thread.decide(rules, clocks)
        else:
            ended = EXPIRED if own["strategy"] == "delete" else Retention(keep_last=1)
            assert thread.decide(rules, clocks) == ended
        return
    policy = named if thread.metadata else default
    is_kept = thread.is_tagged and (policy is None or policy.keep_tagged)
    # Both ends count from a checkpoint, a minute after which either clock may be the one that is slow.
    is_idle = thread.ttl is None and thread.active_at == 0 and min(database, host) >= 60_000_000
    is_usual = is_idle and usual is not None and not thread.has_document
    ends = {
        "own": own is not None and own["strategy"] == "delete" and not is_kept,
        "policy": is_idle and policy is not None and policy.idle is not None and not is_kept,
        "usual": is_usual and usual is not None and usual.strategy == "delete" and not thread.is_tagged,
    }
    shrinks = (own is not None and own["strategy"] == "keep_latest") or (
        is_usual and usual is not None and usual.strategy == "keep_latest"
    )
    wanted: Retention | str | None = policy
    if not thread.is_busy and any(ends.values()):
        wanted = EXPIRED
    elif not thread.is_busy and shrinks:
        wanted = Retention(keep_last=1)
    assert thread.decide(rules, clocks) == wanted
    assert thread.decide(replace(rules, only_default=True), clocks) == default


@given(
    THREADS,
    st.none() | POLICIES,
    POLICIES,
    st.none() | st.builds(ThreadTtl, st.just(1.0), strategy=STRATEGIES),
    st.sampled_from([0, 30, 59_999_999, 60_000_000]),
)
def test_a_thread_that_reads_as_absent_is_removed(
    thread: ExpiryFacts, default: Retention | None, named: Retention, usual: ThreadTtl | None, now: int
) -> None:
    rules = RetentionRules(default, {"named": named}, thread_ttl=True, usual_ttl=usual)
    try:
        end = thread.expires_at(rules)
    except LookupError:
        # The driver shows it.
        end = None
    if end is not None and end <= now:
        assert thread.decide(rules, Clocks(now, now)) == EXPIRED


def put(db: perdure.SyncDatabase, body: Mapping[str, Any], at: int) -> None:
    handle_of(db).run(
        documents.put(HERE, *OF_THREAD, body, at, Expect.ANY, fresh=handle_of(db).draw_version())
    )


def test_the_last_activity_is_the_latest_of_checkpoint_document_and_run() -> None:
    with perdure.connect_sync("memory://") as db:
        assert handle_of(db).run(read_expiry_facts(HERE)).active_at is None
        put(db, {"metadata": {"retention": "own", "graph_id": "theirs"}, "ttl": None}, 5)
        assert handle_of(db).run(read_expiry_facts(HERE)).active_at == 5
        before = time.time_ns() // 1000
        graph = graphs.chat(db.checkpointer())
        graph.invoke(graphs.message(0), {**config("a"), "metadata": {"graph_id": "mine", "more": 1}})
        found = handle_of(db).run(read_expiry_facts(HERE))
        assert found.active_at is not None
        assert before - 1 <= found.active_at <= time.time_ns() // 1000 + 1
        assert {name: found.metadata[name] for name in ("retention", "graph_id", "more")} == {
            "retention": "own",
            "graph_id": "mine",
            "more": 1,
        }
        put(db, {}, found.active_at + 5)
        assert handle_of(db).run(read_expiry_facts(HERE)).active_at == found.active_at + 5


def test_a_thread_that_changed_since_it_was_read_is_not_removed() -> None:
    with perdure.connect_sync("memory://") as db:
        graph = graphs.chat(db.checkpointer())
        graph.invoke(graphs.message(0), config("a"))
        found = handle_of(db).run(read_expiry_facts(HERE))
        graph.invoke(graphs.message(1), config("a"))
        assert not handle_of(db).run(remove_expired(HERE, found))
        assert len(db.timeline("a")) == 6
        assert handle_of(db).run(remove_expired(HERE, handle_of(db).run(read_expiry_facts(HERE))))
        assert list(db.threads()) == []
