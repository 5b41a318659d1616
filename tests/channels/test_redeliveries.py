"""What a provider delivers again is told the same as the first time, and has no further effect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from perdure.channels import ChatAddress, SlackApp, WhatsAppPhone
from perdure.channels.chat_channel import ChatChannel
from perdure.testing.channels import TelegramDouble
from perdure.testing.channels import slack as slack_double
from perdure.testing.channels import whatsapp as whatsapp_double
from perdure.testing.channels.provider import ProviderDouble, WebhookCall
from tests.channels.serving import QUICK, Line, at_work, telegram
from tests.runtime.graphs import Storage, go, stored

NOT_OPEN = "This question is not open any more."


def whatsapp(double: ProviderDouble) -> ChatChannel:
    given: Any = {
        "token": whatsapp_double.TOKEN,
        "app_secret": whatsapp_double.APP_SECRET,
        "verify_token": "v",
    }
    return WhatsAppPhone(whatsapp_double.PHONE_ID, options=QUICK, api_url=f"{double.url}/v1", **given)


def slack(double: ProviderDouble) -> ChatChannel:
    given: Any = {"signing_secret": slack_double.SIGNING_SECRET, "api_url": f"{double.url}/api/"}
    return SlackApp(slack_double.TOKEN, options=QUICK, **given)


class Kind(NamedTuple):
    """A provider: its double, the bot at the double, and a chat with one person, whose id the bot has."""

    double: Callable[[], Any]
    bot: Callable[[Any], ChatChannel]
    chat: Any
    id: str


KINDS = {
    "telegram": Kind(TelegramDouble, telegram, 1, "1"),
    "whatsapp": Kind(whatsapp_double.WhatsAppDouble, whatsapp, "491", "491"),
    "slack": Kind(slack_double.SlackDouble, slack, "D1", "T1.D1"),
}


@pytest.fixture(
    params=["telegram", *(pytest.param(each, marks=pytest.mark.slow) for each in KINDS if each != "telegram")]
)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture
def memory() -> Iterator[Storage]:
    with stored("memory") as storage:
        yield storage


def requested(*names: str, allowed: tuple[str, ...] = ("approve", "edit", "reject")) -> dict[str, Any]:
    return {
        "action_requests": [{"name": name, "args": {"text": "old"}} for name in names],
        "review_configs": [{"action_name": name, "allowed_decisions": allowed} for name in names],
    }


def asking(*values: Any) -> Any:
    """A graph with one node that asks one thing after the other, each under the same id, of what says "go";
    it answers all others."""

    def ask(state: MessagesState) -> dict[str, Any]:
        last = state["messages"][-1].text
        said = [str(interrupt(value)) for value in values] if last == "go" else ["heard", last]
        return {"messages": [AIMessage(" ".join(said))]}

    return StateGraph(MessagesState).add_node(ask).add_edge(START, "ask").compile()


class Chat:
    """A chat with a bot. What the provider delivers is noted, to be delivered again."""

    def __init__(self, double: Any, chat: Any) -> None:
        self.double = double
        self.chat = chat
        self.delivered: list[WebhookCall] = []
        deliver = double.deliver

        async def note(call: WebhookCall) -> int:
            self.delivered.append(call)
            return int(await deliver(call))

        double.deliver = note

    @property
    def texts(self) -> list[str]:
        return [shown.text for shown in self.double.shown]

    async def say(self, text: str, shown: int) -> WebhookCall:
        """Say a text, wait until the bot has sent ``shown`` messages, and return the request."""
        await self.double.say(self.chat, text)
        await self.double.until_shown(shown)
        return self.delivered[-1]

    async def press(self, number: int, button: str, shown: int = 0) -> WebhookCall:
        """Press a button of the bot's message of a number, as ``say`` says a text."""
        await self.double.press(self.double.shown[number], button)
        await self.double.until_shown(shown)
        return self.delivered[-1]

    async def again(self, *calls: WebhookCall) -> None:
        """Deliver requests again, all at once."""
        assert set(await asyncio.gather(*map(self.double.post, calls))) == {200}


@asynccontextmanager
async def chatting(storage: Storage, kind: Kind, graph: Any) -> AsyncIterator[tuple[Chat, Line]]:
    async with kind.double() as double, at_work(storage.database(), graph, kind.bot(double)) as line:
        double.webhook = line.webhook
        yield Chat(double, kind.chat), line


async def answers(line: Line, kind: Kind) -> int:
    standing = await line.runtime.messages(ChatAddress(line.bot.name, kind.id).thread_id)
    return len([each for each in standing if each.message.mode == "answer"])


