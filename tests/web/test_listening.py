"""Addresses to listen on, and what is reported of those that are taken."""

from __future__ import annotations

import socket

import pytest

from perdure.errors import BadSetting
from perdure.web.listening import bind, listen


def test_a_socket_listens_and_sends_small_writes_at_once() -> None:
    with listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP
        with socket.create_connection(listener.getsockname()):
            pass


def test_a_taken_port_is_named_with_the_remedy() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(BadSetting, match=f"port {port} of 127.0.0.1 is taken; .* --port"):
            listen("127.0.0.1", port)
        with pytest.raises(OSError, match="in use"):
            bind("127.0.0.1", port)


def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(BadSetting, match=r"192\.0\.2\.1:80 cannot be listened on: "):
        listen("192.0.2.1", 80)
