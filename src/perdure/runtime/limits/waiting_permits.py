"""Permits that wait for their turn: users take turns, and calls within an outer call go first."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import NamedTuple


class ExpectedUse(NamedTuple):
    """Use of a call as far as it is known before it begins; each is 0 if unknown.

    Attributes:
        tokens: Tokens of its prompt.
        least: Cost of its prompt in millionths of the currency.
        likely: Cost of its prompt and of an answer, which is assumed while no cost of a call is known.
    """

    tokens: int = 0
    least: int = 0
    likely: int = 0


NOTHING_KNOWN = ExpectedUse()


@dataclass(eq=False, slots=True)
class Permit:
    """Permission for one call or run to begin, which waits for its turn.

    Attributes:
        user: The user who takes turns with others.
        begins: False if the call was counted towards the rate before.
        is_nested: True for a call within another one that holds a place of the limit: both share that place.
        expected: Its expected use.
        is_granted: True from its turn until it is released.
        is_dropped: True if it is not awaited any more.
        turn: Done when its turn has come.
        tokens: Tokens that it was estimated to need.
        money: Money that was set aside for it.
        moment: The moment of the rate's permit that it used.
        began: The time at which its wait began.
        waited: Seconds for which it waited.
    """

    user: str = ""
    begins: bool = True
    is_nested: bool = False
    expected: ExpectedUse = NOTHING_KNOWN
    is_granted: bool = False
    is_dropped: bool = False
    turn: asyncio.Future[None] | None = None
    tokens: int = 0
    money: int = 0
    moment: float | None = None
    began: float = 0.0
    waited: float = 0.0


class WaitingPermits:
    """Waiting permits of one key. It belongs to one event loop."""

    def __init__(self) -> None:
        self._by_user: OrderedDict[str, deque[Permit]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._by_user.values()))

    @property
    def user_count(self) -> int:
        """Number of users whose permits wait."""
        return len(self._by_user)

    def add(self, permit: Permit, *, has_places: bool) -> None:
        """Add a permit. ``has_places`` is True if the limit is one of the number of calls at once."""
        queue = self._by_user.setdefault(permit.user, deque())
        if permit.begins and not permit.is_nested:
            queue.append(permit)
            return
        # This one goes first: it needs less than a new call, which may even wait until its outer call ends.
        queue.appendleft(permit)
        if permit.is_nested or not has_places:
            self._by_user.move_to_end(permit.user, last=False)

    def remove(self, permit: Permit) -> None:
        """Remove a permit, if it waits."""
        queue = self._by_user.get(permit.user)
        if queue is not None and permit in queue:
            queue.remove(permit)
            if not queue:
                del self._by_user[permit.user]

    def find_first(self) -> Permit | None:
        """Return the permit whose turn is next, ``None`` if none waits; forget those that are not awaited."""
        for user, queue in list(self._by_user.items()):
            while queue and queue[0].turn is not None and queue[0].turn.done():
                queue.popleft()
            if queue:
                return queue[0]
            del self._by_user[user]
        return None

    def grant(self, permit: Permit) -> None:
        """End the wait of the first permit, and put its user behind the others."""
        queue = self._by_user[permit.user]
        queue.popleft()
        self._by_user.move_to_end(permit.user)
        if not queue:
            del self._by_user[permit.user]
        if permit.turn is not None and not permit.turn.done():
            permit.turn.set_result(None)

    def fail(self, error: Exception) -> None:
        """Fail all waiting permits."""
        for queue in self._by_user.values():
            for permit in queue:
                if permit.turn is not None and not permit.turn.done():
                    permit.turn.set_exception(error)
        self._by_user.clear()
