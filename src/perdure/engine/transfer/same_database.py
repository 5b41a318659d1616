"""Refuses a transfer from a database to itself, whatever names the database was opened by.

In such a transfer a thread that is written to would differ from itself: replacing it would remove it, and
handing over its waits would end them.
"""

from __future__ import annotations

from perdure.engine.threads import transfer_claim
from perdure.engine.transfer.transfer_terms import (
    TransferOptions,
    commit_at_target,
    run_at_source,
    run_at_target,
)
from perdure.errors import Conflict
from perdure.model.ops import Drop
from perdure.model.program import Program, ask
from perdure.model.records import THREADS, Partition


def refuse_same_database(partition: Partition, target: Partition, terms: TransferOptions) -> Program[None]:
    """Raise ``Conflict`` if a claim that is made at the target is seen at the source.

    The claim is on a name of its own, and removed again; a sweep removes that of a process that died. Nothing
    is refused if the thread gets another name, which may be in the same database, or if one side is a file.
    """
    if partition != target or terms.is_from_archive or terms.is_to_archive:
        return
    probe = Partition(target.tenant, f"(probe {terms.first_version:x})", THREADS)
    claim = yield from run_at_target(transfer_claim.claim(terms.first_version))
    yield from run_at_target(commit_at_target(probe, claim))
    is_seen = yield from run_at_source(transfer_claim.is_claimed(probe))
    yield from run_at_target(ask(Drop(probe)))
    if is_seen:
        raise Conflict(
            "source and target are the same database, named in two ways; nothing was changed. Name the other "
            "database as the target"
        )
