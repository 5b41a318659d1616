"""The event streaming protocol, with LangGraph's own client and without."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph_sdk import get_sync_client
from langgraph_sdk.client import LangGraphClient

from perdure.runtime import Event
from perdure.runtime.tenant import TenantRuntime
from tests.server.acceptance.saying import said
from tests.server.acceptance.serving import run
from tests.server.gates import GATES
from tests.server.hosting import owners
from tests.server.listening import Place, Told, command, heard, phase, place, start, until_ended

EVERYTHING = [
    "values",
    "updates",
    "messages",
    "tools",
    "lifecycle",
    "input",
    "tasks",
    "checkpoints",
    "custom",
]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'threads.db'}"


def new() -> str:
    return str(uuid.uuid4())


def text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)


# With the clients as they are


async def read_both(client: LangGraphClient) -> tuple[str, list[Any], list[Any], Any]:
    """Read two projections of a turn side by side: the thread's id, messages, states, and the output."""
    async with client.threads.stream(assistant_id="chat") as thread:
        assert (await thread.run.start(input=said("hi")))["run_id"]

        async def messages() -> list[Any]:
            return [message async for message in thread.messages]

        async def values() -> list[Any]:
            return [state async for state in thread.values]

        spoken, states = await asyncio.gather(messages(), values())
        texts = [(message.node, await message.text) for message in spoken]
        return thread.thread_id, texts, states, await thread.output


@run
async def _values_messages_and_output(url: str) -> None:
    async with place(url) as here, here.client() as client:
        for tries in range(3):
            try:
                async with asyncio.timeout(25):
                    thread_id, spoken, states, output = await read_both(client)
                break
            except TimeoutError:
                # The client opens a stream for each projection, and waits for ever for the first if the
                # answer to the second, which replaces it, comes sooner.
                assert tries < 2, "no answer in three turns"
        assert spoken == [("talk", "echo hi")]
        assert [text(m["content"]) for m in states[-1]["messages"]] == ["hi", "echo hi"]
        assert text(output["messages"][-1]["content"]) == "echo hi"
        # The next turn on the thread is not taken for over because the last one is.
        async with client.threads.stream(assistant_id="chat", thread_id=thread_id) as thread:
            await asyncio.sleep(0.3)
            await thread.run.start(input=said("more"))
            assert len((await thread.output)["messages"]) == 4


def test_values_messages_and_output(url: str) -> None:
    _values_messages_and_output(url)


@run
async def _an_interrupt_is_answered(url: str) -> None:
    async with place(url) as here, here.client() as client:
        async with client.threads.stream(assistant_id="ask") as thread:
            await thread.run.start(input=said("hi"))
            async for _ in thread.values:
                pass
            (asked,) = thread.interrupts
            assert asked["value"] == {"question": "really?"}
            assert (await thread.run.respond("sure"))["run_id"]
            assert text((await thread.output)["messages"][-1]["content"]) == "you said sure"
        async with client.threads.stream(assistant_id="boom") as thread:
            await thread.run.start(input=said("hi"))
            with pytest.raises(RuntimeError, match="it broke"):
                await thread.output


def test_an_interrupt_is_answered_and_a_failure_is_told(url: str) -> None:
    _an_interrupt_is_answered(url)


def _sync(url: str) -> None:
    with get_sync_client(url=url, api_key=None) as client:
        with client.threads.stream(assistant_id="chat") as thread:
            thread.run.start(input=said("hi"))
            states = list(thread.values)
            assert [text(m["content"]) for m in states[-1]["messages"]] == ["hi", "echo hi"]
            assert text(thread.output["messages"][-1]["content"]) == "echo hi"
        with client.threads.stream(assistant_id="chat") as thread:
            thread.run.start(input=said("hi"))
            assert [text(str(message.text)) for message in thread.messages] == ["echo hi"]
        with client.threads.stream(assistant_id="ask") as thread:
            thread.run.start(input=said("hi"))
            list(thread.values)
            (asked,) = thread.interrupts
            assert asked["value"] == {"question": "really?"}
            thread.run.respond("yes")
            assert text(thread.output["messages"][-1]["content"]) == "you said yes"


@run
async def _from_a_client_without_a_loop(url: str) -> None:
    async with place(url) as here:
        await asyncio.to_thread(_sync, here.url)


def test_from_a_client_without_a_loop(url: str) -> None:
    _from_a_client_without_a_loop(url)


# What is told


