"""Keys of limits: those of users who are gone are removed, and names that users choose do no harm."""

import asyncio
from typing import Any

import pytest

import perdure
from perdure.database.base import handle_of
from perdure.engine import limits as stored
from perdure.limits import SharedLimit
from perdure.model.limits import Demand
from perdure.model.ops import FindDue, Now
from perdure.model.program import ask
from perdure.model.records import Partition
from perdure.model.runs.queue import LIMITS
from perdure.runtime import Runtime, Settings
from perdure.runtime.limits.limiter import CallTurn, Limiter, limiter_of
from tests.backends import BACKENDS, EMPTY
from tests.runtime.graphs import eventually_stored
from tests.runtime.limits.test_run_limits import Office

DAY_US = 86_400_000_000
ODD = ["", "a" * 1_000_000, "\x00\x1b[31m", "ü/..%2F\n", "\ud800", "user=ada", "*[?"]


async def used(db: perdure.Database, limit: SharedLimit, users: list[str]) -> Limiter:
    """Make a call for each user, and give all places back."""
    limiter = limiter_of(handle_of(db))
    limiter.declare({"each": limit})
    for user in users:
        turn = CallTurn([("each", {"user": user}, user)])
        await limiter.acquire(turn, "", 20)
        limiter.end(turn, cost=1000)
    return limiter


async def places_of(db: perdure.Database) -> list[Partition]:
    found, _ = await handle_of(db).arun(stored.read_states("", 100))
    return [each.place.partition for each in found]


async def lanes_of(db: perdure.Database, until: int) -> list[Partition]:
    hits = await handle_of(db).arun(ask(FindDue("", until=until, limit=100)))
    return [hit.partition for hit in hits if hit.record is not None and hit.record.key[0] == LIMITS]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "limit", [SharedLimit(by=("user",), rate=60), SharedLimit(by=("user",), concurrency=2, budget=5.0)]
)
def test_every_backend_forgets_the_keys_of_users_who_are_gone(backend: str, limit: SharedLimit) -> None:
    async def main(url: str) -> None:
        async with perdure.connect(url, migrate=True) as db:
            handle = handle_of(db)
            limiter = await used(db, limit, ["ada", "bob", "cyd"])
            await asyncio.to_thread(limiter.close)
            places = await places_of(db)
            assert len(places) == 3
            now = await handle.arun(ask(Now()))
            # Nobody looks at what is in use, and all are found later.
            assert await lanes_of(db, now + 60_000_000) == []
            assert sorted(await lanes_of(db, now + 10 * DAY_US)) == sorted(places)
            for place in places:
                # Used a moment ago, it is kept, and looked at again.
                assert not await handle.arun(stored.forget(place, now))
            assert sorted(await lanes_of(db, now + 10 * DAY_US)) == sorted(places)
            for place in places:
                await handle.arun(stored.forget(place, now + 2 * DAY_US))
            assert await places_of(db) == []
            assert await lanes_of(db, now + 10 * DAY_US) == []

    with EMPTY[backend]() as url:
        asyncio.run(main(url))


async def _is_empty(db: perdure.Database) -> bool:
    return not await places_of(db)


def test_a_worker_removes_what_processes_that_were_killed_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "_IDLE_US", 200_000)

    async def main() -> None:
        async with perdure.connect("memory://") as db:
            handle = handle_of(db)
            now = await handle.arun(ask(Now()))
            limit = SharedLimit(by=("user",), concurrency=2)
            for user in ("ada", "bob"):
                at = stored.place("", handle.alias, "each", {"user": user})
                demand = Demand("dead", in_use=1, wants=1, users=1)
                await handle.arun(stored.take_share(at, limit, demand, now, handle.draw_version(), None))
            assert len(await places_of(db)) == 2
            async with Runtime(db, Office().graph(), settings=Settings(poll=0.1)):
                await eventually_stored(lambda: _is_empty(db))

    asyncio.run(main())


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_takes_any_name_that_a_user_chooses(backend: str) -> None:
    async def main(url: str) -> None:
        async with perdure.connect(url, migrate=True) as db:
            await used(db, SharedLimit(by=("user",), rate=60), ODD)
            found, _ = await handle_of(db).arun(stored.read_states("", 100))
            # Each has an amount of its own, and none is stored whole.
            assert len(found) == len(ODD)
            assert max(len(str(each.place.key)) for each in found) < 500

    with EMPTY[backend]() as url:
        asyncio.run(main(url))


def test_the_same_parts_under_other_fields_are_other_keys() -> None:
    async def main() -> None:
        async with perdure.connect("memory://") as db:
            alias = handle_of(db).alias
            keys: list[dict[str, Any]] = [
                {"user": "a", "graph": "b"},
                {"user": "b", "graph": "a"},
                {"user": "ab", "graph": ""},
                {"user": "a"},
                {},
            ]
            places = {stored.place("", alias, "each", key).partition for key in keys}
            places |= {stored.place("", alias, "other", key).partition for key in keys}
            assert len(places) == 2 * len(keys)

    asyncio.run(main())
