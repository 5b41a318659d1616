"""Sweep of threads: applies retention policies to one thread after another, in small resumable steps.

The state of a sweep is a document of the database: who sweeps, until when, and how far. Rounds go over the
tenants; in each round a tenant gets a quantum of threads, so that one with many does not delay the others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from typing import Any

from perdure.engine import documents
from perdure.engine.retention import removal
from perdure.engine.retention.expiry import Clocks, ThreadAtRest, read_at_rest
from perdure.engine.retention.plan import keep_by
from perdure.engine.retention.whole_threads import is_unfinished, remove_expired, remove_unfinished
from perdure.engine.threads.thread_records import read
from perdure.engine.threads.thread_state import missing_head
from perdure.engine.threads.undisturbed import read_undisturbed
from perdure.engine.transact import Budget
from perdure.errors import PerdureError, Unavailable
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
    Key,
    Kind,
    Partition,
    Record,
)
from perdure.model.retention_policy import Retention, RetentionRules
from perdure.model.thread_ttl import ThreadTtl
from perdure.model.values.chunks import Digester

_COLLECTION = "care"
"""Collection of the documents with the states of sweeps, in the reserved partition."""

_LATEST = Retention(keep_last=1)
"""Policy of an expired thread of which the latest state stays."""

_PAGE = 256
_OPEN_MAX = 1000
"""Tenants with threads left over for a further round; any more are swept to the end at once."""

_KEEP_MOST = 1_000_000_000
"""Newest checkpoints that are looked at; no thread has as many."""

_OLDEST = 16
"""Oldest checkpoints whose age is looked at before a whole thread is read."""

_LAST = "\U0010ffff" * 64
"""A name after those of all threads."""


@dataclass(frozen=True, slots=True)
class Swept:
    """Result of a sweep, or of a dry run.

    Attributes:
        threads: threads looked at.
        expired: expired threads removed.
        checkpoints: checkpoints removed, those of expired threads included.
        bytes: bytes of the removed bodies: checkpoints, writes, values and messages.
        failed: threads that could not be swept.
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

    def __add__(self, other: Swept) -> Swept:
        return Swept(*(a + b for a, b in zip(_counts(self), _counts(other), strict=True)))


def _counts(swept: Swept) -> list[int]:
    return list(asdict(swept).values())


@dataclass(frozen=True, slots=True)
class SweepTerms:
    """Rules and terms of a sweep.

    Attributes:
        tenant: the only tenant to sweep, ``None`` for all.
        dry_run: remove nothing.
        only_default: apply the default policy to every thread, and no time to live.
        ttl: time to live of threads that no client has given one, and the most removals of a sweep.
        removes_expired: remove expired threads; otherwise they are left to the next sweep.
    """

    rules: RetentionRules
    digest: Digester
    budget: Budget
    tenant: str | None = None
    dry_run: bool = False
    only_default: bool = False
    ttl: ThreadTtl | None = None
    removes_expired: bool = True

    @property
    def fingerprint(self) -> str:
        """Digest of what decides which threads and checkpoints go."""
        ttl = None if self.ttl is None else (self.ttl.default_ttl, self.ttl.strategy)
        rules = (
            _facts(self.rules.default),
            sorted((name, _facts(policy)) for name, policy in self.rules.policies.items()),
            sorted(self.rules.assistants.items()),
        )
        text = json.dumps([rules, ttl, self.only_default])
        return blake2b(text.encode(), digest_size=16).hexdigest()


def _facts(policy: Retention | None) -> tuple[object, ...] | None:
    if policy is None:
        return None
    return policy.keep_last, policy.keep_for_us, policy.idle_us, policy.keep_tagged


@dataclass(frozen=True, slots=True)
class Failure:
    """A thread that could not be swept, with the reason."""

    partition: Partition
    reason: str


