"""The demo remembers its user: in the next conversation, and until the person forgets it."""

from __future__ import annotations

import pytest

from perdure.demo.memory import USER, make_demo_policy, statements
from perdure.memory import ExtractionRequest, Memory
from perdure.runtime.agent_memory import run_memory
from perdure.runtime.agent_memory.memory_turns import lane_of
from tests.demo.staging import Stage, run, stage
from tests.runtime.graphs import WITHIN_S, eventually_stored


@pytest.fixture(autouse=True)
def patient_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply waits for what is recalled, however slow the machine is."""
    monkeypatch.setattr(run_memory, "_PATIENCE_S", WITHIN_S)


async def extracted(demo: Stage, turns: int) -> None:
    async def is_over() -> bool:
        standings = await demo.demo.runtime.messages(lane_of(USER))
        return len(standings) >= turns and all(each.is_over for each in standings)

    await eventually_stored(is_over)


def test_a_second_conversation_knows_what_the_first_one_said() -> None:
    async def scenario() -> None:
        async with stage() as demo:
            await demo.say(await demo.thread(), "My name is Ada. Tell me a story")
            await extracted(demo, 1)
            second = await demo.thread()
            await demo.say(second, "Hello")
            instructions, *_ = demo.model.prompts[-1]
            assert "My name is Ada." in str(instructions.text)
            assert "My name is Ada." not in str(demo.model.prompts[0][0].text)
            (fact,) = (await demo.client.get("/memory")).json()["facts"]
            assert fact["text"] == "My name is Ada."
            state = (await demo.client.get(f"/threads/{second}/state")).json()
            assert state["values"]["messages"][0]["additional_kwargs"]["recalled"] == [fact["id"]]
            assert (await demo.client.delete(f"/memory/{fact['id']}")).status_code == 204
            await demo.say(await demo.thread(), "Hello")
            assert "Ada" not in str(demo.model.prompts[-1])

    run(scenario)


def test_a_new_statement_about_the_same_subject_supersedes_the_old_one() -> None:
    async def scenario() -> None:
        async with stage() as demo:
            for number, text in enumerate(("I live in Lisbon.", "I live in Porto."), 1):
                await demo.say(await demo.thread(), text)
                await extracted(demo, number)
            memory = Memory(demo.demo.runtime.store(), USER)
            assert [fact.text for fact in await memory.afacts()] == ["I live in Porto."]
            assert len(await memory.afacts(history=True)) == 2

    run(scenario)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("User: My name is Ada.", ["My name is Ada."]),
        ("User: Hi! I'm a nurse. What is a tide?", ["I'm a nurse."]),
        ("User: my favourite colour is green", ["my favourite colour is green"]),
        ("User: I like tea?", []),
        ("User: Tell me a story", []),
        ("Assistant: I live in your computer.", []),
        (f"User: I like {'x' * 400}", []),
    ],
)
def test_what_a_person_says_of_themselves_is_kept_word_for_word(text: str, found: list[str]) -> None:
    assert [fact.text for fact in statements(ExtractionRequest(text, []))] == found


def test_the_policy_is_for_one_user() -> None:
    assert make_demo_policy().user_of({}) == USER
