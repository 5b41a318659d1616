"""What other processes do to a database of the PostgreSQL tests; each is run as a program, by name."""

from __future__ import annotations

import json
import os
import sys
import time

from perdure.model.ops import Commit, Put
from perdure.model.records import GC, Partition
from perdure.storage.postgres import opening
from perdure.storage.url import open_driver


def write(url: str) -> None:
    """Write to one thread for ever, and say so once it is going."""
    driver = open_driver(url)
    for version in range(1, 1 << 40):
        driver.perform(Commit(Partition("", "thread"), (Put(GC, (), version=version),)))
        if version == 20:
            print("writing", flush=True)


def migrate(url: str) -> None:
    """Thirty processes that know nothing yet migrate one database at once; prints what each made of it."""
    start = time.time() + 0.5
    children: dict[int, int] = {}
    for _ in range(30):
        readable, writable = os.pipe()
        child = os.fork()
        if child == 0:
            time.sleep(max(0.0, start - time.time()))
            try:
                before = opening.migrate(url)
                opening.open_driver(url).close()
                outcome = f"migrated from {before}"
            except BaseException as error:
                outcome = f"{type(error).__name__}: {error}"
            os.write(writable, outcome.encode())
            os._exit(0)
        os.close(writable)
        children[child] = readable
    outcomes = []
    for child, readable in children.items():
        outcomes.append(os.read(readable, 1 << 12).decode())
        os.waitpid(child, 0)
    print(json.dumps(outcomes))


if __name__ == "__main__":
    {"write": write, "migrate": migrate}[sys.argv[1]](sys.argv[2])
