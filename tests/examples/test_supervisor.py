"""The supervisor's example over HTTP and by messengers: its replies, its fragments, and what it spends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx

import perdure
from examples.supervisor.app import create_app
from tests.server.applications import listening


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
            assert (
                first["reply"] == "This is what I found: Order 4711 left on Monday, and arrives on Wednesday."
            )
            assert await say("my order?", "2") == second, "sent again it is answered with the same run"
            third = await say("hello", "3")
            assert third["reply"] != second["reply"]
            assert await say("my order?", "2") == second, "an earlier run has its own reply"
            used = (await client.get("/api/usage")).json()
            assert {name: spent["calls"] for name, spent in used["hops"].items()} == {"route": 3, "write": 1}
            assert used["users"]["ada"]["dollars"] > 0
            for spent in (*used["hops"].values(), *used["users"].values()):
                assert spent["dollars"] == round(spent["dollars"], 5), "amounts are for people"
                assert spent["seconds"] == round(spent["seconds"], 3)

    asyncio.run(main())


def test_the_messengers_answer_without_accounts_also_after_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'supervisor.db'}"

    async def main() -> None:
        async with perdure.connect(url, migrate=True):
            pass
        for _ in range(2):
            app = create_app(url)
            async with listening(app) as base, httpx.AsyncClient(trust_env=False, timeout=60) as client:

                async def say(
                    provider: str, chat: str, text: str, to: tuple[str, Any] = (base, client)
                ) -> Any:
                    given = {"chat": chat, "text": text}
                    return await to[1].post(f"{to[0]}/doubles/{provider}", json=given)

                for provider in ("telegram", "whatsapp"):
                    hello = await say(provider, "491700000001", "hello")
                    assert hello.json() == {"replies": ["Hello! Ask me about your order."]}, hello.text
                    order = await say(provider, "491700000001", "where is my order?")
                    assert order.json()["replies"] == [
                        "This is what I found: Order 4711 left on Monday, and arrives on Wednesday."
                    ]
                used = (await client.get(f"{base}/api/usage")).json()
                assert set(used["users"]) == {"telegram:491700000001", "whatsapp:491700000001"}
                # Everybody has a thread of their own, whichever name the messenger has for them.
                at: Any = {"configurable": {"thread_id": "whatsapp:491700000001::"}}
                stored = (await app.state.runtime.graph("supervisor").aget_state(at)).values["messages"]
                assert len(stored) >= 4
                for chat in ("", "ada", "-1", "1" * 16, "007"):
                    assert (await say("telegram", chat, "hello")).status_code == 422
                assert (await say("slack", "1", "hello")).status_code == 422

    asyncio.run(main())
