"""Updates by polling: durable before they are confirmed, by one process, and no chat waits for another.

Covers perdure.channels.polling_lease.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from perdure.channels import ChatAddress
from perdure.channels.polling import PolledUpdate, Polling, PollingRefused
from perdure.channels.webhook import RejectedRequest
from perdure.errors import QueueFull, Unavailable
from perdure.testing.channels import TelegramDouble
from perdure.testing.channels.telegram import TOKEN
from tests.channels.serving import asking, at_work, echo, polled_telegram
from tests.runtime.graphs import Storage, eventually, go, settings, stored

WITHIN_S = 120.0


@pytest.fixture
def memory() -> Iterator[Storage]:
    with stored("memory") as storage:
        yield storage


@pytest.fixture
def sqlite() -> Iterator[Storage]:
    with stored("sqlite") as storage:
        yield storage


def thread(chat: int) -> str:
    return ChatAddress("telegram", str(chat)).thread_id


def test_the_double_says_that_nothing_takes_its_messages() -> None:
    async def main() -> None:
        async with TelegramDouble(patience=0.1) as double:
            with pytest.raises(TimeoutError, match=r"within 0\.1 s.*polls this double"):
                await double.say(1, "hello")

    go(main())


def test_messages_edits_and_buttons_arrive_without_a_webhook(memory: Storage) -> None:
    async def main() -> None:
        question = {"action_requests": [{"name": "pay", "args": {}}]}
        async with (
            TelegramDouble() as double,
            at_work(memory.database(), asking(question), polled_telegram(double)) as line,
        ):
            assert line.webhook == ""
            await double.say(1, "hello")
            # It was acknowledged, so it is stored.
            assert len(await line.runtime.messages(thread(1))) == 1
            await double.until_shown(1)
            (button, *_) = double.shown[0].buttons
            await double.press(double.shown[0], button)
            await double.until_shown(2)
            assert double.conflicts == 0
            asked = [given for method, given in double.calls if method == "getUpdates"]
            assert asked[0]["allowed_updates"] == '["message", "edited_message", "callback_query"]'

    go(main())


def test_of_two_processes_one_polls_and_the_other_takes_over(
    sqlite: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with TelegramDouble() as double:
            first_database, _ = sqlite.open()
            async with at_work(first_database, echo(), polled_telegram(double)):
                await double.say(1, "one")
                second_database, _ = sqlite.open()
                async with at_work(second_database, echo(), polled_telegram(double)):
                    await eventually(lambda: "another process asks for the updates" in caplog.text)
                    polls = double.polls
                    await double.say(1, "two")
                    assert double.polls <= polls + 4
            await double.until_shown(2)
            third, _ = sqlite.open()
            async with at_work(third, echo(), polled_telegram(double)):
                await double.say(1, "three")
                await double.until_shown(3)
            assert double.texts(1) == ["one", "two", "three"]
            assert double.conflicts == 0

    with caplog.at_level(logging.INFO, "perdure.channels"):
        go(main())


def test_a_webhook_and_another_program_are_told_with_the_remedy(
    memory: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with (
            TelegramDouble("http://127.0.0.1:9/webhook") as double,
            at_work(memory.database(), echo(), polled_telegram(double)),
        ):
            await eventually(lambda: "cannot be polled: use another bot here" in caplog.text)
            assert double.conflicts == 1
        async with (
            TelegramDouble() as double,
            at_work(memory.database(), echo(), polled_telegram(double)),
            httpx.AsyncClient() as other,
        ):
            await eventually(lambda: double.polls == 1)
            answer = await other.get(f"{double.url}/bot{TOKEN}/getUpdates?timeout=0")
            assert answer.json()["ok"]
            await eventually(lambda: "another program polls for the updates of this bot" in caplog.text)

    go(main())
    assert TOKEN not in caplog.text


def test_a_token_that_is_refused_is_told(memory: Storage, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with TelegramDouble() as double:
            bot = polled_telegram(double)
            bot.bot._Bot__token = "1:refused"  # type: ignore[attr-defined]
            async with at_work(memory.database(), echo(), bot):
                await eventually(lambda: "Telegram refused the bot's token" in caplog.text)

    go(main())


def test_what_is_no_update_is_left_out_and_the_next_one_accepted(
    memory: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with TelegramDouble() as double:
            # Before the bot asks, so that all are in one answer.
            strange = [
                asyncio.create_task(double.deliver(double.update(message={"text": "a user's words"}))),
                asyncio.create_task(double.deliver(double.update(callback_query="strange"))),
                asyncio.create_task(double.deliver(double.update(message=double.message(1, "half \ud83d")))),
            ]
            await asyncio.sleep(0)
            async with at_work(memory.database(), echo(), polled_telegram(double)):
                await double.until_shown(1)
                await asyncio.gather(*strange)
            assert double.texts(1) == ["half \ufffd"]

    go(main())
    assert caplog.text.count("it is not an update of Telegram") == 2
    assert "a user's words" not in caplog.text


def test_a_chat_that_is_full_is_told_and_holds_up_no_other(
    memory: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.channels.polling._PATIENCE_S", 0.0)
    gate = asyncio.Event()

    async def main() -> None:
        from langchain_core.messages import AIMessage
        from langgraph.graph import START, MessagesState, StateGraph

        async def hold(state: MessagesState) -> dict[str, Any]:
            if state["messages"][-1].text != "quick":
                await gate.wait()
            return {"messages": [AIMessage("answered")]}

        graph = StateGraph(MessagesState).add_node(hold).add_edge(START, "hold").compile()
        few = settings(max_pending=2)
        async with (
            TelegramDouble() as double,
            at_work(memory.database(), graph, polled_telegram(double), settings=few),
        ):
            for number in range(6):
                await double.say(1, f"slow {number}")
            await double.say(2, "quick")
            await double.until_shown(1, 2)
            assert double.texts(2) == ["answered"]
            # Once, not for each of them.
            assert double.texts(1) == ["Your message could not be accepted. Please send it again later."]
            gate.set()

    go(main())


class Provider:
    """A provider of numbered updates, and what becomes of them."""

    def __init__(self) -> None:
        self.pending: dict[int, PolledUpdate] = {}
        self.asked: list[int | None] = []
        self.taken: list[int] = []
        self.trouble: dict[int, list[Exception]] = {}
        self.refused: list[int] = []
        self.held: dict[int, asyncio.Event] = {}

    def send(self, number: int, chat: str = "1") -> None:
        self.pending[number] = PolledUpdate(number, chat, {})

    async def ask(self, first: int | None) -> Sequence[PolledUpdate]:
        self.asked.append(first)
        for number in [each for each in self.pending if first is not None and each < first]:
            # A confirmed update is gone at the provider.
            assert number in self.taken or number in self.refused
            del self.pending[number]
        await asyncio.sleep(0.01)
        return sorted(self.pending.values())

    async def take(self, update: PolledUpdate) -> None:
        if update.number in self.held:
            await self.held[update.number].wait()
        if self.trouble.get(update.number):
            raise self.trouble[update.number].pop(0)
        self.taken.append(update.number)

    async def refuse(self, update: PolledUpdate) -> None:
        self.refused.append(update.number)


class Lease:
    def __init__(self) -> None:
        self.is_free = True
        self.released = 0

    async def hold(self) -> bool:
        return self.is_free

    async def release(self) -> None:
        self.released += 1


def polled(provider: Provider, lease: Any) -> asyncio.Task[None]:
    loop = Polling("x", lease, ask=provider.ask, take=provider.take, refuse=provider.refuse)
    return asyncio.create_task(loop.run())


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_ASIDE_S", "_AGAIN_S", "_AGAIN_MAX_S", "_POLL_S"):
        monkeypatch.setattr(f"perdure.channels.polling.{name}", 0.02)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_an_update_is_confirmed_once_all_before_it_are_durable_and_lower_numbers_are_taken_later() -> None:
    async def main() -> None:
        provider, lease = Provider(), Lease()
        provider.held[10] = asyncio.Event()
        for number, chat in ((10, "a"), (11, "b"), (12, "a")):
            provider.send(number, chat)
        task = polled(provider, lease)
        await eventually(lambda: provider.taken == [11])
        await asyncio.sleep(0.2)
        # One chat waits, the other one does not, and nothing is confirmed past it.
        assert set(provider.asked) == {None}
        provider.held[10].set()
        await eventually(lambda: not provider.pending)
        assert provider.taken == [11, 10, 12]
        await eventually(lambda: provider.asked[-1] is None)
        # After a quiet time a provider numbers from anywhere.
        provider.send(3)
        await eventually(lambda: not provider.pending)
        assert provider.taken == [11, 10, 12, 3]
        await _ended(task)
        assert lease.released == 1

    go(main())


def test_what_cannot_be_stored_now_is_tried_again_in_its_order() -> None:
    async def main() -> None:
        provider = Provider()
        provider.trouble = {
            1: [Unavailable("away"), RejectedRequest(503, "who am I"), Unavailable("away")],
            2: [RejectedRequest(400, "no update")],
            4: [QueueFull("full")],
        }
        for number in range(1, 5):
            provider.send(number)
        provider.refused.append(2)  # it is left out
        task = polled(provider, Lease())
        await eventually(lambda: not provider.pending)
        assert provider.taken == [1, 3, 4]
        await _ended(task)

    go(main())


def test_an_update_that_is_refused_again_and_again_is_given_up_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("perdure.channels.polling._PATIENCE_S", 0.1)

    async def main() -> None:
        provider = Provider()
        provider.trouble = {1: [LookupError("a user's words")] * 99}
        provider.send(1)
        provider.send(2)
        task = polled(provider, Lease())
        await eventually(lambda: not provider.pending)
        assert (provider.taken, provider.refused) == ([2], [1])
        await _ended(task)

    go(main())
    assert "update 1 was not accepted (LookupError)" in caplog.text
    assert "a user's words" not in caplog.text


def test_nothing_is_asked_for_without_the_lease_or_while_it_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        provider, lease = Provider(), Lease()
        lease.is_free = False
        task = polled(provider, lease)
        await asyncio.sleep(0.1)
        assert provider.asked == []
        lease.is_free = True
        await eventually(lambda: provider.asked)
        await _ended(task)

        async def refused(first: int | None) -> Sequence[PolledUpdate]:
            provider.asked.append(first)
            raise PollingRefused("stop the other one", 30.0)

        provider.asked = []
        provider.ask = refused  # type: ignore[method-assign]
        task = polled(provider, Lease())
        await eventually(lambda: "stop the other one. The next attempt is in 30 s" in caplog.text)
        assert len(provider.asked) == 1
        await _ended(task)

    go(main())


AGENT = """
from tests.channels.serving import echo

