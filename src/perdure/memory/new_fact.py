"""A fact that is to be remembered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime


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
