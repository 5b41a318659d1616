"""Chunks: immutable bytes, named by the keyed digest of their content.

A chunk is stored in the partition of its thread, and threads never share one. If a key is set, the
digests are keyed, so that a reader of the database cannot test a guess about the content.
"""

from __future__ import annotations

from hashlib import blake2b

from perdure.model.values.compression import decompress

DIGEST_SIZE = 16
CHUNK_MAX = 256 * 1024
"""Largest chunk, in bytes: below the item limits of every backend."""


class Digester:
    """Digest function for the names of chunks.

    With a key (16 to 64 bytes) the names reveal nothing about the content.
    """

    __slots__ = ("_key",)

    def __init__(self, key: bytes = b"") -> None:
        self._key = key

    def __call__(self, body: bytes) -> bytes:
        """Return the name of a chunk."""
        return blake2b(body, digest_size=DIGEST_SIZE, key=self._key, person=b"perdure.chunk").digest()

    def matches_name(self, digest: bytes, body: bytes) -> bool:
        """Return True if a chunk's bytes match its name."""
        return self(body) == digest

    def read_stored(self, digest: bytes, stored: bytes) -> bytes | None:
        """Return a chunk's bytes, given its name and what is stored, which may be compressed. ``None`` if
        neither form matches the name."""
        body = decompress(stored)
        if body is not None and self.matches_name(digest, body):
            return body
        if self.matches_name(digest, stored):
            return stored
        return None
