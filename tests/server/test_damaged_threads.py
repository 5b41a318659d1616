"""Every route to a damaged thread names the damage, says what to do, and changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.server.acceptance.saying import said
from tests.server.acceptance.serving import run
from tests.server.listening import place

DAMAGES = {
    "MissingChunk": "DELETE FROM perdure_chunk WHERE t = :t",
    "Corrupt": "DELETE FROM perdure_head WHERE t = :t AND namespace = ''",
}


def damage(url: str, statement: str) -> None:
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    found: Any = connection.execute(
        "SELECT pk FROM perdure_thread WHERE space = 'thread' AND thread = 'ada'"
    ).fetchone()
    connection.execute(statement, {"t": found[0]})
    assert connection.changes() > 0
    connection.close()


@pytest.mark.parametrize("name", DAMAGES)
@run
async def test_every_route_names_the_damage_and_the_command(name: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/threads.db"
    async with place(url) as here, here.client() as client:
        await client.threads.create(thread_id="ada", graph_id="chat")
        await client.runs.wait("ada", "chat", input=said("hello"))
        at = (await client.threads.get_state("ada"))["checkpoint"]
    damage(url, DAMAGES[name])
    again = {"assistant_id": "chat", "input": said("again")}
    async with place(url) as here, here.http() as http:
        for method, path, body in (
            ("GET", "/threads/ada/state", None),
            ("GET", "/threads/ada/history", None),
            ("POST", "/threads/ada/history", {}),
            ("POST", "/threads/ada/copy", {}),
            ("POST", "/threads/ada/state", {"values": said("edited")}),
            *(
                ("POST", "/threads/ada/state/checkpoint", {"checkpoint": at}),
                ("GET", f"/threads/ada/state/{at['checkpoint_id']}", None),
                ("GET", "/threads/ada/storage", None),
            )[: 3 if name == "MissingChunk" else 0],
        ):
            answer = await http.request(method, path, json=body)
            assert answer.status_code == 500, (method, path, answer.text)
            assert f"damaged ({name})" in answer.text, (method, path, answer.text)
            assert "perdure fsck" in answer.text
        (listed,) = (await http.post("/threads/search", json={})).json()
        assert (listed["status"], listed["error"]["error"]) == ("error", name)
        shown = (await http.get("/threads/ada")).json()
        assert (shown["status"], shown["values"], shown["error"]["error"]) == ("error", None, name)
        assert "fsck" in shown["error"]["message"]
        waited = (await http.post("/threads/ada/runs/wait", json=again)).json()
        assert waited["__error__"]["error"] == name
        assert "perdure fsck" in waited["__error__"]["message"]
