"""The audit finds each fault of the faulty graphs, at its place, and nothing in the sound ones.

Covers perdure.audit.declarations, perdure.audit.interrupts, perdure.audit.node_updates,
perdure.audit.interrupting_tools, perdure.audit.reducers, perdure.audit.stored_types, perdure.audit.subgraphs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from pydantic import BaseModel

from perdure import Codec
from perdure.audit import CHECKS, audit
from perdure.audit.findings import Ignore
from tests.audit import faulty, faulty_reducers, faulty_tools, sound_tools
from tests.audit.building import FAULTY, state
from tests.audit.sound import SOUND

_FILLED_BY = (faulty, faulty_reducers, faulty_tools, sound_tools)

EXAMPLES = {
    "not-associative",
    "mutating-reducer",
    "unstable-reducer",
    "not-batching-invariant",
    "doubled-by-subgraph",
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_is_found_at_its_place(name: str) -> None:
    check, place, factory = FAULTY[name]
    report = audit(factory())
    found = [each for each in report.findings if (each.check.id, each.place) == (check, place)]
    assert len(found) == 1, f"{check} at {place} is not found once:\n{report}"
    assert bool(found[0].example) == (check in EXAMPLES) or check in (
        "duplicated-messages",
        "unusable-reducer",
    )
    assert found[0].as_json()["check"] == check
    assert not report.is_sound
    # No fault is reported that the graph was not made to have, but for those that come with it.
    others = {each.check.id for each in report.findings} - {check}
    assert others <= ALONGSIDE.get(name, set()), str(report)


ALONGSIDE: dict[str, set[str]] = {}


@pytest.mark.parametrize("name", SOUND)
def test_nothing_is_found_in_a_sound_graph(name: str) -> None:
    report = audit(SOUND[name]())
    assert report.is_sound, str(report)
    assert report.unchecked == ()


def test_every_check_finds_something() -> None:
    assert set(CHECKS) - {check for check, _, _ in FAULTY.values()} == {"not-allowed"}
    assert len(FAULTY) >= 60
    assert len(SOUND) >= 30


class Order(BaseModel):
    number: int = 0


class Parcel:
    def __init__(self, number: int) -> None:
        self.number = number


def ordering(kind: type) -> Any:
    return StateGraph(state(kind)).add_node("work", lambda state: {}).add_edge(START, "work").compile()


def test_types_are_judged_by_what_the_checkpointer_allows() -> None:
    graph = ordering(Order)
    assert audit(graph, allow="imported").is_sound
    assert audit(graph, allow=[]).is_sound  # a runtime allows what its graphs declare, beside a list
    refused = audit(graph, allow="listed").findings
    assert [(each.check.id, each.place) for each in refused] == [("not-allowed", "value")]
    assert "Order is not allowed" in refused[0].detail


def test_a_codec_makes_a_type_serialisable() -> None:
    graph = ordering(Parcel)
    assert [each.check.id for each in audit(graph).findings] == ["unserialisable"]
    codec = Codec(Parcel, lambda parcel: parcel.number, Parcel)
    assert audit(graph, codecs=[codec]).is_sound


def test_findings_are_ignored_by_check_and_place() -> None:
    graph = FAULTY["article_agent_state"][2]()
    report = audit(graph, ignore=["bare-collection:messages", Ignore("bare-collection", "context")])
    assert [each.place for each in report.findings] == ["tool_results"]
    assert report.ignored == 2
    assert audit(graph, ignore=["bare-collection"]).is_sound
    unused = audit(graph, ignore=["bare-collection:nothing"])
    assert [str(each) for each in unused.unused] == ["bare-collection:nothing"]
    with pytest.raises(ValueError, match="there is no check 'bare'; the checks are bare-collection"):
        audit(graph, ignore=["bare"])


def test_a_finding_names_the_line_of_the_field_and_of_the_return() -> None:
    source = Path(faulty.__file__).read_text(encoding="utf-8").splitlines()
    field, key = (audit(FAULTY[name][2]()).findings[0] for name in ("article_agent_state", "misspelt_key"))
    assert source[field.spot.line - 1].strip() == "messages: list[AnyMessage]"
    assert source[key.spot.line - 1].strip() == 'return {"topci": "weather"}'
    assert str(key).startswith(
        f"{key.spot}: undeclared-key: node work: it returns 'topci'; the declared keys"
    )


def test_what_cannot_be_examined_is_named() -> None:
    made: dict[str, Any] = {}
    exec("def work(state):\n    return {'other': 1}\n", made)  # noqa: S102 - a function without a file
    builder: Any = StateGraph(ordering(Order).builder.state_schema).add_node("work", made["work"])
    report = audit(builder.add_edge(START, "work").compile())
    assert report.unchecked == ("node work: the source of work is not available",)
    assert "not examined: node work" in str(report)


def test_an_audit_gives_the_same_answer_each_time() -> None:
    _, _, factory = FAULTY["average"]
    assert str(audit(factory())) == str(audit(factory()))
