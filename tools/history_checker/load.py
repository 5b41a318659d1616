"""The load on a deployment: users who send, steer, cancel, answer, read and repeat, chosen by a seed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .deployment import Server
from .facts import FAILED, SETTLED
from .http_calls import DEBOUNCE, Caller
from .recording import OK, UNKNOWN
from .served_agents import ASKS, FAILS

PAUSE_S = (0.05, 0.6)
AGAIN_S = 0.3
_ATTEMPTS = 20
_HELD_BACK = 0.85
"""How often users answer a question that they wait for instead of saying something else."""
_DELAYED = 0.06
_AGAIN = 0.15
"""How often a call is repeated although it was answered."""
_ITEMS = 3
_ITEM_CALLS = 120
"""How many calls an item gets before another takes its place, so that its orders can be followed."""


@dataclass
class Conversation:
    """A thread that is in use, with what its users know of it."""

    name: str
    has_one_user: bool = False
    runs: list[str] = field(default_factory=list[str])
    ended: set[str] = field(default_factory=set[str])
    questions: dict[str, str] = field(default_factory=dict[str, str])
    asks: bool = False
    sent: int = 0
    given: int = 0


@dataclass
class Load:
    """The users of one tenant, some at each of ``places``, and one at a further place. ``threads`` has every
    thread that was used."""

    caller: Caller
    servers: Sequence[Server]
    chance: random.Random
    places: int
    length: int
    webhook: str
    threads: list[Conversation] = field(default_factory=list[Conversation])
    items: list[str] = field(default_factory=list[str])
    _current: dict[int, Conversation] = field(default_factory=dict[int, Conversation])
    _calls: int = 0

    async def use(self, place: int, over: asyncio.Event) -> None:
        """Be a user of one place until it is over."""
        acts: list[tuple[Callable[[Conversation], Awaitable[None]], int]] = [
            (self._send, 30),
            (self._answer, 18),
            (self._read, 12),
            (self._read_run, 12),
            (self._read_history, 3),
            (self._list_threads, 2),
            (self._join, 4),
            (self._prune, 2),
            (self._cancel, 3),
            (self._retry, 6),
            (self._update, 3),
            (self._start_empty, 4),
            (self._use_item, 25),
        ]
        while not over.is_set():
            (act,) = self.chance.choices([act for act, _ in acts], [weight for _, weight in acts])
            await act(self._conversation(place))
            await asyncio.sleep(self.chance.uniform(*PAUSE_S))

    async def delete_over_and_over(self, over: asyncio.Event) -> None:
        """Use a thread, remove it, and use it again under the same name."""
        thread = Conversation("removed")
        while not over.is_set():
            for _ in range(self.chance.randrange(1, 5)):
                thread.asks = False
                await self._send(thread)
                await asyncio.sleep(self.chance.uniform(*PAUSE_S))
            for _ in range(_ATTEMPTS):
                if await self.caller.delete(self._server(), thread.name) != UNKNOWN:
                    break
                await asyncio.sleep(AGAIN_S)
            for _ in range(3):
                await self.caller.read(self._server(), thread.name)
                await asyncio.sleep(self.chance.uniform(*PAUSE_S))

    def _conversation(self, place: int) -> Conversation:
        current = self._current.get(place)
        if current is None or current.sent >= self.length:
            name = f"place-{place}.{len(self.threads)}"
            current = self._current[place] = Conversation(name, has_one_user=place == self.places)
            self.threads.append(current)
        return current

    def _server(self) -> Server:
        return self.chance.choice(self.servers)

    async def _send(self, thread: Conversation) -> None:
        if thread.asks and self.chance.random() < _HELD_BACK:
            await self._answer(thread)
            return
        strategy = self.chance.choices(
            (None, "steer", "coalesce", DEBOUNCE, "interrupt", "rollback"), (14, 6, 3, 3, 1, 1)
        )[0]
        if strategy == "coalesce":
            async with asyncio.TaskGroup() as group:
                for _ in range(self.chance.randrange(2, 5)):
                    group.create_task(self._send_one(thread, strategy))
            return
        for _ in range(self.chance.randrange(2, 5) if strategy == DEBOUNCE else 1):
            await self._send_one(thread, strategy)

    async def _send_one(self, thread: Conversation, strategy: str | None) -> None:
        kind = self.chance.choices(("", FAILS, ASKS, ASKS * 2), (18, 3, 4, 4))[0]
        thread.sent += 1
        thread.asks = kind.startswith(ASKS)
        element = f"{self.caller.tenant}/{thread.name}/{thread.sent}{kind}"
        body: dict[str, object] = {"input": {"log": [f"m:{element}"]}}
        wants_reply = strategy is None and self.chance.random() < 0.3
        is_delayed = strategy is None and not thread.has_one_user and self.chance.random() < _DELAYED
        given = {
            "element": element,
            "fails": kind == FAILS,
            "wants_reply": wants_reply,
            "is_delayed": is_delayed,
        }
        if is_delayed:
            body["after_seconds"] = 1
        if wants_reply:
            body["webhook"] = f"{self.webhook}/{self.caller.tenant}/{thread.name}"
        await self._start(thread, "accept", body, element, strategy, given)

    async def _answer(self, thread: Conversation) -> None:
        # An answer without a name is for whatever is asked when it arrives: nothing may be under way then.
        if thread.has_one_user and not await self._has_settled(thread):
            return
        await self._read(thread)
        if not thread.questions:
            return
        question, interrupt_id = self.chance.choice(sorted(thread.questions.items()))
        senders = 1 if thread.has_one_user else self.chance.choice((1, 1, 1, 2))
        async with asyncio.TaskGroup() as group:
            for _ in range(senders):
                group.create_task(self._answer_with(thread, question, interrupt_id))

    async def _has_settled(self, thread: Conversation) -> bool:
        """Return True if every run of a thread has been seen to have ended."""
        for run in thread.runs:
            if run not in thread.ended:
                if await self.caller.read_run(self._server(), thread.name, run) not in SETTLED:
                    return False
                thread.ended.add(run)
        return True

    async def answer_all(self, thread: Conversation) -> bool:
        """Answer every question of a thread that is at rest; false if it has none."""
        await self._read(thread)
        questions = sorted(thread.questions.items())
        for question, interrupt_id in questions:
            await self._answer_with(thread, question, interrupt_id)
        return bool(questions)

    async def _answer_with(self, thread: Conversation, question: str, interrupt_id: str) -> None:
        thread.given += 1
        value = f"{question}#{thread.given}"
        given = {"element": value, "question": question, "interrupt": interrupt_id}
        # Nobody else can have answered the only question of a thread with one user: it needs no name.
        resume = value if thread.has_one_user else {interrupt_id: value}
        body: dict[str, object] = {"command": {"resume": resume}}
        if await self._start(thread, "answer", body, value, None, given) == OK:
            thread.questions.pop(question, None)
            thread.asks = False

    async def _start_empty(self, thread: Conversation) -> None:
        """Start a run without an input: it goes on where the thread is, and asks again what was asked."""
        thread.given += 1
        await self._start(thread, "empty", {"input": None}, f"empty {thread.given}", None, {})

    async def _start(
        self,
        thread: Conversation,
        do: str,
        body: Mapping[str, object],
        key: str,
        strategy: str | None,
        given: Mapping[str, object],
    ) -> str:
        """Start a run, repeating the call until its outcome is known, and now and then once more."""
        outcome = UNKNOWN
        for _ in range(_ATTEMPTS):
            outcome, run = await self.caller.start(
                self._server(), thread.name, do, body, key=key, strategy=strategy, **given
            )
            if outcome == OK:
                thread.runs.append(run)
            if outcome != UNKNOWN and self.chance.random() > _AGAIN:
                break
            await asyncio.sleep(AGAIN_S)
        return outcome

    async def _read(self, thread: Conversation) -> None:
        found = await self.caller.read(self._server(), thread.name)
        thread.questions = dict(found.get("questions", {}))

    async def _read_run(self, thread: Conversation) -> None:
        if thread.runs:
            await self.caller.read_run(self._server(), thread.name, self.chance.choice(thread.runs[-6:]))

    async def _read_history(self, thread: Conversation) -> None:
        await self.caller.read_history(self._server(), thread.name)

    async def _list_threads(self, thread: Conversation) -> None:
        await self.caller.list_threads(self._server())

    async def _join(self, thread: Conversation) -> None:
        if thread.runs:
            await self.caller.join(self._server(), thread.name, thread.runs[-1])

    async def _prune(self, thread: Conversation) -> None:
        await self.caller.prune(self._server(), thread.name)

    async def _cancel(self, thread: Conversation) -> None:
        if thread.runs:
            action = self.chance.choice(("interrupt", "rollback"))
            await self.caller.cancel(self._server(), thread.name, thread.runs[-1], action)

    async def _retry(self, thread: Conversation) -> None:
        """Run the latest run again if it has failed, before anything else is sent."""
        if not thread.has_one_user or not thread.runs or not await self._has_settled(thread):
            return
        failed = thread.runs[-1]
        if await self.caller.read_run(self._server(), thread.name, failed) != FAILED:
            return
        for _ in range(_ATTEMPTS):
            outcome, run = await self.caller.retry(self._server(), thread.name, failed)
            if outcome == OK:
                thread.runs.append(run)
            if outcome != UNKNOWN and self.chance.random() > _AGAIN:
                break
            await asyncio.sleep(AGAIN_S)

    async def _update(self, thread: Conversation) -> None:
        thread.sent += 1
        element = f"{self.caller.tenant}/{thread.name}/{thread.sent}"
        await self.caller.update(self._server(), thread.name, element)

    async def _use_item(self, thread: Conversation) -> None:
        self._calls += 1
        item = item_name(self._calls // (_ITEM_CALLS * _ITEMS), self.chance.randrange(_ITEMS))
        how = self.chance.random()
        if how < 0.5:
            await self.caller.get(self._server(), item)
        elif how < 0.92:
            await self.caller.put(self._server(), item, f"{self.caller.tenant}/{self._calls}")
        else:
            await self.caller.remove(self._server(), item)


def item_name(generation: int, number: int) -> str:
    return f"item-{generation}-{number}"
