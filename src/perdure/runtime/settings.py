"""How a runtime behaves: the limits and times that a deployment chooses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from perdure.engine.queue_retention import BATCH_MAX
from perdure.model.queue import Debounce


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Times in seconds. A setting that cannot work raises ``ValueError`` with the mend.

    ``lease`` is for how long a run is held without a sign of life from its worker: after a crash the run goes
    on that much later. It is renewed three times as often, so a run may take any time. ``debounce`` and
    ``max_wait`` are how long messages wait for more of them, where a call says nothing else; 0 is not at all.
    ``attempts`` is how often a run is tried before its messages are given up, ``backoff`` the pause after the
    first failure, doubled each time up to ``max_backoff``. With ``on_failure="rollback"`` a thread is then as
    it was before them, so that nothing which fails each time stays in it; ``"keep"`` leaves what the run had
    stored. ``deadline`` is how long a run may take in all,
    from its first attempt. ``concurrency`` is how many runs this process works on at once, ``per_tenant`` how
    many of them for one tenant. ``max_pending`` is how many messages may wait on a thread, ``max_batch`` how
    many of them one run takes. ``poll`` is how often the database is asked for what is due. ``drain`` is how
    long a stopping worker lets its runs go on. ``keep`` is for how long what became of a message is
    remembered, and with it that it was accepted: a message that is sent again later is taken for a new one.
    ``keep_told`` is for how long what a run told can be followed after its end.
    ``warn_bytes`` is how large a channel of a graph's state may be before its name is told as a warning.
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
    keep_told: float = 600.0
    warn_bytes: int = 50 * 1024

    def __post_init__(self) -> None:
        for name in (
            "lease",
            "backoff",
            "max_backoff",
            "poll",
            "keep",
            "keep_told",
            "debounce",
            "max_wait",
            "drain",
            "deadline",
        ):
            if not math.isfinite(getattr(self, name) or 0.0):
                raise ValueError(f"{name} is {getattr(self, name)} s; it has to be a number of seconds")
        for name in ("lease", "backoff", "max_backoff", "poll", "keep", "keep_told"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)} s; it has to be more than 0")
        for name in ("attempts", "concurrency", "max_pending", "max_batch", "warn_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it has to be at least 1")
        if self.max_batch > BATCH_MAX:
            raise ValueError(f"max_batch is {self.max_batch}; one run takes at most {BATCH_MAX} messages")
        for name in ("debounce", "max_wait", "drain"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)} s; it cannot be less than 0")
        if self.on_failure not in ("rollback", "keep"):
            raise ValueError(f"on_failure is 'rollback' or 'keep', not {self.on_failure!r}")
        if self.per_tenant is not None and self.per_tenant < 1:
            raise ValueError(
                f"per_tenant is {self.per_tenant}; it has to be at least 1, or None for no limit"
            )
        if self.deadline is not None and self.deadline <= 0:
            raise ValueError(f"deadline is {self.deadline} s; it has to be more than 0, or None for none")

    @property
    def lease_us(self) -> int:
        return round(self.lease * 1_000_000)

    def debounce_for(self, debounce: float | None = None, max_wait: float | None = None) -> Debounce:
        """What a call's own times, or these where it has none, come to."""
        debounce = self.debounce if debounce is None else debounce
        most = self.max_wait if max_wait is None else max_wait
        if debounce < 0 or most < 0:
            raise ValueError(f"debounce is {debounce} s and max_wait {most} s; neither can be less than 0")
        return Debounce(round(debounce * 1_000_000), round(max(debounce, most) * 1_000_000))

    def pause_us(self, attempt: int, spread: float) -> int:
        """How long to wait after a failed attempt, from 1; ``spread`` from 0 to 1 parts those that failed
        together."""
        pause = min(self.max_backoff, self.backoff * 2.0 ** min(attempt - 1, 40))
        return round(pause * (0.5 + 0.5 * spread) * 1_000_000)
