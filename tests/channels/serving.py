"""A chat channel at work in a test: its routes on a port of their own, over a runtime, with a double.

Tests name Telegram's class as an attribute of ``channels``: its client takes seconds to import, which each
test process would spend while it collects.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from starlette.applications import Starlette

from perdure import channels
from perdure.channels import ChatOptions
from perdure.channels.chat_channel import ChatChannel
from perdure.database.blocking import SyncDatabase
from perdure.runtime import Runtime
from perdure.testing.channels import TelegramDouble
from perdure.testing.channels.telegram import SECRET, TOKEN
from perdure.web.connections import LimitedConnection
from tests.runtime.graphs import settings

QUICK = ChatOptions(debounce=0.0)
WINDOW = ChatOptions(debounce=600.0, max_wait=600.0)
"""For what is about the window: a test ends it by ``advance`` of the runtime."""


@asynccontextmanager
async def on_port(app: Starlette) -> AsyncIterator[str]:
    """The address of an application for as long as the block lasts."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        config = uvicorn.Config(
            app, http=LimitedConnection, log_level="warning", lifespan="off", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


@dataclass
class Line:
    """A channel at work."""

    runtime: Runtime
    bot: ChatChannel
    url: str

    @property
    def webhook(self) -> str:
        """The address of the webhook, or "" if the bot polls."""
        paths = [route.path for route in self.bot.routes(self.runtime)]
        return f"{self.url}{paths[0]}" if paths else ""


@asynccontextmanager
async def at_work(
    database: SyncDatabase, graph: Any, bot: ChatChannel, **options: Any
) -> AsyncIterator[Line]:
    """A channel whose routes are served over a runtime."""
    given = {"settings": settings(), "observers": [], **options}
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(bot)
        runtime = await stack.enter_async_context(Runtime(database, graph, channels=bot.channels, **given))
        url = await stack.enter_async_context(on_port(Starlette(routes=bot.routes(runtime))))
        await stack.enter_async_context(bot.poll(runtime))
        yield Line(runtime, bot, url)


def telegram(double: TelegramDouble, options: ChatOptions = QUICK, **more: Any) -> channels.TelegramBot:
    """A bot at the double."""
    return channels.TelegramBot(TOKEN, secret=SECRET, options=options, api_url=double.url, **more)


def polled_telegram(double: TelegramDouble, options: ChatOptions = QUICK) -> channels.TelegramBot:
    """A bot at the double that has no webhook."""
    return channels.TelegramBot(TOKEN, polling=True, options=options, api_url=double.url)


@asynccontextmanager
async def telegram_at_work(
    database: SyncDatabase, graph: Any, bot_options: ChatOptions = QUICK, **options: Any
) -> AsyncIterator[tuple[TelegramDouble, Line]]:
    """A Telegram bot at work, and the double that it talks to."""
    async with (
        TelegramDouble() as double,
        at_work(database, graph, telegram(double, bot_options), **options) as line,
    ):
        double.webhook = line.webhook
        yield double, line


def echo(answer: Callable[[list[str]], str] = " + ".join) -> Any:
    """A graph that answers what people wrote since it answered last."""

    async def talk(state: MessagesState) -> dict[str, Any]:
        heard: list[str] = []
        for message in state["messages"]:
            heard = [] if message.type == "ai" else [*heard, message.text]
        return {"messages": [AIMessage(answer(heard))]}

    return StateGraph(MessagesState).add_node(talk).add_edge(START, "talk").compile()


def asking(value: Any) -> Any:
    """A graph that asks before it answers, and answers what it was answered."""

    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"got {interrupt(value)}")]}

    return StateGraph(MessagesState).add_node(ask).add_edge(START, "ask").compile()
