"""A thread's queue over the memory driver, in short."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from perdure.engine.queue import outbox, runs
from perdure.engine.queue.claims import Claim, RememberedInbox
from perdure.engine.queue.inbox import Accept, Accepted
from perdure.engine.queue.outbox import DeliveryOutcome, Sending, Take
from perdure.engine.queue.questions import Asked
from perdure.engine.queue.runs import Ending, HeldRun
from perdure.model.ops import Fetch, Get, Range
from perdure.model.program import Effect, Program, ask
from perdure.model.records import (
    LANE,
    RUN,
    Kind,
    Partition,
    Record,
)
from perdure.model.runs.messages import DONE, Message, Mode, Run, dedupe_digest
from perdure.model.runs.queue import IN, Debounce, Lane
from perdure.storage.memory import MemoryDriver
from perdure.storage.port import Driver, run
from perdure.testing.faults import FaultyDriver

HERE = Partition("acme", "ada")
BUDGET = 1000
TTL = 30


class Queue:
    """A thread's queue; time goes on when the test says so. ``fresh`` numbers never come back."""

    def __init__(self) -> None:
        self.memory = MemoryDriver()
        self.now = 1000
        self._fresh = 0
        self._count = 0

    @property
    def fresh(self) -> int:
        self._fresh += 1 << 24
        return self._fresh

    def run(self, program: Program[Any], between: Callable[[Effect[Any]], None] | None = None) -> Any:
        """Drive a program; ``between`` is called before each of its effects, as another process would act."""
        if between is None:
            return run(program, self.memory)
        return run(program, FaultyDriver(self.memory, on_effect=lambda _, effect: between(effect)))

    def accept(
        self,
        said: Any = "hello",
        mode: Mode = "coalesce",
        *,
        key: str = "",
        known: Lane | None = None,
        most: int = 100,
        between: Callable[[Effect[Any]], None] | None = None,
        **options: Any,
    ) -> Accepted:
        self._count += 1
        message = Message(
            f"id{self._count}",
            said,
            options.pop("graph", "g"),
            options.pop("channel", ""),
            mode,
            options.pop("options", {}),
            dedupe=dedupe_digest(key) if key else b"",
        )
        debounce = Debounce(options.pop("quiet", 0), options.pop("longest", 0))
        strategy = options.pop("strategy", "enqueue")
        assert not options
        accept = Accept(
            HERE, message, self.now, debounce, strategy, most, self.fresh, read_asked=self.read_asked
        )
        return self.run(accept.store(known), between)

    def read_asked(self, checkpoint_id: str | None = None, /) -> Program[Asked]:
        """Return what the run that waits has noted: these threads have no checkpoints."""
        (found,) = yield from ask(Fetch(HERE, (Get(RUN, (self.lane().waiting or "",)),)))
        noted = (run.note.get("interrupts", ()) for run in map(Run.read, found))
        return Asked(None, tuple(each["id"] for interrupts in noted for each in interrupts))

    def claim(
        self,
        owner: str = "w",
        *,
        known: RememberedInbox | None = None,
        graphs: Sequence[str] = ("g",),
        most: int = 100,
        version: str | None = None,
        between: Callable[[Effect[Any]], None] | None = None,
    ) -> HeldRun | None:
        versions = {} if version is None else {"g": version, "other": "of another graph"}
        claim = Claim(HERE, owner, graphs, self.now, TTL, most, self.fresh, versions)
        return self.run(claim.take(known), between)

    def held(self, owner: str = "w", **options: Any) -> HeldRun:
        held = self.claim(owner, **options)
        assert held is not None
        return held

    def finish(self, held: HeldRun, state: str = DONE, replies: Sequence[Any] = (), **note: Any) -> Lane:
        program = runs.finish(held, Ending(state, note, replies), self.now, self.fresh, BUDGET)
        lane, _ = self.run(program)
        return lane

    def take(self, owner: str = "s", channels: Sequence[str] = ("post",), most: int = 20) -> Sending | None:
        return self.run(Take(HERE, owner, channels, self.now, TTL, most).take())

    def settle(self, sending: Sending, settled: DeliveryOutcome) -> Sending | None:
        return self.run(outbox.record_outcome(sending, settled, ("post",), self.now, TTL))

    def rows(self, kind: Kind) -> tuple[Record, ...]:
        return self.memory.perform(Fetch(HERE, (Range(kind),)))[0]

    def lane(self, name: str = IN) -> Lane:
        return Lane.read(name, self.memory.perform(Fetch(HERE, (Get(LANE, (name,)),)))[0])

    def replied(self, *texts: str) -> None:
        """With replies that are ready."""
        self.accept(channel="post")
        self.finish(self.held(), replies=texts)


def always(driver: Driver) -> Callable[[Driver], Driver]:
    """Open this driver's database, whichever a URL names."""
    return lambda own: driver
