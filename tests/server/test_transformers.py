"""Stream transformers of graphs, and of agents' middleware, in the event streaming protocol.

Covers perdure.runtime.events.transformers.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import PIIMiddleware
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.stream import ProtocolEvent, StreamChannel, StreamTransformer
from langgraph.types import interrupt

from tests.server.hosting import run, serving
from tests.server.listening import Told, heard, phase, start, until_ended
from tests.server.test_protocol import EVERYTHING, new

ADDRESS = "ann@example.com"
SAYS = f"write to {ADDRESS} or not"
HI = {"messages": [{"role": "user", "content": "hi"}]}


class Spoken(GenericFakeChatModel):
    """Says the same each time, word by word."""

    def __init__(self, says: str = SAYS) -> None:
        super().__init__(messages=iter(AIMessage(says) for _ in range(9)))

    def bind_tools(self, tools: Any, **given: Any) -> Any:
        return self


class Counting(StreamTransformer):
    """Counts the updates of nodes in a channel of its own, and says at the end how many there were."""

    required_stream_modes = ("updates", "debug")

    def __init__(self, scope: tuple[str, ...] = ()) -> None:
        super().__init__(scope)
        self.channel: StreamChannel[Any] = StreamChannel("counts")
        self.count = 0

    def init(self) -> dict[str, Any]:
        return {"counts": self.channel}

    def process(self, event: ProtocolEvent) -> bool:
        if event["method"] == "updates":
            self.count += 1
            self.channel.push({"so far": self.count})
        return True

    def finalize(self) -> None:
        self.channel.push({"in all": self.count})


class Late(StreamTransformer):
    """Takes its time, beside the stream and within it."""

    required_stream_modes = ("values",)

    def __init__(self, scope: tuple[str, ...] = ()) -> None:
        super().__init__(scope)
        self.channel: StreamChannel[Any] = StreamChannel("late")

    def init(self) -> dict[str, Any]:
        return {"late": self.channel}

    async def _push(self, said: str) -> None:
        await asyncio.sleep(0.01)
        self.channel.push(said)

    async def aprocess(self, event: ProtocolEvent) -> bool:
        if event["method"] == "values":
            await asyncio.sleep(0.01)
            self.schedule(self._push("beside"))
            return False
        return True


class Shouting(StreamTransformer):
    """Changes what a graph writes before the others see it."""

    before_builtins = True
    required_stream_modes: ClassVar[tuple[str, ...]] = ("custom",)

    def init(self) -> dict[str, Any]:
        return {}

    def process(self, event: ProtocolEvent) -> bool:
        if event["method"] == "custom":
            event["params"]["data"] = str(event["params"]["data"]).upper()
        return True


class Repeating(StreamTransformer):
    """Repeats what a graph writes, as it finds it."""

    required_stream_modes = ("custom",)

    def __init__(self, scope: tuple[str, ...] = ()) -> None:
        super().__init__(scope)
        self.channel: StreamChannel[Any] = StreamChannel("repeated")

    def init(self) -> dict[str, Any]:
        return {"repeated": self.channel}

    def process(self, event: ProtocolEvent) -> bool:
        if event["method"] == "custom":
            self.channel.push(event["params"]["data"])
        return True


class Broken(StreamTransformer):
    """Fails at the first message."""

    required_stream_modes = ("values",)

    def init(self) -> dict[str, Any]:
        return {}

    def process(self, event: ProtocolEvent) -> bool:
        if event["method"] == "messages":
            raise RuntimeError("it cannot")
        return True


def talking(*transformers: Any, below: bool = False, asks: bool = False) -> Any:
    model = Spoken()

    async def talk(state: MessagesState) -> dict[str, Any]:
        from langgraph.config import get_stream_writer

        get_stream_writer()("whisper")
        said = await model.ainvoke("hi")
        if asks:
            interrupt("really?")
        return {"messages": [said]}

    def builder(node: Any) -> Any:
        return StateGraph(MessagesState).add_node("talk", node).add_edge(START, "talk")

    inner = builder(talk)
    return (builder(inner.compile()) if below else inner).compile(transformers=transformers)


def agent(**how: Any) -> Any:
    return create_agent(Spoken(), [], middleware=[PIIMiddleware("email", apply_to_output=True, **how)])


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'threads.db'}"


async def turn(url: str, graph: Any, *channels: str) -> list[Told]:
    """What is told of one turn of a graph on the channels."""
    thread_id = new()
    async with serving(url, of={"it": graph}) as served:
        http = await served.http()
        listening = asyncio.create_task(
            until_ended(heard(http, thread_id, channels=["lifecycle", *channels]))
        )
        await start(http, thread_id, "it", HI)
        return await listening


def custom(told: list[Told], name: str) -> list[Any]:
    data = [event["params"]["data"] for event in told if event["method"] == "custom"]
    return [one["payload"] for one in data if one.get("name") == name]


@run
async def test_an_address_that_middleware_redacts_is_told_on_no_channel(url: str) -> None:
    told = await turn(url, agent(), *EVERYTHING)
    assert ADDRESS not in json.dumps(told)
    assert phase(told[-1]) == "completed"
    methods = {event["method"] for event in told}
    assert {"messages", "values", "checkpoints", "lifecycle"} <= methods
    spoken = "".join(
        event["params"]["data"]["delta"].get("text", "")
        for event in told
        if event["method"] == "messages" and event["params"]["data"]["event"] == "content-block-delta"
    )
    assert spoken in ("", "write to [REDACTED_EMAIL] or not")
    assert "write to [REDACTED_EMAIL] or not" in json.dumps(told)


@run
async def test_an_address_that_middleware_blocks_fails_the_run_before_it_is_told(url: str) -> None:
    told = await turn(url, agent(strategy="block"), *EVERYTHING)
    assert phase(told[-1]) == "failed"
    assert ADDRESS not in json.dumps(told)


@run
async def test_a_transformer_has_a_channel_of_its_own(url: str) -> None:
    told = await turn(url, talking(Counting), "custom:counts")
    assert custom(told, "counts") == [{"so far": 1}, {"in all": 1}]
    assert phase(told[-1]) == "completed"


@run
async def test_the_modes_that_no_transformer_rewrites_are_told_as_before(url: str) -> None:
    plain = await turn(url, talking(), *EVERYTHING)
    told = await turn(url.replace("threads", "others"), talking(Counting), *EVERYTHING)
    methods = [event["method"] for event in told if event["method"] != "custom"]
    assert methods == [event["method"] for event in plain if event["method"] != "custom"]


@run
async def test_a_transformer_may_take_its_time_and_events_out_of_the_stream(url: str) -> None:
    told = await turn(url, talking(Late), "values", "custom:late")
    assert custom(told, "late") == ["beside", "beside"]
    assert not any(event["method"] == "values" for event in told)


@pytest.mark.parametrize("below", [False, True])
@run
async def test_what_is_changed_before_all_others_is_seen_so_by_them(url: str, below: bool) -> None:
    told = await turn(url, talking(Repeating, Shouting, below=below), "custom")
    data = [event["params"]["data"]["payload"] for event in told if event["method"] == "custom"]
    assert data == ["WHISPER", "WHISPER"]
    assert custom(told, "repeated") == ["WHISPER"]


@run
async def test_a_transformer_that_fails_ends_the_run(url: str) -> None:
    told = await turn(url, talking(Broken), "messages", "values")
    assert phase(told[-1]) == "failed"
    assert "it cannot" in told[-1]["params"]["data"]["error"]
    assert not any(event["method"] == "messages" for event in told)


@pytest.mark.parametrize("below", [False, True])
@run
async def test_a_question_is_asked_whatever_is_withheld(url: str, below: bool) -> None:
    class Rewriting(Shouting):
        required_stream_modes = ("custom", "values")

    told = await turn(url, talking(Rewriting, below=below, asks=True), *EVERYTHING)
    methods = [event["method"] for event in told]
    assert phase(told[-1]) == "interrupted"
    assert methods.count("input.requested") == 1
    assert not {"tasks", "updates"} & set(methods)
    begun = [event for event in told if phase(event) == "started"]
    assert len(begun) == below


@run
async def test_the_values_of_the_run_are_those_of_its_state(url: str) -> None:
    class Emptying(Shouting):
        required_stream_modes = ("values",)

        def process(self, event: ProtocolEvent) -> bool:
            if event["method"] == "values":
                event["params"]["data"] = {"messages": []}
            return True

    thread_id = new()
    async with serving(url, of={"it": talking(Emptying)}) as served:
        http = await served.http()
        run_id = (await start(http, thread_id, "it", HI))["result"]["run_id"]
        joined = (await http.get(f"/threads/{thread_id}/runs/{run_id}/join")).raise_for_status().json()
        assert len(joined["messages"]) == 2
