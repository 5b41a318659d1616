"""Large databases: what a page reads does not grow with the number of threads or checkpoints."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

import perdure
from perdure.database.base import handle_of
from perdure.database.handle import DatabaseHandle
from perdure.database.opening import open_for_reading
from perdure.inspector import listing
from perdure.inspector.access import Access, LocalAccess
from perdure.inspector.audit_log import entries, record_action
from perdure.inspector.listing import threads
from perdure.inspector.overview import tenants
from perdure.inspector.queue import queue
from perdure.inspector.web import create_app
from perdure.model.checkpoint import CheckpointRecord
from perdure.model.ops import Commit, Expect, Fetch, Find, Put, Range
from perdure.model.program import Effect
from perdure.model.records import BLOB, CHECKPOINT, CHUNK, GC, HEAD, Partition
from perdure.runtime import Runtime
from perdure.storage.port import Driver, WrappingDriver
from perdure.storage.postgres.connection import ServerConnection, StatementCall
from perdure.storage.postgres.statements import Statement
from tests.backends import EMPTY
from tests.inspector import staging
from tests.inspector.browsing import served
from tests.inspector.test_audit_log import Restricted
from tests.server.browsing import browsing, launched

R = TypeVar("R")
FULL = os.environ.get("PERDURE_CHAOS") == "full"
THREADS, CHECKPOINTS = (50_000, 10_000) if FULL else (400, 600)
KINDS = (HEAD, GC, CHECKPOINT, CHUNK, BLOB)


class Counting(WrappingDriver):
    """Counts the requests, those of them that search, the records that they return, and how many are under
    way at once."""

    def __init__(self, inner: Driver) -> None:
        super().__init__(inner)
        self.clear()

    def clear(self) -> None:
        self.requests = self.searches = self.records = self.under_way = self.at_once = 0

    def perform(self, effect: Effect[R]) -> R:
        answer = self._inner.perform(effect)
        self._count(effect, answer)
        return answer

    async def aperform(self, effect: Effect[R]) -> R:
        self.under_way += 1
        self.at_once = max(self.at_once, self.under_way)
        await asyncio.sleep(0)  # as a request over a network, which lets the others begin
        answer = await self._inner.aperform(effect)
        self.under_way -= 1
        self._count(effect, answer)
        return answer

    def _count(self, effect: Effect[Any], answer: Any) -> None:
        self.requests += 1
        self.searches += isinstance(effect, Find)
        if isinstance(answer, tuple):
            self.records += sum(len(each) if type(each) is tuple else 1 for each in answer)


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def large(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database with many threads, and one that has many checkpoints."""
    with EMPTY[request.param]() as url:
        fill(url)
        yield url


def fill(url: str) -> None:
    with perdure.connect_sync(url, migrate=True) as database:
        staging.say(staging.compiled(database), "model", "tides")
        driver = handle_of(database).driver
        found = driver.perform(Fetch(Partition("", "model"), tuple(Range(kind) for kind in KINDS)))
        puts = [
            Put(each.kind, each.key, each.fields, each.body, Expect.ABSENT, each.version)
            for answer in found
            for each in answer
        ]

        async def copies() -> None:
            for at in range(0, THREADS, 500):
                names = [f"thread-{n:06d}" for n in range(at, min(at + 500, THREADS))]
                await asyncio.gather(*(driver.aperform(Commit(Partition("", n), tuple(puts))) for n in names))

        asyncio.run(copies())
        _lengthen(handle_of(database), [CheckpointRecord.read(each) for each in found[2]])


def _lengthen(handle: DatabaseHandle, records: list[CheckpointRecord]) -> None:
    """Put a long chain onto the thread with the last name."""
    at = Partition("", "zz-long")
    (chunks,) = handle.driver.perform(Fetch(Partition("", "model"), (Range(CHUNK),)))
    ops = [Put(each.kind, each.key, each.fields, each.body, Expect.ABSENT, each.version) for each in chunks]
    last = max(records, key=lambda record: record.seq)
    prefix, parent = last.id[:-12], None
    for seq in range(1, CHECKPOINTS + 1):
        own = last._replace(id=f"{prefix}{seq:012x}", seq=seq, parent_id=parent, step=seq, prior=None)
        ops.append(own.put())
        parent = own.id
    head = {"checkpoint_id": parent, "seq": CHECKPOINTS}
    ops.append(Put(HEAD, ("",), head, expect=Expect.ABSENT, version=1))
    ops.append(Put(GC, (), expect=Expect.ABSENT, version=1))
    handle.driver.perform(Commit(at, tuple(ops)))


