"""The deep agent's promises over HTTP: a report, a question that is decided once, files of users."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.researcher.agent import FIELDS, REPORT
from examples.researcher.app import create_app
from perdure.database.opening import open_database
from tests.backends import EMPTY


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with EMPTY[request.param]() as url:
        open_database(url, migrate=True).close()
        yield url


@asynccontextmanager
async def served(url: str) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(url, pace=0.0)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://here", timeout=60) as client,
    ):
        yield client


async def post(client: httpx.AsyncClient, path: str, key: str, **body: Any) -> dict[str, Any]:
    answer = await client.post(path, json=body, headers={"Idempotency-Key": key})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_report_is_written_and_published_once_over_a_restart(url: str) -> None:
    async def main() -> None:
        async with served(url) as client:
            asked = await post(client, "/api/research", "1", thread="r", subject="tea", user="ada")
            assert [each["status"] for each in asked["todos"]] == ["completed", "in_progress"]
            assert sorted(asked["files"]) == sorted([REPORT, *(f"/notes/{name}.md" for name in FIELDS)])
            assert asked["files"][REPORT].startswith("# tea")
            assert len(asked["asks"]) == 1
            assert await post(client, "/api/research", "1", thread="r", subject="tea", user="ada") == asked
        async with served(url) as client:
            assert (await client.get("/api/threads/r")).json() == asked
            done = await post(client, "/api/decisions", "2", thread="r", decision="approve")
            assert done["messages"][-1] == {"role": "ai", "text": f"The report is in {REPORT}."}
            assert (done["asks"], {each["status"] for each in done["todos"]}) == ([], {"completed"})
            assert await post(client, "/api/decisions", "2", thread="r", decision="approve") == done
            again = await client.post("/api/decisions", json={"thread": "r", "decision": "reject"})
            assert again.status_code == 409, "there is nothing to decide any more"

    asyncio.run(main())


def test_a_rejected_report_is_not_published(url: str) -> None:
    async def main() -> None:
        async with served(url) as client:
            await post(client, "/api/research", "1", thread="r", subject="tea")
            done = await post(client, "/api/decisions", "2", thread="r", decision="reject")
            assert done["asks"] == []
            database = open_database(url)
            try:
                listed = database.checkpointer().list({"configurable": {"thread_id": "r"}})
                written = [value for found in listed for *_, value in found.pending_writes or ()]
                assert "is published" not in str(written)
                kept = database.store().search(("files",))
                assert [(item.namespace, item.key) for item in kept] == [(("files", "ada"), "/asked.md")]
            finally:
                database.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "body",
    [
        {"thread": "", "subject": "tea"},
        {"thread": "r", "subject": ""},
        {"thread": "r", "subject": "tea", "user": "a/b"},
        {"thread": "r"},
    ],
)
def test_what_cannot_be_researched_is_refused(body: dict[str, str], tmp_path: Path) -> None:
    async def main() -> None:
        url = f"sqlite:///{tmp_path / 'threads.db'}"
        open_database(url, migrate=True).close()
        async with served(url) as client:
            assert (await client.post("/api/research", json=body)).status_code == 422

    asyncio.run(main())
