"""A process that makes limited calls without end, and prints when each began and ended, and when its lease on
the places of a limit had ended before it could renew it.

Usage: limit_process.py URL LIMITS_AS_JSON KEYS USERS CALL_SECONDS WORKERS
"""

import asyncio
import json
import random
import sys
import time
from itertools import count
from typing import Any

import perdure
from perdure.database.base import handle_of
from perdure.limits import SharedLimit
from perdure.runtime.limits.limiter import CallTurn, limiter_of
from perdure.runtime.limits.shares import KeyShare


def tell_lapses() -> None:
    """Print when a lease had ended before it was renewed: what was under way then goes on."""
    take = KeyShare._apply_taken

    def take_and_tell(self: KeyShare, *answer: Any) -> None:
        late = self._loop.time() - self._held.until
        if self._use.places and late > 0:
            print("lapsed", self.at.limit, self.at.key["model"][1:], f"{time.time() - late:.6f}", flush=True)
        take(self, *answer)

    setattr(KeyShare, "_apply_taken", take_and_tell)  # noqa: B010 - a method


async def main(url: str, limits: str, keys: str, users: str, seconds: str, workers: str) -> None:
    async with perdure.connect(url, migrate=True) as db:
        limiter = limiter_of(handle_of(db))
        declared = {name: SharedLimit(**fields) for name, fields in json.loads(limits).items()}
        limiter.declare(declared)
        out, numbers = sys.stdout, count()
        tell_lapses()

        async def call(name: str, key: int, user: str) -> None:
            while True:
                turn = CallTurn([(name, {"model": f"m{key}"}, user)])
                await limiter.acquire(turn, "", float("inf"))
                number = next(numbers)
                out.write(f"begin {number} {name} {key} {user} {time.time():.6f}\n")
                out.flush()
                await asyncio.sleep(float(seconds) * random.uniform(0.5, 1.5))
                out.write(f"end {number} {time.time():.6f}\n")
                out.flush()
                limiter.end(turn)

        print("ready", flush=True)
        async with asyncio.TaskGroup() as group:
            for name in declared:
                for key in range(int(keys)):
                    for worker in range(int(workers)):
                        group.create_task(call(name, key, f"u{worker % int(users)}"))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
