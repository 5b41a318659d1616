"""Limits of calls within nodes, of models that are awaited and of models that block, and of tools."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypedDict

import pytest
from langchain_core.language_models import LLM, BaseLanguageModel
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from pydantic import Field

import perdure
from perdure.database.base import handle_of
from perdure.errors import LimitReached
from perdure.limits import SharedLimit
from perdure.model.model_calls import Price, Prices
from perdure.runtime import Observer, Runtime, Settings
from perdure.runtime.operations import limit_states
from tests.backends import EMPTY

PRICES = Prices({"fake*": Price(1000.0, 1000.0)})
"""A call of 10 tokens costs 0.01."""


class State(TypedDict, total=False):
    said: str


class Model(GenericFakeChatModel):
    """A model that knows its name, and how many calls of it are under way."""

    under_way: list[int] = Field(default_factory=list)
    begun: list[float] = Field(default_factory=list)

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
        return {"ls_model_name": "fake-1", "ls_provider": "fake", "ls_model_type": "chat"}

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        self.begun.append(time.monotonic())
        self.under_way.append(1)
        most.append(len(self.under_way))
        time.sleep(0.05)
        self.under_way.pop()
        return super()._generate(*args, **kwargs)


most: list[int] = []


def answers() -> Any:
    while True:
        yield AIMessage("yes", usage_metadata={"input_tokens": 6, "output_tokens": 4, "total_tokens": 10})


def model() -> Model:
    most.clear()
    return Model(messages=answers(), under_way=[], begun=[])


def text_of(answer: Any) -> str:
    return answer if isinstance(answer, str) else answer.text


def graph(model: BaseLanguageModel[Any], *, blocks: bool) -> Any:
    async def awaits(state: State) -> State:
        return {"said": text_of(await model.ainvoke("?"))}

    def blocking(state: State) -> State:
        return {"said": text_of(model.invoke("?"))}

    builder = StateGraph(State)
    builder.add_node("say", blocking if blocks else awaits)
    builder.add_edge(START, "say")
    return builder.compile()


def settings(**limits: SharedLimit) -> Settings:
    return Settings(limits=limits, prices=PRICES, poll=0.05, attempts=2)


async def outcomes(runtime: Runtime, number: int, thread: str = "t", **options: Any) -> list[Any]:
    tickets = [
        await runtime.submit(
            f"{thread}{i}", {"said": ""}, config={"configurable": {"user_id": "ada"}}, **options
        )
        for i in range(number)
    ]
    return [await runtime.wait(ticket, timeout=30) for ticket in tickets]


@pytest.mark.parametrize("blocks", [False, True])
def test_no_more_calls_are_under_way_than_the_limit(blocks: bool) -> None:
    async def main() -> None:
        fake = model()
        async with (
            perdure.connect("memory://") as db,
            Runtime(
                db, graph(fake, blocks=blocks), settings=settings(calls=SharedLimit(concurrency=2))
            ) as runtime,
        ):
            runs = await outcomes(runtime, 8)
        assert [run.state for run in runs] == ["done"] * 8
        assert max(most) == 2

    asyncio.run(main())


class TextModel(LLM):
    @property
    def _llm_type(self) -> str:
        return "text"

    def _call(self, *args: Any, **kwargs: Any) -> str:
        under_way.append(1)
        most.append(len(under_way))
        time.sleep(0.05)
        under_way.pop()
        return "yes"


under_way: list[int] = []


@pytest.mark.parametrize("blocks", [False, True])
def test_text_models_wait_as_chat_models_do(blocks: bool) -> None:
    async def main() -> None:
        most.clear()
        limits = settings(calls=SharedLimit(concurrency=2))
        text = graph(TextModel(), blocks=blocks)
        async with perdure.connect("memory://") as db, Runtime(db, text, settings=limits) as runtime:
            runs = await outcomes(runtime, 8)
        assert [run.state for run in runs] == ["done"] * 8
        assert max(most) == 2

    asyncio.run(main())


class Executor(ThreadPoolExecutor):
    """Executor that counts what it is given."""

    number = 0

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        self.number += 1
        return super().submit(*args, **kwargs)


class StreamingModel(Model):
    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        for _ in range(200):
            yield ChatGenerationChunk(message=AIMessageChunk(content="yes "))


def test_the_tokens_of_an_awaited_stream_take_no_thread() -> None:
    async def say(state: State) -> State:
        fake = StreamingModel(messages=answers())
        return {"said": "".join([token.text async for token in fake.astream("?")])}

    async def main() -> None:
        executor = Executor()
        asyncio.get_running_loop().set_default_executor(executor)
        limits = settings(calls=SharedLimit(concurrency=2), tools=SharedLimit(of="tool", rate=600))
        builder = StateGraph(State).add_node("say", say).add_edge(START, "say")
        async with (
            perdure.connect("memory://") as db,
            Runtime(db, builder.compile(), settings=limits) as runtime,
        ):
            (run,) = await outcomes(runtime, 1)
        assert run.state == "done"
        assert executor.number < 20

    asyncio.run(main())


@pytest.mark.parametrize("blocks", [False, True])
def test_calls_wait_for_the_rate(blocks: bool) -> None:
    async def main() -> None:
        fake = model()
        async with (
            perdure.connect("memory://") as db,
            Runtime(
                db, graph(fake, blocks=blocks), settings=settings(calls=SharedLimit(rate=600, burst=2))
            ) as runtime,
        ):
            began = time.monotonic()
            await outcomes(runtime, 10)
        assert len(fake.begun) == 10
        assert time.monotonic() - began >= 0.8 - 0.05

    asyncio.run(main())


def test_a_budget_stops_at_most_one_call_late() -> None:
    async def main() -> None:
        fake = model()
        limit = SharedLimit(budget=0.035, by=("user",))
        async with (
            perdure.connect("memory://") as db,
            Runtime(db, graph(fake, blocks=False), settings=settings(money=limit)) as runtime,
        ):
            runs = await outcomes(runtime, 8)
        states = sorted(run.state for run in runs)
        assert states == ["done"] * 4 + ["failed"] * 4
        refused = next(run for run in runs if run.state == "failed")
        assert refused.note["kind"] == "LimitReached"
        assert "budget" in refused.note["error"]
        assert "ada" in refused.note["error"]

    asyncio.run(main())


class Measured(Model):
    """A model that uses as many tokens as its prompt has, and notes the cost of each call when it begins."""

    spent: list[float] = Field(default_factory=list)

    async def _agenerate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        used = len(messages[-1].text) // 4 + 8
        self.spent.append(used / 1000)
        await asyncio.sleep(0.1)
        usage = UsageMetadata(input_tokens=used, output_tokens=0, total_tokens=used)
        return ChatResult(generations=[ChatGeneration(message=AIMessage("yes", usage_metadata=usage))])


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
@pytest.mark.parametrize("first", ["a" * 40, None])
def test_calls_whose_prompts_are_dear_are_not_begun_together_beyond_a_budget(
    backend: str, first: str | None
) -> None:
    async def main(url: str) -> None:
        fake = Measured(messages=answers())

        async def say(state: State) -> State:
            if first is not None:
                await fake.ainvoke(first)
            await asyncio.gather(*(fake.ainvoke("word" * 300) for _ in range(20)), return_exceptions=True)
            return {"said": "all"}

        built = StateGraph(State).add_node(say).add_edge(START, "say").compile()
        limit = SharedLimit(budget=1.0)
        async with (
            perdure.connect(url, migrate=True) as db,
            Runtime(db, built, settings=settings(money=limit)) as runtime,
        ):
            await outcomes(runtime, 1)
        assert 1.0 <= sum(fake.spent) <= 1.0 + max(fake.spent)

    with EMPTY[backend]() as url:
        asyncio.run(main(url))


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
def test_a_first_call_sets_aside_its_prompt_and_an_answer(backend: str) -> None:
    """If its process is killed, this counts as spent."""

    async def main(url: str) -> None:
        held: list[float] = []

        async def say(state: State) -> State:
            async for _ in Told(messages=answers()).astream("word" * 1000):
                entry = await limit_states.read_entry(handle_of(db), "", "money", {})
                held.append(entry["budget"]["held"])
                break
            return {"said": "all"}

        built = StateGraph(State).add_node(say).add_edge(START, "say").compile()
        limits = settings(money=SharedLimit(budget=5.0))
        async with (
            perdure.connect(url, migrate=True) as db,
            Runtime(db, built, settings=limits) as runtime,
        ):
            await outcomes(runtime, 1)
        assert held == [pytest.approx(2.0, abs=0.01)]

    with EMPTY[backend]() as url:
        asyncio.run(main(url))


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
@pytest.mark.parametrize("way", ["set", "reset"])
def test_a_postponed_run_continues_when_its_budget_is_raised_or_reset(
    backend: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perdure.runtime import settings as waits
    from perdure.runtime.limits import limiter

    monkeypatch.setattr(waits, "_LOOK_S", 0.3)
    monkeypatch.setattr(limiter, "_REFRESH_S", 0.0)

    async def main(url: str) -> None:
        fake, begun = model(), [0]

        async def say(state: State) -> State:
            begun[0] += 1
            return {"said": text_of(await fake.ainvoke("?"))}

        built = StateGraph(State).add_node(say).add_edge(START, "say").compile()
        limits = settings(money=SharedLimit(budget=0.005, at_end="wait"))
        async with (
            perdure.connect(url, migrate=True) as db,
            Runtime(db, built, settings=limits) as runtime,
        ):
            await outcomes(runtime, 1)
            ticket = await runtime.submit("later", {"said": ""})
            with pytest.raises(TimeoutError):
                await runtime.wait(ticket, timeout=4)
            assert begun[0] == 2, "its node is not begun again while the budget is used up"
            if way == "set":
                await limit_states.set_amounts(handle_of(db), "", "money", {"budget": 5.0})
            else:
                await limit_states.reset(handle_of(db), "", "money", {})
            assert (await runtime.wait(ticket, timeout=20)).state == "done"
            assert begun[0] == 3

    with EMPTY[backend]() as url:
        asyncio.run(main(url))


class Told(Model):
    """A model that streams for ever, and tells its use with the first part or never."""

    tells: bool = True

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        used = UsageMetadata(input_tokens=20, output_tokens=0, total_tokens=20) if self.tells else None
        while True:
            yield ChatGenerationChunk(message=AIMessageChunk(content="word " * 4, usage_metadata=used))
            used = None
            await asyncio.sleep(0.01)

    async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(60)


@pytest.mark.parametrize("way", ["cancelled", "left", "unheard"])
@pytest.mark.parametrize("tells", [True, False])
def test_calls_that_are_cut_off_count_towards_a_budget(way: str, tells: bool) -> None:
    """Who cancels each of his runs, or leaves its stream, has no model for nothing."""
    asked = asyncio.Event()
    prompt = "word " * 100

    async def main() -> None:
        fake = Told(messages=answers(), under_way=[], begun=[], tells=tells)

        async def say(state: State) -> State:
            if way == "unheard":
                asked.set()
                await fake.ainvoke(prompt)
            count = 0
            async for _ in fake.astream(prompt):
                count += 1
                if count == 2:
                    asked.set()
                    if way == "left":
                        break
            return {"said": "left"}

        made = StateGraph(State).add_node(say).add_edge(START, "say").compile()
        limit = SharedLimit(budget=0.1, by=("user",))
        async with (
            perdure.connect("memory://") as db,
            Runtime(db, made, settings=settings(money=limit)) as runtime,
        ):
            states: list[str] = []
            for number in range(8):
                asked.clear()
                (ticket,) = [
                    await runtime.submit(
                        f"t{number}", {"said": ""}, config={"configurable": {"user_id": "ada"}}
                    )
                ]
                if way != "left":
                    waiting = asyncio.ensure_future(asked.wait())
                    ending = asyncio.ensure_future(runtime.wait(ticket, timeout=30))
                    await asyncio.wait([waiting, ending], return_when=asyncio.FIRST_COMPLETED)
                    await asyncio.sleep(0.05)
                    await runtime.cancel(f"t{number}", ticket.id)
                    states.append((await ending).state)
                    waiting.cancel()
                else:
                    states.append((await runtime.wait(ticket, timeout=30)).state)
            assert states[0] in ("interrupted", "done")
            assert states[-1] == "failed", states

    asyncio.run(main())


@pytest.mark.parametrize("follows", [True, False])
def test_a_run_goes_on_with_a_cheaper_model_when_its_budget_is_used_up(follows: bool) -> None:
    class Cheap(Model):
        def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
            return {"ls_model_name": "small", "ls_provider": "fake", "ls_model_type": "chat"}

    async def main() -> None:
        strong, cheap = model(), Cheap(messages=answers(), under_way=[], begun=[])

        async def say(state: State, config: RunnableConfig) -> State:
            named = (config.get("configurable") or {}).get("model", "strong")
            chosen = cheap if follows and named == "fake:small" else strong
            return {"said": str(state.get("said")) + (await chosen.ainvoke("?")).text}

        builder = StateGraph(State).add_node("first", say).add_node("second", say)
        graph = builder.add_edge(START, "first").add_edge("first", "second").compile()
        prices = Prices({**PRICES.models, "small": Price(1.0, 1.0)})
        limit = SharedLimit(budget=0.025, by=("user",), cheaper="fake:small")
        made = Settings(limits={"money": limit}, prices=prices, poll=0.05, attempts=2)
        async with perdure.connect("memory://") as db, Runtime(db, graph, settings=made) as runtime:
            runs = [(await outcomes(runtime, 1, thread=str(n)))[0] for n in range(3)]
            if not follows:
                assert [run.state for run in runs] == ["done", "failed", "failed"]
                assert "configurable value 'model'" in runs[1].note["error"]
                return
            # The budget ends within the second run, which goes on, and the third begins with the other model.
            assert [(run.state, run.attempts) for run in runs] == [("done", 1)] * 3
            assert (len(strong.begun), len(cheap.begun)) == (3, 3)

    asyncio.run(main())


class Here(Observer):
    """Notes in which threads it is told of what."""

    def __init__(self) -> None:
        self.threads: dict[str, set[int]] = {}

    def event(self, name: str, fields: dict[str, Any]) -> None:
        self.threads.setdefault(name, set()).add(threading.get_ident())


class Kept(TypedDict, total=False):
    said: str
    large: str


def test_observers_are_told_in_one_thread_of_what_a_blocking_node_does() -> None:
    fake, here = model(), Here()

    def say(state: Kept) -> dict[str, Any]:
        with suppress(LimitReached):
            return {"said": text_of(fake.invoke("?")), "large": "x" * 5000, "unknown": 1}
        return {"said": "nothing"}

    async def main() -> None:
        built = StateGraph(Kept).add_node(say).add_edge(START, "say").compile()
        limits = settings(calls=SharedLimit(rate=600, budget=0.000001))
        kept = replace(limits, warn_bytes=1000, prices=PRICES)
        async with (
            perdure.connect("memory://") as db,
            Runtime(db, built, settings=kept, observers=[here]) as runtime,
        ):
            for number in range(2):
                await runtime.wait(await runtime.submit(f"t{number}", {"said": "hi"}))
        assert set().union(*here.threads.values()) == {threading.get_ident()}, here.threads

    asyncio.run(main())
    assert {"limit.waited", "limit.ended", "limit.refused", "model.called", "state.undeclared"} <= set(
        here.threads
    )
    assert {"checkpoint.stored", "checkpoint.large", "run.done"} <= set(here.threads)
