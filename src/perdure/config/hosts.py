"""Names of hosts, addresses and networks, in settings and to listen on, without any look-up."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

Network = IPv4Network | IPv6Network

HOST = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
"""Name of a host, in lower case."""


def hosts(words: Iterable[str]) -> tuple[str, ...]:
    """Return checked names of hosts, addresses and networks; raise ``ValueError`` for anything else."""
    return tuple(word if network(word) else check_host_name(word) for word in words)


def network(word: str) -> Network | None:
    """Return a network or single address, or ``None`` for a name."""
    try:
        return ip_network(word)
    except ValueError:
        return None


def check_host_name(word: str) -> str:
    """Return the checked name of a host, in lower case; raise ``ValueError`` for anything else."""
    name = word.lower().removesuffix(".")
    if not HOST.fullmatch(name) or name.rpartition(".")[2].isdigit():
        raise ValueError("it has to be a list of hosts and networks, e.g. 'hooks.internal' or '10.1.0.0/16'")
    return name


ANY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound to
"""Addresses of all interfaces of this machine."""


def is_loopback(host: str) -> bool:
    """Return True if only this machine reaches a host to listen on."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def format_for_url(host: str) -> str:
    """Return a host to listen on as it is written in a URL that this machine can open."""
    if host in ANY_ADDRESS:
        return "127.0.0.1"
    if ":" in host:
        return f"[{host}]"
    return host
