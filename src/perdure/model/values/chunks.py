"""Chunks: immutable bytes, named by the keyed digest of their content.

Digests are scoped to a thread by where they are stored, and never shared across threads. With a key, a reader
of the database cannot test a guess about the content.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

from perdure.model.values.compression import decompress

DIGEST_SIZE = 16
CHUNK_MAX = 256 * 1024
"""Largest chunk, in bytes: below the item limits of every backend."""


class Digester:
    """Digest function for the names of chunks.

    With keys (16 to 64 bytes each) the names reveal nothing about the content. The first key makes names;
    names made with any of them are recognised.
    """

    __slots__ = ("_key", "_keys")

    def __init__(self, *keys: bytes) -> None:
        self._keys = keys or (b"",)
        self._key = self._keys[0]

    def __call__(self, body: bytes) -> bytes:
        """Return the name of a chunk."""
        return _digest(body, self._key)

    def names(self, digest: bytes, body: bytes) -> bool:
        """Return True if a chunk's bytes match its name under any of the keys."""
        return any(_digest(body, key) == digest for key in self._keys)

    def name_all(self, bodies: list[bytes]) -> Iterator[list[bytes]]:
        """Yield the names of chunks, first under the key that makes names, then under each other key."""
        return ([_digest(body, key) for body in bodies] for key in self._keys)

    def plain(self, digest: bytes, stored: bytes) -> bytes | None:
        """Return a chunk's bytes, given its name and what is stored, which may be compressed. ``None`` if
        neither form matches the name."""
        body = decompress(stored)
        if body is not None and self.names(digest, body):
            return body
        return stored if self.names(digest, stored) else None


def _digest(body: bytes, key: bytes) -> bytes:
    return blake2b(body, digest_size=DIGEST_SIZE, key=key, person=b"perdure.chunk").digest()
