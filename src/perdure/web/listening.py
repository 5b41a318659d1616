"""Listening sockets, and errors of addresses that cannot be listened on."""

from __future__ import annotations

import errno
import os
import socket

from perdure.errors import BadSetting

_BACKLOG = 2048
"""Maximum number of connections that wait to be accepted while the process is busy."""


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise ``BadSetting`` if the address cannot be listened on."""
    try:
        return bind(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise BadSetting(
                f"port {port} of {host} is taken; stop what listens there, or pass another --port "
                "(0 for a free one)"
            ) from None
        raise BadSetting(f"{host}:{port} cannot be listened on: {error.strerror}") from error


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise ``OSError`` if the address cannot be listened on."""
    # With the protocol given as TCP, asyncio sets TCP_NODELAY: small writes go out at once, not 40 ms later.
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, proto=socket.IPPROTO_TCP)
    try:
        # On Windows the option would let two servers have one port.
        if os.name != "nt":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
