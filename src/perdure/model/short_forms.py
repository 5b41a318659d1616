"""Short forms of values that nearly every checkpoint has, for its stored body.

Names of channels and nodes, the time, a loop's nonce and plain metadata have one. Every value comes back
exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perdure.model.times import read_time, to_datetime

# Frozen: numbers of these names are stored. Others may be added at the end.
KNOWN = ("__start__", "__input__", "messages", "__pregel_tasks", "__interrupt__", "__error__", "__end__")
_NUMBERS = {name: number for number, name in enumerate(KNOWN)}
_BRANCH = "branch:to:"
"""Beginning of the name of the channel that triggers a node."""

PLAIN_METADATA = b"\x81\xa7parents\x80"
"""Metadata of a step outside of subgraphs, but for what is stored in the clear."""

_NONCE_SIZE = 8

Short = int | str


def short_name(name: str, nodes: Mapping[str, int]) -> Short:
    """Return a channel's name, or its number: that of a known one, or, below zero, that of the node that it
    triggers. ``nodes`` are numbers by name."""
    number = _NUMBERS.get(name)
    if number is not None:
        return number
    if name.startswith(_BRANCH):
        node = nodes.get(name[len(_BRANCH) :])
        if node is not None:
            return -1 - node
    return name


def long_name(short: Short, nodes: Sequence[str]) -> str:
    """Return the name of a short form; raises ``LookupError`` if there is none."""
    if not isinstance(short, int):
        return short
    return KNOWN[short] if short >= 0 else _BRANCH + nodes[-1 - short]


def short_time(ts: str) -> Short:
    """Return a time as microseconds since 1970, or as it is if ``long_time`` does not make the same text of
    them."""
    try:
        at = read_time(ts)
        return at if long_time(at) == ts else ts
    except (ValueError, TypeError, OverflowError):
        return ts


def long_time(short: Short) -> str:
    """Return a time as LangGraph writes it; raises ``OverflowError`` if there is none."""
    return to_datetime(short).isoformat() if isinstance(short, int) else short


def short_nonce(nonce: str) -> bytes | str:
    """Return the bytes of a nonce in hexadecimal digits, another one as it is."""
    if len(nonce) != 2 * _NONCE_SIZE:
        return nonce
    try:
        short = bytes.fromhex(nonce)
    except ValueError:
        return nonce
    return short if short.hex() == nonce else nonce


def long_nonce(short: bytes | str) -> str:
    return short.hex() if isinstance(short, bytes) else short
