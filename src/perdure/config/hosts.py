"""Names of hosts, addresses and networks, as a setting lists them. Nothing is looked up here."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_network

Network = IPv4Network | IPv6Network

HOST = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
"""A host's name, in small letters."""


def hosts(words: Iterable[str]) -> tuple[str, ...]:
    """Names of hosts, addresses and networks, checked; ``ValueError`` for anything else."""
    return tuple(word if network(word) else _name(word) for word in words)


def network(word: str) -> Network | None:
    """The network, or the one address, that a word is; ``None`` for a name."""
    try:
        return ip_network(word)
    except ValueError:
        return None


def _name(word: str) -> str:
    name = word.lower().removesuffix(".")
    if not HOST.fullmatch(name) or name.rpartition(".")[2].isdigit():
        raise ValueError("it has to be a list of hosts and networks, e.g. 'hooks.internal' or '10.1.0.0/16'")
    return name
