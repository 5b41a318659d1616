"""The proxy of the benchmarks: what it counts is what passed, and its delay is a delay and nothing else."""

from __future__ import annotations

import http.client
import http.server
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from bench.proxy import Counts, Proxy
from tests.servers.ports import free_port

_WAIT_S = 20.0


@contextmanager
def _serving(handler: type[socketserver.BaseRequestHandler]) -> Iterator[int]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


class Echo(socketserver.BaseRequestHandler):
    """Sends back what comes, until the client ends."""

    def handle(self) -> None:
        while data := self.request.recv(1 << 16):
            self.request.sendall(data)


class Pages(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """The test's output is not an access log."""


def _dial(proxy: Proxy) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", proxy.port), _WAIT_S)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def _exactly(client: socket.socket, size: int) -> bytes:
    got = bytearray()
    while len(got) < size:
        if not (data := client.recv(1 << 16)):
            break
        got += data
    return bytes(got)


def test_counts_turns_of_direction_bytes_and_connections() -> None:
    with _serving(Echo) as port, Proxy("127.0.0.1", port) as proxy:
        with _dial(proxy) as first, _dial(proxy) as second:
            for _ in range(3):
                first.sendall(b"ping")
                assert _exactly(first, 4) == b"ping"
            before = proxy.counts()
            second.sendall(b"hello")
            assert _exactly(second, 5) == b"hello"
        assert before == Counts(connections=2, round_trips=3, up=12, down=12)
        assert proxy.counts() - before == Counts(round_trips=1, up=5, down=5)


def test_a_pipeline_is_one_trip_under_latency() -> None:
    with _serving(Echo) as port, Proxy("127.0.0.1", port, round_trip_s=1.0) as proxy, _dial(proxy) as client:
        for number in range(10):
            client.sendall(b"%d" % number)
            time.sleep(0.005)
        assert _exactly(client, 10) == b"0123456789"
        assert proxy.counts().round_trips == 1


def test_counts_requests_of_a_kept_alive_http_connection() -> None:
    with _serving(Pages) as port, Proxy("127.0.0.1", port) as proxy:
        client = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=_WAIT_S)
        for _ in range(3):
            client.request("POST", "/raw", body=b"POST /no HTTP/1.1\r\n" * 50_000)
            assert client.getresponse().read().startswith(b"POST /no")
        client.close()
        seen = proxy.counts()
        assert (seen.requests, seen.connections) == (3, 1)


@pytest.mark.parametrize("round_trip_s", [0.04, 0.1])
def test_a_trip_takes_the_round_trip_time(round_trip_s: float) -> None:
    with _serving(Echo) as port, Proxy("127.0.0.1", port, round_trip_s=round_trip_s) as proxy:
        took: list[float] = []
        with _dial(proxy) as client:
            while len(took) < 5 or (min(took) >= round_trip_s + 0.03 and len(took) < 100):
                start = time.perf_counter()
                client.sendall(b"x")
                _exactly(client, 1)
                took.append(time.perf_counter() - start)
        assert min(took) >= round_trip_s
        assert min(took) < round_trip_s + 0.03  # the least of all: a busy machine only adds


def test_chunks_share_the_delay_and_keep_their_order() -> None:
    """200 chunks of their own, each delayed by 50 ms: one after the other they would take ten seconds."""
    with _serving(Echo) as port, Proxy("127.0.0.1", port, round_trip_s=0.1) as proxy, _dial(proxy) as client:
        start = time.perf_counter()
        for number in range(200):
            client.sendall(b"%04d" % number)
            time.sleep(0.0005)
        got = _exactly(client, 800)
        assert got == b"".join(b"%04d" % number for number in range(200))
        assert time.perf_counter() - start < 9


def test_much_data_passes_whole_while_it_is_delayed() -> None:
    sent = bytes(range(256)) * (16 << 10)
    with _serving(Echo) as port, Proxy("127.0.0.1", port, round_trip_s=0.05) as proxy, _dial(proxy) as client:
        sender = threading.Thread(target=client.sendall, args=(sent,))
        sender.start()
        assert _exactly(client, len(sent)) == sent
        sender.join()


def test_the_delay_can_change_while_a_connection_stands() -> None:
    with _serving(Echo) as port, Proxy("127.0.0.1", port) as proxy, _dial(proxy) as client:
        proxy.round_trip_s = 0.1
        start = time.perf_counter()
        client.sendall(b"x")
        _exactly(client, 1)
        assert time.perf_counter() - start >= 0.1


def test_the_end_of_a_stream_arrives_after_its_bytes() -> None:
    class Once(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(b"goodbye")

    with _serving(Once) as port, Proxy("127.0.0.1", port, round_trip_s=0.05) as proxy, _dial(proxy) as client:
        assert _exactly(client, 100) == b"goodbye"


def test_a_server_that_is_not_there_is_a_closed_connection() -> None:
    port = free_port()
    with Proxy("127.0.0.1", port) as proxy, _dial(proxy) as client, suppress(ConnectionResetError):
        assert client.recv(1) == b""


def test_closing_drops_connections_and_can_be_repeated() -> None:
    with _serving(Echo) as port:
        proxy = Proxy("127.0.0.1", port)
        with _dial(proxy) as client:
            client.sendall(b"x")
            _exactly(client, 1)
            proxy.close()
            proxy.close()
            with suppress(ConnectionResetError):
                assert client.recv(1) == b""


@pytest.mark.parametrize(
    ("direct", "passed"),
    [
        (
            "postgresql://me:5432@127.0.0.1:5432/db?schema=5432",
            "postgresql://me:5432@127.0.0.1:{}/db?schema=5432",
        ),
        ("dynamodb://t?endpoint=http://localhost:5432", "dynamodb://t?endpoint=http://127.0.0.1:{}"),
        ("d1://a/b?endpoint=http%3A%2F%2F127.0.0.1%3A5432", "d1://a/b?endpoint=http%3A%2F%2F127.0.0.1%3A{}"),
    ],
)
def test_a_url_by_way_of_the_proxy_keeps_everything_but_the_address(direct: str, passed: str) -> None:
    with Proxy("127.0.0.1", 5432) as proxy:
        assert proxy.through(direct) == passed.format(proxy.port)
        with pytest.raises(ValueError, match="5432"):
            proxy.through("postgresql://127.0.0.1:54321/db")