graph = echo()
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_servers_that_are_killed_lose_no_message_and_accept_none_twice(tmp_path: Path) -> None:
    (tmp_path / "polled_agent.py").write_text(AGENT)
    said = [f"message {number}" for number in range(24)]

    async def main() -> None:
        async with TelegramDouble(patience=WITHIN_S * 5) as double:
            (tmp_path / "perdure.toml").write_text(
                'development = true\n[graphs]\nagent = "./polled_agent.py:graph"\n[runtime]\nlease = 21\n'
                f'[channels.telegram]\npolling = true\napi_url = "{double.url}"\ndebounce = 0\n'
            )

            async def person(chat: int) -> None:
                for text in said[chat - 1 :: 3]:
                    await double.say(chat, text)

            server = started(tmp_path)
            people = [asyncio.create_task(person(chat)) for chat in (1, 2, 3)]
            try:
                for kill in (1, 2):
                    await until(server, partial(has_shown, double, 6 * kill))
                    server.send_signal(signal.SIGKILL)
                    server.wait()
                    server = started(tmp_path)
                await asyncio.gather(*people)
                await until(
                    server, lambda: all(heard(double, chat) == said[chat - 1 :: 3] for chat in (1, 2, 3))
                )
            finally:
                server.terminate()
                assert server.wait(WITHIN_S) == 0

    asyncio.run(main())


def has_shown(double: TelegramDouble, count: int) -> bool:
    return len(double.shown) >= count


def heard(double: TelegramDouble, chat: int) -> list[str]:
    """What the thread had from people, by the answers: each has what was said since the one before."""
    texts = double.texts(chat)
    # A reply of which a killed server did not note that it was sent is sent again.
    once = [text for n, text in enumerate(texts) if n == 0 or text != texts[n - 1]]
    return [text for reply in once for text in reply.split(" + ")]


async def until(server: subprocess.Popen[bytes], holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(2 * WITHIN_S):
        while not holds():
            assert server.poll() is None, "the server ended; its log is in its folder"
            await asyncio.sleep(0.02)


def started(folder: Path) -> subprocess.Popen[bytes]:
    """A server of its own process, which polls."""
    root = Path(__file__).parents[2]
    command = "import sys; from perdure.cli import main; sys.exit(main())"
    with open(folder / "log", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-c", command, "serve", "--port", "0"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(root), "PERDURE_CHANNELS_TELEGRAM_TOKEN": TOKEN},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
