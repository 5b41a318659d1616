"""Short forms, in the stored body of a checkpoint, of values that nearly every checkpoint has.

Names of channels and nodes, the time, a loop's nonce and plain metadata have a short form, from which the
exact value is restored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perdure.model.times import read_time, to_datetime

# Frozen: the positions of these names are stored. Further names may be added at the end.
KNOWN = ("__start__", "__input__", "messages", "__pregel_tasks", "__interrupt__", "__error__", "__end__")
_NUMBERS = {name: number for number, name in enumerate(KNOWN)}
_BRANCH = "branch:to:"
"""Beginning of the name of the channel that triggers a node."""

PLAIN_METADATA = b"\x81\xa7parents\x80"
"""Metadata of a step outside of subgraphs, without the part that is stored in the clear."""

_NONCE_SIZE = 8

Short = int | str


def shorten_name(name: str, nodes: Mapping[str, int]) -> Short:
    """Return the short form of a channel's name: the number of a known name, a negative number for the
    channel that triggers a node in ``nodes``, otherwise the name itself.

    Args:
        name: The channel's name.
        nodes: The numbers of nodes, by name.
    """
    number = _NUMBERS.get(name)
    if number is not None:
        return number
    if name.startswith(_BRANCH):
        node = nodes.get(name[len(_BRANCH) :])
        if node is not None:
            return -1 - node
    return name


def expand_name(short: Short, nodes: Sequence[str]) -> str:
    """Return the name that a short form stands for; raises ``LookupError`` if it stands for none."""
    if not isinstance(short, int):
        return short
    if short >= 0:
        return KNOWN[short]
    return _BRANCH + nodes[-1 - short]


def shorten_time(ts: str) -> Short:
    """Return a time in microseconds since 1970, or the text if ``expand_time`` would not restore it."""
    try:
        at = read_time(ts)
        if expand_time(at) == ts:
            return at
        return ts
    except (ValueError, TypeError, OverflowError):
        return ts


def expand_time(short: Short) -> str:
    """Return a time as LangGraph writes it; raises ``OverflowError`` outside of the years 1 to 9999."""
    if isinstance(short, int):
        return to_datetime(short).isoformat()
    return short


def shorten_nonce(nonce: str) -> bytes | str:
    """Return the bytes of a nonce of hexadecimal digits, any other nonce unchanged."""
    if len(nonce) != 2 * _NONCE_SIZE:
        return nonce
    try:
        short = bytes.fromhex(nonce)
    except ValueError:
        return nonce
    if short.hex() == nonce:
        return short
    return nonce


def expand_nonce(short: bytes | str) -> str:
    if isinstance(short, bytes):
        return short.hex()
    return short
