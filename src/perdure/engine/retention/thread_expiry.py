"""Decides whether a whole thread has expired: by its policy, its own time to live, and two clocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import ormsgpack

from perdure.engine.documents import Document
from perdure.engine.requests import expect_unchanged, first_of, read_record, version_of
from perdure.engine.threads import transfer_claim
from perdure.model.checkpoint import CheckpointRecord
from perdure.model.ops import Check, Expect, Fetch, Get, Range
from perdure.model.program import Program, ask
from perdure.model.records import (
    CHECKPOINT,
    DOCUMENT,
    EPOCH,
    GC,
    HEAD,
    INBOX,
    LANE,
    OF_THREAD,
    OUTBOX,
    RUN,
    SEAL,
    TAG,
    Kind,
    Partition,
    Record,
)
from perdure.model.retention_policy import Retention, RetentionRules, make_stored_ttl
from perdure.model.runs.messages import SENT
from perdure.model.runs.queue import IN, LATER, OUT, WAITS, Lane
from perdure.model.thread_agents import choose_metadata

_LANES = (IN, OUT, LATER, WAITS)
_ITEMS: tuple[Get | Range, ...] = (
    Get(DOCUMENT, OF_THREAD),
    Get(EPOCH, ()),
    Range(HEAD),
    Range(TAG, limit=1),
    Range(RUN, by="first", reverse=True, limit=1, bodies=False),
    Range(CHECKPOINT, ("",), by="seq", reverse=True, limit=1),
    Get(GC, ()),
    Get(SEAL, transfer_claim.CLAIM),
    Range(INBOX, limit=1, bodies=False),
    Range(OUTBOX, limit=1, bodies=False),
    *(Get(LANE, (name,)) for name in _LANES),
)


EXPIRED: Literal["expired"] = "expired"
"""Decision that a whole thread is removed."""

_LATEST = Retention(keep_last=1)
"""Policy of an expired thread that keeps its latest state."""


class Clocks(NamedTuple):
    """Current time in microseconds, by the database's clock and by that of this process's host."""

    database: int
    host: int


@dataclass(frozen=True, slots=True)
class ExpiryFacts:
    """Facts that decide on the expiry of a thread, as they were read.

    Attributes:
        is_busy: a run is open, a message waits, a reply is to be delivered or a deadline is to come.
        has_queues: a message was accepted for the thread at some time.
        is_tagged: the thread has a tag.
        active_at: time of the last activity in microseconds, ``None`` if it cannot be determined.
        metadata: metadata of the thread, as its clients set it or as its latest checkpoint has it.
        ttl: time to live that a client set for the thread, if any.
        checks: checks that hold while the thread is as it was read.
        generation: its collection generation, 0 without one. A tag that is set meanwhile raises it.
        claim: claim of an arrival at this name, if there is one.
        has_head: the thread has a latest checkpoint.
        has_document: a client created or adopted the thread.
        ended_at: the earliest time of what ``queue_retention.forget`` may remove: of the first message and of
            the first reply, if that was sent, unless they are of the newest run; ``None`` without both.
        missing: id of the latest checkpoint if it is not stored.
    """

    is_busy: bool
    has_queues: bool
    is_tagged: bool
    active_at: int | None
    metadata: Mapping[str, Any]
    ttl: Mapping[str, Any] | None
    checks: tuple[Check, ...]
    generation: int
    missing: str | None
    claim: Record | None
    has_head: bool
    has_document: bool
    ended_at: int | None

    @property
    def is_arriving(self) -> bool:
        """True if the name is claimed for a thread that has not arrived."""
        return self.claim is not None and not self.has_head

    def expires_at(self, rules: RetentionRules) -> int | None:
        """Return the time at which the thread expires in microseconds, ``None`` if it does not.

        A time to live that a client set for the thread takes precedence over the policy. A tag keeps the
        thread in both cases, unless the policy ignores tags.

        Raises:
            LookupError: its metadata names a policy that does not exist.
        """
        if self.is_busy:
            return None
        if self.ttl is not None:
            is_kept = self.ttl.get("strategy") != "delete" or (self.is_tagged and self._keeps_tagged(rules))
            if is_kept:
                return None
            return int(self.ttl["expires_at"])
        policy = rules.policy_for(self.metadata)
        if policy is None or policy.idle_us is None or self.active_at is None:
            return None
        if policy.keep_tagged and self.is_tagged:
            return None
        return self.active_at + policy.idle_us

    def _keeps_tagged(self, rules: RetentionRules) -> bool:
        """Return True unless the thread's policy lets it expire in spite of a tag."""
        try:
            policy = rules.policy_for(self.metadata)
        except LookupError:
            return True
        return policy is None or policy.keep_tagged

    def decide(self, rules: RetentionRules, clocks: Clocks) -> Retention | Literal["expired"] | None:
        """Return the treatment of the thread: the policy for its checkpoints, ``EXPIRED`` if the whole thread
        is removed, ``None`` if it stays as it is.

        Raises:
            LookupError: its metadata names a policy that does not exist, and its own time to live does not
                decide.
        """
        if rules.only_default:
            return rules.default
        # Only ``expires_at`` decides what reads as absent, so it decides here first.
        if _is_past(self.expires_at(rules), clocks, self.ttl):
            return EXPIRED
        ttl = self.ttl
        if rules.usual_ttl is not None and not self.has_document and self.active_at is not None:
            ttl = make_stored_ttl(rules.usual_ttl.client_form, self.active_at)
        if ttl is not None and not self.is_busy and _is_past(int(ttl["expires_at"]), clocks, self.ttl):
            if ttl.get("strategy") == "keep_latest":
                return _LATEST
            # Like a policy, the usual time to live does not remove a tagged thread.
            if ttl.get("strategy") == "delete" and not self.is_tagged:
                return EXPIRED
        return rules.policy_for(self.metadata)


