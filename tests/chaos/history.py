"""Audit of a history: compares the stored state at the end with what was acknowledged.

The graph under test keeps a log: ``m:<text>`` for each message that it was given, ``s:<n>`` for each step
that it took. The expected log follows from the inbox and its runs, so it shows a message that was lost or
applied twice, a step that was committed twice, and a wrong order.
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

from langchain_core.runnables import RunnableLambda
from langgraph.graph import END, START, StateGraph
from langgraph.pregel import Pregel

from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.engine.queue import outbox, runs
from perdure.model.ops import Fetch, Get, Range
from perdure.model.program import ask
from perdure.model.records import CHECKPOINT, HEAD, INBOX, LANE, Partition
from perdure.model.runs.messages import DONE, OPEN, SENT, Message, Run
from perdure.model.runs.payloads import MESSAGE
from perdure.model.runs.queue import IN, OUT, Lane
from perdure.runtime import take_messages
from perdure.runtime.agents.agent import Agent

STEPS = 3
"""Number of steps in each run of the logging graph."""


class Log(TypedDict):
    log: Annotated[list[str], operator.add]


Pause = Callable[[int], Awaitable[None]]
"""Awaited within each step, with its number, in place of a model call."""


def logging_graph(pause: Pause, asking: Collection[int] = ()) -> Pregel[Any, Any, Any, Any]:
    """Return the graph under test. The steps in ``asking`` take the messages that came."""

    def step(number: int) -> RunnableLambda[Log, dict[str, list[str]]]:
        async def taken(state: Log) -> dict[str, list[str]]:
            came = await take_messages() if number in asking else {}
            await pause(number)
            return {"log": [*came.get("log", ()), f"s:{number}"]}

        return RunnableLambda(taken)

    builder = StateGraph(Log)
    names = [START, *(f"step{n}" for n in range(STEPS)), END]
    for n in range(STEPS):
        builder.add_node(names[n + 1], step(n))
    for before, after in itertools.pairwise(names):
        builder.add_edge(before, after)
    return builder.compile()


def logging_agent(pause: Pause, asking: Collection[int] = (), **options: Any) -> Agent:
    """Return the graph under test as an agent; the reply to a run is the length of the log then."""

    def to_input(messages: Sequence[Message]) -> dict[str, list[str]]:
        return {"log": [f"m:{message.payload[MESSAGE]['content']}" for message in messages]}

    def to_replies(values: Mapping[str, Any], messages: Sequence[Message]) -> list[Any]:
        return [{"content": str(len(values["log"]))}]

    return Agent(logging_graph(pause, asking), to_input=to_input, to_replies=to_replies, **options)


@dataclass
class Expected:
    """State known to the senders.

    Attributes:
        acknowledged: texts by thread, in the order of acknowledgement; each was sent after the one before was
            acknowledged.
        delivered: count of the deliveries under each key.
    """

    acknowledged: dict[str, list[str]] = field(default_factory=dict)
    delivered: Counter[str] = field(default_factory=Counter)


AuditLog = Callable[[Sequence[str], Mapping[int, str | None], Sequence[Run]], list[str]]
"""Compares a thread's log with its messages by number, ``None`` for a withdrawn one, and its runs, newest
first."""


def audit(
    database: SyncDatabase, expected: Expected, *, tenant: str = "", of_log: AuditLog | None = None
) -> list[str]:
    """Return everything that is wrong with the threads of a history at rest; empty if all guarantees hold."""
    wrong = foreign(database, expected, tenant=tenant)
    for thread, texts in expected.acknowledged.items():
        wrong += [
            f"{thread}: {what}"
            for what in _audit_thread(
                database, Partition(tenant, thread), texts, expected, of_log or _audit_log
            )
        ]
    return wrong


def _audit_thread(
    database: SyncDatabase, at: Partition, texts: Sequence[str], expected: Expected, of_log: AuditLog
) -> list[str]:
    wrong: list[str] = []
    lanes, outs, rows, heads, checkpoints = handle_of(database).run(
        ask(
            Fetch(
                at,
                (
                    Get(LANE, (IN,)),
                    Get(LANE, (OUT,)),
                    Range(INBOX),
                    Get(HEAD, ("",)),
                    Range(CHECKPOINT, ("",), bodies=False),
                ),
            )
        )
    )
    lane, out = Lane.read(IN, lanes), Lane.read(OUT, outs)
    messages = [Message.read(row) for row in rows]
    stored = Counter(message.payload[MESSAGE]["content"] for message in messages)
    wrong += [
        f"I1 {text!r} was acknowledged and is stored {stored[text]} times"
        for text in texts
        if stored[text] != 1
    ]
    if [m.seq for m in messages] != list(range(1, lane.last + 1)):
        wrong.append(f"I1 numbers of messages have a gap: {[m.seq for m in messages]} up to {lane.last}")
    if lane.pending or lane.due_at is not None or out.pending or out.due_at is not None:
        wrong.append(f"I11 stuck: inbox {lane}, outbox {out}")
    newest = list(handle_of(database).run(runs.read_latest(at, 10_000)))
    covered = [seq for run in reversed(newest) for seq in range(run.first, run.last + 1)]
    if covered != list(range(1, lane.bound + 1)):
        wrong.append(f"I2 runs cover {covered}, not 1 to {lane.bound} once each")
    unwanted = {message.id: message for message in messages if message.is_withdrawn}
    ended = [run for run in newest if run.id in unwanted]
    wrong += [f"I4 run {run.id} was withdrawn and is {run.state}" for run in ended if run.state == DONE]
    newest = [run for run in newest if run.id not in unwanted]
    wrong += [f"I4 run {run.id} is {run.state}" for run in newest if run.state != DONE]
    if sum(run.state == OPEN for run in newest) > 1:
        wrong.append("I4 more than one run is open")
    found = database.checkpointer(tenant=at.tenant).get_tuple({"configurable": {"thread_id": at.thread}})
    log: list[str] = [] if found is None else found.checkpoint["channel_values"].get("log", [])
    content = {message.seq: message.payload[MESSAGE]["content"] for message in messages}
    gone = {content[message.seq] for message in unwanted.values()}
    texts = [text for text in texts if text not in gone]
    wrong += of_log(log, content | dict.fromkeys((m.seq for m in unwanted.values()), None), newest)
    applied = [entry[2:] for entry in log if entry.startswith("m:")]
    if [text for text in applied if text in set(texts)] != list(texts):
        wrong.append(f"I3 acknowledged in the order {list(texts)}, applied as {applied}")
    wrong += _audit_chain(
        {c.key[1]: c.fields["parent_id"] for c in checkpoints},
        heads[0].fields["checkpoint_id"] if heads else None,
    )
    replies = handle_of(database).run(outbox.read_replies(at, 10_000))
    if sorted((r.run_id, r.ord) for r in replies) != sorted(
        (run.id, 0) for run in newest if run.state == DONE
    ):
        wrong.append(f"I9 {len(newest)} runs have the replies {[reply.id for reply in replies]}")
    wrong += [f"I10 reply {r.id} is {r.state}" for r in replies if r.state != SENT]
    wrong += [f"reply {r.id} never reached its channel" for r in replies if not expected.delivered[r.id]]
    return wrong


def foreign(database: SyncDatabase, expected: Expected, *, tenant: str = "") -> list[str]:
    """Return deliveries under a key that no reply has."""
    own = {
        reply.id
        for thread in expected.acknowledged
        for reply in handle_of(database).run(outbox.read_replies(Partition(tenant, thread), 10_000))
    }
    return [
        f"I9 something was delivered under the key {key!r}, of no reply"
        for key in expected.delivered
        if key not in own
    ]


def _audit_log(log: Sequence[str], texts: Mapping[int, str | None], newest: Sequence[Run]) -> list[str]:
    due: list[str] = []
    for run in reversed(newest):
        due += [f"m:{texts.get(seq, '?')}" for seq in range(run.first, run.last + 1)]
        due += [f"s:{n}" for n in range(STEPS)]
    return [] if log == due else [f"I3, I8 the log is {log}, and has to be {due}"]


def audit_steered_log(
    log: Sequence[str], texts: Mapping[int, str | None], newest: Sequence[Run]
) -> list[str]:
    """Compare the log of a thread whose runs may take messages up: each run's messages are in the order of
    their numbers, the first before its steps and none after the last one, none that was withdrawn, and each
    step is there once."""
    rest, wrong = list(log), list[str]()
    for run in reversed(newest):
        end = rest.index(f"s:{STEPS - 1}") + 1 if f"s:{STEPS - 1}" in rest else len(rest)
        its, rest = rest[:end], rest[end:]
        taken = [texts.get(seq, "?") for seq in range(run.first, run.last + 1)]
        due = [f"m:{text}" for text in taken if text is not None]
        steps = [entry for entry in its if entry.startswith("s:")]
        if [entry for entry in its if entry.startswith("m:")] != due or its[:1] != due[:1]:
            wrong.append(f"I3 run {run.first}-{run.last} has {its}, and has to have {due}")
        if steps != [f"s:{n}" for n in range(STEPS)]:
            wrong.append(f"I8 run {run.first}-{run.last} has the steps {steps}")
    return [*wrong, *([f"I3 {rest} belongs to no run"] if rest else [])]


def _audit_chain(parents: Mapping[str, str | None], head: str | None) -> list[str]:
    wrong: list[str] = []
    children = Counter(parent for parent in parents.values() if parent is not None)
    wrong += [f"I6 checkpoint {at} has {n} children: a fork" for at, n in children.items() if n > 1]
    wrong += [f"I6 checkpoint {at} is missing: a hole" for at in children if at not in parents]
    roots = [at for at, parent in parents.items() if parent is None]
    if len(roots) > 1:
        wrong.append(f"I6 {len(roots)} checkpoints have no parent")
    leaves = [at for at in parents if at not in children]
    if parents and leaves != [head]:
        wrong.append(f"I7 the head is {head}, the chain ends in {leaves}")
    return wrong
