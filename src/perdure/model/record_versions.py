"""Successors of record versions, chosen so that diverging histories never share a version again.

A database can come back older than it was: a replica is promoted, a backup restored. A process that survives
this remembers versions that are gone, and the records continue from an earlier one. If versions only counted
up, they would reach the remembered numbers again, and a stale compare-and-set would succeed. The next number
therefore depends on the one before and on what is written with it: as in a chain of hashes, equal versions
mean an equal past.
"""

from __future__ import annotations

from hashlib import blake2b

_STRIDE_BITS = 20
_LIFE_BITS = 24
"""Distance in bits: versions within one life of a thread are nearer than this, those of different lives
farther apart (see ``first_version``)."""


def first_version(place: int) -> int:
    """Return the version that a new thread starts with. ``place`` is drawn at random for each thread."""
    return place << _LIFE_BITS


def came_back(known: int, found: int) -> bool:
    """Return True if a record known at one version is found at an earlier one of the same life."""
    return 0 < known - found < 1 << _LIFE_BITS


def successor(version: int, *content: object) -> int:
    """Return the version that follows ``version`` when ``content`` is written.

    It is larger, and differs for other content: two contents get the same version only once in a million
    times. ``content`` is text, integers, ``None`` or bytes. As versions are not encrypted, a number that was
    drawn for the write, or its time, takes the place of a body.
    """
    digest = blake2b(repr((version, content)).encode("utf-8", "surrogatepass"), digest_size=4).digest()
    return version + 1 + int.from_bytes(digest, "big") % (1 << _STRIDE_BITS)
