"""Bits that flip and pages that are overwritten, over all pages of a file, plain and encrypted.

The state of a thread is correct, or is refused by name. A list of items or of threads is too, or fsck says
that the database is damaged: an index that has lost an entry shows nothing of it. Some hundreds of pieces of
damage are tried by default, 20,000 with ``PERDURE_CHAOS=full``.
"""

from __future__ import annotations

import asyncio
import os
import random
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import admin
from perdure.runtime import Runtime
from tests.chaos import pages
from tests.chaos.test_power import builder

FULL = os.environ.get("PERDURE_CHAOS") == "full"
DAMAGES = 10_000 if FULL else 100
SEED = 20
KEY = bytes(range(32))
THREADS = 4

pytestmark = pytest.mark.timeout(7200 if FULL else 300)


async def live(db: perdure.SyncDatabase, turns: int) -> None:
    store = db.store()
    async with Runtime(db, builder().compile()) as runtime:
        for turn in range(turns):
            for thread in range(THREADS):
                ticket = await runtime.accept(f"thread {thread}", f"hello {turn} {'x' * 300 * thread}")
                await runtime.wait(ticket, 60)
                await store.aput(("memories", str(thread)), f"item {turn}", {"turn": turn})
    await db.checkpointer().aprune(["thread 1"], strategy="keep_latest")


def everything(db: perdure.SyncDatabase) -> dict[str, Any]:
    """What a user reads: by part, the value, or the name of the error that refused it."""
    out: dict[str, Any] = {}

    def part(name: str, read: Any) -> None:
        try:
            out[name] = read()
        except perdure.PerdureError as error:
            out[name] = error

    graph = builder().compile(checkpointer=db.checkpointer())
    for thread in range(THREADS):
        config: Any = {"configurable": {"thread_id": f"thread {thread}"}}
        part(f"state {thread}", lambda config=config: graph.get_state(config).values)
        part(
            f"items {thread}",
            lambda thread=thread: sorted(
                (i.key, i.value["turn"]) for i in db.store().search(("memories", str(thread)), limit=100)
            ),
        )
    part("threads", lambda: [t.thread_id for t in db.threads()])
    return out


def report(db: perdure.SyncDatabase) -> list[str]:
    """What fsck says."""
    try:
        return [*map(str, db.fsck()), *admin.examine(db)]
    except perdure.PerdureError as error:
        return [str(error)]


@pytest.mark.parametrize(
    "key", [pytest.param(None, id="plain"), pytest.param(KEY, id="encrypted", marks=pytest.mark.slow)]
)
def test_damage_is_refused_by_name_and_reported(tmp_path: Path, key: bytes | None) -> None:
    path = tmp_path / "threads.db"
    url = f"sqlite:///{path}"
    earlier: list[bytes] = []
    for turns in (1, 2, 1):
        with perdure.connect_sync(url, migrate=True, encryption_key=key) as db:
            asyncio.run(live(db, turns))
        earlier.append(pages.folded(path))
    content = earlier.pop()
    names = pages.names_of_pages(path)
    with perdure.connect_sync(url, encryption_key=key) as db:
        right = everything(db)
        assert report(db) == []
    assert not any(isinstance(value, Exception) for value in right.values())
    wrong: list[str] = []
    seen: Counter[str] = Counter()
    image = tmp_path / "image.db"
    for damage in pages.damages(content, earlier, DAMAGES, random.Random(SEED)):
        name = names.get(damage.page, "free")
        where = f"{damage.what} in page {damage.page} of {name}"
        for stale in tmp_path.glob("image.db*"):
            stale.unlink()
        image.write_bytes(damage.content)
        try:
            with perdure.connect_sync(f"sqlite:///{image}", encryption_key=key) as db:
                found = everything(db)
                said = report(db)
        except perdure.PerdureError:
            seen["not opened"] += 1
            continue
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            wrong.append(f"{where}: raised {error!r} at {last.filename}:{last.lineno}")
            continue
        differs = [
            part
            for part, value in found.items()
            if not isinstance(value, perdure.PerdureError) and value != right[part]
        ]
        refused = any(isinstance(value, perdure.PerdureError) for value in found.values())
        seen["refused" if refused else "differs" if differs else "right"] += 1
        wrong += [
            f"{where}: {part} is {str(found[part])[:150]}; fsck: {said[:2]}"
            for part in differs
            if part.startswith("state") or not said
        ]
        if refused and not said:
            wrong.append(f"{where}: refused, and fsck says nothing")
    print(f"\n{dict(seen)}")
    assert wrong == []
    assert seen["refused"] >= DAMAGES // 20
