"""OpenAI's own client under limits, however it is called: awaited or blocking, whole or streamed, many at
once, with tools, and cancelled in the middle."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest
from langchain_core.messages import AnyMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic import SecretStr

import perdure
from perdure.database.base import handle_of
from perdure.limits import RateLimiter, SharedLimit
from perdure.runtime import Price, Prices, Runtime, Settings
from perdure.runtime.limits.limiter import limiter_of
from tests.runtime.graphs import Heard, eventually
from tests.servers import aimock

PRICES = Prices({"gpt-4o": Price(1000.0, 1000.0)})
"""A call of "hello" with its 20 tokens costs 0.02."""
CALLS, RATE, BURST = 8, 600, 2
TELLS = [True, False]
"""With an address of its own the client asks for the use of an answer that is streamed only if it is told."""


@pytest.fixture(scope="module")
def server() -> aimock.Server:
    return aimock.started()


@pytest.fixture(autouse=True)
def nothing_asked(server: aimock.Server) -> None:
    server.forget()


class UnderWay:
    """Counts requests that are under way, from their beginning to the end of their answers."""

    def __init__(self) -> None:
        self._open: set[object] = set()
        self._lock = threading.Lock()
        self.most = 0

    def begin(self) -> Callable[[], None]:
        """Begin a request, and return what ends it, however often it is called."""
        with self._lock:
            self._open.add(request := object())
            self.most = max(self.most, len(self._open))
        return partial(self._open.discard, request)


class Client(openai.DefaultHttpxClient):
    """A client that notes what is under way."""

    def __init__(self, under_way: UnderWay) -> None:
        super().__init__()
        self._under_way = under_way

    def send(self, *args: Any, stream: bool = False, **kwargs: Any) -> Any:
        leave = self._under_way.begin()
        try:
            response = super().send(*args, stream=stream, **kwargs)
        except BaseException:
            leave()
            raise
        if not stream:
            leave()
        close = response.close

        def leave_and_close() -> None:
            leave()
            close()

        response.close = leave_and_close  # type: ignore[method-assign]
        return response


class AsyncClient(openai.DefaultAsyncHttpxClient):
    """The same, awaited."""

    def __init__(self, under_way: UnderWay) -> None:
        super().__init__()
        self._under_way = under_way

    async def send(self, *args: Any, stream: bool = False, **kwargs: Any) -> Any:
        leave = self._under_way.begin()
        try:
            response = await super().send(*args, stream=stream, **kwargs)
        except BaseException:
            leave()
            raise
        if not stream:
            leave()
        close = response.aclose

        async def leave_and_close() -> None:
            leave()
            await close()

        response.aclose = leave_and_close  # type: ignore[method-assign]
        return response


def model(server: aimock.Server, under_way: UnderWay | None = None, **fields: Any) -> ChatOpenAI:
    """Return a client of the server. It keeps no connections: each would belong to an event loop."""
    noted = under_way or UnderWay()
    fields |= {"http_client": Client(noted), "http_async_client": AsyncClient(noted)}
    fields |= {"max_retries": 0, "default_headers": {"Connection": "close"}}
    return ChatOpenAI(model="gpt-4o", base_url=server.url, api_key=SecretStr("-"), **fields)


@tool
def weather(city: str) -> str:
    """Tell the weather of a city."""
    return "sunny"


# Ways to call a model, each as often as it is told


async def awaits(model: ChatOpenAI, number: int) -> list[str]:
    return [each.text for each in await asyncio.gather(*(model.ainvoke("hello") for _ in range(number)))]


async def blocks(model: ChatOpenAI, number: int) -> list[str]:
    return await asyncio.gather(*(asyncio.to_thread(_invoke, model) for _ in range(number)))


def _invoke(model: ChatOpenAI) -> str:
    return model.invoke("hello").text


async def streams(model: ChatOpenAI, number: int) -> list[str]:
    async def one() -> str:
        return "".join([each.text async for each in model.astream("hello")])

    return await asyncio.gather(*(one() for _ in range(number)))


async def streams_in_threads(model: ChatOpenAI, number: int) -> list[str]:
    def one() -> str:
        return "".join(each.text for each in model.stream("hello"))

    return await asyncio.gather(*(asyncio.to_thread(one) for _ in range(number)))


async def batches(model: ChatOpenAI, number: int) -> list[str]:
    return [each.text for each in await model.abatch(["hello"] * number)]


async def batches_in_threads(model: ChatOpenAI, number: int) -> list[str]:
    return [each.text for each in await asyncio.to_thread(model.batch, ["hello"] * number)]


async def calls_tools(model: ChatOpenAI, number: int) -> list[str]:
    bound = model.bind_tools([weather])
    found = await asyncio.gather(*(bound.ainvoke("weather?") for _ in range(number)))
    return [str(call["args"]["city"]) for each in found for call in getattr(each, "tool_calls", [])]


Way = Callable[[ChatOpenAI, int], Coroutine[Any, Any, list[str]]]
WAYS = [
    *(awaits, streams_in_threads, calls_tools),
    *(pytest.param(way, marks=pytest.mark.slow) for way in (blocks, streams, batches, batches_in_threads)),
]


def require_answers(way: Way, answers: list[str]) -> None:
    assert answers == ["Rome" if way is calls_tools else "Hello, and how are you?"] * CALLS


def require_rate(server: aimock.Server) -> None:
    """Require that at no time more requests came than the burst and what the rate gives since."""
    times = [each["timestamp"] / 1000 for each in server.asked()]
    assert len(times) == CALLS
    # A request may come a little later than it began, and the next one not.
    assert times[-1] - times[0] >= (CALLS - BURST) * 60 / RATE - 0.1


@pytest.mark.parametrize("way", WAYS)
def test_a_rate_limiter_holds_the_client_to_its_rate(way: Way, server: aimock.Server, tmp_path: Path) -> None:
    with perdure.connect_sync(f"sqlite:///{tmp_path / 'limits.db'}", migrate=True) as db:
        limiter = RateLimiter(db, "openai", SharedLimit(rate=RATE, burst=BURST))
        require_answers(way, asyncio.run(way(model(server, rate_limiter=limiter), CALLS)))
    require_rate(server)


@pytest.mark.parametrize("way", [awaits, streams])
def test_a_call_that_is_cancelled_as_it_waits_or_streams_delays_no_other(
    way: Way, server: aimock.Server, tmp_path: Path
) -> None:
    async def main() -> None:
        async with perdure.connect(f"sqlite:///{tmp_path / 'limits.db'}", migrate=True) as db:
            slow = RateLimiter(db, "openai", SharedLimit(rate=60, burst=2))
            calls = [asyncio.create_task(way(model(server, rate_limiter=slow), 1)) for _ in range(30)]
            await eventually(lambda: len(server.asked()) >= 2)
            for each in calls:
                each.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            # Those that waited took nothing of the rate: the next two have no more than a second each.
            async with asyncio.timeout(8):
                await way(model(server, rate_limiter=slow), 2)

    asyncio.run(main())
    assert len(server.asked()) <= 6


def graph_of(node: Callable[..., Any]) -> Any:
    return StateGraph(MessagesState).add_node("say", node).add_edge(START, "say").compile()


def settings(**limits: SharedLimit) -> Settings:
    return Settings(limits=limits, prices=PRICES, poll=0.05, attempts=1)


async def require_nothing_in_use(db: perdure.Database) -> None:
    shares = limiter_of(handle_of(db))._shares.values()
    assert shares
    await eventually(lambda: not any(each.in_use or each.waiting_count for each in shares))


@pytest.mark.parametrize("way", WAYS)
def test_limits_of_settings_hold_the_client_within_a_node(way: Way, server: aimock.Server) -> None:
    under_way, answers = UnderWay(), []

    async def say(state: MessagesState) -> dict[str, Any]:
        answers.extend(await way(model(server, under_way), CALLS))
        return {"messages": []}

    async def main() -> None:
        made = settings(
            places=SharedLimit(concurrency=2),
            rate=SharedLimit(rate=RATE, burst=BURST),
            tokens=SharedLimit(tokens=100_000),
        )
        async with perdure.connect("memory://") as db:
            async with Runtime(db, graph_of(say), settings=made) as runtime:
                run = await runtime.wait(await runtime.accept("t", "go"), timeout=60)
                assert run.state == "done", run.note
            await require_nothing_in_use(db)

    asyncio.run(main())
    require_answers(way, answers)
    require_rate(server)
    assert 1 <= under_way.most <= 2


def test_an_agent_with_tools_has_the_limits_of_both(server: aimock.Server) -> None:
    bound = model(server).bind_tools([weather])

    async def say(state: MessagesState) -> dict[str, list[AnyMessage]]:
        return {"messages": [await bound.ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState).add_node("say", say).add_node("tools", ToolNode([weather]))
    builder.add_edge(START, "say").add_conditional_edges("say", tools_condition).add_edge("tools", "say")

    async def main() -> None:
        made = settings(
            models=SharedLimit(concurrency=1, rate=RATE, burst=BURST),
            tools=SharedLimit(of="tool", concurrency=1),
        )
        async with (
            perdure.connect("memory://") as db,
            Runtime(db, builder.compile(), settings=made) as runtime,
        ):
            tickets = [await runtime.accept(f"t{n}", "weather?") for n in range(CALLS // 2)]
            runs = [await runtime.wait(ticket, timeout=60) for ticket in tickets]
            assert [run.state for run in runs] == ["done"] * (CALLS // 2), runs[0].note
            state = await runtime.graph("agent").aget_state({"configurable": {"thread_id": "t0"}})
            assert [each.type for each in state.values["messages"]] == ["human", "ai", "tool", "ai"]
            assert state.values["messages"][-1].text == "It is sunny in Rome."
            await require_nothing_in_use(db)

    asyncio.run(main())
    require_rate(server)


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("tells", TELLS)
def test_a_budget_ends_whether_or_not_the_client_reports_use(
    is_streamed: bool, tells: bool, server: aimock.Server
) -> None:
    """A client with an address of its own, as for a gateway, reports nothing of what it streams."""
    heard = Heard()
    asked = model(server, stream_usage=tells)

    async def say(state: MessagesState) -> dict[str, Any]:
        # Runs whose messages are streamed to someone have streamed calls, too.
        if is_streamed:
            return {"messages": ["".join([each.text async for each in asked.astream("hello " * 20)])]}
        return {"messages": [await asked.ainvoke("hello " * 20)]}

    async def main() -> list[str]:
        made = settings(money=SharedLimit(budget=0.05, by=("user",)))
        config = {"configurable": {"user_id": "ada"}}
        async with (
            perdure.connect("memory://") as db,
            Runtime(db, graph_of(say), settings=made, observers=[heard]) as runtime,
        ):
            tickets = [await runtime.accept(f"t{n}", "go", config=config) for n in range(8)]
            return [(await runtime.wait(ticket, timeout=60)).state for ticket in tickets]

    states = asyncio.run(main())
    # Reported are 20 tokens a call; estimated are 33 of the prompt and 9 of the answer.
    assert states.count("done") == len(server.asked()) == (3 if tells or not is_streamed else 2)
    assert states.count("failed") == 8 - states.count("done")
    assert (heard.count("limit.estimated") > 0) == (is_streamed and not tells)


@pytest.mark.parametrize("tells", TELLS)
def test_a_run_that_is_cancelled_in_the_middle_of_an_answer_counts_and_gives_its_place_back(
    tells: bool, server: aimock.Server
) -> None:
    begun = asyncio.Event()
    under_way = UnderWay()

    async def say(state: MessagesState) -> dict[str, Any]:
        async for _ in model(server, under_way, stream_usage=tells).astream("count"):
            begun.set()
        return {"messages": []}

    async def main() -> None:
        made = settings(places=SharedLimit(concurrency=1), money=SharedLimit(budget=0.02, by=("user",)))
        config = {"configurable": {"user_id": "ada"}}
        async with (
            perdure.connect("memory://") as db,
            Runtime(db, graph_of(say), settings=made) as runtime,
        ):
            states = []
            for number in range(6):
                begun.clear()
                ticket = await runtime.accept(f"t{number}", "go", config=config)
                ending = asyncio.create_task(runtime.wait(ticket, timeout=60))
                told = asyncio.create_task(begun.wait())
                await asyncio.wait([ending, told], return_when=asyncio.FIRST_COMPLETED)
                told.cancel()
                await runtime.cancel(f"t{number}", ticket.id)
                states.append((await ending).state)
            assert states[0] == "interrupted"
            assert states[-1] == "failed", "what was cut off has been paid"
            await require_nothing_in_use(db)

    asyncio.run(main())
    assert under_way.most == 1
