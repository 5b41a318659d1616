"""Compaction of a thread's own messages: within the limit, in one list, with nothing lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from perdure.conversation import Conversation, Limit, Summary, approximate
from perdure.conversation.compaction import compact
from perdure.errors import MessageTooLong
from tests.conversation.histories import Histories, anthropic_body, each, openai_body
from tests.conversation.rules import anthropic_faults, openai_faults


def listed(summary: str, messages: Sequence[BaseMessage]) -> str:
    return " ".join([*summary.split(), *(str(message.id) for message in messages)])


def turns(*numbers: int) -> list[BaseMessage]:
    return [
        message
        for n in numbers
        for message in (HumanMessage("x" * 40, id=f"h{n}"), AIMessage("y" * 40, id=f"a{n}"))
    ]


POLICY = Conversation(limit=Limit(300, summary=100), summarize=listed)


def accounted(messages: Sequence[BaseMessage]) -> list[str]:
    summary = Summary.of(messages) or Summary("")
    kept = [message for message in messages if not isinstance(message, SystemMessage)]
    return [*summary.text.split(), *(str(message.id) for message in [*summary.pending, *kept])]


def test_what_fits_stays_as_it_is() -> None:
    assert compact(POLICY, turns(1, 2)) is None
    assert compact(Conversation(limit=300), turns(1, 2)) is None


def test_what_leaves_waits_for_its_summary() -> None:
    changed = compact(POLICY, turns(*range(9)))
    assert changed is not None
    assert accounted(changed.messages) == [str(message.id) for message in turns(*range(9))]
    summary = Summary.of(changed.messages)
    assert summary is not None
    assert (summary.text, summary.covers, len(summary.pending)) == ("", None, changed.left_out)
    assert compact(POLICY, changed.messages) is None


def test_a_summary_takes_the_place_of_what_it_covers() -> None:
    messages = turns(*range(6))
    leaving = POLICY.to_fold(messages, None)
    assert leaving is not None
    made = asyncio.run(POLICY.fold(None, leaving))
    changed = compact(POLICY, messages, made)
    assert changed is not None
    assert changed.has_new_summary
    assert accounted(changed.messages) == [str(message.id) for message in messages]
    assert Summary.of(changed.messages) == made


def test_a_summary_of_another_branch_is_ignored() -> None:
    assert compact(POLICY, turns(1, 2), Summary("other", "a9")) is None


def test_without_summaries_what_leaves_is_left_out() -> None:
    changed = compact(Conversation(limit=200), turns(*range(9)))
    assert changed is not None
    assert not any(isinstance(message, SystemMessage) for message in changed.messages)
    assert len(changed.messages) == 18 - changed.left_out


def test_random_conversations_lose_nothing() -> None:
    compactions: list[int] = []

    def check(number: int, histories: Histories) -> None:
        whole = histories.conversation(25)
        policy = Conversation(limit=Limit(histories.random.randint(900, 1500), summary=500), summarize=listed)
        state: list[BaseMessage] = []
        made: Summary | None = None
        said: list[str] = []
        for message in whole:
            state.append(message)
            if not isinstance(message, SystemMessage):
                said.append(str(message.id))
            if not isinstance(message, HumanMessage):
                continue
            try:
                changed = compact(policy, state, made)
            except MessageTooLong:
                return
            if changed is not None:
                compactions.append(number)
                state = changed.messages
            assert sorted(accounted(state)) == sorted(said)
            assert sum(approximate([each]) for each in state) <= policy.bounds.tokens
            assert not openai_faults(openai_body(state))
            assert not anthropic_faults(anthropic_body(state))
            held = Summary.of(state)
            made = None
            leaving = policy.to_fold([each for each in state if each.id != "conversation-summary"], held)
            if leaving is not None and histories.random.random() < 0.5:
                made = asyncio.run(policy.fold(held, leaving))

    each(20, 2_000, check)
    assert len(compactions) > 20
