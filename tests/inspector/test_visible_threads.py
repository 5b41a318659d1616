"""Walks over a tenant's threads: complete for what the viewer may see, and silent about the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

import perdure
from perdure.database.base import handle_of
from perdure.errors import BadSetting
from perdure.inspector import listing, thread_health
from perdure.inspector.access import Access, LocalAccess, Sees
from perdure.runtime import Runtime
from perdure.runtime.threads import walk_by_id as walks
from perdure.runtime.threads.walk_by_id import WalkPlace, walk
from tests.inspector import staging

MINE = [f"t-{number:02}" for number in range(0, 30, 5)]
HIDDEN = [f"t-{number:02}" for number in range(31) if number % 5]


class Restricted(LocalAccess):
    """Access to the threads of one owner."""

    async def authorize_listing(self) -> Sees | None:
        return lambda metadata: metadata.get("owner") == "me"


@asynccontextmanager
async def restricted() -> AsyncIterator[Access]:
    async with (
        perdure.connect("memory://") as database,
        Runtime(database, staging.graph().compile()) as runtime,
    ):
        for name in (*MINE, *HIDDEN):
            await runtime.threads.create(name, {"owner": "me" if name in MINE else "other"})
        yield Restricted(handle_of(database), "")


async def pages(view: Any, access: Access, **asked: str) -> list[Mapping[str, Any]]:
    found = [await view(access, asked)]
    while (cursor := found[-1]["cursor"]) is not None:
        assert len(found) < 100
        found.append(await view(access, {**asked, "cursor": cursor}))
    return found


def assert_silent(found: list[Mapping[str, Any]]) -> None:
    assert [name for name in HIDDEN if any(name in str(page) for page in found)] == []


def test_threads_are_found_by_a_part_of_their_title() -> None:
    async def scenario() -> None:
        async with (
            perdure.connect("memory://") as database,
            Runtime(database, staging.graph().compile()) as runtime,
        ):
            for name, metadata in (
                ("a", {"title": "Tides of the Moon", "owner": "me"}),
                ("b", {"name": "moonlight", "owner": "me"}),
                ("c", {"title": "cats", "name": "moon", "owner": "me"}),
                ("d", {"title": 7, "owner": "me"}),
                ("e", {"title": "moon", "owner": "other"}),
            ):
                await runtime.threads.create(name, metadata)
            access = Restricted(handle_of(database), "")
            for asked in ({"title": "MOON"}, {"title": "moon", "metadata": '{"owner": "me"}'}):
                (page,) = await pages(listing.threads, access, **asked)
                assert sorted(each["thread_id"] for each in page["threads"]) == ["a", "b"]
            (page,) = await pages(listing.threads, access, title="moon", id="a")
            assert [each["thread_id"] for each in page["threads"]] == ["a"]
            everyone = LocalAccess(handle_of(database), "")
            (page,) = await pages(listing.threads, everyone, title="moon", sort="newest")
            assert [each["thread_id"] for each in page["threads"]] == ["e", "b", "a"]

    asyncio.run(scenario())


@pytest.mark.parametrize("seconds", [60.0, -1.0])
def test_a_search_by_id_is_complete_and_names_no_hidden_thread(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(listing, "PAGE", 2)
    monkeypatch.setattr(listing, "_SECONDS", seconds)
    monkeypatch.setattr(walks, "_PAGE", 4)

    async def scenario() -> None:
        async with restricted() as access:
            found = await pages(listing.threads, access, id="t-")
            assert [each["thread_id"] for page in found for each in page["threads"]] == MINE
            # In time every page is full; out of time each request still goes on by a thread.
            assert len(found) == (4 if seconds > 0 else len(MINE) + len(HIDDEN) + 1)
            assert_silent(found)

    asyncio.run(scenario())


def test_a_scan_out_of_time_goes_on_and_names_no_hidden_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_health, "_SECONDS", -1.0)

    async def scenario() -> None:
        async with restricted() as access:
            found = await pages(thread_health.scan, access, what="sizes")
            assert [each["thread_id"] for page in found for each in page["rows"]] == MINE
            # The time is checked at each thread, also at a hidden one.
            assert len(found) == len(MINE) + len(HIDDEN) + 1
            assert_silent(found)

    asyncio.run(scenario())


def test_a_walk_goes_on_where_it_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with restricted() as access:
            sees = await access.authorize_listing()
            steps = [step async for step in walk(access.handle, access.tenant, sees, WalkPlace())]
            for at, step in enumerate(steps):
                place = WalkPlace.read(step.place.cursor)
                assert [each async for each in walk(access.handle, access.tenant, sees, place)] == steps[
                    at + 1 :
                ]

    for size in (3, 64):
        monkeypatch.setattr(walks, "_PAGE", size)
        monkeypatch.setattr(walks, "_SKIPPED_PAGE", size)
        asyncio.run(scenario())


@pytest.mark.parametrize("cursor", ["t-01", ":t-01", "-1:t-01", "1" * 5000 + ":t", "\N{SUPERSCRIPT TWO}:t"])
def test_what_is_no_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(BadSetting):
        WalkPlace.read(cursor)
