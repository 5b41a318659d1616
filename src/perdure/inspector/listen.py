"""Listening sockets of the inspector."""

from __future__ import annotations

import errno
import socket

from perdure.errors import BadSetting


def listening(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise ``BadSetting`` if the address cannot be bound."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, proto=socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise BadSetting(
                f"port {port} of {host} is taken; pass --port 0 for a free one, or stop what listens there"
            ) from None
        raise BadSetting(f"{host}:{port} cannot be listened on: {error.strerror}") from error
    return listener
