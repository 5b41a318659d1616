"""A process that makes limited calls without end, and prints when each began and ended.

Usage: limit_process.py URL LIMIT_AS_JSON KEYS USERS CALL_SECONDS WORKERS
"""

import asyncio
import json
import random
import sys
import time

import perdure
from perdure.database.base import handle_of
from perdure.limits import SharedLimit
from perdure.runtime.limits.limiter import CallTurn, limiter_of


async def main(url: str, amounts: str, keys: str, users: str, seconds: str, workers: str) -> None:
    async with perdure.connect(url, migrate=True) as db:
        limiter = limiter_of(handle_of(db))
        limiter.declare({"shared": SharedLimit(**json.loads(amounts))})
        out = sys.stdout

        async def call(key: int, user: str) -> None:
            while True:
                turn = CallTurn([("shared", {"model": f"m{key}"}, user)])
                await limiter.acquire(turn, "", float("inf"))
                began = time.time()
                await asyncio.sleep(float(seconds) * random.uniform(0.5, 1.5))
                out.write(f"{key} {user} {began:.6f} {time.time():.6f}\n")
                out.flush()
                limiter.end(turn)

        print("ready", flush=True)
        async with asyncio.TaskGroup() as group:
            for key in range(int(keys)):
                for worker in range(int(workers)):
                    group.create_task(call(key, f"u{worker % int(users)}"))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