@pytest.mark.parametrize("button", ["Approve", "Reject"])
def test_a_press_is_told_the_same_at_once_later_and_after_a_restart(
    memory: Storage, kind: Kind, button: str
) -> None:
    graph = asking(requested("pay"))

    async def with_double() -> None:
        async with kind.double() as double:
            await main(Chat(double, kind.chat))

    async def main(chat: Chat) -> None:
        async with at_work(memory.database(), graph, kind.bot(chat.double)) as line:
            chat.double.webhook = line.webhook
            await chat.say("go", 1)
            press = await chat.press(0, button)
            await chat.again(press, press)
            await chat.double.until_shown(2)
            await chat.again(press, press)
            assert await answers(line, kind) == 1
        async with at_work(memory.database(), graph, kind.bot(chat.double)) as line:
            chat.double.webhook = line.webhook
            await chat.again(press)
            # The same choice again.
            await chat.press(0, button)
            assert chat.texts == [chat.texts[0], f"{{'decisions': [{{'type': '{button.lower()}'}}]}}"]
            await chat.press(0, "Reject" if button == "Approve" else "Approve")
            assert chat.texts[2:] == [NOT_OPEN]
            await chat.again(press, chat.delivered[-1])
            assert chat.texts[2:] == [NOT_OPEN, NOT_OPEN]
            assert await answers(line, kind) == 1

    go(with_double())


def test_a_button_answers_no_later_question_of_its_node(memory: Storage, kind: Kind) -> None:
    async def main() -> None:
        async with chatting(memory, kind, asking(requested("pay"), requested("send"))) as (chat, line):
            await chat.say("go", 1)
            press = await chat.press(0, "Approve", 2)
            await chat.again(press)
            await chat.press(0, "Approve")
            await chat.press(0, "Reject", 3)
            await chat.press(0, "Edit", 4)
            assert chat.texts[2:] == [NOT_OPEN, NOT_OPEN]
            assert await answers(line, kind) == 1
            await chat.press(1, "Reject", 5)
            assert chat.texts[4].endswith("{'decisions': [{'type': 'reject'}]}")

    go(main())


def test_a_text_changes_no_later_question_of_the_node_whose_arguments_were_changed(
    memory: Storage, kind: Kind
) -> None:
    """The node asks again under the same id, of which the text would approve another action."""

    async def main() -> None:
        async with chatting(memory, kind, asking(requested("pay"), requested("send"))) as (chat, line):
            await chat.say("go", 1)
            edit = await chat.press(0, "Edit", 2)
            changed = await chat.say("new", 3)
            await chat.again(edit, changed)
            await chat.say("hello", 4)
            assert chat.texts[3].endswith("{'decisions': [{'type': 'reject', 'message': 'hello'}]}")
            assert await answers(line, kind) == 2

    go(main())


def test_a_text_that_was_no_answer_is_no_message_once_the_question_has_its_answer(
    memory: Storage, kind: Kind
) -> None:
    asked = requested("pay", allowed=("approve",))

    async def main() -> None:
        async with chatting(memory, kind, asking(asked, "Which size?")) as (chat, line):
            await chat.say("go", 1)
            refused = await chat.say("hm", 2)
            assert chat.texts[1] == "Please press one of the buttons."
            await chat.again(refused)
            assert chat.texts[2:] == chat.texts[1:2]
            await chat.press(0, "Approve", 4)
            await chat.again(refused)
            assert (len(chat.texts), await answers(line, kind)) == (4, 1)
            await chat.say("large", 5)
            await chat.again(refused)
            await chat.say("anew", 6)
            assert chat.texts[4:] == ["{'decisions': [{'type': 'approve'}]} large", "heard anew"]

    go(main())


def test_an_edit_is_asked_for_once_more_while_its_question_is_open(memory: Storage, kind: Kind) -> None:
    async def main() -> None:
        async with chatting(memory, kind, asking(requested("pay"))) as (chat, _):
            await chat.say("go", 1)
            edit = await chat.press(0, "Edit", 2)
            await chat.again(edit)
            assert chat.texts[1:] == 2 * [chat.texts[1]]
            await chat.say("new", 4)
            await chat.again(edit)
            await chat.say("anew", 5)
            assert chat.texts[4] == "heard anew"

    go(main())


def test_a_text_is_told_nothing_of_a_question_that_came_after_its_first_delivery(
    memory: Storage, kind: Kind
) -> None:
    async def main() -> None:
        asked = requested("pay", allowed=("approve",))
        async with chatting(memory, kind, asking("Which size?", asked)) as (chat, line):
            await chat.say("go", 1)
            answer = await chat.say("large", 2)
            await chat.again(answer)
            assert (len(chat.texts), await answers(line, kind)) == (2, 1)

    go(main())
