"""Orders of the messages of a thread, inferred from what was read, as for a list that is only appended to.

The state that was read last has the order. Every other read shows a beginning of it, and after that at most
what a run had stored that was taken back since. The guarantees are named as on the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from .facts import (
    DELETE,
    FAILED,
    HISTORY,
    JOIN,
    MESSAGE,
    REPLY,
    STEP,
    SUCCESS,
    ThreadFacts,
    read_threads,
    run_of_step,
)
from .guarantees import Guarantee
from .orders import common_prefix, first_difference, is_prefix, order_breaks, real_time_breaks
from .recording import Call, Violation


def check_threads(calls: Iterable[Call]) -> list[Violation]:
    """Return what is wrong with the threads of a record."""
    found: list[Violation] = []
    for thread in read_threads(calls):
        rules = _DELETED if thread.is_deleted else _LASTING
        for guarantee, rule in rules:
            found += [Violation(guarantee, "/".join(thread.name), what) for what in rule(thread)]
    return found


def _foreign(thread: ThreadFacts) -> Iterator[str]:
    """Nothing is shown that was sent to another thread, or to none."""
    for seen in thread.observations:
        strange = [
            entry
            for entry in seen.entries
            if entry.startswith(MESSAGE)
            and (entry not in thread.additions or thread.additions[entry].began > seen.call.ended)
        ]
        if strange:
            yield f"{seen.call.id} shows {strange[:3]}, which nobody had sent there"


def _find_refused_entries(thread: ThreadFacts) -> Iterator[str]:
    """What was refused is in no state."""
    refused = {entry for entry, sent in thread.additions.items() if sent.is_refused}
    for seen in thread.observations:
        if shown := refused.intersection(seen.entries):
            yield f"{seen.call.id} shows {sorted(shown)[:3]}, which was refused"
            return


def _find_losses(thread: ThreadFacts) -> Iterator[str]:
    """What a successful run or an acknowledged update added is in the last state."""
    if not thread.observations:
        return
    for entry, sent in thread.additions.items():
        done = [run for run in sent.runs if thread.has_ended(run, SUCCESS)]
        is_stored = bool(done) or any(call.is_ok and call.do == "update" for call in sent.calls)
        if is_stored and entry not in thread.final_set:
            yield f"{entry!r} was acknowledged, its run {done} succeeded, and the last state lacks it"


def _find_left_out(thread: ThreadFacts) -> Iterator[str]:
    """Who waits for the end of a successful run is told what it was given."""
    for join in thread.of(JOIN):
        run = join.given["run"]
        if not join.is_ok or not thread.has_ended(run, SUCCESS):
            continue
        for entry, sent in thread.additions.items():
            if run in sent.runs and entry not in join.answer["entries"]:
                yield f"{join.id} shows what the run of {entry!r} left, without it"


def _several(thread: ThreadFacts) -> Iterator[str]:
    """No state has a message twice."""
    for seen in thread.observations:
        if twice := [e for e, n in Counter(seen.entries).items() if n > 1 and e.startswith(MESSAGE)]:
            yield f"{seen.call.id} shows {twice[:3]} more than once"
            return


def _find_repeated_steps(thread: ThreadFacts) -> Iterator[str]:
    """No state has a step of a run twice."""
    for seen in thread.observations:
        if twice := [e for e, n in Counter(seen.entries).items() if n > 1 and e.startswith(STEP)]:
            yield f"{seen.call.id} shows {twice[:3]} more than once"
            return


def _one_run(thread: ThreadFacts) -> Iterator[str]:
    """The same message has the same run, however often it is sent, or the run that it has become part of."""
    for entry, sent in thread.additions.items():
        if len({thread.whole_run(run) for run in sent.runs} - {None}) > 1:
            yield f"{entry!r} was acknowledged with the runs {sorted(sent.runs)}"


def _in_order(thread: ThreadFacts) -> Iterator[str]:
    """What was acknowledged before something else was sent stands before it."""
    place = {entry: n for n, entry in enumerate(thread.final)}
    yield from order_breaks(
        (sent.began, sent.acknowledged_at, place[entry], entry)
        for entry, sent in thread.additions.items()
        if entry in place and not any(call.given.get("is_delayed") for call in sent.calls)
    )


def _find_mixed_steps(thread: ThreadFacts) -> Iterator[str]:
    """The steps of a run stand together: no other run's is between them."""
    runs = [run_of_step(entry) for entry in thread.final if entry.startswith(STEP)]
    left = set[str]()
    for before, run in zip([None, *runs], runs, strict=False):
        if run != before and run in left:
            yield f"steps of the run {run} stand before and after those of {before}"
        if before is not None and run != before:
            left.add(before)


