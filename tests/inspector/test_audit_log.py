"""The audit log of the inspector: its entries are short, paged, bounded, and name no hidden thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import perdure
from perdure.database.base import handle_of
from perdure.inspector import audit_log
from perdure.inspector.access import LocalAccess, Sees
from perdure.inspector.actions import ACTIONS, DETAIL_MAX
from perdure.runtime import Runtime
from tests.inspector import staging
from tests.inspector.test_actions import site

Found = list[dict[str, Any]]


class Restricted(LocalAccess):
    """Access to the threads of one owner."""

    async def authorize_listing(self) -> Sees | None:
        return lambda metadata: metadata.get("owner") == "me"


def in_a_tenant(check: Callable[[LocalAccess, LocalAccess], Coroutine[Any, Any, None]]) -> None:
    """Run a check with access to every thread and with access to the thread "mine"."""

    async def scenario() -> None:
        async with (
            perdure.connect("memory://") as database,
            Runtime(database, staging.graph().compile()) as runtime,
        ):
            for name in ("mine", "hidden"):
                await runtime.threads.create(name, {"owner": "me" if name == "mine" else "other"})
            mine = Restricted(handle_of(database), "")
            mine.who = "me"
            await check(LocalAccess(handle_of(database), ""), mine)

    asyncio.run(scenario())


async def record(access: LocalAccess, *threads: str) -> None:
    for number, name in enumerate(threads):
        async with audit_log.record_action(access, "tag", name, {"name": str(number)}):
            pass


async def pages(access: LocalAccess) -> list[Found]:
    asked: dict[str, str] = {}
    found: list[Found] = []
    while len(found) < 100:
        page = await audit_log.entries(access, asked)
        found.append(page["entries"])
        if page["cursor"] is None:
            return found
        # It names an entry that was shown, so not even the time of a hidden one.
        _, _, name = page["cursor"].partition(":")
        assert not name or int(name[:20]) in {each["at"] for page in found for each in page}
        asked = {"cursor": page["cursor"]}
    raise AssertionError("the log does not end")


def numbers(found: list[Found]) -> list[str]:
    return [each["details"]["name"] for page in found for each in page]


def test_the_log_is_paged_also_past_entries_that_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "_PAGE", 2)

    async def check(every: LocalAccess, mine: LocalAccess) -> None:
        await record(every, "mine", *["hidden"] * 5, "mine", "mine", "hidden")
        found = await pages(every)
        assert numbers(found) == list("876543210")
        assert max(map(len, found)) == 2
        assert numbers(await pages(mine)) == list("760")

    in_a_tenant(check)


def test_the_newest_entries_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "MOST", 4)
    monkeypatch.setattr(audit_log, "_TRIMMED", 2)
    monkeypatch.setattr(audit_log, "_TRIM_ONE_IN", 1_000_000_000)

    async def check(every: LocalAccess, mine: LocalAccess) -> None:
        await record(every, *["mine"] * 11)
        assert len(numbers(await pages(every))) == 11
        monkeypatch.setattr(audit_log, "_TRIM_ONE_IN", 1)
        await record(every, "mine")
        assert numbers(await pages(every)) == ["0", "10", "9", "8"]

    in_a_tenant(check)


def test_a_detail_that_cannot_be_one_is_refused_before_it_is_recorded() -> None:
    async def scenario() -> None:
        async with site() as found:
            await found.say("tides")
            for action, each in ACTIONS.items():
                for name in each.audited:
                    for value in ("x" * (DETAIL_MAX + 1), ["a text"], {"a": "text"}, 2**63):
                        detail = await found.refused(action, 422, **{name: value})
                        assert detail.startswith(f"{name} has to be"), detail
            assert await found.log() == []

    asyncio.run(scenario())
