"""Names of hosts, addresses and networks in settings, without any look-up."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_network

Network = IPv4Network | IPv6Network

HOST = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
"""Name of a host, in lower case."""


def hosts(words: Iterable[str]) -> tuple[str, ...]:
    """Return checked names of hosts, addresses and networks; raise ``ValueError`` for anything else."""
    return tuple(word if network(word) else _name(word) for word in words)


def network(word: str) -> Network | None:
    """Return a network or single address, or ``None`` for a name."""
    try:
        return ip_network(word)
    except ValueError:
        return None


def _name(word: str) -> str:
    name = word.lower().removesuffix(".")
    if not HOST.fullmatch(name) or name.rpartition(".")[2].isdigit():
        raise ValueError("it has to be a list of hosts and networks, e.g. 'hooks.internal' or '10.1.0.0/16'")
    return name
