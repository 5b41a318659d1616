"""Names of namespaces: no two nodes share one, whatever names they had, and each finds its own again."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.schema import Schema, rename_node
from perdure.schema.namespaces import NamespaceNames, is_by_name
from perdure.schema.steps import NodeRenamed


def test_without_renames_every_name_is_its_own() -> None:
    names = NamespaceNames([])
    assert names.are_plain
    assert list(names.find_stored("a|b")) == ["a|b"]
    assert names.rename("a+2") == "a+2"
    assert [is_by_name(each) for each in ("a|b", "a:1", "")] == [True, False, False]


def test_two_nodes_that_swap_names_keep_apart() -> None:
    swap = [rename_node(2, "a", "x"), rename_node(2, "b", "a"), rename_node(2, "x", "b")]
    names = NamespaceNames(Schema(2, swap).steps)
    assert list(names.find_stored("a")) == ["a+2", "b"]
    assert list(names.find_stored("b")) == ["b+2", "a"]
    assert [names.rename(each) for each in ("a", "b", "a+2", "b+2", "c", "a|c")] == [
        *("b", "a", "a", "b", "c", "b|c")
    ]


def test_a_name_that_was_given_up_belongs_to_another_node_from_then_on() -> None:
    names = NamespaceNames(Schema(4, [rename_node(2, "a", "b"), rename_node(3, "b", "c")]).steps)
    assert list(names.find_stored("c|d")) == ["c+3|d", "b+2|d", "a|d"]
    assert list(names.find_stored("a")) == ["a+2"]
    assert list(names.find_stored("b")) == ["b+3"]
    assert [names.rename(each) for each in ("a", "b+2", "c+3", "a+2", "b+3", "b", "e+9")] == [
        *("c", "c", "c", "a", "b", "b", "e+9")
    ]


@pytest.mark.parametrize("name", ["plan+2", "a+2", "outer|plan+2", "plan+2|inner"])
def test_a_node_with_the_stored_name_of_a_renamed_one_is_refused(name: str) -> None:
    names = NamespaceNames(Schema(2, [rename_node(2, "a", "plan")]).steps)
    with pytest.raises(ValueError, match=r"give the node '.*' another name"):
        list(names.find_stored(name))
    assert list(names.find_stored("plan+3")) == ["plan+3"]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_name_is_stored_for_two_nodes_in_any_history(data: st.DataObject) -> None:
    """Nodes are renamed, removed and added at random; each stores its memory under the name of its time."""
    nodes = {0: "a", 1: "b", 2: "c"}
    fresh, version = count(3), 1
    steps: list[NodeRenamed] = []
    kept: dict[str, int] = {name: node for node, name in nodes.items()}
    for _ in range(data.draw(st.integers(1, 5))):
        version += 1
        for _ in range(data.draw(st.integers(0, 3))):
            free = sorted(set("abcdefghijklm") - set(nodes.values()))
            node = data.draw(st.sampled_from(sorted(nodes)))
            new = data.draw(st.sampled_from(free))
            # A step may not give a name that a later step has spoken of as one in use.
            try:
                Schema(version, [*steps, rename_node(version, nodes[node], new)])
            except ValueError:
                continue
            steps.append(rename_node(version, nodes[node], new))
            nodes[node] = new
        given_up: set[str] = {step.old for step in steps} - set(nodes.values())
        reuse: bool = data.draw(st.booleans())
        if given_up and reuse:
            nodes[next(fresh)] = data.draw(st.sampled_from(sorted(given_up)))
        names = NamespaceNames(steps)
        for node, name in nodes.items():
            first, *former = names.find_stored(name)
            assert names.rename(first) == name
            owners = {kept[each] for each in (first, *former) if each in kept}
            assert owners <= {node}
            kept.setdefault(first, node)
