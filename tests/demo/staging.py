"""A demo in memory whose model says what it is told to, when it is told to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from pydantic import Field

import perdure
from tests.conftest import IN_CI
from tests.demo.process import saying

if not IN_CI:
    for part in ("dotenv", "fastapi", "jwt", "sse_starlette", "uvicorn"):
        pytest.importorskip(part, reason='the demo is not installed: pip install "perdure[demo]"')

from perdure.demo.models import OpenModel
from perdure.demo.page_server import create_app
from perdure.demo.running import Demo, start_demo


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


@dataclass
class Stage:
    """One running demo: a new one over the same database is the demo started again."""

    model: ScriptedModel
    demo: Demo
    client: httpx.AsyncClient

    async def thread(self) -> str:
        """A new thread's id."""
        response = await self.client.post("/threads", json={})
        assert response.status_code == 200
        return str(response.json()["thread_id"])

    async def say(self, thread_id: str, text: str, **headers: str) -> list[tuple[str, Any]]:
        """Put a message; what its run told."""
        response = await self.client.post(
            f"/threads/{thread_id}/runs/stream", json=saying(text), headers=headers
        )
        assert response.status_code == 200, response.text
        return events(response.text)

    async def kept(self, thread_id: str) -> list[str]:
        """What the thread holds."""
        state = (await self.client.get(f"/threads/{thread_id}/state")).json()
        return [message["content"] for message in state["values"].get("messages", [])]


@asynccontextmanager
async def stage(url: str = "memory://", **script: Any) -> AsyncIterator[Stage]:
    """A demo on the in-memory transport; ``script`` goes to :class:`ScriptedModel`."""
    model = ScriptedModel(**script)
    async with AsyncExitStack() as stack:
        db = await stack.enter_async_context(perdure.connect(url, migrate=True))
        demo = await start_demo(stack, db, OpenModel(model, "scripted", 500))
        app = create_app(demo.host, model="scripted", database="memory")
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8765")
        yield Stage(model, demo, await stack.enter_async_context(client))


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run an asynchronous test body, at most 60 s long."""

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(bounded())


async def until(reached: Callable[[], bool]) -> None:
    """Let the event loop run until the condition holds."""
    while not reached():  # noqa: ASYNC110 - what is waited for has no event of its own
        await asyncio.sleep(0.001)


def events(body: str) -> list[tuple[str, Any]]:
    """The names and the data of a stream of server-sent events."""
    pairs = []
    for block in body.replace("\r", "").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "event" in fields:
            pairs.append((fields["event"], json.loads(fields.get("data", "null"))))
    return pairs
