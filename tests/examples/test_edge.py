"""The edge's application over D1's own engine: anchors and the last states stay, and old states go on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import perdure
from examples.edge.app import KEPT, create_app
from tests import backends


@pytest.fixture(params=["sqlite", pytest.param("d1", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A migrated database."""
    with backends.EMPTY[request.param]() as found:

        async def migrated() -> None:
            async with perdure.connect(found, migrate=True):
                pass

        asyncio.run(migrated())
        yield found


def test_compaction_keeps_the_last_states_and_the_anchor_from_which_a_branch_goes_on(url: str) -> None:
    async def main() -> None:
        app = create_app(url)
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://here") as client,
        ):

            async def ask(method: str, path: str, body: Any = None) -> Any:
                answer = await client.request(method, path, json=body)
                assert answer.status_code == 200, answer.text
                return answer.json()

            async def say(text: str, **more: Any) -> str:
                said = await ask("POST", "/threads/ada/messages", {"text": text, **more})
                return str(said["answer"])

            assert await say("one") == "This is the first message here."
            anchored = (await ask("PUT", "/threads/ada/anchors/approved", {}))["checkpoint_id"]
            for number in range(8):
                assert await say("more") == f"I have {2 * number + 3} messages before me."
            before = await ask("GET", "/threads/ada/states")
            swept = await ask("POST", "/scheduled")
            after = await ask("GET", "/threads/ada/states")
            assert KEPT.keep_last is not None
            assert len(after) == KEPT.keep_last + 1
            assert swept["checkpoints"] == len(before) - len(after) > 0
            assert after[: KEPT.keep_last - 1] == before[: KEPT.keep_last - 1]
            kept = {state["checkpoint_id"]: state for state in after}
            assert kept[anchored]["messages"] == 2
            assert all(state["parent_id"] in {None, *kept} for state in after), "survivors are linked again"
            assert await app.state.database.fsck("ada") == []
            assert await say("from there", anchor="approved") == "I have 3 messages before me."
            assert await say("and on") == "I have 5 messages before me.", "the branch is the thread now"
            missing = await client.post("/threads/ada/messages", json={"text": "x", "anchor": "nowhere"})
            assert missing.status_code == 404
            assert await ask("GET", "/threads/ada/anchors") == {"approved": anchored}
            assert "ada" in [thread.thread_id async for thread in app.state.database.threads()]

    asyncio.run(main())


def test_a_database_without_tables_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with create_app(f"sqlite:///{tmp_path / 'none.db'}").router.lifespan_context(None):
            pass

    with pytest.raises(perdure.BadUrl, match="perdure migrate"):
        asyncio.run(main())
