"""Retention policies and times to live: what a deployment keeps of its threads, and for how long.

A policy is checked when it is made. ``RetentionRules`` chooses one for each thread.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, fields
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, Literal

from perdure.model.checkpoint import CheckpointRecord
from perdure.model.removal_plan import make_newest_rule

LABEL = "retention"
"""Key of a thread's metadata that names its policy."""

_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw]?)", re.ASCII)
_NO_POLICIES: Mapping[str, Retention] = MappingProxyType({})
_NO_NAMES: Mapping[str, str] = MappingProxyType({})


def parse_duration(value: str | float) -> int:
    """Return a duration in microseconds.

    Args:
        value: seconds, as a number or text, or a number with a unit: ``"90s"``, ``"15m"``, ``"12h"``,
            ``"30d"``, ``"4w"``.

    Raises:
        ValueError: it is not a number, or not more than 0.
    """
    seconds = math.nan
    if not isinstance(value, str | bool):
        seconds = float(value)
    elif found := _DURATION.fullmatch(str(value).strip()):
        seconds = float(found[1]) * _UNITS_S[found[2]]
    # The product of a finite number of seconds may be infinite.
    if not math.isfinite(seconds * 1_000_000) or seconds <= 0:
        raise ValueError(
            f"{value!r} is not a duration; write e.g. '12h', '30d' or a number of seconds above 0"
        )
    return round(seconds * 1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Rules for the checkpoints that a thread keeps. Without any field everything stays.

    A checkpoint is removed when neither ``keep_last`` nor ``keep_for`` keeps it. Whatever they are, the
    latest checkpoint of the thread and of each subgraph stays, with its open interrupts; so do tagged
    checkpoints, the one that an open run returns to when it is rolled back, and the data from which a
    ``DeltaChannel`` is rebuilt.

    Args:
        keep_last: keeps so many newest checkpoints of a thread; subgraphs' checkpoints follow the ones they
            ran under.
        keep_for: keeps checkpoints younger than this.
        idle: a thread without activity for this long expires: it reads as absent and is removed as a whole.
            A thread with an open run, a waiting message or an undelivered reply does not expire.
        keep_tagged: a thread with a tag does not expire either.

    Raises:
        ValueError: a field is out of range; the message has the valid range.
    """

    keep_last: int | None = None
    keep_for: str | float | None = None
    idle: str | float | None = None
    keep_tagged: bool = True

    def __post_init__(self) -> None:
        last: Any = self.keep_last
        if last is not None and (isinstance(last, bool) or not isinstance(last, int) or last < 1):
            raise ValueError(f"keep_last is {last!r}; it has to be a whole number of at least 1")
        tagged: Any = self.keep_tagged
        if not isinstance(tagged, bool):
            raise ValueError(f"keep_tagged is {self.keep_tagged!r}; it has to be true or false")
        for name in ("keep_for", "idle"):
            value = getattr(self, name)
            try:
                if value is not None:
                    parse_duration(value)
            except (TypeError, ValueError):
                raise ValueError(
                    f"{name} is {value!r}; it has to be a duration, e.g. '12h', '30d' or seconds above 0"
                ) from None

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Retention:
        """Return the policy that a table of settings describes; raises ``ValueError`` for an unknown name."""
        known = [each.name for each in fields(cls)]
        for name in table:
            if name not in known:
                raise ValueError(f"{name} is not a field of a retention policy; there is {', '.join(known)}")
        return cls(**table)

    @property
    def idle_us(self) -> int | None:
        """``idle`` in microseconds."""
        if self.idle is None:
            return None
        return parse_duration(self.idle)

    @property
    def keep_for_us(self) -> int | None:
        """``keep_for`` in microseconds."""
        if self.keep_for is None:
            return None
        return parse_duration(self.keep_for)

    @property
    def prunes(self) -> bool:
        """True if checkpoints are removed from threads that do not expire."""
        return self.keep_last is not None or self.keep_for is not None

    def find_kept(self, roots: list[CheckpointRecord], now: int) -> set[str]:
        """Return the ids of the root checkpoints to keep by number or age, at a time in microseconds."""
        if not self.prunes:
            return {c.id for c in roots}
        kept = self.find_kept_by_age(roots, now)
        if self.keep_last is None:
            return kept
        return kept | make_newest_rule(self.keep_last)(roots)

    def find_kept_by_age(self, roots: list[CheckpointRecord], now: int) -> set[str]:
        """Return the ids of the root checkpoints that ``keep_for`` keeps; those without a time stay."""
        if self.keep_for_us is None:
            return set()
        since = now - self.keep_for_us
        return {c.id for c in roots if c.made_at is None or c.made_at > since}


@dataclass(frozen=True, slots=True)
class ThreadTtl:
    """Removal of threads without activity for ``default_ttl`` minutes, or of all but their latest state. A
    sweep removes at most ``sweep_limit`` of them."""

    default_ttl: float
    strategy: Literal["delete", "keep_latest"] = "delete"
    sweep_interval_minutes: float = 5.0
    sweep_limit: int = 1000

    @property
    def client_form(self) -> dict[str, Any]:
        """The time to live in the form in which clients send one."""
        return {"ttl": self.default_ttl, "strategy": self.strategy}


def make_stored_ttl(ttl: Mapping[str, Any] | None, now: int) -> dict[str, Any] | None:
    """Return a time to live as it is stored, counted from now.

    Args:
        ttl: the minutes under "ttl", or under "ttl_minutes" if it was stored before; None for none.
        now: current time in microseconds.
    """
    if ttl is None:
        return None
    minutes = float(ttl.get("ttl_minutes", ttl.get("ttl", 0)))
    return {
        "strategy": ttl.get("strategy", "delete"),
        "ttl_minutes": minutes,
        "expires_at": now + round(minutes * 60_000_000),
    }


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """Choice of a policy for each thread.

    A thread has the policy that its metadata names under ``retention``; without that, the policy of its
    assistant, else of its graph, else the default.

    Args:
        default: the policy of all other threads; ``None`` keeps them as they are.
        policies: further policies by name.
        assistants: names of policies by assistant id or graph id.
        thread_ttl: threads also expire by the time to live that clients of a server set for them.
        usual_ttl: time to live of threads that no client has given one, and the most removals of a sweep.
        only_default: the default applies to every thread, whatever policy its metadata names, and no time to
            live applies.

    Raises:
        ValueError: an assistant has the name of a policy that does not exist.
    """

    default: Retention | None = None
    policies: Mapping[str, Retention] = field(default_factory=lambda: _NO_POLICIES)
    assistants: Mapping[str, str] = field(default_factory=lambda: _NO_NAMES)
    thread_ttl: bool = False
    usual_ttl: ThreadTtl | None = None
    only_default: bool = False

    def __post_init__(self) -> None:
        for assistant, name in self.assistants.items():
            if name not in self.policies:
                there = ", ".join(sorted(self.policies)) or "none"
                raise ValueError(
                    f"assistants: {assistant!r} has the policy {name!r}, which does not exist; "
                    f"there is {there}"
                )

    @classmethod
    def of(cls, given: Retention | RetentionRules | None) -> RetentionRules:
        """Return rules with a policy as the default; rules are returned as they are."""
        if isinstance(given, RetentionRules):
            return given
        return cls(given)

    @property
    def shortest_idle_us(self) -> int | None:
        """Shortest ``idle`` of all policies in microseconds; ``None`` if no thread expires by a policy."""
        idles = [each.idle_us for each in (self.default, *self.policies.values()) if each is not None]
        return min((idle for idle in idles if idle is not None), default=None)

    @property
    def expires(self) -> bool:
        """True if threads expire at all."""
        return self.thread_ttl or self.shortest_idle_us is not None

    @property
    def is_empty(self) -> bool:
        """True if no thread is ever changed."""
        return self.default is None and not self.policies and self.usual_ttl is None

    @property
    def fingerprint(self) -> str:
        """Digest of everything that decides which threads and checkpoints are removed."""
        policies = {name: astuple(policy) for name, policy in self.policies.items()}
        default = self.default and astuple(self.default)
        ttl = self.usual_ttl and astuple(self.usual_ttl)
        rules = [default, policies, dict(self.assistants), ttl, self.only_default]
        return blake2b(json.dumps(rules, sort_keys=True).encode(), digest_size=16).hexdigest()

    def policy_for(self, metadata: Mapping[str, Any]) -> Retention | None:
        """Return the policy of a thread with this metadata.

        Raises:
            LookupError: the metadata names a policy that does not exist.
        """
        if self.only_default:
            return self.default
        if LABEL in metadata:
            name = metadata[LABEL]
            if not isinstance(name, str) or name not in self.policies:
                raise LookupError(name)
            return self.policies[name]
        for key in ("assistant_id", "graph_id"):
            named = metadata.get(key)
            if isinstance(named, str) and named in self.assistants:
                return self.policies[self.assistants[named]]
        return self.default
