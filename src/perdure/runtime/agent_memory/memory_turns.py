"""Turns of a user's threads on their way to the user's lane, and the names of lanes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from perdure.errors import Corrupt
from perdure.model.records import INTERNAL

MEMORY = "perdure.memory"
"""Name of the lanes' graph, and of the channel that leads to them."""


def lane_of(user: str) -> str:
    """Return the id of the thread that is a user's lane."""
    return f"{INTERNAL}{user}"


def is_lane(thread_id: str) -> bool:
    """Return True if a thread is some user's lane, which clients may not address."""
    return thread_id.startswith(INTERNAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingTurn:
    """A turn of a thread, as it waits for its extraction.

    Attributes:
        agent: The name of the thread's agent.
        thread: The thread.
        run: The run that ended the turn.
        at: The time at which its message was accepted, in microseconds.
        message: The id of the user's first message in it.
        messages: The type and text of each message.
        summary: The running summary of the thread, if it could not be stored with the turn.
        is_summarised: True if the summary of its thread includes the turn already.
    """

    agent: str
    thread: str
    run: str
    at: int
    message: str | None
    messages: Sequence[Sequence[str]]
    summary: str | None = None
    is_summarised: bool = False

    def dump(self) -> dict[str, Any]:
        """Return the turn as plain JSON data."""
        return asdict(self)

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> WaitingTurn:
        """Return a turn that was stored; raise ``Corrupt`` if it does not have the form of this release."""
        try:
            return cls(**stored)
        except TypeError as error:
            raise Corrupt("a turn that waits for its extraction was stored by another release") from error

    def to_messages(self) -> list[BaseMessage]:
        """Return the messages."""
        kinds: dict[str, type[BaseMessage]] = {"human": HumanMessage, "ai": AIMessage}
        return [kinds[kind](text, id=self.run) for kind, text in self.messages]
