"""Replies of an agent with memory beside those of the same agent without: `python -m bench.replies`.

The ways take turns in one process, each on a database of its own. One message is sent at a time, and the work
that follows a reply (extraction, summaries) has ended before the next one is sent, so no way pays for
another's. A reply takes from the accepted message to the end of its run; the processor time is that of the
process meanwhile, which a busy machine changes less.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from bench import servers
from bench.corpus import text
from bench.figures import median, median_ratio, percentile
from bench.tables import Row, number, table, times
from perdure.conversation import Conversation, Limit
from perdure.memory import ExtractedFact, ExtractionRequest, Memory, MemoryPolicy
from perdure.runtime import Agent, Runtime, Settings
from perdure.runtime.agent_memory.memory_turns import lane_of

AIM = 1.05
OFF, MEMORY, WHOLE = "without memory", "with memory", "with memory and windows"
USER = "ada"
KNOWN = 200
"""Facts that are known of the user before."""
MESSAGE_BYTES = 200
TURNS = 20
"""Messages of a thread; the first one of each recalls what is known."""
DIMS = 64
_CONFIG: Any = {"configurable": {"langgraph_auth_user": {"identity": USER}}}


def embed(texts: Sequence[str]) -> list[list[float]]:
    return [[float((hash(word) >> n) & 15) for n in range(DIMS)] for word in texts]


def note(request: ExtractionRequest) -> list[ExtractedFact]:
    return [ExtractedFact(line[:60]) for line in request.messages.splitlines()[:1]]


def sum_up(summary: str, messages: Sequence[BaseMessage]) -> str:
    return f"{len(messages)} more messages"


def policies() -> dict[str, dict[str, Any]]:
    memory = MemoryPolicy(extract=note, summarize=sum_up, debounce=0.0)
    window = Conversation(limit=Limit(1_500, summary=200), summarize=sum_up)
    return {OFF: {}, MEMORY: {"memory": memory}, WHOLE: {"memory": memory, "conversation": window}}


def graph(model_s: float) -> Any:
    async def answer(state: MessagesState) -> dict[str, Any]:
        if model_s:
            await asyncio.sleep(model_s)
        return {"messages": [AIMessage(text(str(len(state["messages"])), MESSAGE_BYTES))]}

    return StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()


@dataclass
class Way:
    """A runtime, and the seconds of its replies, in pairs with those of the others."""

    app: Runtime
    remembers: bool
    first: list[float] = field(default_factory=list)
    """Of each thread, with the recall."""
    later: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    """Of all replies."""

    async def send(self, number: int) -> None:
        thread, turn = divmod(number, TURNS)
        started, before = time.perf_counter(), time.process_time()
        ticket = await self.app.accept(str(thread), text(f"said {number}", MESSAGE_BYTES), config=_CONFIG)
        run = await self.app.wait(ticket)
        took = time.perf_counter() - started
        self.processor.append(time.process_time() - before)
        if run.state != "done":
            raise RuntimeError(f"a run came to {run.state}: {run.note}")
        (self.later if turn else self.first).append(took)

    async def rest(self, replies: int) -> None:
        """Return when what follows the replies is done."""
        await self.app._worker.runner.conversations.wait_for_summaries()
        while self.remembers:
            turns = await self.app.messages(lane_of(USER))
            await asyncio.sleep(0.02)
            if len(turns) >= replies and all(turn.is_over for turn in turns):
                return


@asynccontextmanager
async def open_runtime(url: str, agent: Agent) -> AsyncIterator[Runtime]:
    async with (
        perdure.connect(url, migrate=True) as db,
        Runtime(
            db, agent, settings=Settings(), observers=(), store_index={"dims": DIMS, "embed": embed}
        ) as app,
    ):
        yield app


async def measure(url_of: Callable[[int], str], model_s: float, threads: int) -> dict[str, Way]:
    async with AsyncExitStack() as stack:
        ways: dict[str, Way] = {}
        for place, (name, policy) in enumerate(policies().items()):
            app = await stack.enter_async_context(
                open_runtime(url_of(place), Agent(graph(model_s), **policy))
            )
            memory = Memory(app.store(), USER)
            for fact in range(KNOWN):
                await memory.aremember(f"Fact {fact} that is known.")
            ways[name] = Way(app, "memory" in policy)
        order = list(ways)
        for number_of in range(threads * TURNS):
            turn = number_of % len(order)
            for name in order[turn:] + order[:turn]:
                await ways[name].send(number_of)
                await ways[name].rest(number_of + 1)
        return ways


def page(ways: dict[str, Way]) -> str:
    rows: list[Row] = []
    for name, way in ways.items():
        other = ways[OFF]
        for what, mine, base in (
            ("first of a thread", way.first, other.first),
            ("later ones", way.later, other.later),
            ("all", way.first + way.later, other.first + other.later),
            ("processor time", way.processor, other.processor),
        ):
            p50 = [1e3 * median(mine), 1e3 * percentile(mine, 0.95)]
            ratio = median(mine) / median(base)
            rows.append([f"{name}, {what}", *map(number, p50), times(ratio), times(median_ratio(base, mine))])
    return table(["replies", "p50, ms", "p95, ms", "p50 of the one without", "median of pairs"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=20, help=f"threads of {TURNS} messages each way")
    parser.add_argument("--model-ms", type=float, default=0.0, help="time that the model takes")
    parser.add_argument("--postgres", action="store_true", help="on a PostgreSQL server in place of files")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="perdure-replies-") as folder, ExitStack() as stack:
        server = stack.enter_context(servers.postgres()) if given.postgres else None

        def url_of(place: int) -> str:
            if server is not None:
                return server.empty(f"replies-{place}")
            return f"sqlite:///{Path(folder) / f'{place}.db'}"

        ways = asyncio.run(measure(url_of, given.model_ms / 1e3, given.threads))
    print(
        f"{given.threads * TURNS} replies each way, a model that takes {given.model_ms:g} ms. For the p50 of"
    )
    print(f"all at most {AIM} × is aimed at.\n\n{page(ways)}")


if __name__ == "__main__":
    main()