class Site:
    def __init__(self, url: str, statements: list[Statement]) -> None:
        self.statements = statements
        self.database = open_for_reading(url)
        handle = handle_of(self.database)
        self.driver = handle.driver = Counting(handle.driver)
        self.app = create_app(LocalAccess(handle, ""))

    @property
    def sent(self) -> int:
        """Number of statements that the last request needed on PostgreSQL."""
        return len(self.statements)

    def get(self, view: str, **asked: Any) -> Any:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                return await client.get(f"/inspect/api/{view}", params=asked)

        self.driver.clear()
        self.statements.clear()
        began = time.monotonic()
        response = asyncio.run(send())
        took = time.monotonic() - began
        assert response.status_code == 200, response.text
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(  # the measurement of a full run
            f"{view} {asked}: {took * 1000:.0f} ms, {self.driver.requests} requests, "
            f"{self.sent} statements, "
            f"{self.driver.records} records, {len(response.content):,} bytes, peak {peak} MB"
        )
        return response.json()


@pytest.fixture(scope="module")
def site(large: str) -> Iterator[Site]:
    sent: list[Statement] = []

    def ask(self: ServerConnection, call: StatementCall[Any]) -> Any:
        sent.append(call.statement)
        return asked(self, call)

    asked = ServerConnection.ask
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServerConnection, "ask", ask)
        made = Site(large, sent)
        yield made
        made.database.close()


