"""Packs the newest chunks of a thread: many small records become a few."""

from __future__ import annotations

from perdure.engine.requests import try_commit
from perdure.engine.threads.thread_state import read_view, view_items
from perdure.engine.transact import Budget, split_into_batches
from perdure.model.heads import ROOT
from perdure.model.ops import Check, Delete, Expect, Fetch, Put, Range
from perdure.model.program import Program, ask
from perdure.model.records import CHUNK, GC, PACK, Partition
from perdure.model.values.chunks import Digester
from perdure.model.values.packs import Place, block_of, make_packs

_PAGE = 1000
_LEAST = 16
"""Chunks that are worth a commit."""
_RESERVE = 4


def pack(
    partition: Partition, digest: Digester, budget: Budget, least: int | None = None
) -> Program[dict[bytes, Place]]:
    """Pack the chunks of a thread that are stored one by one, and return where each of them is now; nothing
    if there are fewer than ``least``.

    Another writer may rely on one of them at the same moment. Then one of the two commits is refused: if it
    is this one, the rest is left for the next time, and if it is the write, that is planned again.
    """
    moved: dict[bytes, Place] = {}
    items = view_items(ROOT)
    # Each chunk takes one operation, its removal; the packs of the commit need room beside these.
    part = Budget(max(1, (budget.ops - _RESERVE) * 3 // 4), budget.bytes // 2)
    while True:
        answers = yield from ask(Fetch(partition, (*items, Range(CHUNK, limit=_PAGE))))
        view = read_view(ROOT, answers[: len(items)])
        ages = {record.key[0]: record.fields["generation"] for record in answers[-1]}
        sound: list[Put] = []
        for record in answers[-1]:
            body = digest.read_stored(record.key[0], record.body)
            # A damaged one stays where it is, for `perdure fsck` to report.
            if body is not None:
                sound.append(Put(CHUNK, record.key, body=body))
        if len(sound) < (_LEAST if least is None else least):
            return moved
        seq = 0
        if view.head is not None:
            seq = view.head.seq
        block = block_of(seq)
        guard = Check(GC, (), view.generation or Expect.ABSENT)
        for batch in split_into_batches(sound, part):
            chunks = {put.key[0]: put.body for put in batch}
            packs = make_packs(chunks, max(ages[name] for name in chunks), block)
            removals = [Delete(CHUNK, (name,), unchanged={"generation": ages[name]}) for name in chunks]
            if not (yield from try_commit(partition, (guard, *(pack.put for pack in packs), *removals))):
                return moved
            moved.update((name, (PACK, made.put.key)) for made in packs for name in made.names)
        if len(ages) < _PAGE:
            return moved
