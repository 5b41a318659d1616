"""Usage of models by hop and by user, summed in this process from the events of a runtime."""

from __future__ import annotations

from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

from perdure.model.bounded_cache import BoundedCache
from perdure.runtime.observers import Observer

_USERS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Spent:
    """Sums over calls of models. ``seconds`` is their duration, ``cost`` the cost of models with a known
    price."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    cost: float = 0.0

    def add_call(self, call: dict[str, Any]) -> Spent:
        """Return the sums including one more call, from the fields of its event."""
        return replace(
            self,
            calls=self.calls + 1,
            input_tokens=self.input_tokens + call["input_tokens"],
            output_tokens=self.output_tokens + call["output_tokens"],
            seconds=self.seconds + call["took"] / 1_000_000,
            cost=self.cost + call.get("cost", 0.0),
        )


class Usage(Observer):
    """Observer for ``Runtime(observers=…)`` that adds up the calls of models by hop, and by user for the last
    10,000 users."""

    def __init__(self) -> None:
        self._hops: dict[str, Spent] = {}
        self._users: BoundedCache[tuple[str, str], Spent] = BoundedCache(_USERS_MAX)
        self._lock = Lock()

    def event(self, name: str, fields: dict[str, Any]) -> None:
        if name != "model.called":
            return
        user = fields["tenant"], fields["user"]
        with self._lock:
            hop = fields["hop"]
            self._hops[hop] = self._hops.get(hop, Spent()).add_call(fields)
            self._users[user] = self._users.get(user, Spent()).add_call(fields)

    def by_hop(self) -> dict[str, Spent]:
        """Return the sums by the name of the node that made the calls."""
        with self._lock:
            return dict(self._hops)

    def by_user(self, tenant: str = "") -> dict[str, Spent]:
        """Return the sums of a tenant's users by their id; ``""`` is for runs without a user."""
        with self._lock:
            return {user: spent for (owner, user), spent in self._users.items() if owner == tenant}
