"""A proxy on this machine before D1: it counts requests, loses answers, and answers in Cloudflare's stead."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx


@dataclass(frozen=True)
class Instead:
    """An answer that D1 never saw the request for."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Lose:
    """Forward the request and close the connection instead of answering; ``twice`` forwards a late copy."""

    twice: bool = False


@dataclass(frozen=True)
class Change:
    """Forward the request and answer with something made of the answer."""

    make: Callable[[bytes], Instead]


Fault = Instead | Lose | Change | None
Request = Sequence[tuple[str, Sequence[str | None]]]
"""A request's statements with their parameters."""


class Proxy(ThreadingHTTPServer):
    """Forwards to ``origin``. ``fault`` is asked for every request, in their order; none to begin with."""

    daemon_threads = True

    def __init__(self, origin: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        # The engine closes a connection that is idle for 5 s, also while it is used again.
        limits = httpx.Limits(keepalive_expiry=1)
        self.upstream = httpx.Client(base_url=origin, trust_env=False, timeout=60, limits=limits)
        self.requests: list[Request] = []
        self.fault: Callable[[Request], Fault] = lambda _: None
        self.judging = threading.Lock()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/client/v4"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is not an error of ours."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True
    server: Proxy

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        batch = json.loads(body)["batch"]
        request = [(q["sql"], q["params"]) for q in batch]
        with self.server.judging:
            self.server.requests.append(request)
            fault = self.server.fault(request)
        if isinstance(fault, Instead):
            return self._answer(fault)
        answer = self._forward(body)
        if isinstance(fault, Lose):
            if fault.twice:
                self._forward(body)
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return None
        if isinstance(fault, Change):
            return self._answer(fault.make(answer.content))
        return self._answer(Instead(answer.status_code, answer.content, {"Content-Type": "application/json"}))

    def _forward(self, body: bytes) -> httpx.Response:
        headers = {"Authorization": self.headers.get("Authorization", "")}
        return self.server.upstream.post(self.path, content=body, headers=headers)

    def _answer(self, answer: Instead) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, *args: Any) -> None:
        """The tests look into ``requests`` instead."""


@contextmanager
def proxy(origin: str) -> Iterator[Proxy]:
    """A proxy before an origin, on a free port."""
    server = Proxy(origin)
    thread = threading.Thread(target=server.serve_forever, daemon=True, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        server.upstream.close()
        thread.join()
