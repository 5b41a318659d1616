"""The corpus: dialogues of people with an assistant, and questions with the messages that answer them.

A seeded generator puts the hand-written statements of ``topics.toml`` between small talk and statements on
other people. The same seed gives the same corpus.
"""

from __future__ import annotations

import random
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

TOPICS = Path(__file__).with_name("topics.toml")
PEOPLE = ("ada", "ben", "chen", "dora", "emil", "fatima", "goran", "hanako")
SESSIONS = 8
SMALL_TALK = 8
OTHERS = 3
SEED = 20_260_101


class Message(NamedTuple):
    """A message of a dialogue, with an id that is unique in the corpus."""

    id: str
    person: str
    session: int
    role: str
    text: str


class Question(NamedTuple):
    """A question about a person.

    Attributes:
        person: The person.
        text: The question.
        split: ``same words`` as the message, ``other words``, or ``names``, which quotes what was named.
        evidence: The ids of the messages that answer it.
    """

    person: str
    text: str
    split: str
    evidence: frozenset[str]


class Corpus(NamedTuple):
    """The messages in their order, and the questions."""

    messages: list[Message]
    questions: list[Question]


def corpus(seed: int = SEED) -> Corpus:
    """Return the corpus of a seed."""
    chance = random.Random(seed)
    given = tomllib.loads(TOPICS.read_text(encoding="utf-8"))
    messages: list[Message] = []
    questions: list[Question] = []
    for person in PEOPLE:
        facts = [_fact(topic, chance) for topic in given["topic"]]
        chance.shuffle(facts)
        for session in range(SESSIONS):
            own = facts[session::SESSIONS]
            lines = [("user", fact["text"]) for fact in own]
            lines += [("user", text) for text in chance.sample(given["small_talk"]["user"], SMALL_TALK)]
            lines += [("user", text) for text in chance.sample(given["small_talk"]["others"], OTHERS)]
            chance.shuffle(lines)
            ids: dict[str, str] = {}
            for number, (role, text) in enumerate(lines):
                at = f"{person}-{session}-{2 * number}"
                ids[text] = at
                messages.append(Message(at, person, session, role, text))
                reply = chance.choice(given["small_talk"]["assistant"])
                at = f"{person}-{session}-{2 * number + 1}"
                messages.append(Message(at, person, session, "assistant", reply))
            for fact in own:
                evidence = frozenset({ids[fact["text"]]})
                questions += [
                    Question(person, text, split, evidence) for split, text in fact["questions"].items()
                ]
    return Corpus(messages, questions)


def _fact(topic: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    value, said = chance.choice(topic["values"]), chance.randrange(len(topic["say"]))
    text = topic["say"][said].replace("{x}", value)
    questions = {"other words": chance.choice(topic["other"]), "names": f"What was mentioned about {value}?"}
    if said == 0:
        # The question in the same words is one about the first way to mention it.
        questions["same words"] = topic["same"]
    return {"text": text[0].upper() + text[1:], "questions": questions}
