"""Memory of the demo: sentences in which a person speaks of themselves, kept word for word.

It needs no model, so that the demo remembers without a network: the small model does not extract facts
reliably. A program of your own uses ``ModelExtractor``.
"""

from __future__ import annotations

import re

from perdure.memory import ExtractedFact, ExtractionRequest, MemoryPolicy

USER = "you"
"""The demo's one user."""

POLICY_TOKENS = 300

_SENTENCE = re.compile(r"[^.!?\n]+[.!?]?")
_OF_ONESELF = re.compile(
    r"(my name is|call me|my \w+( \w+)? (is|are|was)|i (am|'m|live|work|like|love|hate|prefer|have|need|want|"
    r"study|play|speak|come|moved|was born)|i'm|we (are|live|have))\b",
    re.IGNORECASE,
)
_SAME_SUBJECT = re.compile(r"(my name is|call me|i live|i work|my \w+( \w+)? (is|are))\b", re.IGNORECASE)
_SENTENCE_MAX = 300


def statements(request: ExtractionRequest) -> list[ExtractedFact]:
    """Return the sentences in which the user speaks of themselves, without questions. A new sentence about
    the same subject, such as ``I live …``, supersedes the older one."""
    out: list[ExtractedFact] = []
    for line in request.messages.splitlines():
        if not line.startswith("User: "):
            continue
        for sentence in _SENTENCE.findall(line.removeprefix("User: ")):
            text = sentence.strip()
            if _OF_ONESELF.match(text) and not text.endswith("?") and len(text) <= _SENTENCE_MAX:
                subject = _find_subject(text)
                older = [fact.id for fact in request.known if subject and _find_subject(fact.text) == subject]
                out.append(ExtractedFact(text, tuple(older)))
    return out


def make_demo_policy() -> MemoryPolicy:
    """Return the policy of the demo's agent."""
    return MemoryPolicy(user=USER, extract=statements, tokens=POLICY_TOKENS, debounce=0.5, max_wait=5.0)


def _find_subject(text: str) -> str | None:
    found = _SAME_SUBJECT.match(text)
    return found and found[0].casefold()
