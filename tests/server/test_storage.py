"""The size of a thread, whatever it is."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.server.hosting import run, serving

MIB = 1024 * 1024


@pytest.mark.timeout(120)
@run
async def test_a_thread_of_any_size_is_measured(near: str) -> None:
    async with serving(near) as server:
        client, http = await server.client(), await server.http()
        thread_id = (await client.threads.create(graph_id="remembers"))["thread_id"]
        graph = server.host.runtime.graph("remembers")
        config: Any = {"configurable": {"thread_id": thread_id}}
        for number in range(6):
            # Random bytes as text, which cannot be compressed below half of its length.
            text = random.Random(number).randbytes(2 * MIB).hex()
            update = {"messages": [{"role": "user", "content": text, "id": str(number)}]}
            await graph.aupdate_state(config, update, as_node="recall")
        answer = await http.get(f"/threads/{thread_id}/storage")
        assert answer.status_code == 200, answer.text
        said = answer.json()
        assert said["thread_id"] == thread_id
        assert 12 * MIB < said["total_bytes"] < 40 * MIB
        by_channel = said["channel_values"]["by_channel"]
        assert max(by_channel, key=lambda name: by_channel[name]["bytes"]) == "messages"
        assert 12 * MIB < by_channel["messages"]["bytes"] <= said["total_bytes"]
        assert said["checkpoints"]["count"] == 6
