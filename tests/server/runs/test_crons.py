"""Crons over HTTP, driven by LangGraph's own client: what they start, for whom, and what is refused.

Covers perdure.server.runs.temporary_threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import NotFoundError, UnprocessableEntityError

from perdure.errors import QueueFull
from perdure.runtime.crons import Crons, Due
from perdure.server.runs import crons as cron_runs
from perdure.server.runs import run_creation
from perdure.server.runs.crons import CronJob
from tests.backends import EMPTY
from tests.runtime.graphs import Heard
from tests.server.acceptance.saying import row, rows, state_values
from tests.server.hosting import Served, owners, run, serving, tenants

EACH_SECOND = "* * * * * *"
FIELDS = {
    "cron_id", "assistant_id", "thread_id", "schedule", "timezone", "end_time", "next_run_date", "payload",
    "metadata", "on_run_completed", "enabled", "user_id", "last_run", "created_at", "updated_at",
}  # fmt: skip


@pytest.fixture(params=["sqlite"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with EMPTY[request.param]() as url:
        yield url


on_all = pytest.mark.parametrize(
    "url",
    [
        pytest.param(each, marks=() if each in ("sqlite", "postgresql") else pytest.mark.slow)
        for each in EMPTY
    ],
    indirect=True,
)


def said(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


async def until(what: Any) -> Any:
    while not (found := await what()):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return found


async def texts(client: LangGraphClient, thread_id: str) -> list[str]:
    values = await state_values(client, thread_id)
    return [message["content"] for message in (values or {}).get("messages", ())]


@on_all
@run
async def test_a_cron_runs_on_its_thread_each_time(url: str) -> None:
    async with serving(url) as server:
        client = await server.client()
        thread = (await client.threads.create())["thread_id"]
        made = row(
            await client.crons.create_for_thread(
                thread, "aware", schedule=EACH_SECOND, input=said("tick"), metadata={"team": "a"}
            )
        )
        assert set(made) == FIELDS
        assert (made["thread_id"], made["schedule"], made["enabled"]) == (thread, EACH_SECOND, True)
        assert made["payload"]["input"] == said("tick")
        assert made["on_run_completed"] is None

        async def twice() -> bool:
            return len(await texts(client, thread)) >= 4

        await until(twice)
        await client.crons.delete(made["cron_id"])
        runs = rows(await client.runs.list(thread))
        assert {one["metadata"]["cron_id"] for one in runs} == {made["cron_id"]}
        assert {one["metadata"]["team"] for one in runs} == {"a"}
        with pytest.raises(NotFoundError):
            await client.crons.delete(made["cron_id"])


@run
async def test_a_cron_without_a_thread_has_a_new_one_each_time(url: str) -> None:
    async with serving(url) as server:
        client = await server.client()
        kept = row(
            await client.crons.create(
                "aware",
                schedule=EACH_SECOND,
                input=said("kept"),
                on_run_completed="keep",
                metadata={"is": "kept"},
            )
        )
        passing = row(await client.crons.create("aware", schedule=EACH_SECOND, input=said("gone")))
        assert (kept["thread_id"], passing["on_run_completed"]) == (None, "delete")

        async def started() -> Any:
            http = await server.http()
            held = [(await http.get(f"/runs/crons/{one['cron_id']}")).json() for one in (kept, passing)]
            return held if all(one["last_run"] for one in held) else None

        first, second = await until(started)
        for one in (kept, passing):
            await client.crons.delete(one["cron_id"])
        assert (await texts(client, first["last_run"]["thread_id"]))[0] == "kept"

        async def removed() -> bool:
            try:
                await client.threads.get(second["last_run"]["thread_id"])
            except NotFoundError:
                return True
            return False

        await until(removed)
        assert await client.threads.get(first["last_run"]["thread_id"])


@run
async def test_the_routes_of_crons_do_what_the_client_s_methods_say(url: str) -> None:
    async with serving(url) as server:
        client, http = await server.client(), await server.http()
        assert (await http.get("/info")).json()["flags"]["crons"] is True
        end = datetime(2030, 1, 1, tzinfo=UTC)
        made = [
            row(
                await client.crons.create(
                    "aware",
                    schedule="0 9 * * MON-FRI",
                    timezone="Europe/Paris",
                    end_time=end,
                    input=said(str(n)),
                    metadata={"n": n},
                    enabled=n != 2,
                    stream_mode="updates",
                    durability="sync",
                )
            )
            for n in range(3)
        ]
        assert [one["next_run_date"] is None for one in made] == [False, False, True]
        first = made[0]
        assert first["end_time"].startswith("2030-01-01T00:00:00")
        assert first["payload"]["stream_mode"] == ["updates"]
        assert first["payload"]["durability"] == "sync"
        due = datetime.fromisoformat(first["next_run_date"])
        assert due.tzinfo is not None
        assert due - datetime.now(UTC) < timedelta(days=4)
        assert (await http.get(f"/runs/crons/{first['cron_id']}")).json() == first

        assert await client.crons.count() == 3
        assert await client.crons.count(metadata={"n": 1}) == 1
        assert await client.crons.count(assistant_id="slow") == 0
        assert [one["metadata"]["n"] for one in await client.crons.search()] == [2, 1, 0]
        assert [one["metadata"]["n"] for one in await client.crons.search(limit=1, offset=1)] == [1]
        assert [one["metadata"]["n"] for one in await client.crons.search(enabled=False)] == [2]
        ascending = await client.crons.search(
            assistant_id="aware", sort_by="created_at", sort_order="asc", select=["cron_id"]
        )
        assert rows(ascending) == [{"cron_id": one["cron_id"]} for one in made]

        changed = row(await client.crons.update(first["cron_id"], input=said("new"), metadata={"x": 1}))
        assert changed["payload"]["input"] == said("new")
        assert changed["metadata"] == {"n": 0, "x": 1}
        assert changed["next_run_date"] == first["next_run_date"]
        assert changed["updated_at"] > first["updated_at"]
        paused = await client.crons.update(first["cron_id"], enabled=False)
        assert (paused["enabled"], paused["next_run_date"]) == (False, None)
        resumed = row(
            await client.crons.update(
                first["cron_id"], enabled=True, schedule="@hourly", timezone="UTC", end_time=None
            )
        )
        assert (resumed["schedule"], resumed["end_time"]) == ("@hourly", None)
        assert datetime.fromisoformat(resumed["next_run_date"]) - datetime.now(UTC) <= timedelta(hours=1)
        absent = "00000000-0000-4000-8000-000000000000"
        for call in (client.crons.update(absent, enabled=True), client.crons.delete(absent)):
            with pytest.raises(NotFoundError):
                await call


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"schedule": "often"}, "'often' is not a cron schedule"),
        ({"schedule": "0 9 * * *", "timezone": "Mars"}, "'Mars' is not a time zone"),
        ({"schedule": "0 9 * * *", "timezone": ""}, "timezone: String should have at least 1 character"),
        ({"schedule": "0 9 * * *", "end_time": "2001-01-01T00:00:00"}, "no time between now and its end"),
        ({"schedule": "0 9 * * *", "end_time": "soon"}, "end_time"),
        ({"schedule": "0 9 * * *", "end_time": "9999-12-31T23:59:59-12:00"}, "years 1 to 9999"),
        ({"schedule": f"{'1' * 5000} 9 * * *"}, "is not a cron schedule"),
        ({"schedule": "0 9 * * *", "assistant_id": "nobody"}, "no graph or assistant 'nobody'"),
        ({"schedule": "0 9 * * *", "webhook": "http://10.0.0.1/"}, "webhook"),
        ({"schedule": "0 9 * * *", "multitask_strategy": "sometimes"}, "multitask_strategy"),
        ({"schedule": "0 9 * * *", "config": {"configurable": {"a": 1}}, "context": {"b": 1}}, "exclude"),
        ({}, "schedule"),
    ],
)
def test_what_cannot_run_is_refused_when_it_is_created(url: str, given: dict[str, Any], text: str) -> None:
    @run
    async def main() -> None:
        async with serving(url) as server:
            http = await server.http()
            answer = await http.post("/runs/crons", json={"assistant_id": "aware", **given})
            assert answer.status_code in (400, 422), answer.text
            assert text in answer.text
            assert (await http.post("/runs/crons/count", json={})).json() == 0

    main()


@run
async def test_the_last_moment_of_all_is_an_end_that_is_shown(url: str) -> None:
    async with serving(url) as server:
        client = await server.client()
        end = datetime.max.replace(tzinfo=UTC)
        made = row(await client.crons.create("aware", schedule="0 9 * * *", end_time=end, input=said("a")))
        assert made["end_time"] == "9999-12-31T23:59:59.999999+00:00"
        assert rows(await client.crons.search()) == [made]


@run
async def test_a_change_is_checked_as_a_new_cron_is(url: str) -> None:
    async with serving(url) as server:
        client = await server.client()
        made = row(await client.crons.create("aware", schedule="0 9 * * *", input=said("a")))
        thread = (await client.threads.create())["thread_id"]
        other = row(
            await client.crons.create_for_thread(thread, "aware", schedule="0 9 * * *", input=said("a"))
        )
        changes: list[tuple[dict[str, Any], dict[str, Any]]] = [
            (made, {"schedule": "often"}),
            (made, {"timezone": "Mars"}),
            (made, {"end_time": datetime(2001, 1, 1, tzinfo=UTC)}),
            (other, {"on_run_completed": "delete"}),
        ]
        for cron, change in changes:
            with pytest.raises(UnprocessableEntityError):
                await client.crons.update(cron["cron_id"], **change)
            http = await server.http()
            assert (await http.get(f"/runs/crons/{cron['cron_id']}")).json() == cron


@run
async def test_a_cron_is_its_owner_s(url: str) -> None:
    async with serving(url, gate=owners()) as server:
        ada, bob, root = [await server.client(name) for name in ("ada", "bob", "root")]
        made = row(await ada.crons.create("aware", schedule="0 9 * * *", input=said("a")))
        assert (made["user_id"], made["metadata"]) == ("ada", {"owner": "ada"})
        assert await bob.crons.search() == []
        assert await bob.crons.count() == 0
        for call in (
            bob.crons.update(made["cron_id"], enabled=False),
            bob.crons.delete(made["cron_id"]),
        ):
            with pytest.raises(NotFoundError):
                await call
        thread = (await ada.threads.create())["thread_id"]
        with pytest.raises(NotFoundError):
            await bob.crons.create_for_thread(thread, "aware", schedule="0 9 * * *")
        # The rule writes the owner into what is sent.
        given = await ada.crons.update(made["cron_id"], metadata={"owner": "bob"})
        assert given["metadata"] == {"owner": "ada"}
        # Switching it off and on leaves it its owner's; another input is run by the one who gave it.
        other = row(await ada.crons.create("aware", schedule="0 9 * * *", input=said("a")))
        await root.crons.update(other["cron_id"], enabled=False)
        assert (await root.crons.update(other["cron_id"], enabled=True))["user_id"] == "ada"
        assert (await root.crons.update(other["cron_id"], input=said("b")))["user_id"] == "root"


@run
async def test_a_tenant_sees_and_starts_its_own(url: str) -> None:
    async with serving(url, gate=tenants()) as server:
        ada, bob = await server.client("ada"), await server.client("bob")
        await ada.crons.create(
            "aware",
            schedule=EACH_SECOND,
            input=said("a"),
            on_run_completed="keep",
            config={"configurable": {"user_id": "bob"}},
        )
        assert await bob.crons.count() == 0

        async def started() -> Any:
            return await ada.threads.search()

        await until(started)
        assert await bob.threads.search() == []


async def _fired(server: Served, cron_id: str, lateness_s: int) -> Any:
    """Make a cron late, as if no process had been there, and wait until it was started."""
    runtime = server.host.runtime
    now = await runtime.now()
    late = now - lateness_s * 1_000_000
    assert isinstance(runtime.crons, Crons)
    await runtime.crons.change(cron_id, lambda held: Due(held.body, late))

    async def moved() -> Any:
        cron = await runtime.crons.get(cron_id)
        return cron if cron.due_at != late else None

    return await until(moved)


@pytest.mark.parametrize(("policy", "runs"), [("one", 1), ("all", 4), ("none", 0)])
def test_times_that_were_missed_are_treated_as_the_setting_says(url: str, policy: str, runs: int) -> None:
    @run
    async def main() -> None:
        heard = Heard()
        async with serving(url, observers=[heard], missed_crons=policy) as server:
            client = await server.client()
            thread = (await client.threads.create())["thread_id"]
            made = row(
                await client.crons.create_for_thread(
                    thread, "aware", schedule="0 * * * *", input=said("tick")
                )
            )
            now = await server.host.runtime.now()
            hour = 3600 * 1_000_000
            # The latest full hours: four of them were missed.
            late = (now // hour - 3) * hour
            await server.host.runtime.crons.change(made["cron_id"], lambda held: Due(held.body, late))

            async def caught_up() -> Any:
                cron = await server.host.runtime.crons.get(made["cron_id"])
                return cron.due_at is not None and cron.due_at > now

            await until(caught_up)
            assert len(await client.runs.list(thread)) == runs
            assert heard.count("cron.started") == runs
            assert heard.count("cron.missed") == (policy == "none")

    main()


def test_each_missed_time_waits_for_room_in_the_queue(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = 0
    submit = run_creation.submit

    async def submit_later(*args: Any, **options: Any) -> Any:
        nonlocal refused
        refused += 1
        if refused < 3:
            raise QueueFull("the queue is full")
        return await submit(*args, **options)

    @run
    async def main() -> None:
        async with serving(url, missed_crons="all") as server:
            client = await server.client()
            thread = (await client.threads.create())["thread_id"]
            made = row(
                await client.crons.create_for_thread(
                    thread, "aware", schedule="0 * * * *", input=said("tick")
                )
            )
            monkeypatch.setattr(cron_runs, "submit", submit_later)
            moved = await _fired(server, made["cron_id"], 60)
            assert (moved.body["last"].get("error"), refused) == (None, 3)
            assert len(await client.runs.list(thread)) == 1

    main()


async def _delete_by_client(server: Served, thread: str) -> None:
    await (await server.client()).threads.delete(thread)


async def _delete_by_saver(server: Served, thread: str) -> None:
    await server.host.runtime.database.checkpointer().adelete_thread(thread)


async def _expire(server: Served, thread: str) -> None:
    await (await server.client()).threads.update(thread, metadata={}, ttl={"ttl": 0.001})

    async def is_gone() -> bool:
        # The server's own sweep may have the thread in hand, which reads as absent before that.
        await server.host.runtime.database.apply_retention()
        return not await (await server.client()).crons.search(thread_id=thread)

    await until(is_gone)


DELETIONS = {"client": _delete_by_client, "saver": _delete_by_saver, "sweep": _expire}


@pytest.mark.parametrize("how", DELETIONS)
@on_all
@run
async def test_a_cron_goes_with_its_thread(url: str, how: str) -> None:
    async with serving(url) as server:
        client = await server.client()
        thread, other = [(await client.threads.create())["thread_id"] for _ in range(2)]
        for enabled in (True, False):
            await client.crons.create_for_thread(
                thread, "aware", schedule="0 * * * *", input=said("a secret"), enabled=enabled
            )
        kept = [
            row(await client.crons.create_for_thread(other, "aware", schedule="0 * * * *", input=said("b"))),
            row(await client.crons.create("aware", schedule="0 * * * *", input=said("c"))),
        ]
        await DELETIONS[how](server, thread)
        left = rows(await client.crons.search())
        assert sorted(each["cron_id"] for each in left) == sorted(each["cron_id"] for each in kept)
        assert "secret" not in str(await server.host.runtime.crons.read_all())


@run
async def test_one_that_was_created_while_its_thread_was_deleted_is_removed_when_it_is_due(url: str) -> None:
    heard = Heard()
    async with serving(url, observers=[heard]) as server:
        client = await server.client()
        thread = (await client.threads.create())["thread_id"]
        made = row(
            await client.crons.create_for_thread(thread, "aware", schedule="0 * * * *", input=said("a"))
        )
        crons = server.host.runtime.crons
        assert isinstance(crons, Crons)
        body = (await crons.get(made["cron_id"])).body
        await client.threads.delete(thread)
        await crons.create(body, await server.host.runtime.now())

        async def removed() -> bool:
            return not await crons.read_all()

        await until(removed)
        assert heard.count("cron.removed") == 1
        assert heard.count("cron.started") == 0


@run
async def test_a_thread_that_another_user_created_since_is_not_the_cron_s(url: str) -> None:
    async with serving(url, gate=owners()) as server:
        ada, bob = await server.client("ada"), await server.client("bob")
        thread = "invoice-4711"
        await ada.threads.create(thread_id=thread)
        made = row(
            await ada.crons.create_for_thread(thread, "aware", schedule="0 * * * *", input=said("ADA"))
        )
        crons = server.host.runtime.crons
        assert isinstance(crons, Crons)
        body = (await crons.get(made["cron_id"])).body
        await ada.threads.delete(thread)
        # As if they had been created while the thread was deleted.
        paused, late = [await crons.create(body, None) for _ in range(2)]
        await bob.threads.create(thread_id=thread)
        await bob.runs.wait(thread, "aware", input=said("secret"))
        with pytest.raises(NotFoundError):
            await ada.crons.update(paused.id, enabled=True)
        await crons.change(late.id, lambda held: Due(held.body, 1))

        async def removed() -> bool:
            return [each.id for each in await crons.read_all()] == [paused.id]

        await until(removed)
        assert "ADA" not in str(await texts(bob, thread))


@run
async def test_two_changes_at_once_leave_an_enabled_cron_due(url: str) -> None:
    async with serving(url) as server:
        http = await server.http()
        new = {"assistant_id": "aware", "schedule": "0 9 * * *", "enabled": False}
        cron_id = (await http.post("/runs/crons", json=new)).json()["cron_id"]
        for _ in range(10):
            await http.patch(f"/runs/crons/{cron_id}", json={"enabled": False, "schedule": "0 9 * * *"})
            await asyncio.gather(
                http.patch(f"/runs/crons/{cron_id}", json={"schedule": "0 10 * * *"}),
                http.patch(f"/runs/crons/{cron_id}", json={"enabled": True}),
            )
            held = (await http.get(f"/runs/crons/{cron_id}")).json()
            assert (held["schedule"], held["enabled"]) == ("0 10 * * *", True)
            assert datetime.fromisoformat(held["next_run_date"]).hour == 10


@run
async def test_a_start_that_is_refused_is_noted_and_the_next_comes(url: str) -> None:
    heard = Heard()
    async with serving(url, observers=[heard]) as server:
        client = await server.client()
        thread = (await client.threads.create())["thread_id"]
        made = row(
            await client.crons.create_for_thread(
                thread, "slow", schedule="0 * * * *", input=said("0"), multitask_strategy="reject"
            )
        )
        busy = await client.runs.create(thread, "slow", input=said("60"))
        cron = await _fired(server, made["cron_id"], 5)
        assert cron.due_at > await server.host.runtime.now()
        assert CronJob.read(cron).last["error"] == "RunInProgress"
        await client.runs.cancel(thread, busy["run_id"], wait=True)
        assert heard.count("cron.failed") == 1


@run
async def test_a_start_that_is_repeated_is_one_run(url: str) -> None:
    """The process dies after the run was accepted and before the cron moved on."""
    async with serving(url) as server:
        client, runtime = await server.client(), server.host.runtime
        thread = (await client.threads.create())["thread_id"]
        made = row(
            await client.crons.create_for_thread(thread, "aware", schedule="0 * * * *", input=said("a"))
        )
        first = await _fired(server, made["cron_id"], 5)
        again = await runtime.crons.change(
            made["cron_id"], lambda held: Due(held.body, CronJob.read(first).last["at"])
        )

        async def moved() -> bool:
            return (await runtime.crons.get(made["cron_id"])).version > again.version

        await until(moved)
        assert len(await client.runs.list(thread)) == 1


@run
async def test_the_thread_of_a_cron_may_be_named_in_the_query_or_the_body(url: str) -> None:
    async with serving(url) as server:
        client, http = await server.client(), await server.http()
        thread = (await client.threads.create())["thread_id"]
        cron = {"assistant_id": "aware", "schedule": "0 9 * * *", "input": said("x")}
        for query, body in (({}, {"thread_id": thread}), ({"context_id": thread}, {})):
            made = await http.post("/runs/crons", params=query, json={**cron, **body})
            assert made.json()["thread_id"] == thread
        for given, status in (("nonexist", 404), ("", 422), (5, 422)):
            refused = await http.post("/runs/crons", json={**cron, "thread_id": given})
            assert refused.status_code == status, refused.text
        assert len(await client.crons.search()) == 2
        assert (await http.post("/runs/crons", json=cron)).json()["thread_id"] is None


@on_all
@pytest.mark.parametrize("has_thread", [False, True])
@run
async def test_a_start_whose_cron_is_removed_meanwhile_leaves_nothing(
    url: str, has_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with its user: what the start stores after the removal would never be removed."""
    real = run_creation.submit
    reached, is_removed, is_stored = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def submit(*given: Any, **named: Any) -> Any:
        reached.set()
        await is_removed.wait()
        accepted = await real(*given, **named)
        is_stored.set()
        return accepted

    monkeypatch.setattr(cron_runs, "submit", submit)
    async with serving(url) as server:
        client = await server.client()
        thread = (await client.threads.create())["thread_id"]
        if has_thread:
            made = row(
                await client.crons.create_for_thread(thread, "slow", schedule=EACH_SECOND, input=said("30"))
            )
        else:
            made = row(
                await client.crons.create(
                    "slow", schedule=EACH_SECOND, input=said("30"), on_run_completed="keep"
                )
            )
        await reached.wait()
        await client.crons.delete(made["cron_id"])
        is_removed.set()
        await is_stored.wait()

        async def is_taken_back() -> bool:
            threads = rows(await client.threads.search())
            states = {one["status"] for one in rows(await client.runs.list(thread))}
            return [one["thread_id"] for one in threads] == [thread] and not (
                states & {"pending", "running", "success"}
            )

        await until(is_taken_back)
        assert await texts(client, thread) == []
