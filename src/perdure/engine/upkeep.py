"""Forgetting what a thread's queue is done with, so that it does not grow for ever."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.model.lane import IN, OUT, Lane
from perdure.model.messages import OPEN, SENT
from perdure.model.ops import Check, Commit, Delete, Fetch, Get, Op, Range
from perdure.model.program import Program, ask
from perdure.model.records import DEDUPE, EFFECT, INBOX, LANE, OUTBOX, RUN, Partition, Record

BATCH_MAX = 64
"""How many messages one run may take at most: they are forgotten together."""


_REPLIES = 256
"""How many replies are looked through: those that were given up or are in doubt stay among them."""


def forget(partition: Partition, before: int, budget: int) -> Program[int]:
    """Remove a page of what came and ended before a time: messages with the memory that they were accepted,
    their runs and journals, and replies that were sent. What waits for an answer, was given up or is in doubt
    stays. How many records were removed; nothing is, if the queue moves meanwhile."""
    lanes, outs, messages, replies, runs = yield from ask(
        Fetch(
            partition,
            (
                Get(LANE, (IN,)),
                Get(LANE, (OUT,)),
                Range(INBOX, limit=BATCH_MAX, bodies=False),
                Range(OUTBOX, limit=_REPLIES, bodies=False),
                Range(RUN, by="first", limit=BATCH_MAX, bodies=False),
            ),
        )
    )
    inbox, outbox = Lane.read(IN, lanes), Lane.read(OUT, outs)
    old = [m for m in messages if m.fields["accepted_at"] < before and m.key[0] <= inbox.bound]
    over = [run for run in runs if run.fields["updated_at"] < before and run.key[0] != inbox.waiting]
    parts = (yield from _messages(partition, old, over)) if old else []
    parts += [
        [Delete(OUTBOX, reply.key, reply.version)]
        for reply in replies
        if reply.fields["created_at"] < before
        and reply.key[0] <= outbox.bound
        and reply.fields["state"] == SENT
    ]
    if not parts:
        return 0
    # The numbers of a thread that was deleted and made again start anew: the lanes show that it is the same.
    checks = [Check(LANE, (lane.name,), lane.version) for lane in (inbox, outbox) if lane.version]
    taken: list[Op] = []
    for part in parts:
        if len(checks) + len(taken) + len(part) > budget:
            break
        taken += part
    yield from ask(Commit(partition, (*checks, *taken)))
    return len(taken)


def _messages(
    partition: Partition, old: Sequence[Record], runs: Sequence[Record]
) -> Program[list[Sequence[Op]]]:
    """What is to be removed with messages, in parts that go together, one after the other: a run's journal,
    its messages each with its key, and the run with the last of them, by which it is found."""
    parts: list[Sequence[Op]] = []
    over = {message.key[0]: message for message in old}
    for run in runs:
        if run.fields["state"] == OPEN or run.fields["last"] not in over:
            break
        (journal,) = yield from ask(
            Fetch(partition, (Range(EFFECT, run.key, limit=BATCH_MAX, bodies=False),))
        )
        parts += [[Delete(EFFECT, noted.key)] for noted in journal]
        if len(journal) == BATCH_MAX:
            break
        for seq in range(run.fields["first"], run.fields["last"] + 1):
            if seq not in over:
                continue
            part: list[Op] = [Delete(INBOX, (seq,))]
            if over[seq].fields["dedupe"]:
                part.append(Delete(DEDUPE, (over[seq].fields["dedupe"],)))
            if seq == run.fields["last"]:
                part.append(Delete(RUN, run.key, run.version))
            parts.append(part)
    return parts
