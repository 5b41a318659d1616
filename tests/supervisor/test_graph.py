"""The supervisor: one policy decides, the writer writes when there is work, workers leave a result."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from examples.supervisor.models import rules, written
from perdure.langgraph.migration.fingerprint import fingerprint
from perdure.runtime import Agent, Price, Runtime, Settings, effect, effect_key
from perdure.supervisor import (
    Policy,
    RollingSummary,
    Route,
    Spent,
    SupervisedWorker,
    Usage,
    route_with,
    supervisor,
)
from perdure.supervisor.graph import open_questions
from tests.supervisor.models import never, scripted

SETTINGS = Settings(backoff=0.02, max_backoff=0.05, poll=0.2)
PRICES = {"small": Price(input=1, output=2), "large": Price(input=10, output=20)}


def worker(*nodes: Any) -> Any:
    builder = StateGraph(MessagesState)
    for before, node in zip((START, *(n.__name__ for n in nodes)), nodes, strict=False):
        builder.add_node(node)
        builder.add_edge(before, node.__name__)
    return builder.compile()


async def find(state: MessagesState) -> dict[str, Any]:
    """Find out about orders."""
    return {"messages": [AIMessage("order 4711 left on Monday")]}


async def states(
    agent: Agent, *texts: str, usage: Usage | None = None, user: str = ""
) -> tuple[list[dict[str, Any]], set[str], int]:
    """Send messages, and return the state after each, the namespaces that were stored, and the attempts."""
    out, attempts = [], 0
    at: Any = {"configurable": {"thread_id": "t"}}
    observers = () if usage is None else (usage,)
    async with perdure.connect("memory://") as db:
        app = Runtime(db, {"supervisor": agent}, settings=SETTINGS, observers=observers)
        async with asyncio.timeout(60), app:
            for text in texts:
                config = {"configurable": {"user_id": user}} if user else None
                run = await app.wait(await app.accept("t", text, config=config))
                assert run.state == "done", run.note
                attempts += run.attempts
                out.append((await app.graph("supervisor").aget_state(at)).values)
        found = [c.config["configurable"]["checkpoint_ns"] async for c in db.checkpointer().alist(at)]
    return out, set(found), attempts


def test_chitchat_is_answered_by_the_cheap_model_alone() -> None:
    small, asked = scripted("small", rules)
    large, _ = scripted("large", never)
    agent = Agent(supervisor(route_with(small), large).compile())
    (state,), _, _ = asyncio.run(states(agent, "hello there"))
    assert state["messages"][-1].text == "Hello! Ask me about your order."
    assert state["route"]["kind"] == "chitchat"
    assert len(asked) == 1


def test_a_question_goes_to_its_worker_and_only_the_result_to_the_writer() -> None:
    small, _ = scripted("small", rules)
    large, wrote = scripted("large", written)
    workers = {"orders": SupervisedWorker(worker(find), description="orders")}
    policy = route_with(small, {"orders": "orders"})
    agent = Agent(supervisor(policy, large, workers).compile())
    made, namespaces, _ = asyncio.run(states(agent, "where is my order?", "no, the other one", "and you?"))
    assert [state["messages"][-1].text for state in made] == [
        "This is what I found: order 4711 left on Monday",
        "I know nothing about that yet.",
        "I know nothing about that yet.",
    ]
    assert [state["route"]["kind"] for state in made] == ["question", "correction", "question"]
    assert all(state["result"] == "" for state in made), "a result stays no longer than it is needed"
    assert "correct the answer" in wrote[1][0].text
    assert "correct the answer" not in wrote[2][0].text
    assert namespaces == {""}, "a worker stored checkpoints"


def test_another_policy_is_one_function() -> None:
    async def always_write(messages: Any) -> Route:
        return Route(kind="question")

    policy: Policy = always_write
    large, _ = scripted("large", written)
    (state,), _, _ = asyncio.run(states(Agent(supervisor(policy, large).compile()), "hello"))
    assert state["messages"][-1].text == "I know nothing about that yet."


@pytest.mark.parametrize(
    ("route", "error"),
    [
        (Route(kind="question", worker="nobody"), "the worker 'nobody'; there is orders"),
    ],
)
def test_a_route_that_leads_nowhere_is_an_error(route: Route, error: str) -> None:
    async def policy(messages: Any) -> Route:
        return route

    large, _ = scripted("large", never)
    graph = supervisor(policy, large, {"orders": SupervisedWorker(worker(find))}).compile()
    with pytest.raises(ValueError, match=error):
        asyncio.run(graph.ainvoke({"messages": [("user", "hi")], "route": {}, "result": ""}))
    with pytest.raises(ValueError, match="a node 'write' itself"):
        supervisor(policy, large, {"write": SupervisedWorker(worker(find))})


def test_chitchat_without_a_reply_goes_to_the_writer() -> None:
    async def policy(messages: Any) -> Route:
        return Route(kind="chitchat")

    large, _ = scripted("large", written)
    (state,), _, _ = asyncio.run(states(Agent(supervisor(policy, large).compile()), "hello"))
    assert state["messages"][-1].text == "I know nothing about that yet."


def test_a_worker_is_given_all_messages_since_the_last_answer() -> None:
    fragments: list[AnyMessage] = [HumanMessage("where is"), HumanMessage("my order?")]
    before: list[AnyMessage] = [HumanMessage("hello"), AIMessage("Hello!")]
    assert open_questions({"messages": [*before, *fragments], "route": {}, "result": ""}) == {
        "messages": fragments
    }


def test_a_rewritten_worker_leaves_the_fingerprint_and_the_state_stays_thin() -> None:
    small, _ = scripted("small", rules)
    large, _ = scripted("large", written)

    async def heavy(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("x" * 200_000)]}

    def agent(*nodes: Any) -> Agent:
        policy = route_with(small, {"orders": "orders"})
        return Agent(supervisor(policy, large, {"orders": SupervisedWorker(worker(*nodes))}).compile())

    one, other = agent(find), agent(heavy, find)
    assert fingerprint(one.graph) == fingerprint(other.graph)  # type: ignore[arg-type]

    async def largest() -> int:
        sizes: list[int] = []

        class Sizes(Usage):
            def event(self, name: str, fields: dict[str, Any]) -> None:
                if name == "checkpoint.stored":
                    sizes.append(fields["bytes"])

        await states(other, *(["where is my order?"] * 3), usage=Sizes())
        return max(sizes)

    assert asyncio.run(largest()) < 10_000


@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_repeated_worker_has_its_effect_once_and_goes_on_where_it_stores_its_steps(
    checkpoints: bool,
) -> None:
    calls: list[str] = []
    keys: list[str] = []
    steps: list[str] = []

    async def charge() -> str:
        calls.append("charge")
        return "paid"

    async def long(state: MessagesState) -> dict[str, Any]:
        steps.append("long")
        return {"messages": [AIMessage("long work")]}

    async def pay(state: MessagesState) -> dict[str, Any]:
        steps.append("pay")
        keys.append(effect_key("charge"))
        paid = await effect(charge)
        if len(keys) == 1:
            raise ConnectionError("the worker fails after its effect")
        return {"messages": [AIMessage(paid)]}

    async def policy(messages: Any) -> Route:
        return Route(kind="question", worker="payment")

    large, _ = scripted("large", written)
    workers = {"payment": SupervisedWorker(worker(long, pay), checkpoints=checkpoints)}
    (state,), namespaces, attempts = asyncio.run(
        states(Agent(supervisor(policy, large, workers).compile()), "pay it")
    )
    assert state["messages"][-1].text == "This is what I found: paid"
    assert attempts == 2
    assert calls == ["charge"]
    assert len(keys) == 2
    assert len(set(keys)) == 1
    assert steps == (["long", "pay", "pay"] if checkpoints else ["long", "pay", "long", "pay"])
    assert (len(namespaces) > 1) is checkpoints


def test_use_is_added_up_by_hop_and_by_user() -> None:
    small, _ = scripted("small", rules)
    large, _ = scripted("large", written)
    usage = Usage()
    graph = supervisor(
        route_with(small, {"orders": "orders"}), large, {"orders": SupervisedWorker(worker(find))}
    )
    agent = Agent(graph.compile(), prices=PRICES)
    asyncio.run(states(agent, "hello", "where is my order?", usage=usage, user="ada"))
    asyncio.run(states(agent, "hello", usage=usage, user="bob"))
    hops, users = usage.by_hop(), usage.by_user()
    assert {name: spent.calls for name, spent in hops.items()} == {"route": 3, "write": 1}
    assert {name: spent.calls for name, spent in users.items()} == {"ada": 3, "bob": 1}
    write = hops["write"]
    assert write.output_tokens == len("This is what I found: order 4711 left on Monday".split())
    assert write.cost == pytest.approx((10 * write.input_tokens + 20 * write.output_tokens) / 1e6)
    total = sum(spent.cost for spent in users.values())
    assert total == pytest.approx(sum(spent.cost for spent in hops.values()))
    assert usage.by_user("another tenant") == {}
    assert Spent() == Spent(0, 0, 0, 0.0, 0.0)


def summing_up() -> tuple[Any, list[list[Any]]]:
    """A model whose summary names what it was given."""

    def answer(messages: list[Any]) -> str:
        before = messages[0].text.partition("in short:\n")[2]
        return ", ".join(filter(None, (before, *(m.text for m in messages[1:] if m.type == "human"))))

    return scripted("small", answer)


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_what_is_long_ago_is_in_the_summary_and_nothing_in_both(keep: int) -> None:
    small, _ = scripted("small", rules)
    large, wrote = scripted("large", written)
    model, asked = summing_up()
    texts = [f"hello {n}" if n % 3 == 0 else f"what is {n}?" for n in range(12)]
    agent = Agent(supervisor(route_with(small), large, summary=RollingSummary(model, keep=keep)).compile())
    made, _, _ = asyncio.run(states(agent, *texts))
    for count, state in enumerate(made, 1):
        kept = [message.text for message in state["messages"] if message.type == "human"]
        summed = state["summary"].split(", ") if state.get("summary") else []
        assert [*summed, *kept] == texts[:count]
        assert keep <= len(state["messages"]) <= 2 * keep + 1 or count * 2 <= 2 * keep
        assert state["messages"][0].type == "human"
    assert len(asked) < len(texts), "not for every message"
    assert any("in short:\nhello 0" in messages[0].text for messages in wrote), "the writer is told"


def test_a_summary_that_fails_leaves_messages_and_summary_as_they_were() -> None:
    small, _ = scripted("small", rules)
    model, asked = summing_up()
    fails = [True]

    def answer(messages: list[Any]) -> str:
        if fails.pop() if fails else False:
            raise RuntimeError("the model is away")
        return str(model.answer(messages))

    failing, _ = scripted("small", answer)
    agent = Agent(supervisor(route_with(small), small, summary=RollingSummary(failing, keep=1)).compile())
    made, _, attempts = asyncio.run(states(agent, "hello 0", "hello 1", "hello 2"))
    assert attempts == 4
    assert made[-1]["summary"] == "hello 0, hello 1"
    assert [m.text for m in made[-1]["messages"] if m.type == "human"] == ["hello 2"]
    assert len(asked) == 2


def test_a_summary_has_to_leave_a_message() -> None:
    with pytest.raises(ValueError, match="keep is 0"):
        RollingSummary(AIMessage, keep=0)  # type: ignore[arg-type]
    small, _ = scripted("small", rules)
    with pytest.raises(ValueError, match="a node 'summarise' itself"):
        supervisor(route_with(small), small, {"summarise": SupervisedWorker(worker(find))})
