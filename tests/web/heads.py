"""A client that sends a request's head without an end."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

PIECE = b"a" * 16_384
PIECES = 200
"""Fifty times what a server takes."""


def is_cut_off(address: str) -> bool:
    """Return True if the server at an address ends the connection of a request whose head has no end."""
    parts = urlsplit(address)
    assert parts.hostname is not None
    with socket.create_connection((parts.hostname, parts.port), timeout=60) as client:
        try:
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nx-a: ")
            for _ in range(PIECES):
                client.sendall(PIECE)
            client.settimeout(2)
            return client.recv(1) != b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False
