"""Measures how often a search finds the message that answers a question: ``python -m bench.retrieval``.

The messages of a person's dialogues are put into a namespace of the store, and each question is searched for
there: ``store.search(namespace, query=…)``.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from langgraph.store.base import PutOp

import perdure
from bench.retrieval.dialogues import PEOPLE, SEED, Corpus, Question, corpus

CONFIGURATIONS: Mapping[str, Mapping[str, Any]] = {
    "words": {"text": True},
    "vectors": {"embed": "perdure:offline"},
    "both, by default": {"embed": "perdure:offline", "text": True},
    "both, vector_weight=0.1": {"embed": "perdure:offline", "text": True, "vector_weight": 0.1},
    "both, vector_weight=0.5": {"embed": "perdure:offline", "text": True, "vector_weight": 0.5},
    "both, vector_weight=0.7": {"embed": "perdure:offline", "text": True, "vector_weight": 0.7},
}
SPLITS = ("all", "same words", "other words", "names")
CUT = 5


def measure(
    data: Corpus, config: Mapping[str, Any], people: Iterable[str], cut: int = CUT
) -> dict[str, float]:
    """Return by split the percentage of questions whose evidence is among the first ``cut`` results."""
    hits: dict[str, list[float]] = {split: [] for split in SPLITS}
    with perdure.connect_sync("memory://") as db:
        store = db.store(index=perdure.SearchIndex({"fields": ["text"], **config}))
        store.batch([PutOp(("people", m.person), m.id, {"text": m.text}) for m in data.messages])
        wanted = set(people)
        for question in data.questions:
            if question.person in wanted:
                found = store.search(("people", question.person), query=question.text, limit=cut)
                share = _recall(question, [item.key for item in found])
                hits[question.split].append(share)
                hits["all"].append(share)
    return {split: 100 * statistics.fmean(shares) for split, shares in hits.items()}


def _recall(question: Question, found: list[str]) -> float:
    return len(question.evidence & set(found)) / len(question.evidence)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=SEED, help="of the corpus")
    parser.add_argument("--cut", type=int, default=CUT, help="results of a search that count")
    given = parser.parse_args()
    data = corpus(given.seed)
    dialogues = len({(m.person, m.session) for m in data.messages})
    print(f"{dialogues} dialogues, {len(data.messages)} messages, {len(data.questions)} questions")
    print(f"evidence among the first {given.cut} results, percent of the questions\n")
    for title, people in (("to choose the weight by", PEOPLE[::2]), ("held out", PEOPLE[1::2])):
        print(f"| {title} | {' | '.join(SPLITS)} |\n|---|{'---|' * len(SPLITS)}")
        for name, config in CONFIGURATIONS.items():
            shares = measure(data, config, people, given.cut)
            print(f"| {name} | {' | '.join(f'{shares[split]:.1f}' for split in SPLITS)} |")
        print()


if __name__ == "__main__":
    main()
