"""Fetches of the chunks that references name, level by level, for many references at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perdure.errors import Corrupt
from perdure.model.chunks import Digester
from perdure.model.ops import Fetch, Get
from perdure.model.program import Program, ask
from perdure.model.records import CHUNK, Partition
from perdure.model.tree import Expansion, Tree

FETCH_KEYS = 2000
"""Chunks that one fetch asks for."""


class MissingChunk(Corrupt):
    """Raised when a reference names a chunk that is not stored."""


def resolve(
    partition: Partition, references: Mapping[str, bytes], digest: Digester
) -> Program[tuple[dict[str, Tree], Expansion]]:
    """Return the trees of named references, and the expansion with the nodes it met."""
    expansion = Expansion(digest)
    trees: dict[str, Tree] = {}
    open_names = list(references)
    while open_names:
        missing: list[str] = []
        for name in open_names:
            tree = expansion.try_expand(references[name])
            if tree is None:
                missing.append(name)
            else:
                trees[name] = tree
        wanted = expansion.missing()
        if wanted:
            expansion.feed((yield from fetch_chunks(partition, wanted, digest)))
        open_names = missing
    return trees, expansion


def reachable(partition: Partition, references: Iterable[bytes], digest: Digester) -> Program[set[bytes]]:
    """Return the digests of all chunks that the references need, without reading payloads."""
    expansion = Expansion(digest, payloads=False)
    pending = list(dict.fromkeys(references))
    while pending:
        pending = [ref for ref in pending if expansion.try_expand(ref) is None]
        wanted = expansion.missing()
        if wanted:
            expansion.feed((yield from fetch_chunks(partition, wanted, digest)))
    return expansion.used


def fetch_chunks(
    partition: Partition, names: Iterable[bytes], digest: Digester
) -> Program[dict[bytes, bytes]]:
    """Return the bytes of chunks by name; raises ``MissingChunk`` if one is not stored."""
    stored = yield from fetch_stored(partition, names)
    return {name: digest.plain(name, body) for name, body in stored.items()}


def fetch_stored(partition: Partition, digests: Iterable[bytes]) -> Program[dict[bytes, bytes]]:
    """Return the bodies of chunks as they are stored; errors as for ``fetch_chunks``."""
    names = list(digests)
    out: dict[bytes, bytes] = {}
    for at in range(0, len(names), FETCH_KEYS):
        batch = names[at : at + FETCH_KEYS]
        answers = yield from ask(Fetch(partition, tuple(Get(CHUNK, (name,)) for name in batch)))
        for name, answer in zip(batch, answers, strict=True):
            if not answer:
                raise MissingChunk(
                    f"thread {partition.thread!r}: chunk {name.hex()} is named by a checkpoint and is not "
                    "stored; run `perdure fsck`"
                )
            out[name] = answer[0].body
    return out
