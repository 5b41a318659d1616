"""Waiting in nodes: questions with a deadline, sleep, and waits for signals.

    async def approve(state):
        decision = ask({"question": "Pay?"}, within=86400, default="no", remind=3600)
        await sleep(60)
        paid = await wait_for("payment", within=7 * 86400, default=None)
        return {"decision": decision, "paid": paid}

Each of them is an interrupt of LangGraph: the run ends, and its thread waits without a process. A node runs
again from its start when its wait is over, as after ``interrupt``: code before a wait is executed again, so
side effects there belong into ``effect``. Times count from the end of the run that asks, by the database's
clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from langgraph.errors import GraphInterrupt
from langgraph.types import interrupt

from perdure.errors import NotAllowed, OverMaximum, QuestionExpired
from perdure.model.runs.messages import encode
from perdure.model.runs.waits import EXPIRED, WAITS_FOR, Kind, Wait, require_name, unmark
from perdure.runtime.nodes.effects import find_node_journal
from perdure.runtime.settings import parse_span

Span = float | timedelta
"""Seconds, or a ``timedelta``."""

DEFAULT_MAX = 64 * 1024
"""Maximum number of bytes of JSON of a default."""
_REMINDERS_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Rule for the questions of a graph that knows nothing of deadlines, as in ``Agent(questions=…)``.

    The first rule that fits a question applies. A rule without ``node`` and ``tool`` fits all questions.

    Args:
        node: Name of the node that asks, in the graph or in one of its subgraphs.
        tool: Name of the tool that asks, or for which an approval is asked.
        within: Time after which the default becomes the answer.
        default: The answer at the deadline: the value that ``interrupt`` returns. For LangChain's
            ``HumanInTheLoopMiddleware`` ``"approve"`` or ``"reject"`` decides all actions of the question.
        remind: Time of a reminder after the question, or several.

    Raises:
        ValueError: A time is out of range, or there is a deadline without a default, or neither a deadline
            nor a reminder.
        Unserialisable: The default is not plain JSON data.
    """

    node: str | None = None
    tool: str | None = None
    within: Span | None = None
    default: Any = ...
    remind: Span | Sequence[Span] | None = None

    def __post_init__(self) -> None:
        wait = wait_of("question", self.within, self.default, self.remind)
        if self.within is not None and not wait.default:
            raise ValueError(
                "a rule for questions with within=… needs a default: a node that does not know of deadlines "
                "cannot be told that its question has expired"
            )
        if self.within is None and not wait.remind:
            raise ValueError("a rule for questions needs within=… and a default, or remind=…")

    def fits(self, nodes: frozenset[str], tools: frozenset[str]) -> bool:
        """Return True if the rule fits a question that these nodes and tools ask."""
        return (self.node is None or self.node in nodes) and (self.tool is None or self.tool in tools)

    def wait(self, actions: int) -> Wait:
        """Return the wait of a question; ``actions`` is the number of actions that LangChain's middleware
        asks for, 0 for any other question."""
        default = self.default
        if actions and default in ("approve", "reject"):
            default = {"decisions": [{"type": default} for _ in range(actions)]}
        return wait_of("question", self.within, default, self.remind)


def ask(
    value: Any, *, within: Span | None = None, default: Any = ..., remind: Span | Sequence[Span] | None = None
) -> Any:
    """Ask a question and return its answer, as LangGraph's ``interrupt`` does, in an async node or any other.

    Args:
        value: The question.
        within: Time until the question expires, in seconds or as a ``timedelta``.
        default: The answer if it expires, plain JSON data; by default the node gets ``QuestionExpired``.
        remind: Time of a reminder after the question, or several: an event of the thread, and a message on
            the run's channel. Reminders that fall due while no process runs are sent as one.

    Raises:
        QuestionExpired: The deadline passed without an answer, and no default was given.
        NotAllowed: There is a deadline or a reminder, and the node is not run by a ``Runtime``.
        ValueError: A time is out of range, a reminder comes after the deadline, or a default has no deadline.
        Unserialisable: The default is not plain JSON data.
    """
    if within is None and remind is None:
        if default is not ...:
            raise ValueError("a default is the answer at the deadline; give within=…, too")
        return interrupt(value)
    return _ask(value, wait_of("question", within, default, remind))


