"""The corpus of dialogues, and what searches find in it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bench.retrieval.__main__ import SPLITS, measure
from bench.retrieval.dialogues import PEOPLE, corpus


def test_a_corpus_has_questions_with_evidence() -> None:
    data = corpus()
    assert len({(message.person, message.session) for message in data.messages}) >= 50
    assert len(data.questions) >= 300
    by_id = {message.id: message for message in data.messages}
    assert len(by_id) == len(data.messages)
    for question in data.questions:
        assert question.evidence
        assert all(by_id[found].person == question.person for found in question.evidence)
    assert min(Counter(question.split for question in data.questions).values()) >= 50


def test_a_seed_gives_one_corpus() -> None:
    assert corpus(7) == corpus(7)
    assert corpus(7) != corpus(8)


def test_words_and_vectors_find_more_than_words_on_every_split() -> None:
    data, people = corpus(), PEOPLE[1:4:2]
    words = measure(data, {"text": True}, people)
    both = measure(data, {"embed": "perdure:offline", "text": True}, people)
    assert all(both[split] >= words[split] for split in SPLITS), (words, both)
    assert both["all"] >= words["all"] + 5, (words, both)


@pytest.mark.slow
def test_the_published_figures_are_those_of_the_corpus() -> None:
    page = (Path(__file__).parents[3] / "docs" / "store.md").read_text(encoding="utf-8")
    data = corpus()
    configs: dict[str, dict[str, Any]] = {
        "words": {"text": True},
        "vectors of `perdure:offline`": {"embed": "perdure:offline"},
        "both, `vector_weight=0.3`": {"embed": "perdure:offline", "text": True, "vector_weight": 0.3},
        "both, `vector_weight=0.7`": {"embed": "perdure:offline", "text": True, "vector_weight": 0.7},
    }
    for name, config in configs.items():
        shares = measure(data, config, PEOPLE[1::2])
        row = f"| {name} | {' | '.join(f'{shares[split]:.1f}' for split in SPLITS)} |"
        assert row in page, row
