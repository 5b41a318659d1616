"""Sweep of threads: retention is applied to one thread after another, in small resumable steps.

The progress of a sweep is a document in the database: its owner, until when it owns the sweep, and how far it
has come. The tenants are visited in rounds; in each round at most a quantum of a tenant's threads is swept,
so that a tenant with many threads does not delay the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field, replace
from operator import add
from typing import Any

from perdure.engine import documents
from perdure.engine.retention import checkpoint_removal, queue_retention
from perdure.engine.retention.checkpoint_plan import keep_by
from perdure.engine.retention.thread_expiry import EXPIRED, Clocks, ExpiryFacts, read_expiry_facts
from perdure.engine.retention.thread_removal import is_unfinished, remove_expired, remove_unfinished
from perdure.engine.threads.thread_records import read
from perdure.engine.threads.thread_state import missing_head_error
from perdure.engine.threads.undisturbed import read_undisturbed
from perdure.engine.transact import Budget
from perdure.errors import Corrupt, PerdureError, Unavailable
from perdure.model.checkpoint import CheckpointRecord
from perdure.model.ops import Check, Commit, Expect, Fetch, FindThreads, Range
from perdure.model.program import Program, ask
from perdure.model.records import (
    BLOB,
    CHECKPOINT,
    CHUNK,
    DOCUMENT,
    INBOX,
    OUTBOX,
    PACK,
    RESERVED,
    TAG,
    WRITE,
    Kind,
    Partition,
)
from perdure.model.retention_policy import Retention, RetentionRules
from perdure.model.values.chunks import Digester

_COLLECTION = "care"
"""Collection of the documents with the progress of sweeps, in the reserved partition."""

_PAGE = 256
_OPEN_MAX = 1000
"""Maximum number of tenants with threads left for a later round. Once it is reached, a further tenant is
swept to its end at once."""

_KEEP_MOST = 1_000_000_000
"""Maximum number of newest checkpoints that are read; no thread has as many."""

_OLDEST = 16
"""Number of oldest checkpoints whose age is checked before a whole thread is read."""

_ENDED_PAGES = 16
"""Maximum number of pages of ended messages and replies that are removed from a thread in one sweep."""

_LAST = "\U0010ffff" * 64
"""A name after those of all threads."""


@dataclass(frozen=True, slots=True)
class RetentionResult:
    """Counts of what a sweep or a dry run has visited and removed.

    Attributes:
        threads: threads visited.
        expired: expired threads removed.
        checkpoints: checkpoints removed, those of expired threads included.
        bytes: bytes of the removed bodies: checkpoints, writes, values and messages.
        failed: threads to which retention could not be applied.
        unfinished: names at which a killed import, move, copy or first write left data that was removed.
        items: expired items of stores and histories removed; a dry run does not count them.
    """

    threads: int = 0
    expired: int = 0
    checkpoints: int = 0
    bytes: int = 0
    failed: int = 0
    unfinished: int = 0
    items: int = 0

    def __add__(self, other: RetentionResult) -> RetentionResult:
        return RetentionResult(*map(add, astuple(self), astuple(other)))


_UNCHANGED = RetentionResult(threads=1)


@dataclass(frozen=True, slots=True)
class RetentionTerms:
    """The terms of a sweep: its rules, and the parts of the database that it needs.

    Attributes:
        tenant: the only tenant to sweep, ``None`` for all.
        dry_run: True if nothing is removed.
        keep_us: age in microseconds up to which ended messages stay, ``None`` to leave them to the runs of
            their threads.
    """

    rules: RetentionRules
    digest: Digester
    budget: Budget
    tenant: str | None = None
    dry_run: bool = False
    keep_us: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A thread to which retention could not be applied, with the reason."""

    partition: Partition
    reason: str