def _find_forks(thread: ThreadFacts) -> Iterator[str]:
    """Each read is a beginning of the last state, but for what was taken back since."""
    for seen in thread.observations:
        at = common_prefix(seen.entries, thread.final)
        rest = seen.entries[at:]
        if any(entry in thread.final_set for entry in rest):
            yield f"{seen.call.id} shows {first_difference(seen.entries, thread.final)}"
            continue
        lasting = [e for e in rest if e.startswith(STEP) and thread.has_ended(run_of_step(e), SUCCESS)]
        if lasting:
            yield f"{seen.call.id} shows {lasting[:2]} of a run that succeeded; the last state lacks it"


def _stale(thread: ThreadFacts) -> Iterator[str]:
    """A read shows whatever had been read, or was acknowledged as done, before it began."""
    place = {entry: n for n, entry in enumerate(thread.final)}
    writes: list[tuple[float, float, int]] = []
    for entry, sent in thread.additions.items():
        ends = [end for run in sent.runs if (end := thread.end_of(run)) is not None]
        done = [end.ended for end in ends if end.answer["status"] == SUCCESS]
        done += [call.ended for call in sent.calls if call.is_ok and call.do == "update"]
        if done and entry in place:
            writes.append((sent.began, min(done), place[entry] + 1))
    reads = [
        (seen.began, seen.call.ended, common_prefix(seen.entries, thread.final))
        for seen in thread.observations
        if seen.is_latest
    ]
    yield from real_time_breaks(writes, reads)


def _find_removed_steps(thread: ThreadFacts) -> Iterator[str]:
    """What a failed run of a server had stored stays."""
    for seen in thread.observations:
        gone = set(seen.entries) - thread.final_set
        failed = [
            entry
            for entry in sorted(gone)
            if entry.startswith(STEP) and thread.has_ended(run_of_step(entry), FAILED)
        ]
        if failed:
            yield f"{seen.call.id} shows {failed[:2]} of a run that failed; the last state lacks it"
            return


def _find_broken_chains(thread: ThreadFacts) -> Iterator[str]:
    """The states of a history are a chain, each a beginning of the next."""
    for call in thread.calls:
        if call.do != HISTORY or not call.is_ok or not call.answer["states"]:
            continue
        states = {state["id"]: state for state in call.answer["states"]}
        at = call.answer["states"][0]
        while (parent := states.get(at["parent"])) is not None:
            if not is_prefix(parent["entries"], at["entries"]):
                ends = (parent["entries"][-2:], at["entries"][-2:])
                yield f"{call.id} shows a state that ends in {ends[0]}, and one of {ends[1]} after it"
            at = parent


def _find_reappearances(thread: ThreadFacts) -> Iterator[str]:
    """After a deletion nothing of before it is shown; a notice that was on its way may arrive."""
    for deletion in thread.calls:
        if deletion.do != DELETE or not deletion.is_ok:
            continue
        before = {
            entry
            for entry, sent in thread.additions.items()
            if all(call.ended < deletion.began or call.is_refused for call in sent.calls)
        }
        for seen in thread.observations:
            if seen.call.do == REPLY or seen.began < deletion.ended:
                continue
            if shown := before.intersection(seen.entries):
                yield f"{seen.call.id} shows {sorted(shown)[:3]}, sent before {deletion.id} removed them"


_ALWAYS = (
    (Guarantee.ISOLATED, _foreign),
    (Guarantee.NOTHING_LOST, _find_refused_entries),
    (Guarantee.IN_ORDER, _several),
    (Guarantee.NO_REPEAT, _find_repeated_steps),
)
_DELETED = (*_ALWAYS, (Guarantee.DELETED, _find_reappearances))
_LASTING = (
    *_ALWAYS,
    (Guarantee.NOTHING_LOST, _find_losses),
    (Guarantee.NOTHING_LOST, _find_left_out),
    (Guarantee.ONE_MESSAGE, _one_run),
    (Guarantee.IN_ORDER, _in_order),
    (Guarantee.ONE_RUN, _find_mixed_steps),
    (Guarantee.NO_FORK, _find_forks),
    (Guarantee.NO_FORK, _find_broken_chains),
    (Guarantee.NOT_STALE, _stale),
    (Guarantee.NOT_BLOCKED, _find_removed_steps),
)
