"""No token, no header and no secret of a claim is stored, logged or told in an error."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import secrets
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, MessagesState, StateGraph

from perdure.model.records import KINDS
from tests.server.acceptance.serving import run
from tests.server.attempts import attempts
from tests.server.tenants import (
    EACH_WAY,
    WAYS,
    Served,
    estate,
    graphs,
    headers_of,
    names_of_nothing,
    said,
    serving,
)

MARK = "canary-3d7c19a2"
"""In every secret of these requests, and in nothing else."""

SECRETS = {
    "x-api-key": f"{MARK}-key",
    "Cookie": f"session={MARK}-cookie",
    "X-Auth-Scheme": f"{MARK}-scheme",
    "X-Forwarded-Authorization": f"Bearer {MARK}-forwarded",
    "Proxy-Authorization": f"Basic {MARK}-proxy",
    "Traceparent": f"{MARK}-trace",
    "Referer": f"http://here/?token={MARK}-referer",
    "User-Agent": f"{MARK}-agent",
}


def headers() -> dict[str, str]:
    """Of a user with a token whose claims hold secrets, too."""
    token = headers_of("alice", "acme", password=f"{MARK}-claim", deep={"of": [f"{MARK}-deep"]})
    return {**token, **SECRETS}


def forms(text: str) -> list[bytes]:
    """A text as it may stand in a file."""
    plain = text.encode()
    return [
        plain,
        text.encode("utf-16-le"),
        plain.hex().encode(),
        *(base64.b64encode(b"\0" * skip + plain)[4:-4] for skip in range(3)),
    ]


def is_in(data: bytes, texts: list[str]) -> bool:
    """Whether one of these texts is in a value, compressed perhaps."""
    parts = [data]
    for at in range(len(data) - 2):
        if data[at : at + 2] in (b"\x78\x9c", b"\x78\x01", b"\x78\xda"):
            try:
                parts.append(zlib.decompressobj().decompress(data[at:]))
            except zlib.error:
                continue
    return any(form in part for text in texts for form in forms(text) for part in parts)


def everything(path: Path) -> Iterator[tuple[str, bytes]]:
    """Every value of every row of every table, and the files as they are."""
    with closing(sqlite3.connect(path)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        assert len([name for name in tables if name.startswith("perdure_")]) >= len(KINDS)
        for table in tables:
            for row in db.execute(f"SELECT * FROM {table}"):
                for value in row:
                    if value is not None:
                        yield table, value if isinstance(value, bytes) else str(value).encode()
    for file in path.parent.glob(f"{path.name}*"):
        yield file.name, file.read_bytes()


def curious() -> Any:
    """A node that writes down all it is told of who asks, and then fails if it is asked to."""

    async def turn(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        known = config["configurable"]
        seen = json.dumps({name: repr(held) for name, held in known.items() if not name.startswith("__")})
        if state["messages"][-1].text == "fail":
            raise ValueError(seen)
        return {"messages": [AIMessage(seen)]}

    builder = StateGraph(MessagesState)
    builder.add_node("turn", turn)
    builder.add_edge(START, "turn")
    builder.add_edge("turn", END)
    return builder.compile()


async def used(server: Served, http: httpx.AsyncClient) -> str:
    """Everything done once, with all that was answered."""
    told = ""

    def heard(response: httpx.Response) -> None:
        nonlocal told
        told += f"{dict(response.headers)} {response.text}"

    names = await estate(http)
    for text in ("tell", "fail"):
        for how in ("", "/stream", "/wait"):
            new = {
                "assistant_id": "curious",
                "input": said(text),
                "stream_mode": ["values", "debug", "events"],
            }
            heard(await http.post(f"/runs{how}", json={**new, "on_completion": "keep"}))
    for one in (*attempts(names_of_nothing()), *attempts(names)):
        if one.kind != "listens" and not one.route.endswith("/stream"):
            heard(await http.request(one.method, one.url, json=one.body, headers=one.headers, timeout=30))
    for path in ("/threads/%ff", "/nothing", "/threads/t/runs?limit=x"):
        heard(await http.get(path))
    heard(await http.post("/threads", content=b"{"))
    return told


@pytest.mark.parametrize("way", EACH_WAY)
@run
async def test_no_secret_of_a_request_is_kept_or_told(
    tmp_path: Path, way: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    # What the tests' own client says of its requests is its own affair.
    for name in ("httpcore", "httpx"):
        caplog.set_level(logging.WARNING, name)
    path = tmp_path / "threads.db"
    sent = headers()
    token = sent["Authorization"].partition(" ")[2]
    hidden = [MARK, token, token.rpartition(".")[2]]
    served = {name: graph for name, graph in graphs().items() if name != "rest"}
    served |= {"curious": curious(), "rest": graphs()["rest"]}
    async with serving(f"sqlite:///{path}", WAYS[way].gate(), serves=served) as server:
        async with server.http(sent) as http:
            told = await used(server, http)
        bad = {**sent, "Authorization": f"Bearer {token[:-4]}XXXX"}
        hidden.append(bad["Authorization"].partition(" ")[2])
        async with server.http(bad) as http:
            for one in attempts(names_of_nothing()):
                answer = await http.request(one.method, one.url, json=one.body)
                assert answer.status_code == 401
                told += f"{dict(answer.headers)} {answer.text}"
        await asyncio.sleep(0.2)
    found = [place for place, value in everything(path) if is_in(value, hidden)]
    assert not found, f"secrets are stored in {sorted(set(found))}"
    assert "langgraph_auth_user" in told, "the node was to tell what it knows"
    logged = "\n".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    out, err = capfd.readouterr()
    assert len(logged) > 1000
    for where, text in (("an answer", told), ("a log", logged), ("an output", out + err)):
        assert not is_in(text.encode(), hidden), f"a secret is in {where}"


def test_the_scan_finds_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    with closing(sqlite3.connect(path)) as db:
        for n in range(len(KINDS)):
            db.execute(f"CREATE TABLE perdure_{n} (body)")
        kept = zlib.compress(f"{secrets.token_hex(40)} {MARK}".encode())
        db.execute("INSERT INTO perdure_0 VALUES (?)", (b"ab" + kept,))
        db.commit()
    assert [place for place, value in everything(path) if is_in(value, [MARK])] == ["perdure_0", path.name]