@dataclass(frozen=True, slots=True)
class RetentionProgress:
    """Progress of a sweep, as it is stored.

    Attributes:
        owner: name of the process that sweeps, empty if the sweep is over.
        fingerprint: fingerprint of the rules that are applied.
        until: time at which another process may take the sweep over.
        started_at: start of this sweep; ``finished_at`` and ``last`` are the end and the result of the
            previous sweep. Times are microseconds since 1970.
        position: the tenant visited last in this round, ``None`` at the start of a round.
        is_first_round: True in the round that visits all tenants; later rounds visit only those in ``left``.
        left: for each tenant that has more threads to visit, the last one visited.
        swept: the result so far.
    """

    owner: str = ""
    fingerprint: str = ""
    until: int = 0
    started_at: int = 0
    finished_at: int | None = None
    position: str | None = None
    is_first_round: bool = True
    left: Mapping[str, str] = field(default_factory=dict[str, str])
    swept: RetentionResult = RetentionResult()
    last: RetentionResult = RetentionResult()

    @property
    def is_over(self) -> bool:
        """True if no sweep is under way."""
        return not self.owner

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> RetentionProgress:
        """Return the progress from its plain data, as ``asdict`` has it."""
        results = {name: RetentionResult(**body[name]) for name in ("swept", "last")}
        fields: dict[str, Any] = {**body, **results}
        return cls(**fields)


def read_progress(tenant: str | None) -> Program[tuple[RetentionProgress, int]]:
    """Return the progress of the sweep of a tenant, or, for ``None``, of the sweep of all tenants, and its
    version: 0 if there has been no sweep."""
    found = yield from documents.get(RESERVED, _COLLECTION, _name(tenant))
    if found is None:
        return (RetentionProgress(), 0)
    return (RetentionProgress.of(found.body), found.version)


def await_progress_writes(tenant: str | None) -> Program[None]:
    """Return when the writes of a sweep's progress that this process has begun are done, if the backend
    executes them in order."""
    check = Check(DOCUMENT, (_COLLECTION, _name(tenant)), Expect.PRESENT)
    yield from ask(Commit(RESERVED, (check,)))


def _name(tenant: str | None) -> str:
    if tenant is None:
        return "sweep"
    return f"sweep {tenant}"


def begin(
    owner: str, tenant: str | None, now: int, lease: int, fingerprint: str = ""
) -> Program[tuple[RetentionProgress, int] | None]:
    """Begin a sweep, or continue one whose process has ended, as the only sweep of the database.

    A sweep with other rules is not continued but begun again: these rules have not been applied to the
    threads that it has visited.

    Args:
        owner: name of the caller.
        tenant: the only tenant to sweep, ``None`` for all.
        now: time of the database.
        lease: microseconds after which another process may take over, unless the progress is saved before.
        fingerprint: fingerprint of the rules.

    Returns:
        The progress and its version; ``None`` if another process sweeps.
    """
    stored, version = yield from read_progress(tenant)
    if not stored.is_over and stored.owner != owner and stored.until > now:
        return None
    if stored.is_over or stored.fingerprint != fingerprint:
        stored = RetentionProgress(finished_at=stored.finished_at, last=stored.last, started_at=now)
    own = replace(stored, owner=owner, fingerprint=fingerprint, until=now + lease)
    saved_version = yield from save(own, tenant, version, now)
    if saved_version is None:
        return None
    return own, saved_version


def save(progress: RetentionProgress, tenant: str | None, version: int, now: int) -> Program[int | None]:
    """Store a sweep's progress; return its new version, ``None`` if another process has taken over."""
    expect = version or Expect.ABSENT
    place = (RESERVED, _COLLECTION, _name(tenant))
    stored = yield from documents.put(*place, asdict(progress), now, expect, fresh=1)
    return stored and stored.version


