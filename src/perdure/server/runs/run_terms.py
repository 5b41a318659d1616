"""Terms of a run's acceptance, from the headers and the body of its request."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from starlette.datastructures import Headers

from perdure.runtime.accepting import Strategy
from perdure.server.auth.identity import Refusal
from perdure.server.requests import NewRun, Ref
from perdure.server.runs.run_request_headers import DEBOUNCE_MS, IDEMPOTENCY_KEY, MULTITASK

_KEY_MAX = 255


class RunTerms(NamedTuple):
    """Terms of a run's acceptance: its idempotency key, the treatment of an open run, and the interrupt that
    the run answers, if it is an answer."""

    key: str | None
    strategy: Strategy
    coalesce: bool
    debounce: float
    interrupt_id: str | None

    @classmethod
    def of(
        cls, headers: Headers, new: NewRun, key: str | None, start: Ref | None, interrupt_id: str | None
    ) -> Self:
        """Return the terms of a request.

        Args:
            headers: the headers of the request.
            new: the run.
            key: the run's idempotency key, if any.
            start: the checkpoint from which it starts, None for the latest.
            interrupt_id: the interrupt that it answers, if it names one.

        Raises:
            Refusal: a value cannot be used, or does not go with the run.
        """
        strategy, coalesce, debounce = _choose_multitask(headers, new, start)
        if new.after_seconds and (coalesce or strategy != "enqueue"):
            raise Refusal(
                422, "a run that comes later is enqueued; leave the multitask strategy and the debounce out"
            )
        return cls(key, strategy, coalesce, debounce, interrupt_id)


def idempotency_key(headers: Headers, part: int) -> str | None:
    """Return the idempotency key of a run, if any; ``part`` is its place among the runs of its request.
    ``Refusal`` if it cannot be used."""
    key = headers.get(IDEMPOTENCY_KEY)
    if key is not None and not 0 < len(key) <= _KEY_MAX:
        raise Refusal(422, f"an Idempotency-Key has 1 to {_KEY_MAX} characters")
    if key is not None and part:
        return f"{key} {part}"
    return key


def read_strategy(headers: Headers, new: NewRun) -> Any:
    """Return the strategy that a request asks for, unchecked; None if it asks for none."""
    return headers.get(MULTITASK) or new.multitask_strategy or new.metadata.get("multitask_strategy")


def _choose_multitask(headers: Headers, new: NewRun, start: Ref | None) -> tuple[Strategy, bool, float]:
    """Return the strategy, True if the run is coalesced with other queued ones, and the debounce in
    seconds."""
    asked = read_strategy(headers, new)
    delay = headers.get(DEBOUNCE_MS, new.metadata.get("debounce_ms"))
    try:
        debounce = 0.0 if delay is None else float(delay) / 1000
    except (TypeError, ValueError, OverflowError):
        raise Refusal(422, f"{DEBOUNCE_MS} is a number of milliseconds, e.g. 1500") from None
    if not 0 <= debounce <= 3600:
        raise Refusal(422, f"{DEBOUNCE_MS} is from 0 to 3600000")
    if asked == "coalesce" or (debounce and asked in (None, "enqueue")):
        if new.command is not None or start is not None:
            raise Refusal(422, "a run with a command or a checkpoint cannot be coalesced with others")
        return "enqueue", True, debounce
    match asked:
        case None | "enqueue":
            return "enqueue", False, 0.0
        case "steer" if new.command is not None or start is not None:
            raise Refusal(422, "a run with a command or a checkpoint cannot steer an open run")
        case "reject" | "interrupt" | "rollback" | "steer":
            return asked, False, 0.0
        case _:
            raise Refusal(422, f"there is no multitask strategy {asked!r}")
