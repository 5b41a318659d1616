"""What limits cost where they are not used: nothing."""

import asyncio
import threading
from collections import Counter
from typing import Any

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

import perdure
from perdure.database.base import handle_of
from perdure.limits import SharedLimit
from perdure.model.program import Effect
from perdure.runtime import Runtime, Settings
from perdure.runtime.limits.limiter import Limiter
from perdure.storage.port import WrappingDriver


class State(TypedDict, total=False):
    said: str


class CountingDriver(WrappingDriver):
    """A driver that counts its requests, but for the polls of workers, whose number depends on the time."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.requests: Counter[str] = Counter()

    def perform(self, effect: Effect[Any]) -> Any:
        self.requests[type(effect).__name__] += 1
        return self._inner.perform(effect)

    async def aperform(self, effect: Effect[Any]) -> Any:
        self.requests[type(effect).__name__] += 1
        return await self._inner.aperform(effect)


def handlers_in(config: RunnableConfig) -> list[str]:
    callbacks: Any = config.get("callbacks")
    return sorted(type(each).__name__ for each in callbacks.handlers)


async def run(settings: Settings) -> tuple[Counter[str], list[str], bool]:
    """Run a graph that calls a model. Return the requests of the database, the callback handlers of its node,
    and whether limits were kept."""
    model = GenericFakeChatModel(messages=iter([AIMessage("yes")] * 10))
    seen: list[list[str]] = []

    async def say(state: State, config: RunnableConfig) -> State:
        seen.append(handlers_in(config))
        return {"said": (await model.ainvoke("?")).text}

    graph = StateGraph(State).add_node(say).add_edge(START, "say").compile()
    async with perdure.connect("memory://") as db:
        handle = handle_of(db)
        async with Runtime(db, graph, settings=settings) as runtime:
            # Something is remembered of a thread that was there before.
            await runtime.wait(await runtime.submit("t", {"said": ""}), timeout=20)
            driver = handle.driver = CountingDriver(handle.driver)
            for _ in range(3):
                run = await runtime.wait(await runtime.submit("t", {"said": ""}), timeout=20)
                assert run.state == "done"
            driver.requests.pop("FindDue", None)
        limiters = [each for each in handle.closed_first if isinstance(each, Limiter)]
        uses = any(limiter._shares for limiter in limiters)
        assert uses or not any(thread.name == "perdure-limits" for thread in threading.enumerate())
    return driver.requests, seen[-1], uses


def test_without_limits_there_is_no_thread_no_handler_and_no_request() -> None:
    requests, handlers, uses = asyncio.run(run(Settings()))
    assert not uses
    limited, more, does_use = asyncio.run(run(Settings(limits={"calls": SharedLimit(concurrency=5)})))
    assert does_use
    # The same test sees the handlers and the requests of a limit.
    assert len(more) == len(handlers) + 3
    assert limited.total() > requests.total()


def test_limits_of_other_graphs_cost_no_request() -> None:
    requests, handlers, _ = asyncio.run(run(Settings()))
    elsewhere = {
        "runs": SharedLimit(of="run", graphs=("other",), concurrency=1),
        "calls": SharedLimit(graphs=("other",), rate=1),
    }
    others, more, uses = asyncio.run(run(Settings(limits=elsewhere)))
    assert not uses
    assert more == handlers
    assert others == requests
