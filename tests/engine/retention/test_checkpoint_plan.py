"""What a plan says of heads and writes follows from rules that are written down here a second time."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from perdure.engine.retention.checkpoint_plan import Planner, keep_by, keep_tagged, remove_runs
from perdure.engine.threads.thread_records import Contents
from perdure.engine.threads.thread_state import HeadView, View
from perdure.model.checkpoint import PendingWrite
from perdure.model.heads import belongs, make_loop_name
from perdure.model.ops import Delete
from perdure.model.records import TAG, Partition, Record
from perdure.model.removal_plan import Plan, make_newest_rule
from perdure.model.write_records import record_key
from tests.model.test_removal_plan import threads

HERE = Partition("", "ada")
RUNS = ["r1", "r2"]


@st.composite
def stored_threads(draw: Any) -> Contents:
    """A thread with writes on checkpoints that are stored and on ones that are not. Each checkpoint is of a
    loop of its own; a write is of any of these, of another one, or of none."""
    found, heads, tags = draw(threads())
    # Whoever names the root checkpoint of one step of a task does so for all of them.
    rooted = {each.namespace for each in found if each.root is not None}
    found = [
        each._replace(root=each.root or "never stored") if each.namespace in rooted else each
        for each in found
    ]
    checkpoints = [
        each._replace(
            nonce=make_loop_name(f"l{n}", each.run_id),
            seen=tuple(draw(st.sets(st.sampled_from([f"l{n}" for n in range(3)]), max_size=1))),
        )
        for n, each in enumerate(found)
    ]
    loops = st.sampled_from(
        ["", "l0", "other", *(make_loop_name("late", run) for run in RUNS), *(c.nonce for c in checkpoints)]
    )
    places = st.sampled_from([*(c.name for c in checkpoints), ("", "#0"), ("", "~"), ("sub", "#0")])
    writes = [
        PendingWrite(ns, i, f"task {n}", 0, "x", "", draw(loops), b"", record_version=1)
        for n, (ns, i) in enumerate(draw(st.lists(places, max_size=6)))
    ]
    seqs = {c.name: c.seq for c in checkpoints}
    views = {ns: HeadView(1, head, seqs[ns, head]) for ns, head in heads.items()}
    open_run = draw(st.sampled_from([None, *RUNS]))
    return Contents(
        HERE,
        View(views[""], 1, 1, open_run, heads[""]),
        views,
        tuple(
            Record(TAG, (f"tag {n}",), {"namespace": ns, "checkpoint_id": i}, 1)
            for n, (ns, i) in enumerate(sorted(tags))
        ),
        checkpoints,
        writes,
    )


PLANNERS: list[tuple[Planner, frozenset[str]]] = [
    (keep_by(make_newest_rule(1)), frozenset()),
    (keep_by(make_newest_rule(3)), frozenset()),
    (keep_tagged, frozenset()),
    (remove_runs(frozenset(RUNS)), frozenset(RUNS)),
    (remove_runs(frozenset(["r1"])), frozenset(["r1"])),
]


def goes(write: PendingWrite, contents: Contents, plan: Plan, runs: frozenset[str]) -> bool:
    """Whether a write goes: with its checkpoint, with the loop that left it, or alone."""
    place = (write.namespace, write.checkpoint_id)
    names = {c.name for c in contents.checkpoints}
    if place in plan.removed:
        return True
    children = [c for c in contents.checkpoints if (c.namespace, c.parent_id) == place]
    is_needed = any(write.nonce in (c.nonce, *c.seen) for c in children if c.name not in plan.removed)
    is_left = any(write.nonce == c.nonce for c in children if c.name in plan.removed)
    if write.nonce and not is_needed and (is_left or belongs(write.nonce, runs)):
        return True
    if runs or place in names:
        return False
    newest = contents.latest.get(write.namespace, contents.latest[""])
    may_come = write.checkpoint_id >= newest or belongs(write.nonce, filter(None, [contents.view.open_run]))
    return not may_come or (bool(names) and names == plan.removed)


@given(stored_threads(), st.sampled_from(PLANNERS))
def test_a_write_goes_with_its_checkpoint_or_its_loop_and_no_other(
    contents: Contents, how: tuple[Planner, frozenset[str]]
) -> None:
    planner, runs = how
    plan = planner(contents)
    gone = {op.key for ops in plan.writes.values() for op in ops}
    assert all(isinstance(op, Delete) for ops in plan.writes.values() for op in ops)
    assert gone == {record_key(write) for write in contents.writes if goes(write, contents, plan, runs)}


@given(stored_threads(), st.sampled_from(PLANNERS))
def test_a_head_names_what_stays_and_goes_with_the_last(
    contents: Contents, how: tuple[Planner, frozenset[str]]
) -> None:
    plan = how[0](contents)
    moves = {op.key[0]: op for op in plan.heads}
    for namespace, head in contents.heads.items():
        kept = {c.id for c in contents.checkpoints if c.namespace == namespace and c.name not in plan.removed}
        move = moves.get(namespace)
        if move is None:
            assert head.checkpoint_id in kept
        elif isinstance(move, Delete):
            assert not kept
        else:
            assert move.fields["checkpoint_id"] in kept
            assert move.fields["seq"] == head.seq


@given(stored_threads(), st.sampled_from(PLANNERS))
def test_nothing_goes_that_a_tag_or_the_rollback_of_an_open_run_names(
    contents: Contents, how: tuple[Planner, frozenset[str]]
) -> None:
    plan = how[0](contents)
    assert not plan.removed & (contents.tagged_names | contents.bases)
    assert plan == how[0](contents)
