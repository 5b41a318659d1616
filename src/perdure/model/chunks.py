"""Names for bytes: a chunk is immutable and is named by the keyed digest of its content.

Digests are scoped to a thread by where they are stored, never shared across threads; with a key nobody who
reads the database can test a guess about the content.
"""

from __future__ import annotations

from hashlib import blake2b

DIGEST_SIZE = 16
CHUNK_MAX = 256 * 1024
"""The largest chunk, in bytes: below the item limits of every backend."""


class Digester:
    """Names chunks. With keys (16 to 64 bytes each) the names tell nothing about the content; the first key
    names, and a name by any of them is recognised."""

    __slots__ = ("_key", "_keys")

    def __init__(self, *keys: bytes) -> None:
        self._keys = keys or (b"",)
        self._key = self._keys[0]

    def __call__(self, body: bytes) -> bytes:
        """The name of a chunk."""
        return _digest(body, self._key)

    def names(self, digest: bytes, body: bytes) -> bool:
        """Whether a chunk's bytes are what its name says."""
        return any(_digest(body, key) == digest for key in self._keys)


def _digest(body: bytes, key: bytes) -> bytes:
    return blake2b(body, digest_size=DIGEST_SIZE, key=key, person=b"perdure.chunk").digest()