@dataclass(frozen=True, slots=True)
class SweepState:
    """State of a sweep.

    Attributes:
        owner: who sweeps, empty if it is over.
        fingerprint: that of the terms on which it sweeps.
        until: time at which another process may take the sweep over.
        started_at: its start; ``finished_at`` and ``last`` are the end and the result of the one before.
            Times are microseconds since 1970.
        position: the tenant visited last in this round, ``None`` at the start of a round.
        is_first_round: the round visits all tenants; later ones only those in ``left``.
        left: for each tenant that has more threads, the last one visited.
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
    swept: Swept = Swept()
    last: Swept = Swept()

    @property
    def is_over(self) -> bool:
        """True if no sweep is under way."""
        return not self.owner

    def body(self) -> dict[str, Any]:
        """Return the state as plain data."""
        return {**asdict(self), "left": dict(self.left)}

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> SweepState:
        """Return the state from its plain data."""
        fields: dict[str, Any] = {
            **body,
            "swept": Swept(**body["swept"]),
            "last": Swept(**body["last"]),
        }
        return cls(**fields)


def read_state(tenant: str | None) -> Program[tuple[SweepState, int]]:
    """Return the state of the sweep of a tenant, or of the one of all tenants, and its version, 0 if there
    was none yet."""
    found = yield from documents.get(RESERVED, _COLLECTION, _name(tenant))
    return (SweepState(), 0) if found is None else (SweepState.of(found.body), found.version)


def look_behind_writes(tenant: str | None) -> Program[None]:
    """Return once the writes of a sweep's state are done that this process has begun, if the backend carries
    them out one after the other."""
    seen = Check(DOCUMENT, (_COLLECTION, _name(tenant)), Expect.PRESENT)
    yield from ask(Commit(RESERVED, (seen,)))


def _name(tenant: str | None) -> str:
    return "sweep" if tenant is None else f"sweep {tenant}"


def begin(
    owner: str, tenant: str | None, now: int, lease: int, fingerprint: str = ""
) -> Program[tuple[SweepState, int] | None]:
    """Begin a sweep, or continue one whose process is gone, as the only sweeper of the database.

    One on other terms is not continued: the threads that it has visited would not be visited on these.

    Args:
        owner: name of the caller.
        tenant: the only tenant to sweep, ``None`` for all.
        now: time of the database.
        lease: microseconds after which another process may take over, unless the sweep is saved before.
        fingerprint: that of the terms.

    Returns:
        The state and its version; ``None`` if another process sweeps.
    """
    state, version = yield from read_state(tenant)
    if not state.is_over and state.owner != owner and state.until > now:
        return None
    if state.is_over or state.fingerprint != fingerprint:
        state = replace(SweepState(), finished_at=state.finished_at, last=state.last, started_at=now)
    mine = replace(state, owner=owner, fingerprint=fingerprint, until=now + lease)
    saved = yield from save(mine, tenant, version, now)
    return None if saved is None else (mine, saved)


def save(state: SweepState, tenant: str | None, version: int, now: int) -> Program[int | None]:
    """Store a sweep's state; return its new version, ``None`` if another process has taken over."""
    expect = version or Expect.ABSENT
    place = (RESERVED, _COLLECTION, _name(tenant))
    stored = yield from documents.put(*place, state.body(), now, expect, fresh=1)
    return None if stored is None else stored.version


def renewed(state: SweepState, until: int) -> SweepState:
    """Return the state with its lease extended."""
    return replace(state, until=until)


def step(
    state: SweepState, terms: SweepTerms, quantum: int, clocks: Clocks
) -> Program[tuple[SweepState, list[Failure]]]:
    """Sweep at most ``quantum`` threads of the next tenant; return the state afterwards.

    It is over when ``owner`` is empty. Nothing is stored: the caller saves the state.
    """
    tenant, after = yield from _next(state, terms)
    if tenant is None:
        if state.left:
            return replace(state, position=None, is_first_round=False), []
        return replace(state, owner="", until=0, finished_at=clocks.database, last=state.swept), []
    if len(state.left) >= _OPEN_MAX and tenant not in state.left:
        quantum = max(quantum, _PAGE)
    found = yield from ask(FindThreads(tenant, after=after, limit=quantum))
    swept, failures = state.swept, list[Failure]()
    for hit in found:
        if terms.ttl is not None and swept.expired >= terms.ttl.sweep_limit:
            terms = replace(terms, removes_expired=False)
        try:
            swept += yield from visit(hit.partition, terms, clocks)
        except Unavailable:
            raise
        except (PerdureError, LookupError, ValueError) as error:
            # A thread that cannot be read or pruned, or is written to all the time, blocks no other.
            swept += Swept(threads=1, failed=1)
            failures.append(Failure(hit.partition, _reason(error)))
    left = {name: thread for name, thread in state.left.items() if name != tenant}
    position: str | None = tenant
    if len(found) >= quantum:
        left[tenant] = found[-1].partition.thread
        if len(left) > _OPEN_MAX:
            # No room to come back to it later: it goes on at once.
            position = state.position
    return replace(state, position=position, left=left, swept=swept), failures


def _reason(error: Exception) -> str:
    if type(error) is LookupError:
        return "its metadata name a retention policy that does not exist; it was left as it is"
    if isinstance(error, PerdureError):
        return str(error)
    return f"its records cannot be read ({type(error).__name__}): run `perdure fsck`"


def _next(state: SweepState, terms: SweepTerms) -> Program[tuple[str | None, Partition | None]]:
    """Return the next tenant of the round and the last of its threads that was visited; no tenant at the
    round's end."""
    if state.is_first_round:
        tenant = yield from _tenant_after(state.position, terms.tenant)
    else:
        later = [name for name in state.left if state.position is None or name > state.position]
        tenant = min(later, default=None)
    if tenant is None:
        return None, None
    last = state.left.get(tenant)
    return tenant, None if last is None else Partition(tenant, last)


