"""Slack: the genuine SDK against a double, over HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from perdure.channels import ChatAddress, ChatOptions, SlackApp
from perdure.channels.slack_events import position_of_ts
from perdure.testing.channels import ProviderFault
from perdure.testing.channels.slack import SIGNING_SECRET, TOKEN, SlackDouble
from tests.channels.serving import QUICK, Line, asking, at_work, echo
from tests.channels.test_telegram import HITL
from tests.runtime.graphs import Storage, eventually_stored, go, stored


@pytest.fixture
def memory() -> Iterator[Storage]:
    with stored("memory") as storage:
        yield storage


@asynccontextmanager
async def slack_at_work(
    storage: Storage, graph: Any, options: ChatOptions = QUICK, double: SlackDouble | None = None
) -> AsyncIterator[tuple[SlackDouble, Line]]:
    async with double or SlackDouble() as double:
        app = SlackApp(TOKEN, signing_secret=SIGNING_SECRET, options=options, api_url=f"{double.url}/api/")
        async with at_work(storage.database(), graph, app) as line:
            double.webhook = line.webhook
            yield double, line


def thread(channel: str, topic: str = "") -> str:
    return ChatAddress("slack", f"T1.{channel}", topic).thread_id


def test_slack_s_retries_and_its_two_events_of_a_mention_are_one_turn(memory: Storage) -> None:
    async def main() -> None:
        async with slack_at_work(memory, echo()) as (double, line):
            retried = double.event("D1", "slow answer")
            for number in range(3):
                # Slack sends an event again that was not acknowledged within three seconds.
                again = {**retried.headers, "X-Slack-Retry-Num": str(number)}
                assert await double.post(retried._replace(headers=again)) == 200
            ts = double.next_ts()
            for kind in ("app_mention", "message"):
                await double.say("C1", "<@UBOT> &lt;hello&gt;", kind=kind, ts=ts)
            await double.say("C1", "not for the bot")
            await double.until_shown(2)
            assert {(each.chat, each.topic, each.text) for each in double.shown} == {
                ("D1", "", "slow answer"),
                ("C1", ts, "<hello>"),
            }
            assert len(await line.runtime.messages(thread("D1"))) == 1
            assert len(await line.runtime.messages(thread("C1", ts))) == 1

    go(main())


def test_a_forged_an_old_a_malformed_and_an_oversized_request_are_refused(
    memory: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        options = ChatOptions(debounce=0.0, body_bytes=2000)
        async with slack_at_work(memory, echo(), options) as (double, line):
            good = double.event("D1", "the text")
            kind = "application/json"
            assert await double.post(good._replace(headers={"Content-Type": kind})) == 401
            assert await double.post(good._replace(body=good.body + b" ")) == 401
            assert await double.post(double.sign(good.body, kind, age=301)) == 401
            odd = {**good.headers, "X-Slack-Request-Timestamp": "soon"}
            assert await double.post(good._replace(headers=odd)) == 401
            assert await double.post(double.sign(b"no json", kind)) == 400
            assert await double.post(double.sign(b'{"type": "event_callback"}', kind)) == 400
            assert await double.post(double.sign(b"[1]", kind)) == 400
            assert await double.post(double.sign(b"[" * 2000, kind)) == 400
            assert await double.post(double.sign(b"x" * 2001, kind)) == 413
            assert await line.runtime.messages(thread("D1")) == ()
            async with httpx.AsyncClient() as client:
                asked = double.sign(json.dumps({"type": "url_verification", "challenge": "c"}).encode(), kind)
                answer = await client.post(line.webhook, content=asked.body, headers=dict(asked.headers))
                assert answer.json() == {"challenge": "c"}

    with caplog.at_level(logging.DEBUG, "perdure"):
        go(main())
    assert "the text" not in caplog.text
    assert SIGNING_SECRET not in caplog.text


def test_a_message_with_half_of_a_surrogate_pair_is_answered(memory: Storage) -> None:
    """Refused, the provider would deliver it again and again."""

    async def main() -> None:
        async with slack_at_work(memory, echo()) as (double, _):
            assert await double.post(double.event("D1", "cut \ud83d")) == 200
            await double.until_shown(1)
            assert double.texts("D1") == ["cut \ufffd"]

    go(main())


def test_a_reply_whose_answer_is_lost_is_found_and_not_sent_again(memory: Storage) -> None:
    async def main() -> None:
        async with slack_at_work(memory, echo()) as (double, line):
            double.faults.append(ProviderFault("lose", chat="D1"))
            await double.say("D1", "once")
            await double.say("D2", "refused at first")
            double.faults.append(ProviderFault("refuse", chat="D2"))
            await double.until_shown(1, "D1")
            await double.until_shown(1, "D2")

            async def sent(channel: str) -> str | None:
                (reply,) = await line.runtime.replies(thread(channel))
                return reply.provider_id if reply.state == "sent" else None

            for channel in ("D1", "D2"):
                await eventually_stored(partial(sent, channel))
            assert double.texts("D1") == ["once"]
            assert await sent("D1") == double.shown[[each.chat for each in double.shown].index("D1")].id
            assert "conversations.history" in [name for name, _ in double.calls]

    go(main())


@pytest.mark.parametrize("channel", ["D1", "C1"])
def test_a_reply_is_found_among_many_messages_of_others(memory: Storage, channel: str) -> None:
    """In a channel the bot answers in a thread, which Slack lists from its first message."""

    class Busy(SlackDouble):
        async def _post(self, request: Any, given: Any) -> Any:
            others = [{"channel": channel, "ts": self.next_ts(), "metadata": None} for _ in range(250)]
            self.history += others
            try:
                return await super()._post(request, given)
            finally:
                self.history += others

    async def main() -> None:
        async with slack_at_work(memory, echo(), double=Busy()) as (double, line):
            double.faults.append(ProviderFault("lose", chat=channel))
            ts = double.next_ts()
            kind, topic = ("message", "") if channel == "D1" else ("app_mention", ts)
            await double.say(channel, "<@UBOT> once", ts=ts, kind=kind)
            await double.until_shown(1, channel)

            async def is_sent() -> bool:
                replies = await line.runtime.replies(thread(channel, topic))
                return [reply.state for reply in replies] == ["sent"]

            await eventually_stored(is_sent)
            assert len(double.shown) == 1

    go(main())


def test_a_limited_channel_waits_as_long_as_slack_asks(memory: Storage) -> None:
    async def main() -> None:
        async with slack_at_work(memory, echo()) as (double, line):
            double.faults.append(ProviderFault("limit", chat="D1", seconds=4.0))
            await double.say("D1", "limited")
            await double.say("D2", "free")
            await double.until_shown(1, "D2")
            assert double.texts("D1") == []
            await double.until_shown(1, "D1")
            (reply,) = await line.runtime.replies(thread("D1"))
            assert reply.attempts == 1

    go(main())


def test_a_question_has_buttons_and_a_command_begins_a_conversation(memory: Storage) -> None:
    async def main() -> None:
        async with slack_at_work(memory, asking(HITL)) as (double, _):
            await double.say("D1", "pay")
            await double.until_shown(1)
            assert list(double.shown[0].buttons) == ["Approve", "Edit", "Reject"]
            await double.press(double.shown[0], "Approve")
            await double.until_shown(2)
            assert double.texts("D1")[1] == "got {'decisions': [{'type': 'approve'}]}"
            assert "chat.update" in [name for name, _ in double.calls]
            await double.command("D1", "/agent-new")
            await double.say("D1", "again", ts="9999999999.000001")
            await double.until_shown(3)
            assert double.texts("D1")[2] == "Pay 12 euros?"

    go(main())


def test_a_command_stops_what_came_before_it_by_slack_s_clock_and_in_channels_says_how(
    memory: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asyncio.Event()

    async def hold(state: MessagesState) -> dict[str, Any]:
        await gate.wait()
        return {"messages": [AIMessage("done")]}

    graph = StateGraph(MessagesState).add_node(hold).add_edge(START, "hold").compile()

    async def main() -> None:
        async with slack_at_work(memory, graph) as (double, line):
            await double.say("D1", "work")

            async def state() -> str:
                runs = await line.runtime.runs(thread("D1"))
                return runs[0].state if runs else ""

            async def is_open() -> bool:
                return await state() == "open"

            async def is_over() -> bool:
                return await state() == "interrupted"

            await eventually_stored(is_open)
            # The clock of this process is behind.
            monkeypatch.setattr(time, "time_ns", lambda: 10**18)
            await double.command("D1", "/agent-stop")
            await eventually_stored(is_over)
            form = {"command": "/agent-stop", "team_id": "T1", "channel_id": "C1", "user_id": "U7"}
            call = double.sign(urlencode(form).encode(), "application/x-www-form-urlencoded")
            async with httpx.AsyncClient() as client:
                answer = await client.post(line.webhook, content=call.body, headers=dict(call.headers))
            assert answer.json()["text"] == "In a channel, mention me in the thread: @… /stop"

    go(main())


def test_an_error_of_an_acceptance_is_not_blamed_on_the_body(
    memory: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any) -> None:
        raise KeyError("inside")

    async def main() -> None:
        async with slack_at_work(memory, echo()) as (double, _):
            monkeypatch.setattr("perdure.channels.receiving.Receiver.accept_message", broken)
            assert await double.post(double.event("D1", "hello")) == 500

    go(main())


def test_edits_and_files_and_what_bots_write(memory: Storage) -> None:
    async def main() -> None:
        async with slack_at_work(memory, echo()) as (double, _):
            file = {"id": "F1", "name": "a.pdf", "mimetype": "application/pdf", "size": 9}
            await double.say("D1", "see", subtype="file_share", files=[file])
            await double.say("D1", "I am a bot", bot_id="B1")
            await double.say("D1", "joined", subtype="channel_join")
            await double.until_shown(1)
            original = {"ts": double.next_ts(), "user": "U7", "text": "teh cat"}
            await double.say("D2", "teh cat", ts=original["ts"])
            await double.until_shown(1, "D2")
            for text in ("teh cat", "the cat"):
                changed = {**original, "text": text}
                more = {"message": changed, "previous_message": original, "event_ts": double.next_ts()}
                await double.say("D2", "", subtype="message_changed", **more)
            # A deleted message that has a thread.
            gone = {**original, "subtype": "tombstone", "user": "USLACKBOT", "text": "It was deleted."}
            more = {"message": gone, "previous_message": original, "event_ts": double.next_ts()}
            await double.say("D2", "", subtype="message_changed", **more)
            await double.say("D2", "", subtype="message_deleted", previous_message=original)
            await double.say("D2", "still here")
            await double.until_shown(3, "D2")
            assert double.texts("D1") == ["see\n[attached: file, a.pdf, application/pdf, 9 bytes]"]
            assert double.texts("D2") == ["teh cat", "(edited) the cat", "still here"]

    go(main())


def test_positions_are_in_the_order_of_time() -> None:
    assert position_of_ts("1700000000.000100") == 1700000000000100
    assert position_of_ts("1700000000") < position_of_ts("1700000000.000001")
    with pytest.raises(ValueError, match="invalid"):
        position_of_ts("soon")


@pytest.mark.parametrize(("token", "secret", "named"), [("x", "s", "token"), (TOKEN, " ", "signing secret")])
def test_a_setting_that_cannot_work_is_refused(token: str, secret: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        SlackApp(token, signing_secret=secret)
