"""Removal of facts from chains of corrections."""

from __future__ import annotations

from datetime import UTC, datetime

from perdure.memory.facts import Fact
from perdure.memory.programs import relink

AT = datetime(2026, 1, 1, tzinfo=UTC)


def fact(name: str, *before: str, by: str | None = None) -> Fact:
    return Fact(id=name, text=name, known_from=AT, superseded_by=by, supersedes=before)


CHAIN = [fact("a", by="b"), fact("b", "a", by="c"), fact("c", "b", by="d"), fact("d", "c")]


def links(facts: list[Fact], gone: set[str]) -> dict[str, tuple[tuple[str, ...], str | None]]:
    return {each.id: (each.supersedes, each.superseded_by) for each in relink(facts, gone)}


def test_what_is_left_of_a_chain_follows_each_other() -> None:
    assert links(CHAIN, {"b"}) == {"a": ((), "c"), "c": (("a",), "d")}
    assert links(CHAIN, {"b", "c"}) == {"a": ((), "d"), "d": (("a",), None)}
    assert links(CHAIN, {"a"}) == {"b": ((), "c")}
    assert links(CHAIN, {"d"}) == {"c": (("b",), None)}
    assert links(CHAIN, set()) == {}


def test_chains_that_met_stay_together() -> None:
    facts = [fact("a", by="m"), fact("b", by="m"), fact("m", "a", "b", by="z"), fact("z", "m")]
    assert links(facts, {"m"}) == {"a": ((), "z"), "b": ((), "z"), "z": (("a", "b"), None)}


def test_links_that_lead_in_a_circle_or_nowhere_end() -> None:
    facts = [fact("a", "c", by="b"), fact("b", "a", by="c"), fact("c", "b", by="a"), fact("x", by="lost")]
    assert links(facts, {"b", "c"}) == {"a": (("a",), "a")}
    assert links(facts, {"lost"}) == {"x": ((), None)}