@run
async def _in_order(url: str) -> None:
    async with place(url) as here, here.http() as http:
        thread_id = new()
        listening = await here.begun(thread_id, until_ended(heard(http, thread_id, channels=EVERYTHING)))
        before = (await start(http, thread_id, "ask", said("hi")))["meta"]["applied_through_seq"]
        told = await listening
        assert all(event["seq"] > before for event in told)
        assert [event["seq"] for event in told] == sorted({event["seq"] for event in told})
        assert len({event["event_id"] for event in told}) == len(told)
        methods = [event["method"] for event in told]
        assert methods[0] == "lifecycle"
        assert told[0]["params"]["data"] == {"event": "running", "graph_name": "ask"}
        assert methods[-2:] == ["input.requested", "lifecycle"]
        assert phase(told[-1]) == "interrupted"
        # Clients take a checkpoint for that of the values that follow.
        assert methods[methods.index("values") - 1] == "checkpoints"
        asked = told[-2]["params"]["data"]
        assert asked["payload"] == asked["value"] == {"question": "really?"}
        again = await command(
            http, thread_id, "input.respond", interrupt_id=asked["interrupt_id"], namespace=[], response=None
        )
        assert again["result"]["run_id"]
        rest = await until_ended(
            heard(http, thread_id, channels=["messages", "lifecycle"], since=told[-1]["seq"])
        )
        # What a node returns is not a message that a model streamed.
        assert [event["method"] for event in rest] == ["lifecycle", "lifecycle"]
        assert phase(rest[-1]) == "completed"


def test_a_turn_is_told_in_order(url: str) -> None:
    _in_order(url)


@run
async def _subgraphs(url: str) -> None:
    async with place(url) as here, here.http() as http:
        thread_id = new()
        await start(http, thread_id, "nested", said("hi"))
        told = await until_ended(heard(http, thread_id, channels=EVERYTHING))
        asked = [event["params"] for event in told if event["method"] == "input.requested"]
        assert len(asked) == 1
        (inner,) = asked[0]["namespace"]
        assert inner.startswith("inner:")
        below = [event["params"] for event in told if phase(event) and event["params"]["namespace"]]
        assert [(one["namespace"], one["data"]["event"]) for one in below] == [
            ([inner], "started"),
            ([inner], "interrupted"),
        ]
        assert below[0]["data"]["graph_name"] == "inner"
        tree = (await command(http, thread_id, "agent.getTree"))["result"]["tree"]
        assert (tree["graph_name"], tree["status"], tree["namespace"]) == ("nested", "interrupted", [])
        (child,) = tree["children"]
        assert (child["graph_name"], child["status"], child["namespace"]) == ("inner", "interrupted", [inner])
        only = await until_ended(
            heard(http, thread_id, channels=["values", "lifecycle"], namespaces=[[]], depth=0)
        )
        assert all(event["params"]["namespace"] == [] for event in only)
        async with aclosing(heard(http, thread_id, channels=["values"], namespaces=[["inner"]])) as within:
            assert (await anext(within))["params"]["namespace"] == [inner]


def test_subgraphs_are_told_of_and_a_question_within_is_asked_once(url: str) -> None:
    _subgraphs(url)


@run
async def _come_back(url: str) -> None:
    async with place(url) as here, here.http() as http:
        thread_id = new()
        await start(http, thread_id, "both", {})
        whole = await until_ended(heard(http, thread_id, channels=EVERYTHING))
        for at, seen in enumerate(whole[:-1]):
            rest = await until_ended(heard(http, thread_id, channels=EVERYTHING, since=seen["seq"]))
            assert rest == whole[at + 1 :]
        everything = await until_ended(heard(http, thread_id, channels=EVERYTHING, since=0))
        assert everything == whole


def test_who_comes_back_misses_nothing_and_gets_nothing_twice(url: str) -> None:
    _come_back(url)


@run
async def _come_back_while_it_goes_on(url: str) -> None:
    async with place(url) as here, here.http() as http:
        thread_id = new()
        whole = await here.begun(
            thread_id, until_ended(heard(http, thread_id, channels=["custom", "lifecycle"]))
        )
        await start(http, thread_id, "walk", {"steps": 12, "pause": 0.05})
        pieces: list[Told] = []
        while not pieces or phase(pieces[-1]) != "completed":
            since = pieces[-1]["seq"] if pieces else 0
            async with aclosing(
                heard(http, thread_id, channels=["custom", "lifecycle"], since=since)
            ) as events:
                pieces += [await anext(events), await anext(events)]
        told = await whole
        assert pieces == told
        steps = [event["params"]["data"] for event in told if event["method"] == "custom"]
        assert steps == [{"step": n, "payload": {"step": n}} for n in range(12)]


