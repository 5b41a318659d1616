"""Answers of a server that are too large, too slow, or packed to become so."""

from __future__ import annotations

import gzip
import json
import time
import tracemalloc
from collections.abc import Iterator

import httpx
import pytest

from perdure.errors import TooLarge, Unavailable
from perdure.imports.langgraph_server import api
from perdure.imports.langgraph_server.api import ServerApi
from perdure.imports.langgraph_server.bounded_answers import BoundedTransport, Bounds

MB = 1 << 20


class Endless(httpx.SyncByteStream):
    """A body without an end."""

    def __init__(self, pause: float = 0.0) -> None:
        self._pause = pause

    def __iter__(self) -> Iterator[bytes]:
        yield b'["'
        while True:
            time.sleep(self._pause)
            yield b"x" * 65_536


def client_of(handler: httpx.MockTransport, bounds: Bounds) -> httpx.Client:
    return httpx.Client(transport=BoundedTransport(handler, bounds), base_url="http://source")


def test_an_answer_within_its_bounds_is_read_whatever_it_is_packed_with() -> None:
    packed = gzip.compress(b"[1, 2]")

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/packed":
            return httpx.Response(200, content=packed, headers={"content-encoding": "gzip"})
        return httpx.Response(404, content=b"[1, 2]")

    with client_of(httpx.MockTransport(answer), Bounds(100)) as client:
        assert (client.get("/packed").json(), client.get("/plain").status_code) == ([1, 2], 404)


@pytest.mark.parametrize("is_packed", [False, True], ids=["endless", "a bomb"])
def test_a_larger_answer_takes_no_more_memory_than_its_bound(is_packed: bool) -> None:
    bomb = gzip.compress(bytes(256 * MB), 1)

    def answer(_: httpx.Request) -> httpx.Response:
        if is_packed:
            pieces = (bomb[at : at + 4096] for at in range(0, len(bomb), 4096))
            return httpx.Response(200, content=pieces, headers={"content-encoding": "gzip"})
        return httpx.Response(200, stream=Endless())

    with client_of(httpx.MockTransport(answer), Bounds(8 * MB)) as client:
        tracemalloc.start()
        try:
            with pytest.raises(TooLarge, match="an answer of source is larger than 8 MB"):
                client.get("/")
            assert tracemalloc.get_traced_memory()[1] < 40 * MB
        finally:
            tracemalloc.stop()


def test_an_answer_that_does_not_end_in_time_is_given_up() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=Endless(0.02)))
    with (
        client_of(transport, Bounds(1 << 40, 0.1)) as client,
        pytest.raises(Unavailable, match="did not end within"),
    ):
        client.get("/")


def test_an_encoding_whose_size_cannot_be_bounded_is_refused() -> None:
    transport = httpx.MockTransport(
        lambda _: httpx.Response(200, stream=Endless(), headers={"content-encoding": "br"})
    )
    with client_of(transport, Bounds()) as client, pytest.raises(Unavailable, match="'br', unasked"):
        client.get("/")


def test_a_page_that_is_too_large_is_asked_for_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten states of 1 MB each, at most four come in one answer; and a state of its own that is larger ends
    the thread alone."""
    asked: list[int] = []
    size = MB

    def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.read())
        start = int(body.get("before", {}).get("configurable", {}).get("checkpoint_id", -1)) + 1
        asked.append(body["limit"])
        states = [
            {"checkpoint": {"checkpoint_id": str(at)}, "values": "x" * size}
            for at in range(start, min(10, start + body["limit"]))
        ]
        return httpx.Response(200, json=states)

    monkeypatch.setattr(
        api, "BoundedTransport", lambda _: BoundedTransport(httpx.MockTransport(answer), Bounds(5 * MB))
    )
    server = ServerApi("http://source")
    found = [state["checkpoint"]["checkpoint_id"] for state in server.states("ada", "")]
    assert found == [str(at) for at in range(10)]
    assert asked == [20, 10, 5, 2, 2, 2, 2, 2, 2]
    size = 6 * MB
    with pytest.raises(TooLarge):
        list(server.states("ada", ""))
    server.close()
