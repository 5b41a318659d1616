"""One thread under any order of what moves its head, against a list of what it has to say.

Messages that are answered, fail, are stopped, ask and are answered; runs and edits from old checkpoints;
prunes, tags, removals of runs and copies in between, and prunes and tags before any effect of a run. What was
accepted and not taken back is in the head's state, in order, and nothing else is.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from perdure.errors import CannotTakeBack, NotFound
from perdure.model.program import Effect
from perdure.runtime import Runtime, Ticket
from perdure.runtime.options import Options
from tests.runtime.graphs import Storage, eventually, go, settings, stored, working

FULL = os.environ.get("PERDURE_CHAOS") == "full"
STEPS = 40 if FULL else 18
SEEDS = {"memory": range(300 if FULL else 6), "sqlite": range(1000, 1060 if FULL else 1001)}
THREAD: Any = {"configurable": {"thread_id": "ada"}}


class Obeying:
    """An agent that does what the last word it was given says: ``boom``, ``hold``, ``ask``, or answer. It has
    a subgraph, which keeps a state of its own if it is ``stateful``."""

    def __init__(self, *, stateful: bool = False) -> None:
        self.gate = asyncio.Event()
        self.held = 0
        inner = StateGraph(MessagesState)
        inner.add_node("think", self._think)
        inner.add_edge(START, "think")
        builder = StateGraph(MessagesState)
        builder.add_node("hear", lambda state: {})
        builder.add_node("within", inner.compile(checkpointer=stateful or None))
        builder.add_node("talk", self._talk)
        builder.add_edge(START, "hear")
        builder.add_edge("hear", "within")
        builder.add_edge("within", "talk")
        self.graph = builder.compile()

    @staticmethod
    def _think(state: MessagesState) -> dict[str, Any]:
        return {}

    async def _talk(self, state: MessagesState) -> dict[str, Any]:
        text = state["messages"][-1].text
        answer = await self._does(text)
        return {"messages": [AIMessage(f"echo: {text}{answer}")]}

    async def _does(self, text: str) -> str:
        word = text.split()[0]
        if word == "boom":
            raise RuntimeError("boom")
        if word == "hold":
            self.held += 1
            try:
                await self.gate.wait()
            finally:
                self.held -= 1
        if word == "ask":
            answer = str(interrupt("really?"))
            await self._does(answer)
            return f" {answer}"
        return ""


@dataclass
class Entry:
    """A head: which run moved it there, what the thread said then, and what an edit builds on: the outputs
    of a step that is not done are shown, and are not part of the next checkpoint."""

    run_id: str | None
    texts: list[str]
    base: list[str]


class Machine:
    """The thread, what it has to say, and how its head came to be where it is."""

    def __init__(self, storage: Storage, seed: int) -> None:
        self.random = random.Random(seed)
        self.database, self.line = storage.open()
        self.other = storage.database()
        # In LangGraph a subgraph that keeps its state brings that of another branch where a thread goes back.
        self.goes_back = seed % 4 != 3
        self.agent = Obeying(stateful=not self.goes_back)
        self.app = self.agent.graph.copy(update={"checkpointer": self.other.checkpointer()})
        self.heads = [Entry(None, [], [])]
        self.waits = False
        self.besides: set[asyncio.Future[None]] = set()
        self.is_tagged = False
        self.number = 0
        self.copies = 0
        self.log: list[str] = []
        self.runtime: Runtime

    @property
    def texts(self) -> list[str]:
        return self.heads[-1].texts

    def moved(self, run_id: str | None, texts: list[str]) -> None:
        self.heads.append(Entry(run_id, texts, texts))

    def text(self, word: str) -> str:
        self.number += 1
        self.log.append(f"{word} {self.number}")
        return self.log[-1]

    # What is read

    async def state(self, config: Any = THREAD) -> list[str]:
        found = await self.app.aget_state(config)
        return [message.text for message in found.values.get("messages", ())]

    async def left(self) -> Entry:
        """The head that a tag has kept, which may be in the middle of a run."""
        texts = await self.state()
        head = await self.app.aget_state(THREAD)
        return Entry(None, texts, await self.state(head.config) if texts else [])

    async def old(self) -> Any:
        """A checkpoint of the thread, and what it says, if the thread goes back to such."""
        found = [s async for s in self.app.aget_state_history(THREAD) if s.values.get("messages")]
        if not found or not self.goes_back:
            return None
        chosen = self.random.choice(found)
        return chosen.config, [message.text for message in chosen.values["messages"]]

    async def check(self) -> None:
        said = await self.state()
        if len(self.heads) == 1 and said and self.is_tagged:
            # Nothing was there before what was taken back: a tag in it, which may be gone by now, kept all
            # that is left of the thread.
            self.heads = [await self.left()]
        self.is_tagged = bool(self.other.tags("ada"))
        assert said == self.texts
        assert self.other.fsck("ada") == []

    # What goes on beside a run

    async def beside(self, effect: Effect[Any]) -> None:
        if self.random.random() >= 0.15:
            return
        done = asyncio.get_running_loop().create_future()
        self.besides.add(done)
        try:
            saver = self.other.checkpointer()
            act = self.random.choice(["latest", "last", "tag", "untag"])
            if act == "latest":
                await saver.aprune(["ada"])
            elif act == "last":
                await saver.aprune(["ada"], keep_last=self.random.randint(1, 4))
            else:
                self.tag(act)
        finally:
            self.besides.discard(done)
            done.set_result(None)

    def tag(self, act: str) -> None:
        name = f"tag {self.random.randint(0, 1)}"
        try:
            if act == "tag":
                self.other.tag("ada", name)
                self.is_tagged = True
            else:
                self.other.untag("ada", name)
        except NotFound:
            return

    async def disturbed(self, work: Callable[[], Awaitable[Any]]) -> Any:
        self.line.before = self.beside if self.random.random() < 0.6 else None
        try:
            return await work()
        finally:
            self.line.before = None
            await asyncio.gather(*self.besides)

    # What is done

    async def submit(self, text: str, **options: Any) -> Ticket:
        given = {"messages": [{"role": "user", "content": text}]}
        return await self.runtime.submit("ada", given, options=Options(**options))

    async def ended(self, ticket: Ticket) -> str:
        return (await self.runtime.wait(ticket, 30)).state

    async def say(self) -> None:
        text = self.text("say")
        ticket = await self.submit(text)
        assert await self.ended(ticket) == "done"
        self.moved(ticket.id, [*self.texts, text, f"echo: {text}"])
        self.waits = False

    async def fail(self) -> None:
        text, keep = self.text("boom"), self.random.random() < 0.3
        ticket = await self.submit(text, on_failure="keep" if keep else "rollback")
        assert await self.ended(ticket) == "failed"
        if keep:
            self.moved(ticket.id, [*self.texts, text])
        self.waits = False

    async def stop(self) -> None:
        text = self.text("hold")
        await self._stopped(await self.submit(text), [*self.texts, text])
        self.waits = False

    async def _stopped(self, ticket: Ticket, kept: list[str]) -> None:
        """Stop a run that is held, one way or the other."""
        await eventually(lambda: self.agent.held)
        rollback = self.random.random() < 0.7
        if self.random.random() < 0.5:
            await self.other.checkpointer().aprune(["ada"])
        assert await self.runtime.cancel("ada", ticket.id, rollback=rollback)
        assert await self.ended(ticket) == ("rolled_back" if rollback else "interrupted")
        if not rollback and kept != self.texts:
            self.moved(ticket.id, kept)

    async def ask(self) -> None:
        text = self.text("ask")
        ticket = await self.submit(text)
        assert await self.ended(ticket) == "waiting"
        self.moved(ticket.id, [*self.texts, text])
        self.waits = True

    async def answer(self) -> None:
        if not self.waits:
            return
        self.waits = False
        word = self.random.choice(["yes", "yes", "boom", "hold"])
        ticket = await self.runtime.answer("ada", word)
        if word == "hold":
            await self._stopped(ticket, self.texts)
            return
        assert await self.ended(ticket) == ("failed" if word == "boom" else "done")
        if word == "yes":
            question = self.texts[-1]
            self.moved(ticket.id, [*self.texts, f"echo: {question} yes"])

    async def fork(self) -> None:
        found = await self.old()
        if found is None:
            return
        config, texts = found
        word = self.random.choice(["say", "boom", "hold"])
        text = self.text(word)
        ticket = await self.submit(text, checkpoint_id=config["configurable"]["checkpoint_id"])
        self.waits = False
        if word == "hold":
            await asyncio.wait(
                [
                    asyncio.create_task(eventually(lambda: self.agent.held)),
                    asyncio.create_task(self.ended(ticket)),
                ],
                return_when=asyncio.FIRST_COMPLETED,
            )
            if self.agent.held:
                await self._stopped(ticket, [*texts, text])
                return
        if await self.ended(ticket) == "done":
            self.moved(ticket.id, [*texts, text, f"echo: {text}"])
        elif word != "boom":
            # What it was to start from was pruned before its first step.
            run = await self.runtime.wait(ticket, 30)
            assert run.note["kind"] == "MissingStart", run.note

    async def edit(self) -> None:
        found = await self.old() if self.random.random() < 0.5 else (THREAD, self.heads[-1].base)
        if found is None:
            return
        config, texts = found
        text = self.text("edit")
        await self.app.aupdate_state(config, {"messages": [HumanMessage(text)]}, as_node="talk")
        self.moved(None, [*texts, text])
        self.waits = False

    async def prune(self) -> None:
        saver = self.other.checkpointer()
        if self.random.random() < 0.5:
            await saver.aprune(["ada"])
        else:
            await saver.aprune(["ada"], keep_last=self.random.randint(1, 5))

    async def empty(self) -> None:
        """Remove everything but what is tagged."""
        if self.random.random() < 0.7:
            return
        await self.other.checkpointer().aprune(["ada"], strategy="delete")
        left = await self.left()
        assert left.texts == [] or self.other.tags("ada")
        self.heads = [left]
        self.waits = False

    async def mark(self) -> None:
        self.tag(self.random.choice(["tag", "untag"]))

    async def remove(self) -> None:
        """Delete what a run stored: what it said goes only where nothing was built on it."""
        runs = [entry.run_id for entry in self.heads if entry.run_id is not None]
        if not runs:
            return
        run_id = self.random.choice([*runs, runs[-1]])
        kept = set(self.other.tags("ada").values())
        async for item in self.other.checkpointer().alist(THREAD, filter={"run_id": run_id}):
            if item.checkpoint["id"] in kept:
                # What the run wrote on the checkpoint before it stays with what is tagged.
                return
        before = list(self.texts)
        try:
            await self.other.checkpointer().adelete_for_runs([run_id])
        except CannotTakeBack:
            assert await self.state() == before
            return
        self.waits = False
        self.heads = [entry for entry in self.heads if entry.run_id != run_id]

    async def copy(self) -> None:
        self.copies += 1
        name = f"copy {self.copies}"
        await self.other.checkpointer().acopy_thread("ada", name)
        assert await self.state({"configurable": {"thread_id": name}}) == self.texts
        assert self.other.fsck(name) == []

    async def run(self) -> None:
        quick = settings(attempts=2, backoff=0.005, max_backoff=0.01, poll=0.05)
        async with working(self.database, self.agent.graph, settings=quick) as self.runtime:
            runs = [self.say, self.say, self.fail, self.stop, self.ask, self.answer, self.answer, self.fork]
            quiet = [self.edit, self.prune, self.empty, self.mark, self.remove, self.copy]
            for _ in range(STEPS):
                act = self.random.choice([*runs, *quiet])
                self.log.append(act.__name__)
                await (self.disturbed(act) if act in runs else act())
                self.log.append(f"{len(self.heads)}:{self.texts[-2:]}")
                await self.check()


@pytest.mark.parametrize(
    ("backend", "seed"), [(backend, seed) for backend, seeds in SEEDS.items() for seed in seeds]
)
def test_the_head_says_what_was_accepted_and_not_taken_back(backend: str, seed: int) -> None:
    with stored(backend) as storage:
        machine = Machine(storage, seed)
        try:
            go(machine.run())
        except BaseException as error:
            error.add_note(f"seed {seed}, steps: {machine.log}")
            raise
