"""A demo in memory whose model says what it is told to, when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import Field

from tests.conftest import IN_CI

if not IN_CI:
    for part in ("fastapi", "sse_starlette", "uvicorn"):
        pytest.importorskip(part, reason='the demo is not installed: pip install "perdure[demo]"')

from perdure.demo.agent import Agent, build_agent
from perdure.demo.answers import Answers
from perdure.demo.web import About, create_app


class ScriptedModel(BaseChatModel):
    """Streams ``words``; before the one at ``hold_at`` waits for ``gate``, before ``fail_at`` fails."""

    words: tuple[str, ...] = ("Once ", "upon ", "a ", "time.")
    hold_at: int | None = None
    fail_at: int | None = None
    gate: asyncio.Event = Field(default_factory=asyncio.Event)
    prompts: list[list[BaseMessage]] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        raise NotImplementedError("the demo streams")

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        self.prompts.append(messages)
        for position, word in enumerate(self.words):
            if position == self.hold_at:
                await self.gate.wait()
            if position == self.fail_at:
                raise ConnectionError("secret words of the provider")
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=word))
            if run_manager is not None:
                await run_manager.on_llm_new_token(word, chunk=chunk)
            yield chunk


@dataclass(frozen=True)
class Row:
    """A thread as the catalogue gives it."""

    thread_id: str
    updated_at: str | None


class Shelf:
    """The catalogue of an in-memory saver, in the order in which threads came."""

    def __init__(self, saver: InMemorySaver) -> None:
        self._saver = saver

    async def threads(self) -> AsyncIterator[Row]:
        for position, thread_id in enumerate(list(self._saver.storage)):
            if any(self._saver.storage[thread_id].values()):
                yield Row(thread_id, f"2030-01-01T00:00:{position:02}+00:00")


@dataclass
class Stage:
    """One running demo: a new one over the same ``saver`` is the demo started again."""

    model: ScriptedModel
    saver: InMemorySaver
    agent: Agent
    answers: Answers
    client: httpx.AsyncClient

    async def thread(self) -> str:
        """A new thread's id."""
        response = await self.client.post("/api/threads")
        assert response.status_code == 201
        return str(response.json()["id"])

    async def say(self, thread_id: str, text: str, **more: str) -> httpx.Response:
        """Put a message and wait for the whole stream."""
        return await self.client.post(f"/api/threads/{thread_id}/messages", json={"text": text, **more})


@asynccontextmanager
async def stage(saver: InMemorySaver | None = None, **script: Any) -> AsyncIterator[Stage]:
    """A demo on the in-memory transport; ``script`` goes to :class:`ScriptedModel`."""
    saver = saver or InMemorySaver()
    model = ScriptedModel(**script)
    agent = build_agent(model, context_tokens=500, checkpointer=saver)
    answers = Answers(agent)
    app = create_app(agent, Shelf(saver), answers, About("scripted", "memory", "0"))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8765") as client:
        yield Stage(model, saver, agent, answers, client)
    await answers.close()


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run an asynchronous test body, at most 20 s long."""

    async def bounded() -> None:
        async with asyncio.timeout(20):
            await scenario()

    asyncio.run(bounded())


async def until(reached: Callable[[], bool]) -> None:
    """Let the event loop run until the condition holds."""
    while not reached():  # noqa: ASYNC110 - what is waited for has no event of its own
        await asyncio.sleep(0.001)


def events(body: str) -> list[tuple[str, str]]:
    """The (name, data) pairs of a stream of server-sent events."""
    pairs = []
    for block in body.replace("\r", "").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "event" in fields:
            pairs.append((fields["event"], fields.get("data", "")))
    return pairs
