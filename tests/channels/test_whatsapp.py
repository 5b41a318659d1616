"""WhatsApp: the genuine pywa against a double, over HTTP.

Covers perdure.channels.whatsapp_updates.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from perdure.channels import ChatAddress, ChatOptions, WhatsAppPhone, whatsapp
from perdure.testing.channels import ProviderFault
from perdure.testing.channels.whatsapp import APP_SECRET, PHONE_ID, TOKEN, WhatsAppDouble
from tests.channels.serving import QUICK, Line, asking, at_work, echo
from tests.channels.test_telegram import HITL
from tests.runtime.graphs import Storage, eventually, eventually_stored, go, stored

ADA, BOB = "491", "492"
VERIFY = "verify-me"


@pytest.fixture
def memory() -> Iterator[Storage]:
    with stored("memory") as storage:
        yield storage


@asynccontextmanager
async def whatsapp_at_work(
    storage: Storage, graph: Any, options: ChatOptions = QUICK, **more: Any
) -> AsyncIterator[tuple[WhatsAppDouble, Line]]:
    async with WhatsAppDouble() as double:
        given = {"token": TOKEN, "app_secret": APP_SECRET, "verify_token": VERIFY, **more}
        phone = WhatsAppPhone(PHONE_ID, options=options, api_url=f"{double.url}/v1", **given)
        async with at_work(storage.database(), graph, phone) as line:
            double.webhook = line.webhook
            yield double, line


def thread(chat: str) -> str:
    return ChatAddress("whatsapp", chat).thread_id


def test_a_message_is_answered_once_however_often_it_is_delivered(
    memory: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with whatsapp_at_work(memory, echo()) as (double, line):
            update = double.text(ADA, "the text")
            for _ in range(3):
                assert await double.post(update) == 200
            await double.say(BOB, "another")
            assert await double.post(double.text(ADA, "of another number", phone_id="999")) == 200
            await double.until_shown(2)
            assert (double.texts(ADA), double.texts(BOB)) == (["the text"], ["another"])
            await eventually(lambda: "status" in [name for name, _ in double.calls])
            (message,) = await line.runtime.messages(thread(ADA))
            about = message.message.payload["message"]["additional_kwargs"]["channel"]
            assert (about["sender"], about["sender_name"]) == (ADA, "Ada")

    with caplog.at_level(logging.DEBUG):
        go(main())
    assert TOKEN not in caplog.text
    assert "the text" not in "".join(r.getMessage() for r in caplog.records if "pywa" in r.name)


def test_the_webhook_is_verified_and_forged_requests_are_refused(memory: Storage) -> None:
    async def main() -> None:
        options = ChatOptions(debounce=0.0, body_bytes=2000)
        async with whatsapp_at_work(memory, echo(), options) as (double, line):
            good = double.text(ADA, "hello")
            header = "X-Hub-Signature-256"
            assert await double.post(good._replace(headers={})) == 401
            assert await double.post(good._replace(headers={header: "sha256=00"})) == 401
            assert await double.post(good._replace(body=good.body + b" ")) == 401
            for wrong in (b"no json", b"{}", b"[]", b'{"entry": [{"changes": [{}]}]}', b"[" * 2000):
                assert await double.post(double.sign(wrong)) == 400
            assert await double.post(double.sign(b"x" * 2001)) == 413
            assert await line.runtime.messages(thread(ADA)) == ()
            async with httpx.AsyncClient() as client:
                asked = {"hub.mode": "subscribe", "hub.verify_token": VERIFY, "hub.challenge": "42"}
                answer = await client.get(line.webhook, params=asked)
                assert (answer.status_code, answer.text) == (200, "42")
                answer = await client.get(line.webhook, params={**asked, "hub.verify_token": "wrong"})
                assert (answer.status_code, "42" in answer.text) == (403, False)

    go(main())


def test_a_message_with_half_of_a_surrogate_pair_is_answered(memory: Storage) -> None:
    """Refused, the provider would deliver it again and again."""

    async def main() -> None:
        async with whatsapp_at_work(memory, echo()) as (double, _):
            assert await double.post(double.text(ADA, "cut \ud83d")) == 200
            await double.until_shown(1)
            assert double.texts(ADA) == ["cut \ufffd"]

    go(main())


def test_a_question_has_buttons_and_files_come_by_reference(memory: Storage) -> None:
    async def main() -> None:
        async with whatsapp_at_work(memory, asking(HITL)) as (double, line):
            file = {"id": "m1", "mime_type": "image/png", "caption": "the bill"}
            await double.deliver(double.update(ADA, type="image", image=file))
            reaction = {"message_id": "wamid.1", "emoji": "x"}
            await double.deliver(double.update(BOB, type="reaction", reaction=reaction))
            await double.until_shown(1)
            (message,) = await line.runtime.messages(thread(ADA))
            assert message.message.payload["message"]["content"] == "the bill\n[attached: image, image/png]"
            assert list(double.shown[0].buttons) == ["Approve", "Edit", "Reject"]
            await double.press(double.shown[0], "Approve")
            await double.until_shown(2)
            assert double.texts(ADA)[1] == "got {'decisions': [{'type': 'approve'}]}"
            assert await line.runtime.messages(thread(BOB)) == ()

    go(main())


def test_writing_is_shown_while_the_run_of_an_answer_is_open(memory: Storage) -> None:
    gate = asyncio.Event()

    async def ask(state: MessagesState) -> dict[str, Any]:
        interrupt("Which size?")
        await gate.wait()
        return {"messages": [AIMessage("done")]}

    graph = StateGraph(MessagesState).add_node(ask).add_edge(START, "ask").compile()

    async def main() -> None:
        async with whatsapp_at_work(memory, graph) as (double, _):
            await double.say(ADA, "go")
            await double.until_shown(1)
            double.calls.clear()
            await double.say(ADA, "large")
            await eventually(lambda: "status" in [name for name, _ in double.calls])
            gate.set()
            await double.until_shown(2)

    go(main())


def test_stop_also_ends_what_was_written_in_the_second_of_a_new(memory: Storage) -> None:
    gate = asyncio.Event()

    async def hold(state: MessagesState) -> dict[str, Any]:
        await gate.wait()
        return {"messages": [AIMessage("done")]}

    graph = StateGraph(MessagesState).add_node(hold).add_edge(START, "hold").compile()

    async def main() -> None:
        async with whatsapp_at_work(memory, graph) as (double, line):
            for text, second in (("/new", "100"), ("work", "100"), ("/stop", "105")):
                await double.deliver(double.text(ADA, text, timestamp=second))

            async def is_over() -> bool:
                (work,) = await line.runtime.messages(thread(ADA))
                return work.message.is_withdrawn or (work.run is not None and work.run.state == "interrupted")

            await eventually_stored(is_over)

    go(main())


def test_a_limited_chat_delays_no_other_and_an_unknown_outcome_is_held_on_request(
    memory: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whatsapp, "_LIMITED_S", 4.0)

    async def main() -> None:
        async with whatsapp_at_work(memory, echo(), in_doubt="hold") as (double, line):
            double.faults.append(ProviderFault("limit", chat=ADA))
            await double.say(ADA, "limited")
            await double.say(BOB, "free")
            await double.until_shown(1, BOB)
            assert double.texts(ADA) == []
            await double.until_shown(1, ADA)
            (reply,) = await line.runtime.replies(thread(ADA))
            assert reply.attempts == 1
            for kind in ("lose", "fail"):
                double.faults.append(ProviderFault(kind, chat=kind))
                await double.say(kind, "held")

                async def is_held(chat: str = kind) -> bool:
                    return [each.state for each in await line.runtime.replies(thread(chat))] == ["unknown"]

                await eventually_stored(is_held)

    go(main())


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"token": " "}, "token is empty"),
        ({"app_secret": ""}, "app_secret is empty"),
        ({"in_doubt": "reconcile"}, "'resend' or 'hold'"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(given: dict[str, Any], named: str) -> None:
    whole = {"token": TOKEN, "app_secret": APP_SECRET, "verify_token": VERIFY, **given}
    with pytest.raises(ValueError, match=named):
        WhatsAppPhone(PHONE_ID, **whole)
