"""Memory of users across threads: facts with their history, recall, extraction, and tools for agents."""

from perdure.memory.extraction import (
    EXTRACTION_PROMPT,
    Extract,
    ExtractedFact,
    ExtractionRequest,
    ModelExtractor,
)
from perdure.memory.facts import Fact, Remembered, ThreadSummary
from perdure.memory.memory import Memory, ausers, users
from perdure.memory.policy import MemoryPolicy, UserOf, verified_user
from perdure.memory.recall import RECALL_ID, compose_recall
from perdure.memory.tools import memory_tools
from perdure.memory.users import namespace_of

__all__ = [
    "EXTRACTION_PROMPT",
    "RECALL_ID",
    "Extract",
    "ExtractedFact",
    "ExtractionRequest",
    "Fact",
    "Memory",
    "MemoryPolicy",
    "ModelExtractor",
    "Remembered",
    "ThreadSummary",
    "UserOf",
    "ausers",
    "compose_recall",
    "memory_tools",
    "namespace_of",
    "users",
    "verified_user",
]
