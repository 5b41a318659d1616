"""The frame that ends a stream goes to clients that know it."""

from __future__ import annotations

import pytest

from perdure.server.streaming.end_frames import wants_end
from tests.server.acceptance.saying import said
from tests.server.asking import request
from tests.server.hosting import run, serving

MOZILLA = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36"


@pytest.mark.parametrize(
    ("agent", "wants"),
    [
        ("langgraph-sdk-py/0.4.14", True),
        ("langgraph-sdk-py/0.5.0", True),
        ("langgraph-sdk-py/1.0.0", True),
        ("langgraph-sdk-py/0.4.3", False),
        ("langgraph-sdk-py/0.3.99", False),
        ("node", False),
        (MOZILLA, False),
        ("curl/8.5.0", True),
        ("python-httpx/0.28.1", True),
        ("", True),
    ],
)
def test_a_client_is_known_by_its_name(agent: str, wants: bool) -> None:
    assert wants_end(request(("user-agent", agent))) is wants
    assert wants_end(request(("user-agent", agent), ("x-end-frame", "true"))) is True
    assert wants_end(request(("user-agent", agent), ("x-end-frame", "False"))) is False
    assert wants_end(request(("user-agent", agent), ("x-end-frame", "perhaps"))) is wants


@run
async def test_without_the_frame_a_stream_still_ends_in_order(near: str) -> None:
    body = {"assistant_id": "aware", "input": said("hi")}
    async with serving(near) as served:
        client, http = await served.client(), await served.http()
        told = [part.event async for part in client.runs.stream(None, "aware", input=said("hi"))]
        assert told[-1] == "end"
        text = (await http.post("/runs/stream", json=body, headers={"User-Agent": "node"})).text
        assert "event: end" not in text
        assert text.rstrip().rpartition("event: ")[2].startswith("values")
