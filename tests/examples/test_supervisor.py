"""The supervisor's example over HTTP: its replies, its fragments, and what it spends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx

import perdure
from examples.supervisor.app import create_app


def test_a_chat_over_http(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'supervisor.db'}"

    async def main() -> None:
        async with perdure.connect(url, migrate=True):
            pass
        app = create_app(url)
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://here") as client,
        ):

            async def say(text: str, key: str = "") -> Any:
                headers = {"Idempotency-Key": key} if key else {}
                answer = await client.post("/api/chat", json={"chat": "ada", "text": text}, headers=headers)
                assert answer.status_code == 200, answer.text
                return answer.json()

            hello = await say("hello")
            assert (hello["route"]["kind"], hello["reply"]) == ("chitchat", "Hello! Ask me about your order.")
            first, second = await asyncio.gather(say("where is", "1"), say("my order?", "2"))
            assert first == second, "fragments have one reply"
            assert "order 4711 left on Monday" in first["reply"]
            assert await say("my order?", "2") == second, "sent again it is answered with the same run"
            third = await say("hello", "3")
            assert third["reply"] != second["reply"]
            assert await say("my order?", "2") == second, "an earlier run has its own reply"
            used = (await client.get("/api/usage")).json()
            assert {name: spent["calls"] for name, spent in used["hops"].items()} == {"route": 3, "write": 1}
            assert used["users"]["ada"]["cost"] > 0

    asyncio.run(main())
