"""Facts about a user, and summaries of the user's threads, as they are stored as items.

A fact is known from one moment until another one: a correction closes it and notes its successor in it, and
nothing else in it ever changes. So the facts that were known at any earlier time can be listed.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid5

from perdure.errors import Corrupt

TEXT_MAX = 2_000
"""Maximum number of characters of a fact."""
SUMMARY_MAX = 20_000
"""Maximum number of characters of a thread's summary."""

_FORGOTTEN = "forgotten"
_FACTS = UUID("6f0f2a52-5b0b-4d2a-9d5e-0d8c3d1c7a11")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Something that is known about a user.

    Attributes:
        id: A UUID. A text that is remembered again has the same id, unless its fact was closed in between.
        text: The fact, as text.
        thread: The thread that it comes from, if any.
        message: The message that it comes from, if any.
        valid_from: The time since when it holds in the world, if that is known.
        known_from: The time at which it was remembered.
        known_until: The time at which it was superseded or retracted; ``None`` for a current fact.
        superseded_by: The id of the fact that took its place, if any.
        supersedes: The ids of the facts whose place it took.
    """

    id: str
    text: str
    thread: str | None = None
    message: str | None = None
    valid_from: datetime | None = None
    known_from: datetime
    known_until: datetime | None = None
    superseded_by: str | None = None
    supersedes: tuple[str, ...] = ()

    @property
    def is_current(self) -> bool:
        """True if it is neither superseded nor retracted."""
        return self.known_until is None

    @property
    def at(self) -> datetime:
        """Time by which the fact is ordered among recalled entries."""
        return self.known_from

    def was_known(self, at: datetime) -> bool:
        """Return True if the fact was a current one at a time."""
        return self.known_from <= at and (self.known_until is None or at < self.known_until)

    def dump(self) -> dict[str, Any]:
        """Return the fact as the value of an item, without its id, which is the item's key."""
        return {
            "kind": "fact",
            "text": self.text,
            "current": self.is_current,
            "thread": self.thread,
            "message": self.message,
            "valid_from": _format_time(self.valid_from),
            "known_from": _format_time(self.known_from),
            "known_until": _format_time(self.known_until),
            "superseded_by": self.superseded_by,
            "supersedes": list(self.supersedes),
        }

    @classmethod
    def read(cls, key: str, value: Mapping[str, Any]) -> Fact:
        """Return the fact of an item.

        Raises:
            Corrupt: The item is not a fact of this release.
        """
        with _readable(key, "fact"):
            return cls(
                id=key,
                text=str(value["text"]),
                thread=value["thread"],
                message=value["message"],
                valid_from=read_time(value["valid_from"]),
                known_from=_read_known_time(value["known_from"]),
                known_until=read_time(value["known_until"]),
                superseded_by=value["superseded_by"],
                supersedes=tuple(value["supersedes"]),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFact:
    """A fact to remember; the fields are those of ``Fact``.

    ``heard_at`` is the time at which the fact's source was written, for a fact that is extracted later.
    """

    text: str
    thread: str | None = None
    message: str | None = None
    valid_from: datetime | None = None
    supersedes: Sequence[str] = ()
    heard_at: datetime | None = None

    def __post_init__(self) -> None:
        if isinstance(self.supersedes, str):
            raise TypeError("supersedes is a list of ids, not one text")


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadSummary:
    """Summary of a thread of the user; a later summary of the thread replaces it.

    Attributes:
        thread: The thread.
        text: The summary.
        at: The time at which it was stored.
    """

    thread: str
    text: str
    at: datetime

    @property
    def id(self) -> str:
        """The thread, by which the summary is forgotten."""
        return self.thread

    def dump(self) -> dict[str, Any]:
        """Return the summary as the value of an item, whose key is the thread."""
        return {"kind": "summary", "text": self.text, "current": True, "at": _format_time(self.at)}

    @classmethod
    def read(cls, key: str, value: Mapping[str, Any]) -> ThreadSummary:
        """Return the summary of an item.

        Raises:
            Corrupt: The item is not a summary of this release.
        """
        with _readable(key, "summary"):
            return cls(thread=key, text=str(value["text"]), at=_read_known_time(value["at"]))


def make_mark(at: datetime) -> dict[str, Any]:
    """Return the mark that takes the place of a forgotten fact or summary. It has nothing of the text."""
    return {"kind": _FORGOTTEN, "current": False, "at": _format_time(at)}


def is_mark(value: Mapping[str, Any]) -> bool:
    """Return True if the value of an item is a mark, readable or not."""
    return value.get("kind") == _FORGOTTEN


def read_mark_time(key: str, value: Mapping[str, Any] | None) -> datetime | None:
    """Return the time at which the fact or summary of an item was forgotten, ``None`` if it was not.

    Raises:
        Corrupt: The item is not a mark of this release.
    """
    if value is None or not is_mark(value):
        return None
    with _readable(key, "mark"):
        return _read_known_time(value["at"])


Remembered = Fact | ThreadSummary
"""An entry that ``Memory.recall`` returns."""


def normalise_text(text: str) -> str:
    """Return the form by which texts of facts are compared: without case, and with single blanks."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def make_fact_id(text: str, number: int) -> str:
    """Return the id of the ``number``-th fact with this text, from 0."""
    return str(uuid5(_FACTS, f"{number}\0{normalise_text(text)}"))


def clean_text(text: object, most: int) -> str:
    """Return a text without blanks around it.

    Raises:
        TypeError: It is not text.
        ValueError: It is empty, longer than ``most`` characters, or has half of a surrogate pair.
    """
    if not isinstance(text, str):
        raise TypeError(f"a memory is text, not of type {type(text).__name__}")
    text = text.strip()
    if len(text) > most:
        raise ValueError(f"a memory has at most {most} characters, this one has {len(text)}; shorten it")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("a memory cannot contain half of a surrogate pair")
    # Characters without width do not count as text.
    if not any(character.isprintable() and not character.isspace() for character in text):
        raise ValueError("a memory needs a text that is not empty")
    return text


def convert_to_utc(at: datetime, what: str) -> datetime:
    """Return a time in UTC; raise ``ValueError`` for one without a time zone, or outside the years 1 to 9999
    in UTC."""
    if at.tzinfo is None:
        raise ValueError(f"{what} needs a time zone, e.g. datetime(2026, 3, 1, tzinfo=UTC)")
    try:
        return at.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{what} is outside the years 1 to 9999 in UTC") from None


def convert_if_given(at: datetime | None, what: str) -> datetime | None:
    """Return the same as ``convert_to_utc``; ``None`` for none."""
    if at is None:
        return None
    return convert_to_utc(at, what)


def read_time(text: str | None) -> datetime | None:
    """Return the time of an item's field; raise ``ValueError`` if it is not a time, or has no time zone."""
    if text is None:
        return None
    return _read_known_time(text)


def _read_known_time(text: str) -> datetime:
    return convert_to_utc(datetime.fromisoformat(text), "a stored time")


@contextmanager
def _readable(key: str, what: str) -> Iterator[None]:
    """Raise ``Corrupt`` for an item that lacks a field of its kind."""
    try:
        yield
    except (LookupError, TypeError, ValueError) as error:
        raise Corrupt(f"the item {key!r} is not a {what} that this release can read") from error


def _format_time(at: datetime | None) -> str | None:
    if at is None:
        return None
    return at.astimezone(UTC).isoformat()
