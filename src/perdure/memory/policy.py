"""Policy of an agent's memory: its user, the recalled entries, and the extraction."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from perdure.conversation.counting import Counter, approximate
from perdure.conversation.summary import Summarize
from perdure.memory.extraction import Extract
from perdure.memory.users import ROOT, user_id
from perdure.model.arguments import read_mapping
from perdure.model.users import name_user

VERIFIED_USER = "langgraph_auth_user"
"""Configurable name under which a server passes the verified user to a graph."""

UserOf = Callable[[Mapping[str, Any]], "str | int | UUID | None"]
"""Returns the user of a run's configurable values; ``None`` for a run whose user has no memory. A number or a
UUID stands for its text."""


def verified_user(configurable: Mapping[str, Any]) -> str | None:
    """Return the identity of the verified user, which clients of a server cannot set."""
    return name_user(read_mapping(configurable.get(VERIFIED_USER)).get("identity"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPolicy:
    """Policy of an agent's memories of its users, for ``Agent(memory=…)``.

    Args:
        user: The user of all runs, or a function that returns the user of a run; by default the verified one.
        nearest: The number of entries that a new thread is given because they are near to its first message;
            needs an index on the store.
        newest: The number of newest entries that a new thread is given.
        tokens: Maximum number of tokens of the message with both.
        counter: Counts the tokens of a message.
        extract: Finds facts in each turn, after the reply; ``None`` to extract nothing.
        summarize: Makes the summary of each thread, after the reply; ``None`` for none. The running summary
            of ``Agent(conversation=…)`` is kept in any case.
        known: The number of current facts that an extractor is shown.
        debounce: Seconds without a new turn of the user after which the waiting turns are extracted together.
        max_wait: The maximum of that wait.
        key: The name of the messages in the graph's state.
        root: The namespace in the store that contains the namespaces of all users.

    Raises:
        ValueError: A number is out of range, or the user's id is empty.
    """

    user: str | int | UUID | UserOf = verified_user
    nearest: int = 5
    newest: int = 5
    tokens: int = 1_000
    counter: Counter = approximate
    extract: Extract | None = None
    summarize: Summarize | None = None
    known: int = 20
    debounce: float = 10.0
    max_wait: float = 120.0
    key: str = "messages"
    root: tuple[str, ...] = field(default=ROOT)

    def __post_init__(self) -> None:
        if self.user == "":
            raise ValueError("the user's id is empty; leave user= out to take the verified user of each run")
        if not callable(self.user):
            user_id(self.user)
        for name in ("nearest", "newest", "known"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it cannot be less than 0")
        if self.tokens < 1:
            raise ValueError(f"tokens is {self.tokens}; it has to be at least 1")
        for name in ("debounce", "max_wait"):
            if not math.isfinite(getattr(self, name)) or getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)} s; it has to be a number of at least 0")
        if not self.root or not all(self.root):
            raise ValueError("root is a namespace of at least one label, none of them empty")

    def user_of(self, configurable: Mapping[str, Any]) -> str | None:
        """Return the user of a run, or ``None``.

        Raises:
            TypeError: The user's id is of a type that names no user.
            ValueError: The id is empty or too long, or has a character that stores refuse.
        """
        user = self.user(configurable) if callable(self.user) else self.user
        if user is None:
            return None
        return user_id(user)