def test_who_comes_back_again_and_again_hears_what_others_hear(url: str) -> None:
    _come_back_while_it_goes_on(url)


@run
async def _amid_one_event(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = '{"__interrupt__":[{"id":"a","value":1},{"id":"b","value":2},{"id":"c","value":3}]}'

    async def follow(*_: Any, **__: Any) -> AsyncIterator[Event]:
        yield Event(1_000, "r", "updates", asked)
        await asyncio.Event().wait()

    async with place(url) as here, here.http() as http:
        monkeypatch.setattr(TenantRuntime, "follow_thread", follow)
        for since, rest in ((997, [998, 999, 1_000]), (998, [999, 1_000]), (999, [1_000])):
            async with aclosing(heard(http, "t", channels=["input"], since=since)) as events:
                assert [(await anext(events))["seq"] for _ in rest] == rest


def test_who_saw_some_of_what_one_event_became_is_told_the_others(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _amid_one_event(url, monkeypatch)


@run
async def _another_server_works(url: str) -> None:
    async with place(url) as works, place(url, works=False) as here:
        async with here.http() as http, works.http() as there:
            thread_id = new()
            far = await here.begun(thread_id, until_ended(heard(http, thread_id, channels=EVERYTHING)))
            near = await works.begun(thread_id, until_ended(heard(there, thread_id, channels=EVERYTHING)))
            await start(http, thread_id, "walk", {"steps": 5, "pause": 0.05})
            assert await far == await near
        async with here.client() as client, client.threads.stream(assistant_id="ask") as thread:
            await thread.run.start(input=said("hi"))
            async for _ in thread.values:
                pass
            await thread.run.respond("far")
            assert text((await thread.output)["messages"][-1]["content"]) == "you said far"


def test_another_server_works_on_the_run(url: str) -> None:
    _another_server_works(url)


@run
async def _from_where(url: str) -> None:
    async with place(url) as here, here.http() as http:
        thread_id = new()
        await start(http, thread_id, "chat", said("one"))
        first = await until_ended(heard(http, thread_id, channels=["lifecycle"]))
        assert [phase(event) for event in first] == ["running", "completed"]
        GATES.clear()
        await start(http, thread_id, "walk", {"steps": 6, "gated": 3})
        async with aclosing(heard(http, thread_id, channels=["lifecycle"])) as events:
            event = await anext(events)
            assert event["params"]["data"] == {"event": "running", "graph_name": "walk"}
        going = await here.begun(
            thread_id, until_ended(heard(http, thread_id, channels=["lifecycle", "custom"]))
        )
        GATES["walk"].set()
        late = await going
        assert late[0] == event
        # The same stream again: the run was told to its end, and what comes next is new.
        again = await here.begun(
            thread_id, until_ended(heard(http, thread_id, channels=["lifecycle", "custom"]))
        )
        await start(http, thread_id, "chat", said("three"))
        told = await again
        assert [phase(one) for one in told] == ["running", "completed"]
        assert told[0]["seq"] > late[-1]["seq"]


def test_a_stream_begins_with_the_run_that_goes_on(url: str) -> None:
    _from_where(url)


@run
async def _while_waiting(url: str) -> None:
    thread_id = new()
    async with place(url) as here, here.http() as http:
        await start(http, thread_id, "chat", said("one"))
        ended = await until_ended(heard(http, thread_id, channels=["lifecycle"]))
    async with place(url, works=False) as here, here.http() as http:
        await start(http, thread_id, "chat", said("two"))
        telling = await here.begun(
            thread_id, until_ended(heard(http, thread_id, channels=["lifecycle", "values"]))
        )
        async with place(url):
            told = await telling
    assert told[0]["seq"] > ended[-1]["seq"]
    assert [phase(one) for one in told if phase(one)] == ["running", "completed"]


def test_a_stream_begins_with_the_message_that_waits_and_not_with_the_run_that_ended(url: str) -> None:
    _while_waiting(url)


@run
async def _closed(url: str) -> None:
    async with place(url) as here, here.http() as http:
        thread_id = new()

        told: list[Told] = []

        async def listen() -> bool:
            try:
                async for event in heard(http, thread_id, channels=["lifecycle", "values"]):
                    told.append(event)  # noqa: PERF401 - what came before the break is wanted too
            except httpx.RemoteProtocolError:
                return True
            return False

        listening = await here.begun(thread_id, listen())
        await start(http, thread_id, "slow", said("5"))
        async with asyncio.timeout(60):
            while not told and not listening.done():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await here.host.close()
        async with asyncio.timeout(60):
            # Clients do not come back to what has ended in order.
            assert await listening, "the stream is broken off"
        assert phase(told[0]) == "running"
        assert (told[-1]["type"], told[-1]["id"]) == ("error", None)


def test_a_server_that_closes_breaks_the_stream_off_and_says_so(url: str) -> None:
    _closed(url)


# Commands


@run
async def _several_answers(url: str) -> None:
    async with place(url) as here, here.http() as http:
        thread_id = new()
        await start(http, thread_id, "both", {})
        told = await until_ended(heard(http, thread_id, channels=["input", "lifecycle"]))
        asked = {e["params"]["data"]["value"]: e["params"]["data"]["interrupt_id"] for e in told[1:-1]}
        assert set(asked) == {"left?", "right?"}
        ids = [{"interrupt_id": i, "namespace": [], "response": q[0]} for q, i in asked.items()]
        wrong = [*ids[:1], {"interrupt_id": "nothing", "namespace": [], "response": 1}]
        refused = await command(http, thread_id, "input.respond", responses=wrong)
        assert refused["error"] == "no_such_interrupt"
        done = await command(http, thread_id, "input.respond", responses=ids)
        assert done["type"] == "success", done
        rest = await until_ended(heard(http, thread_id, since=told[-1]["seq"]))
        assert phase(rest[-1]) == "completed"
        state = (await command(http, thread_id, "state.get", namespace=[], keys=["answers"]))["result"]
        assert sorted(state["values"]["answers"]) == ["left l", "right r"]
        twice = await command(http, thread_id, "input.respond", responses=ids)
        assert twice["error"] == "no_such_interrupt"


def test_several_questions_are_answered_at_once(url: str) -> None:
    _several_answers(url)


@run
async def _the_past(url: str) -> None:
    async with place(url) as here, here.http() as http:
        thread_id = new()
        for given in ("one", "two"):
            before = await start(http, thread_id, "chat", said(given), metadata={"turn": given})
            await until_ended(heard(http, thread_id, since=before["meta"]["applied_through_seq"]))
        listed = (await command(http, thread_id, "state.listCheckpoints", limit=50))["result"]["checkpoints"]
        fork = next(one["id"] for one in listed if one["step"] == 1)
        now = (await command(http, thread_id, "state.get", namespace=[]))["result"]
        assert now["checkpoint"]["id"] == listed[0]["id"]
        assert len(now["values"]["messages"]) == 4
        page = (await command(http, thread_id, "state.listCheckpoints", limit=2, before=fork))["result"]
        assert [one["step"] for one in page["checkpoints"]] == [0, -1]
        for ask in (
            command(http, thread_id, "state.fork", checkpoint_id=fork, input=said("other")),
            start(http, thread_id, "chat", said("another"), config={"configurable": {"checkpoint_id": fork}}),
            start(http, thread_id, "chat", said("third"), forkFrom=fork, multitaskStrategy="enqueue"),
        ):
            told = await ask
            assert told["type"] == "success", told
            await until_ended(heard(http, thread_id, since=told["meta"]["applied_through_seq"]))
            state = (await command(http, thread_id, "state.get", namespace=[]))["result"]
            assert len(state["values"]["messages"]) == 4
            assert state["values"]["messages"][0]["content"] == "one"
        refused = await command(http, thread_id, "state.fork", checkpoint_id=new())
        assert refused["error"] == "no_such_checkpoint"


def test_the_past_is_looked_at_and_gone_on_from(url: str) -> None:
    _the_past(url)


@run
async def _refusals(url: str) -> None:
    async with place(url) as here, here.http() as http:
        thread_id = new()
        unknown = await command(http, thread_id, "subscription.subscribe", channels=["values"])
        assert (unknown["type"], unknown["error"]) == ("error", "unknown_command")
        chat = {"assistant_id": "chat"}
        unusable: list[dict[str, Any]] = [
            {},
            {"assistant_id": "nobody"},
            {**chat, "multitaskStrategy": "no"},
            *({**chat, "config": config} for config in (5, "x", [1], {"configurable": 5})),
        ]
        for params in unusable:
            told = await command(http, thread_id, "run.start", **params)
            assert told["error"] == "invalid_argument", told
            assert "meta" not in told
        none = await command(http, thread_id, "input.respond", interrupt_id="x", namespace=[], response=1)
        assert none["error"] == "no_such_interrupt"
        await start(http, thread_id, "chat", said("x"))
        assert (await command(http, thread_id, "agent.getTree", run_id=new()))["error"] == "no_such_run"
        url = f"/threads/{thread_id}"
        for body in (b"{", b"[]", b"{}", b'{"id": -1, "method": "x"}', b'{"id": true, "method": "x"}'):
            assert (await http.post(f"{url}/commands", content=body)).status_code == 400
        assert (
            await http.post(f"{url}/commands", json={"id": 1, "method": "run.start", "params": []})
        ).is_error
        wrong: list[dict[str, Any]] = [
            {},
            {"channels": []},
            {"channels": ["no"]},
            {"channels": ["values"], "since": -1},
        ]
        for asked in wrong:
            answer = await http.post(f"{url}/stream/events", json=asked)
            assert (answer.status_code, list(answer.json())) == (400, ["detail"])


def test_what_is_wrong_is_said(url: str) -> None:
    _refusals(url)


@run
async def _others(url: str) -> None:
    async with place(url, gate=owners()) as here, here.http("ada") as ada, here.http("bob") as bob:
        thread_id = new()
        spied = asyncio.create_task(_first(here, "bob", thread_id, channels=EVERYTHING, since=0))
        await asyncio.sleep(0.3)
        await start(ada, thread_id, "ask", said("secret"))
        told = await until_ended(heard(ada, thread_id, channels=["input", "lifecycle"]))
        asked = told[-2]["params"]["data"]["interrupt_id"]
        answers = [
            await command(bob, thread_id, "input.respond", interrupt_id=asked, response=1),
            await command(bob, thread_id, "run.start", assistant_id="chat", input=said("x")),
            await command(bob, thread_id, "state.get", namespace=[]),
            await command(bob, thread_id, "agent.getTree"),
        ]
        assert all(answer["type"] == "error" and "meta" not in answer for answer in answers), answers
        nowhere = await command(bob, new(), "state.get", namespace=[])
        assert answers[2]["error"] == nowhere["error"]
        late = asyncio.create_task(_first(here, "bob", thread_id, channels=EVERYTHING))
        done, _ = await asyncio.wait([spied, late], timeout=1.5)
        assert not done
        for task in (spied, late):
            task.cancel()
        await asyncio.gather(spied, late, return_exceptions=True)
        answered = await command(ada, thread_id, "input.respond", interrupt_id=asked, response="ok")
        assert answered["type"] == "success"


async def _first(here: Place, user: str, thread_id: str, **asked: Any) -> Told:
    async with here.http(user) as http, aclosing(heard(http, thread_id, **asked)) as events:
        return await anext(events)


def test_anothers_thread_is_as_one_that_is_not_there(url: str) -> None:
    _others(url)


@run
async def test_what_is_sent_to_a_thread_that_waits_is_its_answer(url: str) -> None:
    """Also when it is sent the moment that the question is heard, before the run has stopped."""
    async with place(url) as here, here.http() as http:
        answers: list[Any] = ["yes", {"sure": True}, False, 0, []]
        for answer in answers:
            thread = new()
            await start(http, thread, "ask", said("hello"))
            async for event in heard(http, thread, channels=["input"]):
                assert event["method"] == "input.requested"
                break
            await start(http, thread, "ask", answer)
            await eventually_idle(http, thread)
            values = (await http.get(f"/threads/{thread}/state")).json()["values"]
            assert [one["content"] for one in values["messages"]] == ["hello", f"you said {answer}"]
        # Without input the thread goes on as it is, and on one that waits for nothing it is an input.
        thread = new()
        await start(http, thread, "chat", said("one"))
        await eventually_idle(http, thread)
        await start(http, thread, "chat", said("two"))
        await eventually_idle(http, thread)
        values = (await http.get(f"/threads/{thread}/state")).json()["values"]
        assert len(values["messages"]) == 4


async def eventually_idle(http: httpx.AsyncClient, thread: str) -> None:
    async with asyncio.timeout(60):
        while (await http.get(f"/threads/{thread}")).json()["status"] != "idle":  # noqa: ASYNC110
            await asyncio.sleep(0.05)
