"""Ports for servers that are told where to listen."""

import secrets
import socket

_PORTS = range(12_000, 32_000)
"""Below those that systems give to connections: another process could have one a moment later."""
_handed_out: set[int] = set()


def free_port() -> int:
    """Return a port of this machine that nobody listens on, each time another one."""
    while True:
        port = secrets.choice(_PORTS)
        if port in _handed_out:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _handed_out.add(port)
        return port