def _tenant_after(position: str | None, only: str | None) -> Program[str | None]:
    if only is not None:
        return only if position is None else None
    after = None if position is None else Partition(position, _LAST)
    found = yield from ask(FindThreads(None, after=after, limit=1))
    return found[0].partition.tenant if found else None


def visit(partition: Partition, terms: SweepTerms, clocks: Clocks) -> Program[Swept]:
    """Apply a thread's policy and its time to live: remove it if it is expired, else what is not kept of it.

    A thread with nothing to remove costs two requests.

    Raises:
        LookupError: its metadata name a policy that does not exist.
        Corrupt: it is damaged; nothing is removed, so that it can be repaired.
    """
    thread = yield from read_at_rest(partition)
    if thread.missing is not None:
        raise missing_head(partition, "", thread.missing)
    if (yield from is_unfinished(partition, thread, clocks.database)):
        return (yield from _remove_unfinished(partition, thread, terms, clocks.database))
    if thread.is_arriving:
        return Swept(threads=1)
    if terms.only_default:
        policy = terms.rules.default
    else:
        policy = thread.policy(terms.rules)
        if thread.is_expired(terms.rules, terms.ttl, clocks):
            return (yield from _remove_expired(partition, thread, terms))
        if thread.is_to_shrink(terms.ttl, clocks):
            policy = _LATEST
    if policy is None or not policy.prunes or not (yield from _has_old(partition, policy, clocks.database)):
        return Swept(threads=1)
    return (yield from _prune(partition, policy, terms, clocks.database))


def _remove_expired(partition: Partition, thread: ThreadAtRest, terms: SweepTerms) -> Program[Swept]:
    if not terms.removes_expired:
        return Swept(threads=1)
    counted = yield from _weigh_all(partition)
    if terms.dry_run or (yield from remove_expired(partition, thread)):
        return counted
    return Swept(threads=1)


def _remove_unfinished(
    partition: Partition, thread: ThreadAtRest, terms: SweepTerms, now: int
) -> Program[Swept]:
    counted = replace((yield from _weigh_all(partition)), expired=0, checkpoints=0, unfinished=1)
    if terms.dry_run or (yield from remove_unfinished(partition, thread, now, terms.budget)):
        return counted
    return Swept(threads=1)


def _has_old(partition: Partition, policy: Retention, now: int) -> Program[bool]:
    """Return True if a thread may have checkpoints that its policy does not keep."""
    wanted = min(policy.keep_last or 1, _KEEP_MOST) + 1
    found, tags, oldest = yield from ask(
        Fetch(
            partition,
            (
                Range(CHECKPOINT, ("",), by="seq", reverse=True, limit=wanted, bodies=False),
                Range(TAG),
                Range(CHECKPOINT, ("",), by="seq", limit=_OLDEST if policy.keep_for else 1),
            ),
        )
    )
    if len(found) < wanted or policy.keep_for is None:
        return len(found) == wanted
    tagged = {tag.fields["checkpoint_id"] for tag in tags}
    records = [CheckpointRecord.read(each) for each in oldest if each.key[1] not in tagged]
    # Checkpoints are ordered by their commits: behind a tagged one there may be others that are as old.
    return len(records) < len(oldest) or bool({c.id for c in records} - policy.find_kept_by_age(records, now))


def _prune(partition: Partition, policy: Retention, terms: SweepTerms, now: int) -> Program[Swept]:
    planner = keep_by(lambda roots: policy.find_kept(roots, now))

    def count() -> Program[Swept]:
        contents = yield from read(partition)
        plan = planner(contents)
        if not plan.removed:
            return Swept(threads=1)
        size = yield from removal.weigh(contents, plan, terms.digest)
        return Swept(threads=1, checkpoints=len(plan.removed), bytes=size)

    counted = yield from read_undisturbed(partition, count)
    if counted.checkpoints and not terms.dry_run:
        yield from removal.prune(partition, planner, terms.digest, terms.budget)
    return counted


def _weigh_all(partition: Partition) -> Program[Swept]:
    """Count a whole thread, a page at a time."""
    checkpoints = 0
    total = 0
    for kind in (CHECKPOINT, WRITE, CHUNK, BLOB, PACK, INBOX, OUTBOX):
        after: Key | None = None
        while True:
            page = yield from _page(partition, kind, after)
            checkpoints += len(page) if kind is CHECKPOINT else 0
            total += sum(len(record.body) for record in page)
            if len(page) < _PAGE:
                break
            after = page[-1].key
    return Swept(threads=1, expired=1, checkpoints=checkpoints, bytes=total)


def _page(partition: Partition, kind: Kind, after: Key | None) -> Program[tuple[Record, ...]]:
    (found,) = yield from ask(Fetch(partition, (Range(kind, after=after, limit=_PAGE),)))
    return found
