"""Settings of a runtime: limits and times that a deployment chooses."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, cast

from perdure.engine.retention.queue_retention import BATCH_MAX
from perdure.errors import LimitPending
from perdure.model.arguments import require_mapping, require_number, require_text, require_whole
from perdure.model.limits import SharedLimit
from perdure.model.model_calls import NO_PRICES, Prices
from perdure.model.runs.queue import Debounce

LONGEST_WAIT_S = 100 * 366 * 86400
"""Longest time in seconds for which a call may postpone a message: a hundred years."""
_LOOK_S = 300.0
"""Longest pause of a run that waits for a limit."""
_TIMES = (
    "lease",
    "backoff",
    "max_backoff",
    "poll",
    "keep",
    "keep_events",
    "debounce",
    "max_wait",
    "drain",
    "deadline",
)
_NUMBERS = ("attempts", "concurrency", "max_pending", "max_batch", "warn_bytes")
_VERSION = re.compile(r"[^\s\x00-\x1f\x7f]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a runtime; times are in seconds.

    Args:
        lease: The time for which a run is held without a renewal by its worker: after a crash the run
            continues that much later. The lease is renewed three times in this time, so a run may take
            longer.
        debounce: The time for which messages wait for more of them, unless a call sets its own; with
            0 they do not wait.
        max_wait: The maximum of that wait, unless a call sets its own.
        attempts: The number of attempts at a run before its messages are given up.
        backoff: The pause after the first failure, doubled each time up to ``max_backoff``.
        max_backoff: The longest pause between attempts.
        on_failure: With ``"rollback"`` the thread of a failed run returns to its state before the run, so
            that no permanent cause of failure stays in it; ``"keep"`` leaves what the run had stored.
        deadline: The time that a run may take in all, from its first attempt; ``None`` for no limit.
        concurrency: The number of runs on which this process works at once.
        per_tenant: The number of these runs for one tenant; ``None`` for no limit.
        max_pending: The number of messages that may wait on a thread.
        max_batch: The number of waiting messages that one run takes.
        poll: The interval of polls for due queues.
        drain: The time for which a stopping worker lets its runs continue.
        keep: The time for which the outcome of a message is remembered, and its dedupe key: a message that is
            sent again later counts as new.
        keep_events: The time for which a run's events can be followed after its end.
        missed_crons: The treatment of the times that passed while no process started crons: ``"one"`` starts
            a cron once for all of them, ``"all"`` once for each, ``"none"`` not at all.
        shared_threads: False refuses a run of a graph on a thread whose state another graph made; True lets
            all graphs run on all threads, each on the state that the last one left.
        warn_bytes: The size in bytes from which a channel of a graph's state is reported as large.
        task_times: True stores with a task's result when the task ran.
        version: The name of the application's version, such as that of a commit, which is stored with each
            run; ``None`` for a name that is made of each graph's structure and code.
        limits: Limits over all processes by their names, on runs, and on calls of models and tools within
            nodes.
        prices: Prices of models, for budgets and for the cost of calls in events, metrics and traces.

    Raises:
        ValueError: A setting is out of range; the message has the valid range.
        TypeError: A setting is of another type.
    """

    lease: float = 30.0
    debounce: float = 0.0
    max_wait: float = 10.0
    attempts: int = 5
    backoff: float = 1.0
    max_backoff: float = 60.0
    on_failure: Literal["rollback", "keep"] = "rollback"
    deadline: float | None = None
    concurrency: int = 32
    per_tenant: int | None = None
    max_pending: int = 1000
    max_batch: int = 50
    poll: float = 1.0
    drain: float = 25.0
    keep: float = 7 * 86400.0
    keep_events: float = 600.0
    missed_crons: Literal["one", "all", "none"] = "one"
    warn_bytes: int = 50 * 1024
    shared_threads: bool = False
    task_times: bool = True
    version: str | None = None
    limits: Mapping[str, SharedLimit] = field(default_factory=dict[str, SharedLimit])
    prices: Prices = NO_PRICES

    def __post_init__(self) -> None:
        self._require_types()
        for name in _TIMES:
            seconds = getattr(self, name)
            if seconds is not None and not (math.isfinite(seconds) and seconds <= LONGEST_WAIT_S):
                raise ValueError(
                    f"{name} is {seconds} s; it has to be a number of seconds up to {LONGEST_WAIT_S:,}"
                )
        for name in ("lease", "backoff", "max_backoff", "poll", "keep", "keep_events"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)} s; it has to be more than 0")
        for name in _NUMBERS:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it has to be at least 1")
        if self.max_batch > BATCH_MAX:
            raise ValueError(f"max_batch is {self.max_batch}; one run takes at most {BATCH_MAX} messages")
        for name in ("debounce", "max_wait", "drain"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)} s; it cannot be less than 0")
        if self.on_failure not in ("rollback", "keep"):
            raise ValueError(f"on_failure is 'rollback' or 'keep', not {self.on_failure!r}")
        if self.missed_crons not in ("one", "all", "none"):
            raise ValueError(f"missed_crons is 'one', 'all' or 'none', not {self.missed_crons!r}")
        if self.version is not None and not _VERSION.fullmatch(self.version):
            raise ValueError(
                f"version is {self.version[:80]!r}; it has to have 1 to 64 characters without spaces"
            )
        if self.per_tenant is not None and self.per_tenant < 1:
            raise ValueError(
                f"per_tenant is {self.per_tenant}; it has to be at least 1, or None for no limit"
            )
        if self.deadline is not None and self.deadline <= 0:
            raise ValueError(f"deadline is {self.deadline} s; it has to be more than 0, or None for none")

    def _require_types(self) -> None:
        for name in _TIMES:
            if name != "deadline" or self.deadline is not None:
                require_number(name, getattr(self, name))
        for name in _NUMBERS:
            require_whole(name, getattr(self, name))
        if self.per_tenant is not None:
            require_whole("per_tenant", self.per_tenant)
        if self.version is not None:
            require_text("version", self.version)
        require_mapping("limits", self.limits)
        for name, limit in self.limits.items():
            if not isinstance(cast(object, limit), SharedLimit):
                raise TypeError(f"the limit {name!r} is SharedLimit(…), not {type(limit).__name__}")

    @property
    def lease_us(self) -> int:
        """Return the duration of a lease in microseconds."""
        return round(self.lease * 1_000_000)

    def debounce_for(self, debounce: float | None = None, max_wait: float | None = None) -> Debounce:
        """Return the times of a call in microseconds, by default those of the settings.

        Raises:
            ValueError: A time is out of range.
        """
        debounce = self.debounce if debounce is None else debounce
        most = self.max_wait if max_wait is None else max_wait
        wait, longest = parse_span("debounce", debounce), parse_span("max_wait", most)
        return Debounce(wait, max(wait, longest))

    def pause_us(self, attempt: int, spread: float, error: BaseException | None = None) -> int:
        """Return the pause in microseconds after a failed attempt, counted from 1. ``spread``, from 0 to 1,
        is the jitter that separates runs that failed together. A run that waits for a limit has the pause
        that the limit gives, and at most five minutes, as the limit may be changed or reset."""
        if isinstance(error, LimitPending):
            # Two runs that waited for each other try again at different times.
            return round((min(error.retry_after, _LOOK_S) + spread) * 1_000_000)
        pause = min(self.max_backoff, self.backoff * 2.0 ** min(attempt - 1, 40))
        return round(pause * (0.5 + 0.5 * spread) * 1_000_000)


def parse_span(name: str, seconds: float) -> int:
    """Return a number of seconds, as a call gave it, in microseconds.

    Raises:
        ValueError: It is not a number of seconds from 0 to ``LONGEST_WAIT_S``. The message begins with
            ``name``.
        TypeError: It is not a number.
    """
    require_number(name, seconds)
    if not 0 <= seconds <= LONGEST_WAIT_S:
        raise ValueError(
            f"{name} is {seconds} s; it has to be a number of seconds from 0 to {LONGEST_WAIT_S:,}"
        )
    return round(seconds * 1_000_000)
