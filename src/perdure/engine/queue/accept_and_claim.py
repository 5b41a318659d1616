"""Acceptance of a message together with the claim of its run, in one commit, where nothing else is waiting.

The process that accepts the message works on it, so there is nothing to hand over between two commits. If
that process ends after the commit, the run has a lease like any other, and another worker takes it over.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from perdure.engine.queue.claims import Claim, PlannedClaim, RememberedInbox
from perdure.engine.queue.inbox import Accept, Accepted
from perdure.engine.queue.questions import would_abandon_question
from perdure.engine.queue.runs import HeldRun
from perdure.engine.requests import version_of
from perdure.model.ops import Commit, Committed, Get, Refused
from perdure.model.program import Program, ask
from perdure.model.records import EPOCH, LANE, Record
from perdure.model.runs.queue import IN, Lane

GETS = (Get(LANE, (IN,)), Get(EPOCH, ()))
"""Gets of the records that ``read`` decodes."""

NEW = RememberedInbox(Lane(IN), 0)
"""Inbox of a thread that does not exist yet."""


class Begun(NamedTuple):
    """An accepted message, and its run, which the same commit claimed."""

    accepted: Accepted
    held: HeldRun


def read(found: Sequence[tuple[Record, ...]]) -> RememberedInbox:
    """Return an inbox from the answers to ``GETS``."""
    lanes, epochs = found
    return RememberedInbox(Lane.read(IN, lanes), version_of(epochs))


def may_ever_begin(accept: Accept, graphs: Collection[str]) -> bool:
    """Return True if a message may be claimed by the commit that stores it, provided that its thread is idle.
    That is so if the message is due at once, its graph is one of ``graphs``, which the caller can run, and no
    question of the thread can be a reason to refuse it."""
    message = accept.message
    if message.mode == "answer" or would_abandon_question(message.payload):
        return False
    return message.graph in graphs and accept.debounce.quiet <= 0


def may_begin(accept: Accept, known: RememberedInbox, graphs: Collection[str]) -> bool:
    """Return True if a message may be claimed by the commit that stores it.

    That is so if its thread is idle, as far as the caller remembers, and the message is due at once.

    Args:
        accept: the message and its terms.
        known: the inbox as the caller remembers it.
        graphs: the graphs that the caller can run.
    """
    return known.is_idle and may_ever_begin(accept, graphs)


def plan(accept: Accept, claim: Claim, known: RememberedInbox) -> PlannedClaim:
    """Return the claim of the run of a message that ``begin`` stores.

    Args:
        accept: a message for which ``may_begin`` is true.
        claim: the claimant; the claim is of the same thread and time.
        known: the inbox as the caller remembers it.
    """
    lane = known.lane.accept(accept.now, accept.debounce)
    message = replace(accept.message, seq=lane.last, accepted_at=accept.now)
    return claim.plan_new(lane, known.epoch or 0, message)


def begin(accept: Accept, planned: PlannedClaim, known: RememberedInbox) -> Program[Begun | Refused]:
    """Store a message and claim its run. If the thread is not as it is remembered, nothing is stored.

    Args:
        accept: a message for which ``may_begin`` is true.
        planned: the result of ``plan`` for it.
        known: the inbox as the caller remembers it.

    Raises:
        Unavailable: the run may have been claimed; it was if ``runs.renew`` can renew the lease of the
            planned run.
    """
    (message,) = planned.held.messages
    outcome = yield from ask(Commit(accept.partition, (*planned.ops, *accept.ops(message))))
    if isinstance(outcome, Committed):
        held = planned.held
        return Begun(Accepted.of(message, held.lane, message.seq, known.lane.version), held)
    return outcome


def is_of_inbox(refused: Refused) -> bool:
    """Return True if ``begin`` was refused because the inbox or the epoch is not as it is remembered."""
    return refused.kind is EPOCH or (refused.kind, refused.key) == (LANE, (IN,))