def _is_past(expires_at: int | None, clocks: Clocks, own_ttl: Mapping[str, Any] | None) -> bool:
    """Return True if the time at which a thread expires has passed. If a client set it, it was computed with
    the database's clock. Any other is counted from a checkpoint, whose time is a host's, so it must have
    passed by both clocks."""
    if expires_at is None:
        return False
    if own_ttl is None:
        return expires_at <= min(clocks)
    return expires_at <= clocks.database


def read_expiry_facts(partition: Partition) -> Program[ExpiryFacts]:
    """Read what decides whether a thread expires: one request, two if its latest checkpoint is not the one
    that was stored last."""
    answers = yield from ask(Fetch(partition, _ITEMS))
    documents, epochs, heads, tags, runs, newest, collections, claims, messages, replies, *lanes = answers
    queues = [Lane.read(name, lane) for name, lane in zip(_LANES, lanes, strict=True)]
    head: str | None = next((each.fields["checkpoint_id"] for each in heads if each.key == ("",)), None)
    latest = first_of(newest)
    if head is not None and (latest is None or latest.key[1] != head):
        latest = yield from read_record(partition, CHECKPOINT, ("", head))
    checkpoint, missing = latest and CheckpointRecord.read(latest), head
    document = next(map(Document.read, documents), None)
    times = [record.fields["updated_at"] for record in (*documents, *runs)]
    # The last activity is unknown if the latest checkpoint has no time. It is unknown as well if there is a
    # checkpoint without a head: then the thread is still arriving.
    is_activity_known = head is None
    if checkpoint is not None:
        is_activity_known, missing = head is not None and checkpoint.made_at is not None, None
        times.append(checkpoint.made_at)
    active_at: int | None = None
    if is_activity_known:
        active_at = max(times, default=None)
    checks = [
        check_unchanged(DOCUMENT, OF_THREAD, documents),
        check_unchanged(EPOCH, (), epochs),
        *(check_unchanged(LANE, (name,), lane) for name, lane in zip(_LANES, lanes, strict=True)),
        *(Check(HEAD, each.key, each.version) for each in heads),
    ]
    if head is None:
        checks.append(Check(HEAD, ("",), Expect.ABSENT))
    return ExpiryFacts(
        is_busy=bool(epochs and epochs[0].fields["open_run"] is not None)
        or any(lane.pending or lane.run_id is not None for lane in queues),
        has_queues=any(lane.version for lane in queues),
        is_tagged=bool(tags),
        active_at=active_at,
        metadata=_merge_metadata(document, head, checkpoint),
        ttl=document and document.body.get("ttl"),
        checks=tuple(checks),
        generation=version_of(collections),
        missing=missing,
        claim=first_of(claims),
        has_head=head is not None,
        has_document=document is not None,
        ended_at=_find_first_end(messages, replies, runs),
    )


def _find_first_end(
    messages: tuple[Record, ...], replies: tuple[Record, ...], runs: tuple[Record, ...]
) -> int | None:
    """Return the earliest time of what has ended on a thread before its newest run, given its first message
    and its first reply."""
    newest = first_of(runs)
    if newest is None:
        return None
    ended = [each.fields["accepted_at"] for each in messages if each.key[0] < newest.fields["first"]]
    sent = (each.fields for each in replies if each.fields["state"] == SENT)
    ended += [fields["created_at"] for fields in sent if fields["run_id"] != newest.key[0]]
    return min(ended, default=None)


def check_unchanged(kind: Kind, key: tuple[str, ...], found: tuple[Record, ...]) -> Check:
    """Return the check that a record is as it was read, or still absent."""
    return Check(kind, key, expect_unchanged(first_of(found)))


def _merge_metadata(
    document: Document | None, head: str | None, checkpoint: CheckpointRecord | None
) -> dict[str, Any]:
    """Return a thread's metadata: that of its latest checkpoint, overridden by what its clients set, except
    for the graph and the assistant to which it belongs. Values that are not plain data are ``None``."""
    out: dict[str, Any] = {}
    if checkpoint is not None and checkpoint.metadata:
        unpacked = ormsgpack.unpackb(
            checkpoint.metadata, ext_hook=lambda code, data: None, option=ormsgpack.OPT_NON_STR_KEYS
        )
        if isinstance(unpacked, dict):
            out = unpacked
    if document is not None and isinstance(document.body.get("metadata"), dict):
        return {**out, **choose_metadata(document.body, head, out)}
    return out
