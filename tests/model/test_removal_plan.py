"""What pruning may take: never a head, a tag or what they stand on, and never without a mark."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from perdure.model.checkpoint import CheckpointRecord
from perdure.model.removal_plan import (
    ORIGIN,
    Name,
    Plan,
    find_nearest_survivor,
    make_newest_rule,
    plan_removal,
    plan_retention,
)


def checkpoint(namespace: str, seq: int, parent: str | None, **more: Any) -> CheckpointRecord:
    return CheckpointRecord(
        namespace=namespace,
        id=f"{namespace}#{seq}",
        seq=seq,
        parent_id=parent,
        run_id=more.pop("run_id", None),
        source=None,
        step=None,
        v=1,
        ts="",
        versions={},
        refs={},
        versions_seen={},
        updated=None,
        metadata=b"",
        **more,
    )


@st.composite
def threads(draw: Any) -> tuple[list[CheckpointRecord], dict[str, str], set[Name]]:
    """A tree of root checkpoints, and subgraphs' under them; heads; some tags."""
    roots: list[CheckpointRecord] = []
    for seq in range(1, draw(st.integers(1, 12)) + 1):
        parent = draw(st.sampled_from([None, *(c.id for c in roots)])) if roots else None
        roots.append(checkpoint("", seq, parent, run_id=draw(st.sampled_from(["r1", "r2", None]))))
    found = list(roots)
    for namespace in draw(st.sets(st.sampled_from(["sub", "sub:task", "a:1|b"]), max_size=3)):
        group: list[CheckpointRecord] = []
        for seq in range(1, draw(st.integers(1, 5)) + 1):
            names = [c.id for c in roots]
            group.append(
                checkpoint(
                    namespace,
                    seq,
                    group[-1].id if group else None,
                    root=draw(st.sampled_from([None, "never stored", *names])),
                    root_head=draw(st.sampled_from([None, *names])),
                )
            )
        found += group
    heads = {c.namespace: c.id for c in found}
    heads[""] = draw(st.sampled_from([c.id for c in roots]))
    tags = draw(st.sets(st.sampled_from([(c.namespace, c.id) for c in found]), max_size=3))
    return found, heads, tags


def survivors(found: list[CheckpointRecord], plan: Plan) -> dict[Name, CheckpointRecord]:
    gone = set(plan.removed)
    return {
        (c.namespace, c.id): plan.relinked.get((c.namespace, c.id), c)
        for c in found
        if (c.namespace, c.id) not in gone
    }


def assert_linked(found: list[CheckpointRecord], plan: Plan) -> None:
    """Survivors name survivors, ancestors stay ancestors, and a link moved exactly when it is marked."""
    left = survivors(found, plan)
    before = {(c.namespace, c.id): c for c in found}
    groups: dict[str, dict[str, CheckpointRecord]] = {}
    for c in found:
        groups.setdefault(c.namespace, {})[c.id] = c
    assert len(set(plan.removed)) == len(plan.removed)
    assert set(plan.relinked) <= set(left)
    for (namespace, checkpoint_id), now in left.items():
        old = before[namespace, checkpoint_id]
        if now.parent_id is not None:
            assert (namespace, now.parent_id) in left
        kept = {i for n, i in left if n == namespace}
        assert now.parent_id == find_nearest_survivor(old.parent_id, groups[namespace], kept)
        assert now.cut == (now.parent_id != old.parent_id)
        assert now.root == old.root
    for root in [c for c in left.values() if c.namespace == ""]:
        # For a replay of the root, and for one of what comes after it.
        for itself in (set[str](), {root.id}):
            was, now_is = strict(before, root.id) | itself, strict(left, root.id) | itself
            for name, sub in left.items():
                if sub.namespace:
                    assert is_before(sub, now_is, left) == is_before(before[name], was, before)


def strict(stored: dict[Name, CheckpointRecord], checkpoint_id: str) -> set[str]:
    """The ancestors of a root checkpoint that subgraphs may name."""
    at, out = stored["", checkpoint_id], {ORIGIN}
    while True:
        out.update(at.passed)
        if at.parent_id is None:
            return out
        at = stored["", at.parent_id]
        out.add(at.id)


def is_before(sub: CheckpointRecord, ancestors: set[str], stored: dict[Name, CheckpointRecord]) -> bool:
    if sub.root is not None and (sub.root in ancestors or ("", sub.root) in stored):
        return sub.root in ancestors
    return (sub.root_head or ORIGIN) in ancestors