def test_a_page_of_threads_reads_a_page_of_threads(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine a search would be answered with what it has found in its time.
    for asked in (
        {},
        {"cursor": str(THREADS - 60)},
        {"sort": "age"},
        {"status": "idle"},
        {"id": "thread-0001"},
    ):
        assert len(site.get("threads", **asked)["threads"]) >= 50
        # A look at a thread is three requests, and what is looked at together shares round trips.
        looked = 64 if "id" in asked else 51
        searches = 2 if "status" in asked else 1
        assert site.driver.searches == searches
        assert site.driver.requests <= searches + 3 * looked
        assert site.driver.records <= 6 * looked
        assert site.driver.at_once == looked
        assert site.sent <= 30


@pytest.mark.parametrize("view", ["queue", "log"])
def test_threads_that_are_shown_together_are_read_together(view: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            perdure.connect(f"sqlite:///{tmp_path / 'threads.db'}", migrate=True) as database,
            Runtime(database, staging.graph().compile(), works=False) as runtime,
        ):
            handle = handle_of(database)
            access = Restricted(handle, "")
            for n in range(12):
                await runtime.threads.create(f"t{n}", {"owner": "me"})
                await runtime.submit(f"t{n}", {"messages": [("user", "hello")]})
                async with record_action(access, "tag", f"t{n}", {}):
                    pass
            access.who = "another"
            counting = handle.driver = Counting(handle.driver)
            if view == "queue":
                assert len((await queue(access, {}))["work"]) == 12
            else:
                assert len((await entries(access, {}))["entries"]) == 12
            assert counting.at_once == 12

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_names_of_tenants_are_found_without_their_threads(large: str) -> None:
    database = open_for_reading(large)
    handle = handle_of(database)
    handle.driver = counting = Counting(handle.driver)
    try:
        found = asyncio.run(tenants(LocalAccess(handle, "", all_tenants=True), {}))
        assert found == {"tenants": [""], "is_whole": True}
        assert (counting.requests, counting.records) == (2, 1)
    finally:
        database.close()


def test_several_threads_are_measured_together(monkeypatch: pytest.MonkeyPatch) -> None:
    under_way, most = 0, 0

    async def size(access: Access, thread_id: str) -> int:
        nonlocal under_way, most
        under_way, most = under_way + 1, max(most, under_way + 1)
        await asyncio.sleep(0)
        under_way -= 1
        return len(thread_id)

    async def scenario() -> None:
        async with (
            perdure.connect("memory://") as database,
            Runtime(database, staging.graph().compile(), works=False) as runtime,
        ):
            for n in range(12):
                await runtime.threads.create(f"t{n}", {})
            page = await threads(LocalAccess(handle_of(database), ""), {"sort": "size"})
            assert sorted(each["bytes"] for each in page["threads"]) == [2] * 10 + [3] * 2
            assert most == 8

    monkeypatch.setattr(listing, "_size", size)
    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_page_of_a_long_timeline_reads_a_page(site: Site) -> None:
    first = site.get("timeline", id="zz-long")
    assert len(first["checkpoints"]) == 100
    assert site.driver.requests <= 8
    assert site.driver.records <= 110
    middle = site.get("timeline", id="zz-long", before=CHECKPOINTS // 2)
    assert middle["checkpoints"][0]["seq"] == CHECKPOINTS // 2 - 1
    assert site.driver.records <= 110
    site.get("checkpoint", id="zz-long")
    assert site.driver.records <= 100


def test_a_page_of_steps_reads_a_page(site: Site) -> None:
    first = site.get("steps", id="zz-long")
    assert len(first["steps"]) == 50
    assert site.driver.requests <= 16
    assert site.driver.records <= 120
    middle = site.get("steps", id="zz-long", before=CHECKPOINTS // 2)
    assert middle["cursor"] == CHECKPOINTS // 2 - 50
    assert site.driver.records <= 120
    site.get("conversation", id="zz-long")
    assert site.driver.requests <= 40
    site.get("thread", id="zz-long")
    assert site.driver.records <= 120


def test_all_checkpoints_are_reached_page_by_page(site: Site) -> None:
    cursor, seen = None, []
    while True:
        page = site.get("timeline", id="zz-long", before=cursor or "")
        seen += [each["seq"] for each in page["checkpoints"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert seen == list(range(CHECKPOINTS, 0, -1))


def test_the_largest_threads_are_found_in_parts(site: Site) -> None:
    cursor, examined, found = "", 0, list[Any]()
    for _ in range(3 if FULL else 1000):
        page = site.get("threads", sort="size", cursor=cursor)
        assert len(page["threads"]) <= 50
        found += page["threads"]
        examined += page["examined"]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert examined == THREADS + 2 or (FULL and cursor is not None)
    if cursor is None:
        assert max(found, key=lambda each: each["bytes"])["thread_id"] == "zz-long"


def test_memory_stays_flat(site: Site) -> None:
    def read() -> None:
        for before in range(CHECKPOINTS, 0, -CHECKPOINTS // 6):
            site.get("timeline", id="zz-long", before=before)
            site.get("steps", id="zz-long", before=before)
        for skipped in range(0, THREADS, THREADS // 6):
            site.get("threads", cursor=str(skipped))
        site.get("checkpoint", id="zz-long")
        site.get("branches", id="zz-long")

    for _ in range(2):
        read()
    before = resident()
    for _ in range(6):
        read()
    assert resident() - before < 16 * 1024 * 1024


def resident() -> int:
    """Bytes that this process has in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_pages_of_a_large_database_open_at_once(large: str, chromium: str) -> None:
    database = open_for_reading(large)
    try:
        with (
            served(LocalAccess(handle_of(database), "")) as address,
            launched(chromium) as browser,
            browsing(browser, reduced_motion="reduce") as page,
        ):
            page.set_default_timeout(60_000)
            page.goto(address)
            page.locator("tbody tr").first.wait_for()
            shown = {"threads": "tbody tr", "thread?id=zz-long&view=timeline": "a[data-checkpoint]"}
            fastest = {
                view: min(page.evaluate(OPENED, [view, wanted]) for _ in range(5))
                for view, wanted in shown.items()
            }
            print({view: f"{took:.0f} ms" for view, took in fastest.items()})
            if FULL:
                assert max(fastest.values()) < 1000
            # As one scrolls, every checkpoint comes.
            links = page.locator("a[data-checkpoint]")
            entries, last = 0, CHECKPOINTS if not FULL else 3000
            while entries < last:
                links.last.scroll_into_view_if_needed()
                page.wait_for_function(
                    "n => document.querySelectorAll('a[data-checkpoint]').length > n", arg=entries
                )
                entries = links.count()
            assert page.evaluate("() => performance.memory.usedJSHeapSize") < 100 * 1024 * 1024
    finally:
        database.close()


OPENED = """async ([view, wanted]) => {
    const isLog = () => document.querySelector("h1")?.textContent === "Log of actions";
    location.hash = "#/log";
    while (!isLog()) await new Promise(requestAnimationFrame);
    const began = performance.now();
    location.hash = `#/${view}`;
    while (!document.querySelector(wanted)) await new Promise(requestAnimationFrame);
    return performance.now() - began;
}"""
"""Opens a view from another one; the milliseconds until the first of its entries is there."""


def test_the_branches_of_a_long_thread_are_one_chain(site: Site) -> None:
    tree = site.get("branches", id="zz-long")
    assert [branch["count"] for branch in tree["branches"]] == [CHECKPOINTS]
    assert site.driver.records <= CHECKPOINTS + 10


def test_a_scan_is_cut_into_parts_that_cover_every_thread(site: Site) -> None:
    cursor, examined = "", 0
    for _ in range(3 if FULL else 1000):
        page = site.get("scan", what="dead", cursor=cursor)
        examined += page["examined"]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert examined == THREADS + 2 or (FULL and cursor is not None)
