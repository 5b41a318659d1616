"""Loaded values in several hands: whatever is reused, no two holders ever share something mutable."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

import perdure
from perdure.langgraph.identity import Watch
from tests.langgraph.files import config, put


def mutable_inside(value: Any) -> set[int]:
    """The identities of everything in a value that could be changed."""
    if isinstance(value, list):
        return {id(value)}.union(*map(mutable_inside, value))
    if isinstance(value, dict):
        return {id(value)}.union(*map(mutable_inside, value.values()))
    if isinstance(value, AIMessage | HumanMessage):
        parts = (value.__dict__, value.model_fields_set, value.__pydantic_extra__)
        return {id(value), *map(id, parts)}.union(*map(mutable_inside, value.__dict__.values()))
    return set()


def conversation(turns: int) -> list[Any]:
    out: list[Any] = []
    for turn in range(turns):
        out.append(HumanMessage(f"question {turn}", id=f"h{turn}"))
        usage = {"tokens": {"in": turn, "of": [turn]}}
        out.append(AIMessage(f"answer {turn}", id=f"a{turn}", response_metadata=usage))
    return out


def loaded(saver: perdure.PerdureSaver) -> list[Any]:
    found = saver.get_tuple(config())
    assert found is not None
    messages: list[Any] = found.checkpoint["channel_values"]["messages"]
    return messages


def overlaps(saver: perdure.PerdureSaver) -> bool:
    """Whether any two of many loads share something, in all the orders in which holders come and go."""
    hands: list[list[Any]] = []
    for step in range(12):
        new = loaded(saver)
        if any(mutable_inside(new) & mutable_inside(old) for old in hands):
            return True
        assert new == conversation(5)
        hands.append(new)
        if step % 3 == 2:
            # The oldest lets go of all, the next keeps only something deep inside.
            hands = [hands[1][1].response_metadata["tokens"]["of"], *hands[2:]]
    return False


@pytest.fixture
def saver() -> Any:
    with perdure.connect_sync("memory://") as db:
        made = db.checkpointer()
        put(made, {"messages": conversation(5)})
        yield made


def test_no_two_holders_share_anything(saver: perdure.PerdureSaver) -> None:
    assert not overlaps(saver)


def test_what_was_let_go_is_handed_out_again(saver: perdure.PerdureSaver) -> None:
    loaded(saver)
    kept = {id(m) for m in loaded(saver)}
    assert {id(m) for m in loaded(saver)} == kept


def test_one_deep_reference_is_enough_to_keep_an_element(saver: perdure.PerdureSaver) -> None:
    inner = loaded(saver)[1].response_metadata["tokens"]["of"]
    inner.append("mine")
    assert loaded(saver) == conversation(5)


def test_who_keeps_only_the_last_state_gets_the_one_before(saver: perdure.PerdureSaver) -> None:
    last = loaded(saver)
    first = {id(m) for m in last}
    last = loaded(saver)
    second = {id(m) for m in last}
    assert not first & second
    last = loaded(saver)
    assert {id(m) for m in last} == first


def test_the_check_above_would_see_shared_elements(
    saver: perdure.PerdureSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watch, "is_alone", lambda self: True)
    assert overlaps(saver)