async def sleep(seconds: Span) -> None:
    """Let the run end, and go on with the node after a time: seconds, or a ``timedelta``.

    A sleep takes no answer. A message for the thread replaces it, as it replaces a question.

    Raises:
        NotAllowed: The node is not run by a ``Runtime``.
        ValueError: The time is out of range.
    """
    sleep_sync(seconds)


def sleep_sync(seconds: Span) -> None:
    """Sleep like ``sleep``, in a node that is a plain function."""
    # Not None, which would not reach a graph without checkpoints.
    wait = wait_of("sleep", seconds, True, None)
    _ask({WAITS_FOR: "time", "seconds": _seconds(seconds)}, wait)


async def wait_for(name: str, *, within: Span | None = None, default: Any = ...) -> Any:
    """Let the run end, and go on with the node when ``Runtime.signal`` gives a signal of this name; return
    its value.

    A signal that came earlier, and that nothing waited for, counts.

    Args:
        name: Name of the signal.
        within: Time to wait at most.
        default: The value if it does not come in time; by default the node gets ``QuestionExpired``.

    Raises:
        QuestionExpired: The signal did not come in time, and there is no default.
        NotAllowed: The node is not run by a ``Runtime``.
        ValueError: The name is empty or too long, a time is out of range, or a default has no deadline.
        Unserialisable: The default is not plain JSON data.
    """
    return wait_for_sync(name, within=within, default=default)


def wait_for_sync(name: str, *, within: Span | None = None, default: Any = ...) -> Any:
    """Wait like ``wait_for``, in a node that is a plain function."""
    wait = wait_of("signal", within, default, None, name=require_name(name))
    return _ask({WAITS_FOR: "signal", "name": name}, wait)


def wait_of(
    kind: Kind,
    within: Span | None,
    default: Any,
    remind: Span | Sequence[Span] | None,
    name: str = "",
) -> Wait:
    """Return a wait, with times from the end of the run that asks; raise the same errors as ``ask``."""
    until = None if within is None else parse_span("within", _seconds(within))
    if until is None and default is not ...:
        raise ValueError("a default is the answer at the deadline; give within=…, too")
    if default is not ... and (size := len(encode(default, "default"))) > DEFAULT_MAX:
        raise OverMaximum(f"a default has {size} bytes of JSON, at most {DEFAULT_MAX} are taken")
    reminders = () if remind is None else remind if isinstance(remind, Sequence) else (remind,)
    times = tuple(sorted(parse_span("remind", _seconds(each)) for each in reminders))
    if len(times) > _REMINDERS_MAX:
        raise ValueError(f"remind has {len(times)} times; a question has at most {_REMINDERS_MAX} reminders")
    if until is not None and times and times[-1] >= until:
        raise ValueError(
            f"a reminder after {times[-1] / 1_000_000} s would come when the question has expired, after "
            f"{until / 1_000_000} s"
        )
    return Wait(kind, until, () if default is ... else (default,), times, name=name)


def _seconds(span: Any) -> float:
    if isinstance(span, timedelta):
        return span.total_seconds()
    if isinstance(span, bool) or not isinstance(span, int | float):
        raise ValueError(f"a time is a number of seconds or a timedelta, not {span!r:.100}")
    return span


def _ask(value: Any, wait: Wait) -> Any:
    journal = find_node_journal()
    if journal is None:
        raise NotAllowed(
            "a question with a deadline, a sleep and a wait for a signal need a run of a Runtime, whose "
            "workers look after the time; run the graph by one, or use LangGraph's interrupt"
        )
    try:
        answer = interrupt(value)
    except GraphInterrupt as asked:
        for one in asked.args[0]:
            journal.waits[one.id] = wait
        raise
    if not wait.takes_marks:
        return answer
    if answer == EXPIRED:
        raise QuestionExpired("nobody answered the question in time, and it has no default")
    return unmark(answer)