def step(
    progress: RetentionProgress, terms: RetentionTerms, quantum: int, clocks: Clocks
) -> Program[tuple[RetentionProgress, list[Failure]]]:
    """Apply retention to at most ``quantum`` threads of the next tenant; return the new progress.

    The sweep is over when ``owner`` is empty. The progress is not stored: the caller saves it.
    """
    tenant, after = yield from _find_next(progress, terms)
    if tenant is None:
        if progress.left:
            return replace(progress, position=None, is_first_round=False), []
        ended = replace(progress, owner="", until=0, finished_at=clocks.database, last=progress.swept)
        return ended, []
    if len(progress.left) >= _OPEN_MAX and tenant not in progress.left:
        quantum = max(quantum, _PAGE)
    found = yield from ask(FindThreads(tenant, after=after, limit=quantum))
    swept, failures = progress.swept, list[Failure]()
    for hit in found:
        try:
            swept += yield from visit(hit.partition, terms, clocks, swept.expired)
        except Unavailable:
            raise
        except (PerdureError, LookupError, ValueError) as error:
            # A thread that cannot be read or pruned, or keeps being written to, blocks no other.
            swept += RetentionResult(threads=1, failed=1)
            failures.append(Failure(hit.partition, _describe_reason(error)))
    left = {name: thread for name, thread in progress.left.items() if name != tenant}
    position: str | None = tenant
    if len(found) >= quantum:
        left[tenant] = found[-1].partition.thread
        if len(left) > _OPEN_MAX:
            # There is no room to return to this tenant later: continue with it at once.
            position = progress.position
    return replace(progress, position=position, left=left, swept=swept), failures


def _describe_reason(error: Exception) -> str:
    if type(error) is LookupError:
        return "its metadata names a retention policy that does not exist; nothing of it was removed"
    if isinstance(error, PerdureError):
        return str(error)
    return f"its records cannot be read ({type(error).__name__}): run `perdure fsck`"


def _find_next(
    progress: RetentionProgress, terms: RetentionTerms
) -> Program[tuple[str | None, Partition | None]]:
    """Return the next tenant of the round and the last of its threads that was visited; no tenant at the
    round's end."""
    position = progress.position
    tenants: list[str] = []
    if not progress.is_first_round:
        tenants = sorted(name for name in progress.left if position is None or name > position)
    elif terms.tenant is None:
        find = FindThreads(None, limit=1)
        if position is not None:
            find = replace(find, after=Partition(position, _LAST))
        tenants = [hit.partition.tenant for hit in (yield from ask(find))]
    elif position is None:
        tenants = [terms.tenant]
    tenant = next(iter(tenants), None)
    if tenant is None or tenant not in progress.left:
        return tenant, None
    return tenant, Partition(tenant, progress.left[tenant])


def visit(
    partition: Partition, terms: RetentionTerms, clocks: Clocks, expired: int = 0
) -> Program[RetentionResult]:
    """Apply retention to a thread: remove it if it is expired, otherwise remove the messages that have ended
    and the checkpoints that its policy does not keep.

    A thread with nothing to remove costs two requests. ``expired`` is the number of threads that this sweep
    has removed as expired; once it reaches the rules' limit, further threads are left to the next sweep.

    Raises:
        LookupError: its metadata names a policy that does not exist.
        Corrupt: it is damaged and not expired; nothing is removed, so that it can be repaired.
    """
    thread = yield from read_expiry_facts(partition)
    if (yield from is_unfinished(partition, thread, clocks.database)):
        _, size = yield from _weigh_all(partition)
        removed = remove_unfinished(partition, thread, clocks.database, terms.budget)
        is_gone = terms.dry_run or (yield from removed)
        if is_gone:
            return RetentionResult(threads=1, unfinished=1, bytes=size)
        return _UNCHANGED
    if thread.is_arriving:
        return _UNCHANGED
    decision = thread.decide(terms.rules, clocks)
    if decision == EXPIRED:
        if terms.rules.usual_ttl is not None and expired >= terms.rules.usual_ttl.sweep_limit:
            return _UNCHANGED
        count, size = yield from _weigh_all(partition)
        is_gone = terms.dry_run or (yield from remove_expired(partition, thread))
        if is_gone:
            return RetentionResult(threads=1, expired=1, checkpoints=count, bytes=size)
        return _UNCHANGED
    if thread.missing is not None:
        raise missing_head_error(partition, "", thread.missing)
    yield from _forget_ended(partition, thread, terms, clocks.database)
    if decision is None or not (yield from _has_old(partition, decision, clocks.database)):
        return _UNCHANGED
    return (yield from _prune(partition, decision, terms, clocks.database))


