"""Removal of finished records of a thread's queue, so that it does not grow without bound."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from perdure.engine.queue.effect_journal import make_pointer_key, read_repeatable_runs, select_repeatable
from perdure.engine.transact import ATTEMPTS
from perdure.errors import Contention
from perdure.model.ops import Check, Commit, Committed, Delete, Fetch, Get, Op, Range
from perdure.model.program import Program, ask
from perdure.model.records import (
    DEDUPE,
    DOCUMENT,
    EFFECT,
    INBOX,
    LANE,
    OUTBOX,
    REQUESTS,
    RUN,
    Partition,
    Record,
)
from perdure.model.runs.messages import OPEN, SENT, Run
from perdure.model.runs.queue import IN, OUT, Lane

BATCH_MAX = 64
"""Maximum number of messages that one run may take: they are removed together."""
MESSAGES_BETWEEN_REMOVALS = 8
"""Number of messages of a thread after which expired records are looked for; half the number removed at
once."""
_REPLIES = 256
"""Maximum number of replies that are examined at once. Those given up or in doubt stay: if the first ones are
all of these, a pass examines as many at another place."""


def make_request(partition: Partition) -> Fetch:
    """Return the request whose answer ``forget`` examines."""
    return Fetch(
        partition,
        (
            Get(LANE, (IN,)),
            Get(LANE, (OUT,)),
            Range(INBOX, limit=BATCH_MAX, bodies=False),
            _make_page(),
            Range(RUN, by="first", limit=BATCH_MAX, bodies=False),
        ),
    )


def make_request_at_end(partition: Partition, run: Run) -> Fetch | None:
    """Return the request of ``make_request`` if expired records are looked for at the end of this run,
    otherwise ``None``."""
    if run.last // MESSAGES_BETWEEN_REMOVALS > (run.first - 1) // MESSAGES_BETWEEN_REMOVALS:
        return make_request(partition)
    return None


def forget(
    partition: Partition,
    before: int,
    budget: int,
    found: Sequence[tuple[Record, ...]] | None = None,
    at: float = 0.0,
) -> Program[int]:
    """Remove a page of messages and replies that were accepted and finished before a time.

    Messages are removed with their dedupe keys, runs and journals; replies once they are sent. Messages and
    replies that wait for an answer, were given up or are in doubt stay, and so do runs whose recorded effects
    a later run may still need, with the replies that show their questions. The newest run of a thread stays
    with its messages and replies: its time is that of the thread's last activity.

    Args:
        before: in microseconds.
        budget: most operations of one commit.
        found: the answer to ``make_request``, if the caller has made that request.
        at: place in the outbox, from 0 to 1, at which replies are examined if the first ones all stay. With
            another one for each pass, every reply is reached in time.

    Returns:
        The count of removed records; 0 also if the queue changes again at every attempt.
    """
    for _ in range(ATTEMPTS):
        if found is None:
            found = yield from ask(make_request(partition))
        removed = yield from _forget_page(partition, before, budget, found, at)
        if removed is not None:
            return removed
        # A busy thread may accept its next message while old records are removed: look again.
        found = None
    return 0


def _forget_page(
    partition: Partition, before: int, budget: int, found: Sequence[tuple[Record, ...]], at: float
) -> Program[int | None]:
    """Remove a page of the records that the request has found; return ``None`` if the queue has changed
    since."""
    lanes, outs, messages, replies, runs = found
    inbox, outbox = Lane.read(IN, lanes), Lane.read(OUT, outs)
    old = [m for m in messages if m.fields["accepted_at"] < before and m.key[0] <= inbox.bound]
    needed = yield from _find_needed(partition, inbox, runs)
    # The last of these runs may be the newest of the thread.
    kept = needed.union(run.key[0] for run in runs[-1:])
    finished = [run for run in runs if run.fields["updated_at"] < before and run.key[0] not in kept]
    parts: list[Sequence[Op]] = []
    if old:
        parts += yield from _plan_message_removals(partition, old, finished)
    sent = _select_sent(replies, before, outbox, kept)
    if not sent and len(replies) == _REPLIES and outbox.bound > replies[-1].key[0]:
        first = replies[-1].key[0]
        start = first + int(at * (outbox.bound - first))
        (replies,) = yield from ask(Fetch(partition, (_make_page(after=(start,)),)))
        sent = _select_sent(replies, before, outbox, kept)
    parts += [[Delete(OUTBOX, reply.key, reply.version)] for reply in sent]
    if not parts:
        return 0
    # A thread that was deleted and created again numbers its messages from the beginning. The checks of the
    # lanes refuse a removal that was planned for the earlier thread.
    checks = [Check(LANE, (lane.name,), lane.version) for lane in (inbox, outbox) if lane.version]
    taken = _take(parts, budget - len(checks))
    outcome = yield from ask(Commit(partition, (*checks, *taken)))
    if isinstance(outcome, Committed):
        return len(taken)
    return None


def _make_page(after: tuple[int] | None = None) -> Range:
    return Range(OUTBOX, after=after, limit=_REPLIES, bodies=False)


def _select_sent(replies: Sequence[Record], before: int, outbox: Lane, kept: Collection[str]) -> list[Record]:
    """Return the replies that were sent, of those accepted before a time that no delivery can still need, and
    that are not of the runs that are kept."""
    return [
        reply
        for reply in replies
        if reply.fields["created_at"] < before
        and reply.key[0] <= outbox.bound
        and reply.fields["state"] == SENT
        and reply.fields["run_id"] not in kept
    ]


def _find_needed(partition: Partition, inbox: Lane, runs: Sequence[Record]) -> Program[frozenset[str]]:
    """Return the ids of the runs whose steps an unfinished run may repeat; ``runs`` are the first of the
    thread."""
    if inbox.run_id is None and inbox.waiting is None and inbox.pending == 0:
        return frozenset()
    if len(runs) < BATCH_MAX:
        repeatable = select_repeatable(runs)
    else:
        repeatable = yield from read_repeatable_runs(partition)
    return frozenset(run.key[0] for run in repeatable)


def remove(partition: Partition, run: Run, budget: int) -> Program[bool]:
    """Remove a finished run of any age, with its journal, its messages and their dedupe keys.

    A later run that repeats one of its steps repeats the effects in it.

    Args:
        budget: most operations of one commit.

    Returns:
        ``False`` if the run has changed or is gone.

    Raises:
        Contention: other writers win each time.
    """
    refused = 0
    while refused < ATTEMPTS:
        its_messages = Range(INBOX, after=(run.first - 1,), limit=BATCH_MAX, bodies=False)
        items = (Get(LANE, (IN,)), Get(RUN, (run.id,)), its_messages)
        lanes, found, messages = yield from ask(Fetch(partition, items))
        if not found or found[0].version != run.version:
            return False
        parts = yield from _plan_run_removal(partition, found[0], {m.key[0]: m for m in messages})
        taken = _take(parts, budget - len(lanes) - 1)
        is_last = bool(taken) and taken[-1].kind is RUN
        ops = taken
        if not is_last:
            ops = [Check(RUN, found[0].key, run.version), *taken]
        # The lane must be unchanged: a dedupe key that was removed meanwhile may be another message's by now.
        guards: list[Op] = [Check(LANE, (IN,), lane.version) for lane in lanes]
        inbox = Lane.read(IN, lanes)
        if is_last and inbox.waiting == run.id:
            # An inbox that names a run which is not stored would be taken for damage.
            guards = [inbox._replace(waiting=None).put(0)]
        outcome = yield from ask(Commit(partition, (*guards, *ops)))
        if is_last and isinstance(outcome, Committed):
            return True
        refused += not isinstance(outcome, Committed)
    raise Contention(
        f"thread {partition.thread!r}: run {run.id!r} could not be removed while messages keep arriving; "
        "try again"
    )


def _take(parts: Sequence[Sequence[Op]], budget: int) -> list[Op]:
    """Return the operations of the first parts: as many whole ones as one commit may carry."""
    taken: list[Op] = []
    for part in parts:
        if len(taken) + len(part) > budget:
            break
        taken += part
    return taken


def _plan_message_removals(
    partition: Partition, old: Sequence[Record], runs: Sequence[Record]
) -> Program[list[Sequence[Op]]]:
    """Return the removals of old messages and their runs in order, in parts that must not be divided."""
    parts: list[Sequence[Op]] = []
    old_by_number = {message.key[0]: message for message in old}
    for run in runs:
        if run.fields["state"] == OPEN or run.fields["last"] not in old_by_number:
            break
        parts += yield from _plan_run_removal(partition, run, old_by_number)
        if parts[-1][-1].kind is not RUN:
            break
    return parts


def _plan_run_removal(
    partition: Partition, run: Record, messages: Mapping[int, Record]
) -> Program[list[Sequence[Op]]]:
    """Return the removals of a run in parts that must not be divided, given its messages by number.

    The note of its latest request and the journal are removed first, then each message with its dedupe key.
    The run is removed with the last message, as the messages are found through it. Of a long journal only the
    beginning is returned, and then neither messages nor the run.
    """
    note = Range(DOCUMENT, (REQUESTS, *run.key), limit=1, bodies=False)
    journal, notes = yield from ask(
        Fetch(partition, (Range(EFFECT, run.key, limit=BATCH_MAX, bodies=False), note))
    )
    parts: list[list[Op]] = [
        [Delete(EFFECT, noted.key), Delete(EFFECT, make_pointer_key(*noted.key[1:]))] for noted in journal
    ]
    parts[:0] = ([Delete(DOCUMENT, noted.key)] for noted in notes)
    if len(journal) == BATCH_MAX:
        return [*parts]
    for seq in range(run.fields["first"], run.fields["last"] + 1):
        if seq in messages:
            parts.append([Delete(INBOX, (seq,))])
            if messages[seq].fields["dedupe"]:
                parts[-1].append(Delete(DEDUPE, (messages[seq].fields["dedupe"],)))
    if not parts or parts[-1][0].kind is not INBOX:
        parts.append([])
    parts[-1].append(Delete(RUN, run.key, run.version))
    return [*parts]
