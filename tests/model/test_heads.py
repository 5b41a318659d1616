"""Who may move a head: every combination of what was loaded, what is there and what was declared."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.model.heads import ROOT, LoadedHead, Verdict, judge

ADVANCE, FORK, LOST = Verdict.ADVANCE, Verdict.FORK, Verdict.LOST
AT_HEAD, BEHIND, ABSENT = LoadedHead("a", True), LoadedHead("a", False), LoadedHead(None, True)


@pytest.mark.parametrize(
    ("head", "parent", "source", "loaded", "verdict"),
    [
        # The parent is the head: nobody was in between.
        (None, None, "input", None, ADVANCE),
        (None, None, "input", ABSENT, ADVANCE),
        ("a", "a", "loop", AT_HEAD, ADVANCE),
        ("a", "a", "loop", BEHIND, ADVANCE),
        ("b", "b", "loop", AT_HEAD, ADVANCE),
        # Another run moved the head.
        ("b", "a", "loop", AT_HEAD, LOST),
        ("b", "a", "update", AT_HEAD, LOST),
        ("b", "a", None, AT_HEAD, LOST),
        ("b", None, "input", ABSENT, LOST),
        (None, "a", "loop", AT_HEAD, LOST),
        # Declared: by the source, or by addressing a checkpoint that was not the head.
        ("b", "a", "fork", AT_HEAD, FORK),
        ("b", None, "fork", ABSENT, FORK),
        ("b", "a", "input", BEHIND, FORK),
        ("b", "a", "loop", None, FORK),
        ("b", None, "loop", None, FORK),
        # A declaration covers the first put only: a later one builds on something else.
        ("b", "c", "loop", BEHIND, LOST),
        ("b", None, "loop", BEHIND, LOST),
    ],
)
def test_the_verdict_in_the_root_namespace(
    head: str | None, parent: str | None, source: str | None, loaded: LoadedHead | None, verdict: Verdict
) -> None:
    assert judge(namespace=ROOT, head=head, parent=parent, source=source, loaded=loaded) is verdict


IDS = st.sampled_from([None, "a", "b", "c"])
LOADED = st.one_of(st.none(), st.builds(LoadedHead, IDS, st.booleans()))


@given(st.sampled_from(["sub", "sub:1|x"]), IDS, IDS, st.sampled_from(["loop", "fork"]), LOADED)
def test_a_subgraph_always_advances(
    namespace: str, head: str | None, parent: str | None, source: str, loaded: LoadedHead | None
) -> None:
    assert judge(namespace=namespace, head=head, parent=parent, source=source, loaded=loaded) is ADVANCE


@given(IDS, IDS, st.sampled_from(["loop", "input", "update", None]), LOADED, st.permutations(["a", "b", "c"]))
def test_ids_are_never_ordered(
    head: str | None, parent: str | None, source: str | None, loaded: LoadedHead | None, names: list[str]
) -> None:
    """Renaming the checkpoints changes no verdict: only equality of ids counts."""
    new = dict(zip(["a", "b", "c"], names, strict=True))
    renamed = loaded and LoadedHead(loaded.addressed and new[loaded.addressed], loaded.was_head)
    assert judge(namespace=ROOT, head=head, parent=parent, source=source, loaded=loaded) is judge(
        namespace=ROOT, head=head and new[head], parent=parent and new[parent], source=source, loaded=renamed
    )
