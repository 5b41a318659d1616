"""Share of a process in a limit, for one key: the calls that wait, and the amounts that it can give them.

It belongs to one event loop. It requests amounts from the database before its own run out, and not for each
call; waiting users take turns.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

from perdure.engine.limits import LimitPlace, Taken, take_share
from perdure.errors import Contention, LimitPending, LimitReached, PerdureError, Unavailable
from perdure.model.limits import LEASE_US, SKEW_US, Demand, SharedLimit
from perdure.model.program import Program
from perdure.runtime.clock import DatabaseClock
from perdure.runtime.jitter import spread
from perdure.runtime.limits.held_amounts import HORIZON_S, HeldAmounts, UsedAmounts
from perdure.runtime.limits.permits import Permits
from perdure.runtime.limits.waiting_permits import Permit, WaitingPermits

_LEASE_S = LEASE_US / 1_000_000
_RENEW_S = _LEASE_S / 3
_MARGIN_S = 0.25
"""Seconds before its end from which a lease is no longer used."""
_LEAD_S = 0.1
"""Permits are requested so many seconds before the moment of the last one."""
_SKEW_S = SKEW_US / 1_000_000
_DISAGREE_US = 500_000
_UNAVAILABLE_S = 10.0
"""Seconds for which requests to an unavailable database are repeated before waiting calls fail."""
_PAUSE_S = 0.02
"""Minimum seconds between two requests."""
_USED_UP_S = 1.0
"""Seconds after which an exhausted budget is checked again, as it may have been raised."""
_LOOK_S = 5.0
"""Seconds after which other amounts are requested again, as the key may have been reset."""
_SOON_S = 0.25
"""Seconds within which a permit counts as available at once."""
_FIRST_TOKENS = 1000
_WEIGHT = 0.2

Perform = Callable[[Program[Taken]], Awaitable[Taken]]


class KeyShare:
    """Share of this process in a limit for one key.

    Args:
        at: Where the limit's state is stored.
        limit: The limit.
        owner: Name of this process.
        perform: Runs a program on the database.
        clock: Clock of the database.
        fresh: Returns a number that was never used before.
    """

    def __init__(
        self,
        at: LimitPlace,
        limit: SharedLimit,
        owner: str,
        perform: Perform,
        clock: DatabaseClock,
        fresh: Callable[[], int],
    ) -> None:
        self.at, self.limit = at, limit
        self._owner, self._perform, self._clock, self._fresh = owner, perform, clock, fresh
        self._waiting = WaitingPermits()
        self._held, self._use = HeldAmounts(), UsedAmounts()
        self._calls = self._make_permits(limit.interval_us, limit.burst_size)
        self._tokens = self._make_permits(limit.token_interval_us, limit.token_burst)
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failing_since: float | None = None
        self._asking = asyncio.Lock()
        self._loop = asyncio.get_running_loop()

    @staticmethod
    def _make_permits(interval_us: float, burst: int) -> Permits:
        interval = interval_us / 1_000_000
        lasts = (burst - 1) * interval
        return Permits(interval, lasts - min(_SKEW_S, lasts / 4))

    def change(self, limit: SharedLimit) -> None:
        """Use the amounts of another limit from now on."""
        if limit == self.limit:
            return
        self.limit = limit
        self._calls = self._make_permits(limit.interval_us, limit.burst_size)
        self._tokens = self._make_permits(limit.token_interval_us, limit.token_burst)
        self._held.next_request_at = self._held.more_at = 0.0
        self._wake.set()

    @property
    def is_idle(self) -> bool:
        """True if no call waits, and this process holds no amounts."""
        return self._task is None

    @property
    def waiting_count(self) -> int:
        """Number of waiting permits."""
        return len(self._waiting)

    @property
    def in_use(self) -> int:
        """Number of permits that are granted and not released."""
        return self._use.places

    async def acquire(self, permit: Permit, within: float | None) -> None:
        """Wait for the turn of a permit.

        Args:
            permit: A new permit.
            within: Maximum seconds to wait; ``None`` for no limit, 0 to ask the database once.

        Raises:
            LimitReached: The turn did not come within that time, or the budget is used up.
            Unavailable: The database is unavailable.
        """
        permit.began = self._loop.time()
        if self._held.day_ends is not None and permit.began < self._held.next_request_at:
            raise make_budget_error(self.at, self.limit, self._held.day_ends - permit.began)
        permit.turn = self._loop.create_future()
        self._waiting.add(permit, has_places=self.limit.concurrency is not None)
        self._grant()
        self._start()
        try:
            if within == 0 and not permit.turn.done():
                await self._request_once(permit.turn)
            async with asyncio.timeout(within or None):
                await permit.turn
        except TimeoutError:
            self._waiting.remove(permit)
            if not permit.is_granted:
                raise self.refusal(permit) from None
        except BaseException:
            self._waiting.remove(permit)
            self.release(permit, is_used=False)
            raise
        permit.waited = self._loop.time() - permit.began
        if permit.is_dropped:
            self.release(permit, is_used=False)

    async def _request_once(self, turn: asyncio.Future[None]) -> None:
        """Request amounts from the database once; raise ``TimeoutError`` if the turn does not follow."""
        if (pause := self._held.next_request_at - self._loop.time()) <= _PAUSE_S:
            await asyncio.sleep(max(0.0, pause))
            async with self._asking:
                if not turn.done() and self._held.next_request_at <= self._loop.time():
                    await self._request()
            self._grant()
        # The permits that were received may be usable only a moment later.
        moment = None
        if self.limit.rate is not None:
            moment = self._calls.find_moment()
        if not turn.done() and moment is not None:
            wait = moment - self._loop.time()
            if wait <= _SOON_S:
                await asyncio.wait([turn], timeout=wait + _PAUSE_S)
        if not turn.done():
            raise TimeoutError

    def refusal(self, permit: Permit | None = None) -> LimitReached:
        """Return the error for a call that does not wait any longer."""
        again = self._held.more_at
        # Permits are granted before the moments from which they are valid: the call has to wait for its own.
        if self.limit.rate is not None and (permit is None or permit.begins):
            again = max(again, self._calls.find_moment() or again + HORIZON_S)
        if self.limit.tokens is not None:
            again = max(again, self._tokens.find_moment() or again + HORIZON_S)
        after = max(0.05, again - self._loop.time())
        text = f"{_describe(self.at)} is reached; try again in {after:.1f} s"
        return LimitPending(text, self.at.limit, after)

    def drop(self, permit: Permit) -> None:
        """Release a permit, or remove it from the queue."""
        permit.is_dropped = True
        if permit.is_granted:
            self.release(permit, is_used=False)
        elif permit.turn is not None and not permit.turn.done():
            permit.turn.cancel()

    def release(
        self, permit: Permit, tokens: int | None = None, cost: int | None = None, *, is_used: bool = True
    ) -> None:
        """Release a permit at the end of its call.

        Args:
            permit: A permit whose turn came; nothing happens if it was already released.
            tokens: Tokens that the call used, ``None`` if unknown.
            cost: Cost of the call in millionths of the currency.
            is_used: False if no call began with it, so that another call may use it.
        """
        if not permit.is_granted:
            return
        permit.is_granted = False
        use, held = self._use, self._held
        use.places -= not permit.is_nested
        if not is_used and permit.moment is not None:
            self._calls.put_back(permit.moment)
        use.reserved -= permit.money
        if cost:
            use.paid += cost
            held.money -= cost
            held.dearest = max(held.dearest, cost)
        if not is_used:
            use.debt -= permit.tokens
        elif tokens is not None and self.limit.tokens is not None:
            use.debt += tokens - permit.tokens
            mean = held.mean_tokens or tokens
            held.mean_tokens = mean + _WEIGHT * (tokens - mean)
            self._pay_debt()
        # Waiting calls continue at once, even during a request to the database.
        self._grant()
        self._start()

    def _start(self) -> None:
        if self._task is None:
            self._task = self._loop.create_task(self._serve())
        self._wake.set()

    async def _serve(self) -> None:
        try:
            while True:
                self._wake.clear()
                self._grant()
                now = self._loop.time()
                if self._needs_request(now):
                    await self._try_request()
                    continue
                if self._is_over():
                    return
                try:
                    async with asyncio.timeout_at(self._find_next_time(now)):
                        await self._wake.wait()
                except TimeoutError:
                    continue
        except Exception as error:
            # No call may wait for a turn that will never come.
            self._waiting.fail(error)
        finally:
            self._task = None
            if self._waiting:
                self._start()

    def _is_over(self) -> bool:
        held, use = self._held, self._use
        return not (self._waiting or use.places or held.places or held.money or self._has_news)

    @property
    def _has_news(self) -> bool:
        """True if the database does not know all that ended calls used."""
        return self._use.paid > 0 or self._count_owed_tokens() != 0

    # Granting

    def _grant(self) -> None:
        """Grant permits as long as there are amounts for them, users in turn."""
        while (permit := self._waiting.find_first()) is not None and self._begin(permit):
            self._waiting.grant(permit)

    def _begin(self, permit: Permit) -> bool:
        limit, held, use, now = self.limit, self._held, self._use, self._loop.time()
        tokens = owed = 0
        takes_permit = limit.rate is not None and permit.begins
        if takes_permit and not self._is_ready(self._calls, 1, now):
            return False
        if limit.tokens is not None:
            tokens, owed = self._estimate(permit), self._count_needed_tokens(permit)
            if use.debt > 0 or (owed and not self._is_ready(self._tokens, owed, now)):
                return False
        if limit.concurrency is not None and not permit.is_nested and not self._has_place(now):
            return False
        money = 0
        if limit.budget is not None:
            found = self._choose_money(permit, now)
            if found is None:
                return False
            money = found
            held.may_exceed = False
        if takes_permit:
            permit.moment = self._calls.find_moment()
            self._calls.use()
        if limit.tokens is not None:
            self._tokens.use(owed)
            use.debt += tokens - owed
            self._pay_debt()
        use.places += not permit.is_nested
        use.peak = max(use.peak, use.places)
        use.reserved += money
        use.calls.note(now)
        permit.is_granted, permit.tokens, permit.money = True, tokens, money
        return True

    @staticmethod
    def _is_ready(permits: Permits, number: int, now: float) -> bool:
        permits.lapse(now)
        moment = permits.find_moment(number)
        return moment is not None and moment <= now

    def _estimate(self, permit: Permit) -> int:
        mean = self._held.mean_tokens or min(_FIRST_TOKENS, self.limit.token_burst)
        return max(1, round(mean), permit.expected.tokens)

    def _pay_debt(self) -> None:
        """Pay owed tokens with permits, which no other call uses then."""
        self._tokens.lapse(self._loop.time())
        if paid := min(len(self._tokens), max(0, self._use.debt)):
            self._tokens.use(paid)
            self._use.debt -= paid

    def _count_owed_tokens(self) -> int:
        """Return how many tokens the database has to know as owed, or, below 0, as not owed any more. Up to a
        burst of unused ones is kept for later calls."""
        debt = self._use.debt
        if -self.limit.token_burst <= debt <= 0:
            return 0
        return debt

    def _count_needed_tokens(self, permit: Permit) -> int:
        """Return how many tokens have to be available for a call to begin. This is at most half a burst, as
        it is not certain that more accumulate; the call owes the rest."""
        burst = self.limit.token_burst
        return max(0, min(self._estimate(permit) + max(self._use.debt, -burst), burst // 2))

    def _has_place(self, now: float) -> bool:
        held = self._held
        return self._use.places < min(held.places, held.allotted) and now < held.until - _MARGIN_S

    def _choose_money(self, permit: Permit, now: float) -> int | None:
        """Return the amount of money that a call reserves, ``None`` if there is too little."""
        held, use = self._held, self._use
        if now >= held.until - _MARGIN_S:
            return None
        need = self._choose_reserve(permit)
        if held.dearest and held.money - use.reserved >= need:
            return need
        if held.may_exceed and held.money > 0 and not use.reserved:
            return held.money
        return None

    def _choose_reserve(self, permit: Permit) -> int:
        """Return the amount of money to set aside for a call."""
        if self._held.dearest:
            return max(self._held.dearest, permit.expected.least)
        return permit.expected.likely

    # Requests

    def _needs_request(self, now: float) -> bool:
        held, use, limit = self._held, self._use, self.limit
        if now >= held.renew_at and (held.places or held.money or self._has_news):
            return True
        is_dearer = limit.budget is not None and held.dearest > held.stored_dearest
        if is_dearer or use.debt > limit.token_burst // 2:
            # A call used more than was expected of it: other processes learn it at once.
            return True
        if limit.concurrency is not None and use.places < held.places and held.places > held.allotted:
            return True
        if limit.of == "run" and held.places > use.places + self.waiting_count:
            return True
        permit = self._waiting.find_first()
        if permit is None or now < held.next_request_at:
            return False
        if limit.rate is not None and self._runs_out(self._calls, self._count_wanted(now), now):
            return True
        if limit.tokens is not None and self._runs_out(
            self._tokens, self._count_wanted_tokens(permit, now), now
        ):
            return True
        is_short = limit.concurrency is not None and not self._has_place(now)
        if is_short and (self._wants_more() or now >= held.frees_at):
            return True
        return limit.budget is not None and self._choose_money(permit, now) is None

    def _wants_more(self) -> bool:
        """Return True if this process would use more places than it requested last."""
        held, most = self._held, self.limit.concurrency or 0
        return not held.places or held.asked < min(most, self._use.places + self.waiting_count)

    @staticmethod
    def _runs_out(permits: Permits, wanted: int, now: float) -> bool:
        permits.lapse(now)
        return len(permits) < wanted and permits.ends < now + _LEAD_S

    def _count_wanted(self, now: float) -> int:
        return math.ceil(max(self.waiting_count, self._use.calls.advance(now) * HORIZON_S))

    def _count_wanted_tokens(self, permit: Permit, now: float) -> int:
        return max(1, self._count_wanted(now) * self._estimate(permit) + min(0, self._use.debt))

    def _find_next_time(self, now: float) -> float | None:
        """Return the time at which a permit may be granted, or a request is due."""
        held, limit = self._held, self.limit
        times: list[float] = []
        if held.places or held.money or self._has_news:
            times.append(held.renew_at)
        if (permit := self._waiting.find_first()) is not None:
            if held.next_request_at > now:
                times.append(held.next_request_at)
            times.append(held.frees_at)
            if limit.rate is not None:
                times += self._list_times(self._calls, 1, now)
            if limit.tokens is not None:
                times += self._list_times(self._tokens, max(1, self._count_needed_tokens(permit)), now)
        soonest = min((each for each in times if each < math.inf), default=None)
        if soonest is None:
            return None
        return max(soonest, now + 0.001)

    @staticmethod
    def _list_times(permits: Permits, number: int, now: float) -> list[float]:
        times = (permits.ends - _LEAD_S, permits.find_moment(number))
        return [each for each in times if each is not None and each > now]

    def _make_demand(self, now: float) -> Demand:
        limit, held, use = self.limit, self._held, self._use
        permit = self._waiting.find_first()
        wanted = tokens = next_cost = 0
        if limit.rate is not None:
            wanted = self._count_wanted(now)
        if limit.tokens is not None and permit is not None:
            tokens = self._count_wanted_tokens(permit, now)
        if permit is not None:
            next_cost = self._choose_reserve(permit)
        return Demand(
            self._owner,
            in_use=use.places if limit.concurrency is not None else 0,
            wants=self._count_wanted_places(),
            calls=max(0, wanted - len(self._calls)) if self._waiting else 0,
            tokens=max(0, tokens - len(self._tokens)),
            calls_ahead=float(wanted),
            tokens_ahead=float(tokens),
            users=self._waiting.user_count,
            waiting=self.waiting_count,
            paid=use.paid,
            reserved=use.reserved,
            needs_money=limit.budget is not None and bool(self._waiting),
            dearest=held.dearest,
            mean_tokens=held.mean_tokens,
            next_cost=next_cost,
            owed_tokens=self._count_owed_tokens(),
        )

    def _count_wanted_places(self) -> int:
        if self.limit.concurrency is None:
            return 0
        wanted = self._use.places + self.waiting_count
        # Calls follow each other quickly, so places are kept. Runs are long, and others may need the places.
        if self.limit.of == "run":
            return wanted
        return max(self._use.peak, wanted)

    async def _try_request(self) -> None:
        """Request amounts from the database. While it is unavailable, waiting calls keep waiting for a
        while."""
        try:
            async with self._asking:
                if self._needs_request(self._loop.time()):
                    await self._request()
        except (Unavailable, Contention) as error:
            now = self._loop.time()
            since = self._failing_since = self._failing_since or now
            if now - since > _UNAVAILABLE_S:
                self._waiting.fail(error)
            pause = min(2.0, 0.1 + (now - since) / 2) * (0.5 + spread())
            self._held.next_request_at = self._held.more_at = now + pause
            self._held.renew_at = now + pause
            await asyncio.sleep(pause)
        else:
            self._failing_since = None

    async def _request(self) -> None:
        now = await self._clock.now()
        asked_at = self._loop.time()
        demand = self._make_demand(asked_at)
        held = self._held
        # The answer may grant no more than the usage that the demand states, so calls that begin meanwhile
        # must not use more.
        held.places, held.may_exceed = min(held.places, self._use.places), False
        held.money = min(held.money, self._use.reserved)
        known = held.known
        fresh = self._fresh()
        taken = await self._perform(take_share(self.at, self.limit, demand, now, fresh, known))
        if abs(taken.before - now) > _DISAGREE_US and (
            taken.before > now or taken.before < self._held.last_at
        ):
            # The processes disagree on the time: the clock of the database was set.
            self._clock.forget()
        self._apply_taken(taken, demand, now, asked_at)

    def _apply_taken(self, taken: Taken, demand: Demand, now: int, asked_at: float) -> None:
        held, use, share = self._held, self._use, taken.share
        held.known = None
        if taken.is_first and taken.document is not None:
            held.known = (taken.document,)
        held.last_at = now
        use.paid -= demand.paid
        use.debt -= demand.owed_tokens
        held.places, held.allotted, held.asked = share.places, share.allotted, demand.wants
        held.dearest, held.stored_dearest = max(share.dearest, held.dearest), share.dearest
        held.mean_tokens = held.mean_tokens or share.mean_tokens
        need = max(share.dearest, demand.next_cost)
        is_short = not share.dearest or share.money < demand.reserved + need
        held.may_exceed = share.money > 0 and not demand.reserved and is_short
        held.money = share.money - use.paid
        held.until = asked_at + (share.until - now) / 1_000_000
        held.renew_at = min(asked_at + _RENEW_S, max(asked_at + 0.05, held.until - 2 * _MARGIN_S))
        pause = 0.0
        if share.again is not None:
            pause = (share.again - now) / 1_000_000
        held.more_at = asked_at + max(_PAUSE_S, pause)
        held.next_request_at = min(held.more_at, asked_at + _LOOK_S)
        held.frees_at = math.inf
        if share.frees_at is not None:
            held.frees_at = asked_at + (share.frees_at - now) / 1_000_000
        use.peak = use.places
        for permits, span in ((self._calls, share.calls), (self._tokens, share.tokens)):
            permits.add(asked_at + (span.start - now) / 1_000_000, span.size)
        self._pay_debt()
        held.day_ends = None
        if share.day_ends is not None:
            after = (share.day_ends - now) / 1_000_000
            held.day_ends, held.next_request_at = asked_at + after, asked_at + min(after, _USED_UP_S)
            self._waiting.fail(make_budget_error(self.at, self.limit, after))

    async def close(self) -> None:
        """Return the unused amounts of this process to the database, once no permit waits."""
        # A request that is under way ends first: what it reports would count twice.
        async with self._asking:
            if self._task is not None:
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)
        self._use.peak = self._use.places
        if self._held.places or self._held.money or self._has_news:
            try:
                await self._request()
            except PerdureError:
                # The lease ends by itself.
                return


def make_budget_error(at: LimitPlace, limit: SharedLimit, after: float) -> LimitReached:
    """Return the error of a call whose budget is used up, and begins anew ``after`` so many seconds."""
    text = (
        f"{_describe(at)}: the budget of {limit.budget:g} per day is used up; it is available again in "
        f"{after:.0f} s"
    )
    kind = LimitPending if limit.at_end == "wait" else LimitReached
    return kind(text, at.limit, after)


def _describe(at: LimitPlace) -> str:
    """Return a limit's name and key as errors begin with them."""
    return f"limit {at.limit!r}" + "".join(f" of {what} {name!r}" for what, name in at.key.items())
