"""Successors of record versions, chosen so that two histories that part never share one again.

A database can come back older than it was: a replica is promoted, a backup restored. A process that goes on
living remembers versions of what is gone, and the records count on from an earlier one. If versions only
counted, they would come to the remembered numbers again and a stale compare-and-set would succeed. So the
number that follows depends on the one before and on what is written with it: as in a chain of hashes, equal
versions mean an equal past.
"""

from __future__ import annotations

from hashlib import blake2b

_STRIDE_BITS = 20
_LIFE_BITS = 24
"""Versions of one thread's life are nearer to each other than this, those of its lives farther apart: see
``first_version``."""


def first_version(place: int) -> int:
    """Return the version that a new thread starts with. ``place`` is drawn at random, another for each."""
    return place << _LIFE_BITS


def came_back(known: int, found: int) -> bool:
    """Whether a record that was known at one version is found at one that it had before, in the same life."""
    return 0 < known - found < 1 << _LIFE_BITS


def successor(version: int, *content: object) -> int:
    """Return the version that follows ``version`` when ``content`` is written.

    It is larger, and differs for other content.

    ``content`` is text, integers, ``None`` or bytes. Two contents get the same number once in a million
    times.
    """
    digest = blake2b(repr((version, content)).encode("utf-8", "surrogatepass"), digest_size=4).digest()
    return version + 1 + int.from_bytes(digest, "big") % (1 << _STRIDE_BITS)
