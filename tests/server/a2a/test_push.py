"""Push notifications of tasks, from the outbox to a receiver on this machine."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from a2a.types import a2a_pb2 as types
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError, UnsupportedOperationError
from langgraph_sdk import get_client
from standardwebhooks.webhooks import Webhook

import perdure
from perdure.config.webhook_secrets import key_of
from perdure.model.runs.messages import DEAD, SENT
from perdure.runtime import Runtime, Settings
from perdure.server.app import create_app
from perdure.server.auth.identity import OpenGate
from perdure.server.resources import ServerState
from tests.backends import BACKENDS, EMPTY
from tests.runtime.graphs import eventually_stored
from tests.server.a2a.test_handler import Gate, graphs
from tests.server.hosting import run
from tests.server.ports import served
from tests.server.receiving import NEAR, Receiver, opened, receiving
from tests.server.talking import said, talking

SIGNING = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@asynccontextmanager
async def sending(gate: Gate | None = None) -> AsyncIterator[str]:
    """The address of a server that sends notifications."""
    async with kept_by(gate) as (url, _):
        yield url


@asynccontextmanager
async def kept_by(
    gate: Gate | None = None, database: str = "memory://"
) -> AsyncIterator[tuple[str, Runtime]]:
    """The address of such a server, and its runtime."""
    async with perdure.connect(database, migrate=True) as db:
        quick = Settings(poll=0.2, shared_threads=True, drain=0.1)
        runtime = opened(db, secrets=(SIGNING,), graphs=graphs(gate), settings=quick, all_tenants=True)
        async with runtime:
            host = ServerState.over(runtime, OpenGate(), webhooks=NEAR)
            async with served(create_app(None), host) as url:
                yield url, runtime


def receiver_at(receiver: Receiver, **more: Any) -> types.TaskPushNotificationConfig:
    return types.TaskPushNotificationConfig(url=receiver.url, token="t0ken", **more)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.0", "0.3"])
@run
async def test_a_receiver_that_comes_with_a_message_is_sent_each_rest_of_its_task(version: str) -> None:
    async with (
        receiving(500, 200) as receiver,
        sending() as url,
        talking(url, "ask", version=version) as talk,
    ):
        config = types.SendMessageConfiguration(task_push_notification_config=receiver_at(receiver))
        asked = await talk.task("tea", configuration=config)
        await receiver.told(2)
        first, again = receiver.calls[:2]
        assert first.headers["idempotency-key"] == again.headers["idempotency-key"], (
            "it failed, and came again"
        )
        assert again.headers["x-a2a-notification-token"] == "t0ken"
        Webhook(SIGNING).verify(again.said, again.headers)
        assert key_of(SIGNING)
        task = again.body["task"] if version == "1.0" else again.body
        state = "TASK_STATE_INPUT_REQUIRED" if version == "1.0" else "input-required"
        assert (task["id"], task["status"]["state"]) == (asked["id"], state)
        await talk.task("blue", task=asked["id"])
        await receiver.told(3)
        done = receiver.calls[2].body
        done = done["task"] if version == "1.0" else done
        assert done["id"] == asked["id"]
        assert done["status"]["state"] == ("TASK_STATE_COMPLETED" if version == "1.0" else "completed")
        assert done["artifacts"][0]["parts"][0]["text"] == "a blue cup"


@pytest.mark.slow
@run
async def test_receivers_are_set_read_and_removed_while_a_task_goes_on() -> None:
    gate = Gate()
    async with (
        receiving() as receiver,
        receiving() as other,
        sending(gate) as url,
        talking(url, "rest") as talk,
    ):
        at_once = types.SendMessageConfiguration(return_immediately=True)
        (begun,) = await talk.events(said("one", configuration=at_once))
        task_id = begun["task"]["id"]
        kept = await talk.client.create_task_push_notification_config(receiver_at(receiver, task_id=task_id))
        gone = await talk.client.create_task_push_notification_config(receiver_at(other, task_id=task_id))
        asked = types.ListTaskPushNotificationConfigsRequest(task_id=task_id)
        listed = (await talk.client.list_task_push_notification_configs(asked)).configs
        assert {one.id for one in listed} == {kept.id, gone.id}
        got = await talk.client.get_task_push_notification_config(
            types.GetTaskPushNotificationConfigRequest(task_id=task_id, id=kept.id)
        )
        assert got.url == receiver.url
        await talk.client.delete_task_push_notification_config(
            types.DeleteTaskPushNotificationConfigRequest(task_id=task_id, id=gone.id)
        )
        with pytest.raises(TaskNotFoundError, match="no push notification config"):
            await talk.client.get_task_push_notification_config(
                types.GetTaskPushNotificationConfigRequest(task_id=task_id, id=gone.id)
            )
        gate.opened.set()
        (told,) = await receiver.told()
        assert told["task"]["artifacts"][0]["parts"] == [{"text": "rested"}]
        assert other.calls == []
        with pytest.raises(UnsupportedOperationError, match="nothing more is sent"):
            await talk.client.create_task_push_notification_config(receiver_at(receiver, task_id=task_id))


@pytest.mark.slow
@run
async def test_a_receiver_that_fails_or_does_not_answer_keeps_no_other_waiting() -> None:
    gate, silent = Gate(), asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await silent.wait()
        writer.close()

    async with (
        await asyncio.start_server(hold, "127.0.0.1", 0) as holding,
        receiving() as good,
        receiving(500, 200) as failing,
        sending(gate) as url,
        talking(url, "rest") as talk,
    ):
        at_once = types.SendMessageConfiguration(return_immediately=True)
        (begun,) = await talk.events(said("one", configuration=at_once))
        port = holding.sockets[0].getsockname()[1]
        urls = (f"http://127.0.0.1:{port}/", good.url, failing.url)
        for place in urls:
            config = types.TaskPushNotificationConfig(task_id=begun["task"]["id"], url=place)
            await talk.client.create_task_push_notification_config(config)
        gate.opened.set()
        await good.told()
        assert not silent.is_set(), "another one has not answered yet"
        silent.set()
        await failing.told(2)
        assert failing.keys[0] == failing.keys[1]
        assert len(good.calls) == 1, "who has a notice does not get it again"


@run
async def test_a_receiver_that_refused_a_notice_is_called_again_by_a_person_alone() -> None:
    gate = Gate()
    async with (
        receiving() as good,
        receiving(500, 500, 200) as failing,
        receiving(410, 200) as refusing,
        kept_by(gate) as (url, runtime),
        talking(url, "rest") as talk,
    ):
        at_once = types.SendMessageConfiguration(return_immediately=True)
        (begun,) = await talk.events(said("one", configuration=at_once))
        for receiver in (good, failing, refusing):
            config = types.TaskPushNotificationConfig(task_id=begun["task"]["id"], url=receiver.url)
            await talk.client.create_task_push_notification_config(config)
        gate.opened.set()
        tenant, thread_id = runtime.for_tenant(""), begun["task"]["contextId"]

        async def states() -> list[str]:
            return [reply.state for reply in await tenant.replies(thread_id)]

        async def is_dead() -> bool:
            return DEAD in await states()

        await eventually_stored(is_dead)
        assert [len(each.calls) for each in (good, failing, refusing)] == [1, 3, 1]
        await tenant.retry_reply(thread_id, (await tenant.replies(thread_id))[-1].seq)
        await refusing.told(2)

        async def is_sent() -> bool:
            return SENT in await states()

        await eventually_stored(is_sent)
        assert [len(each.calls) for each in (good, failing, refusing)] == [1, 3, 2]
        assert refusing.keys[0] == refusing.keys[1]


@pytest.mark.slow
@run
async def test_a_message_that_is_sent_again_has_the_same_receiver_and_nothing_stays_after_its_end() -> None:
    async with kept_by() as (url, runtime), receiving() as receiver, talking(url, "ask") as talk:
        config = types.SendMessageConfiguration(task_push_notification_config=receiver_at(receiver))
        message_id = str(uuid.uuid4())
        asked = await talk.task("tea", message_id=message_id, configuration=config)
        assert await talk.task("tea", message_id=message_id, configuration=config) == asked
        await talk.client.create_task_push_notification_config(receiver_at(receiver, task_id=asked["id"]))
        stored = runtime.for_tenant("").thread_documents(asked["contextId"], "task_push")
        assert await stored.get(asked["id"]) is not None
        await talk.task("blue", task=asked["id"], configuration=config)

        async def gone() -> bool:
            return await stored.get(asked["id"]) is None

        await eventually_stored(gone)


@pytest.mark.slow
@run
async def test_an_address_that_may_not_be_called_is_refused_with_the_message() -> None:
    async with sending() as url, talking(url, "chat") as talk:
        inside = types.TaskPushNotificationConfig(url="http://169.254.169.254/latest/meta-data")
        config = types.SendMessageConfiguration(task_push_notification_config=inside)
        with pytest.raises(InvalidParamsError, match="may not be called"):
            await talk.task("hello", context="c1", configuration=config)
        public = types.TaskPushNotificationConfig(url="http://127.0.0.1:9/", token="gehéim\r\n")
        config = types.SendMessageConfiguration(task_push_notification_config=public)
        with pytest.raises(InvalidParamsError, match="visible ASCII"):
            await talk.task("hello", context="c1", configuration=config)
        assert not (await talk.client.list_tasks(types.ListTasksRequest(context_id="c1"))).tasks


@pytest.mark.slow
@pytest.mark.parametrize("way", ["A2A", "the API of threads"])
@run
async def test_a_receiver_is_sent_the_end_of_a_question_that_another_message_closes(way: str) -> None:
    async with receiving() as receiver, kept_by() as (url, _), talking(url, "ask") as talk:
        config = types.SendMessageConfiguration(task_push_notification_config=receiver_at(receiver))
        asked = await talk.task("tea", configuration=config)
        await receiver.told()
        context = asked["contextId"]
        if way == "A2A":
            await talk.task("coffee", context=context)
        else:
            coffee: dict[str, Any] = {"messages": [{"role": "user", "content": "coffee"}]}
            async with get_client(url=url) as api:
                await api.runs.wait(context, "ask", input=coffee)
        await receiver.told(2)
        first, second = receiver.calls[:2]
        assert first.headers["idempotency-key"] != second.headers["idempotency-key"]
        closed = second.body["task"]
        assert (closed["id"], closed["status"]["state"]) == (asked["id"], "TASK_STATE_CANCELED")
        assert "continued with another message" in closed["status"]["message"]["parts"][0]["text"]


@pytest.mark.slow
@run
async def test_a_receiver_is_sent_the_end_after_an_answer_over_the_api_of_threads() -> None:
    async with receiving() as receiver, kept_by() as (url, _), talking(url, "ask") as talk:
        config = types.SendMessageConfiguration(task_push_notification_config=receiver_at(receiver))
        asked = await talk.task("tea", configuration=config)
        await receiver.told()
        async with get_client(url=url) as api:
            await api.runs.wait(asked["contextId"], "ask", command={"resume": "blue"})
        (_, done) = await receiver.told(2)
        assert (done["task"]["id"], done["task"]["status"]["state"]) == (asked["id"], "TASK_STATE_COMPLETED")
        assert done["task"]["artifacts"][0]["parts"][0]["text"] == "a blue cup"


@pytest.mark.slow
@run
async def test_a_question_that_is_given_up_is_sent_once() -> None:
    async with receiving() as receiver, kept_by() as (url, runtime), talking(url, "ask") as talk:
        config = types.SendMessageConfiguration(task_push_notification_config=receiver_at(receiver))
        asked = await talk.task("tea", configuration=config)
        await receiver.told()
        await talk.client.cancel_task(types.CancelTaskRequest(id=asked["id"]))
        threads = runtime.for_tenant("")

        async def is_settled() -> bool:
            return all(one.state == SENT for one in await threads.replies(asked["contextId"]))

        await eventually_stored(is_settled)
        states = [call.body["task"]["status"]["state"] for call in receiver.calls]
        assert states == ["TASK_STATE_INPUT_REQUIRED", "TASK_STATE_CANCELED"]


@pytest.mark.slow
@pytest.mark.parametrize("on", BACKENDS)
@run
async def test_receivers_go_with_their_thread(on: str) -> None:
    with EMPTY[on]() as database:
        await _receivers_go_with_their_thread(database)


async def _receivers_go_with_their_thread(database: str) -> None:
    async with (
        receiving() as receiver,
        kept_by(database=database) as (url, runtime),
        talking(url, "ask") as talk,
    ):
        asked = await talk.task("tea")
        wanted = receiver_at(receiver, task_id=asked["id"])
        await talk.client.create_task_push_notification_config(wanted)
        stored = runtime.for_tenant("").thread_documents(asked["contextId"], "task_push")
        assert await stored.get(asked["id"]) is not None
        async with get_client(url=url) as api:
            await api.threads.delete(asked["contextId"])
        assert await stored.get(asked["id"]) is None
        with pytest.raises(TaskNotFoundError):
            await talk.client.create_task_push_notification_config(wanted)
        assert await stored.change(asked["id"], lambda _: {"set": []}) is None, "there is no thread for it"
        assert await stored.get(asked["id"]) is None