def stays(c: CheckpointRecord, found: list[CheckpointRecord], kept: set[str], is_head: bool) -> bool:
    """Whether a subgraph's checkpoint without a tag stays beside these root checkpoints."""
    by_name = {each.name: each for each in found}
    roots = {ORIGIN, *(each.id for each in found if each.namespace == "")}
    group = [each for each in found if each.namespace == c.namespace]
    is_of_a_task = ":" in c.namespace.rsplit("|", 1)[-1]
    if c.root in kept or (is_head and (not is_of_a_task or all(each.root is None for each in group))):
        return True

    def comes_before(root: str) -> list[int]:
        """The places in the order of commits of what a replay of a root could load."""
        before = strict(by_name, root)
        return [e.seq for e in group if ((e.root if e.root in roots else e.root_head) or ORIGIN) in before]

    return not is_of_a_task and any(c.seq == max(comes_before(root), default=0) for root in kept)


@given(threads(), st.integers(1, 5))
def test_the_plan_keeps_what_the_rules_say_and_nothing_else(
    thread: tuple[list[CheckpointRecord], dict[str, str], set[Name]], last: int
) -> None:
    found, heads, tags = thread
    newest = sorted((c for c in found if c.namespace == ""), key=lambda c: -c.seq)[:last]
    roots = {c.id for c in found if c.namespace == ""}
    kept = {c.id for c in newest} | {heads[""]} | {i for namespace, i in tags if namespace == ""}
    # A tag in a subgraph keeps the root checkpoint that the subgraph ran under.
    kept |= {c.root for c in found if c.namespace and c.name in tags and c.root in roots}
    plan = plan_retention(found, heads, tags, make_newest_rule(last))
    assert_linked(found, plan)
    for c in found:
        # The subgraph may be that of a run whose root checkpoint is still to come.
        is_under_way = c.root == "never stored" and c.root_head == heads[""]
        is_head = heads[c.namespace] == c.id
        is_kept = (
            c.name in tags or is_under_way or stays(c, found, kept, is_head) if c.namespace else c.id in kept
        )
        assert (c.name not in plan.removed) == is_kept, c.name


@given(threads(), st.integers(1, 3))
def test_pruning_twice_is_pruning_once(
    thread: tuple[list[CheckpointRecord], dict[str, str], set[Name]], last: int
) -> None:
    found, heads, tags = thread
    left = survivors(found, plan_retention(found, heads, tags, make_newest_rule(last)))
    still = {n: i for n, i in heads.items() if (n, i) in left}
    again = plan_retention(left.values(), still, tags, make_newest_rule(last))
    assert ("", heads[""]) in survivors(list(left.values()), again)
    assert [name for name in again.removed if name[0] == ""] == []


@given(threads(), st.integers(1, 3), st.data())
def test_no_place_and_no_plan_changes_while_the_roots_are_removed(
    thread: tuple[list[CheckpointRecord], dict[str, str], set[Name]], last: int, data: st.DataObject
) -> None:
    found, heads, tags = thread
    plan = plan_retention(found, heads, tags, make_newest_rule(last))
    roots = {name for name in plan.removed if name[0] == ""}
    gone = data.draw(st.sets(st.sampled_from(sorted(roots)))) if roots else set[Name]()
    before = {c.name: c for c in found}
    assert plan.placed.keys() <= plan.removed
    now = {n: plan.placed.get(n) or plan.relinked.get(n) or c for n, c in before.items() if n not in gone}
    for name, root in now.items():
        if name[0] == "" and name not in roots:
            was, now_is = strict(before, root.id), strict(now, root.id)
            for sub in (c for c in now.values() if c.namespace and c.name not in plan.removed):
                assert is_before(sub, now_is, now) == is_before(before[sub.name], was, before)
            for sub in (c for c in now.values() if c.name in plan.removed and c.namespace):
                assert is_before(before[sub.name], was, before) or not is_before(sub, now_is, now)
    again = plan_retention(now.values(), heads, tags, make_newest_rule(last))
    assert again.removed == plan.removed - gone


@given(threads())
def test_removing_runs_removes_them_alone(
    thread: tuple[list[CheckpointRecord], dict[str, str], set[Name]],
) -> None:
    found, _, tags = thread
    plan = plan_removal(found, lambda c: c.run_id == "r1" and (c.namespace, c.id) not in tags)
    assert set(plan.removed) == {
        (c.namespace, c.id) for c in found if c.run_id == "r1" and (c.namespace, c.id) not in tags
    }
    assert_linked(found, plan)