def _forget_ended(
    partition: Partition, thread: ExpiryFacts, terms: RetentionTerms, now: int
) -> Program[None]:
    """Remove what has ended in a thread's queues and is no longer kept, a limited number of pages."""
    if terms.keep_us is None or terms.dry_run or thread.ended_at is None:
        return
    before = now - terms.keep_us
    if thread.ended_at < before:
        for _ in range(_ENDED_PAGES):
            if not (yield from queue_retention.forget(partition, before, terms.budget.ops)):
                break


def _has_old(partition: Partition, policy: Retention, now: int) -> Program[bool]:
    """Return True if a thread may have checkpoints that its policy does not keep."""
    if not policy.prunes:
        return False
    wanted = min(policy.keep_last or 1, _KEEP_MOST) + 1
    newest = Range(CHECKPOINT, ("",), by="seq", reverse=True, limit=wanted, bodies=False)
    first = Range(CHECKPOINT, ("",), by="seq", limit=1)
    if policy.keep_for:
        first = first._replace(limit=_OLDEST)
    found, tags, oldest = yield from ask(Fetch(partition, (newest, Range(TAG), first)))
    if len(found) < wanted or policy.keep_for is None:
        return len(found) == wanted
    tagged = {tag.fields["checkpoint_id"] for tag in tags}
    records = [CheckpointRecord.read(each) for each in oldest if each.key[1] not in tagged]
    # Checkpoints are read in the order of their commits. If a tagged one is among those read, others that are
    # too old may come after them.
    return len(records) < len(oldest) or bool({c.id for c in records} - policy.find_kept_by_age(records, now))


def _prune(
    partition: Partition, policy: Retention, terms: RetentionTerms, now: int
) -> Program[RetentionResult]:
    planner = keep_by(lambda roots: policy.find_kept(roots, now))

    def count() -> Program[RetentionResult]:
        contents = yield from read(partition)
        plan, size = planner(contents), 0
        if plan.removed:
            size = yield from checkpoint_removal.weigh(contents, plan, terms.digest)
        return RetentionResult(threads=1, checkpoints=len(plan.removed), bytes=size)

    counted = yield from read_undisturbed(partition, count)
    if counted.checkpoints and not terms.dry_run:
        yield from checkpoint_removal.prune(partition, planner, terms.digest, terms.budget)
    return counted


def _weigh_all(partition: Partition) -> Program[tuple[int, int]]:
    """Return the number of a thread's checkpoints and the bytes of all its bodies, read a page at a time;
    those of damaged pages are not counted."""
    counts: Counter[Kind] = Counter()
    total = 0
    left = [Range(kind, limit=_PAGE) for kind in (CHECKPOINT, WRITE, CHUNK, BLOB, PACK, INBOX, OUTBOX)]
    while left:
        wanted = left.pop()
        try:
            (page,) = yield from ask(Fetch(partition, (wanted,)))
        except Corrupt:
            # An expired thread reads as absent, so it is removed though it is damaged.
            (page,) = yield from ask(Fetch(partition, (wanted._replace(bodies=False),)))
        counts[wanted.kind] += len(page)
        total += sum(len(record.body) for record in page)
        if len(page) == _PAGE:
            left.append(wanted._replace(after=page[-1].key))
    return counts[CHECKPOINT], total
