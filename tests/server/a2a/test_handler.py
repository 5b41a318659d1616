"""Agents of the A2A protocol, driven by the protocol's own client in both of its releases.

Covers perdure.server.routes.a2a, perdure.server.a2a.dispatch, perdure.server.a2a.tasks,
perdure.server.a2a.cards.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from a2a.types import a2a_pb2 as types
from a2a.utils.errors import (
    A2AError,
    InternalError,
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from fastapi import FastAPI
from google.protobuf.json_format import MessageToDict
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict

from perdure.runtime.tenant import TenantRuntime
from perdure.server import checkpoint_lifespan, perdure_app
from perdure.server.config import Http
from perdure.server.hosting.embedding import perdure_router
from tests.backends import EMPTY
from tests.server.acceptance.saying import state_values
from tests.server.hosting import owners, run, serving, tenants
from tests.server.talking import reassembled, said, talking, text_of

VERSIONS = ("1.0", pytest.param("0.3", marks=pytest.mark.slow))
COMPLETED, WORKING = "TASK_STATE_COMPLETED", "TASK_STATE_WORKING"


class Gate:
    """What a node waits for."""

    def __init__(self) -> None:
        self.reached, self.opened = asyncio.Event(), asyncio.Event()


class Sum(TypedDict, total=False):
    numbers: list[int]
    total: int


def _echo(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"echo {state['messages'][-1].text}")]}


def _boom(state: MessagesState) -> dict[str, Any]:
    raise ValueError("the kettle is dry")


def _ask(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"a {interrupt('which cup?')} cup")]}


async def _drip(state: MessagesState) -> dict[str, Any]:
    model = GenericFakeChatModel(messages=iter([AIMessage("one two three")]))
    return {"messages": [await model.ainvoke(state["messages"])]}


def _total(state: Sum) -> dict[str, Any]:
    return {"total": sum(state["numbers"])}


class Counted(MessagesState, total=False):
    """A conversation with something besides its messages, and what is nobody's business."""

    count: int
    secret: str


class Output(MessagesState, total=False):
    count: int


def _now_and_then() -> Any:
    def turn(state: Counted) -> dict[str, Any]:
        messages = state.get("messages", [])
        said = messages[-1].text if messages and messages[-1].type == "human" else ""
        match said:
            case "count":
                return {"count": state.get("count", 0) + 1, "secret": "s3cret"}
            case "correct":
                earlier = next(one for one in messages if one.type == "ai")
                return {"messages": [AIMessage("corrected", id=earlier.id)]}
            case "ask":
                interrupt("sure?")
                return {}
            case "" | "nothing":
                return {"secret": "s3cret"}
            case _:
                return {"messages": [AIMessage(f"echo {said}")]}

    builder: Any = StateGraph(Counted, output_schema=Output)
    return builder.add_node("turn", turn).add_edge(START, "turn").compile()


def _only(node: Any, of: Any = MessagesState) -> Any:
    builder: Any = StateGraph(of)
    return builder.add_node("turn", node).add_edge(START, "turn").compile()


def graphs(gate: Gate | None = None) -> dict[str, Any]:
    async def _rest(state: MessagesState) -> dict[str, Any]:
        assert gate is not None
        gate.reached.set()
        await gate.opened.wait()
        return {"messages": [AIMessage("rested")]}

    return {
        "ask": _only(_ask),
        "boom": _only(_boom),
        "chat": _only(_echo),
        "drip": _only(_drip),
        "rest": _only(_rest),
        "sum": _only(_total, Sum),
        "now and then": _now_and_then(),
    }


@pytest.fixture
def url() -> Iterator[str]:
    with EMPTY["sqlite"]() as url:
        yield url


@pytest.mark.parametrize("version", VERSIONS)
@run
async def test_a_message_is_a_run_and_its_context_a_thread(version: str) -> None:
    async with (
        serving("memory://", of=graphs()) as served,
        talking(served.url, "chat", version=version) as talk,
    ):
        first = await talk.task("hello")
        assert (first["status"]["state"], text_of(first)) == (COMPLETED, "echo hello")
        second = await talk.task("again", context=first["contextId"])
        assert second["contextId"] == first["contextId"] != second["id"]
        api = await served.client()
        values = await state_values(api, first["contextId"])
        assert [one["content"] for one in values["messages"]] == [
            "hello",
            "echo hello",
            "again",
            "echo again",
        ]
        assert text_of(await talk.get(first["id"])) == "echo hello", "a task keeps its own result"
        assert (await talk.get(first["id"]))["history"][0]["parts"] == [{"text": "hello"}]
        own = await talk.task("here", context="an own name")
        assert own["contextId"] == "an own name"


@pytest.mark.parametrize("version", VERSIONS)
@run
async def test_a_task_has_what_it_added_itself(version: str) -> None:
    async with (
        serving("memory://", of=graphs()) as served,
        talking(served.url, "now and then", version=version) as talk,
    ):
        silent = await talk.task("nothing")
        assert silent["status"]["state"] == COMPLETED
        assert silent.get("artifacts", []) == [], "the whole state is not an answer"
        first = await talk.task("hello", context=silent["contextId"])
        assert text_of(first) == "echo hello"
        silent = await talk.task("nothing", context=first["contextId"])
        assert silent.get("artifacts", []) == [], "the answer before is that of another task"
        counted = await talk.task("count", context=first["contextId"])
        assert counted["artifacts"][0]["parts"] == [{"data": {"count": 1}}]
        silent = await talk.task("nothing", context=first["contextId"])
        assert silent.get("artifacts", []) == []
        corrected = await talk.task("correct", context=first["contextId"])
        assert text_of(corrected) == "corrected"
        asked = await talk.task("ask", context=first["contextId"])
        done = await talk.task("yes", task=asked["id"])
        assert (done["status"]["state"], done.get("artifacts", [])) == (COMPLETED, [])
        assert text_of(await talk.get(first["id"])) == "echo hello"
        assert "s3cret" not in str([silent, counted, done])


@pytest.mark.slow
@run
async def test_a_message_that_is_sent_again_is_the_same_task() -> None:
    async with serving("memory://", of=graphs()) as served, talking(served.url, "chat") as talk:
        message_id = str(uuid.uuid4())
        first = await talk.task("hello", message_id=message_id)
        assert await talk.task("hello", message_id=message_id) == first
        with pytest.raises(InvalidParamsError, match="used for another run"):
            await talk.task("other", message_id=message_id)
        names = [await talk.task("hello", message_id="1") for _ in range(2)]
        assert names[0]["id"] != names[1]["id"], "an id that others may have too is not a key"


@pytest.mark.parametrize("version", VERSIONS)
@run
async def test_a_stream_has_the_task_its_reply_in_parts_and_its_end(version: str) -> None:
    async with (
        serving("memory://", of=graphs()) as served,
        talking(served.url, "drip", version=version, streaming=True) as talk,
    ):
        events = await talk.events(said("go"))
        task = events[0]["task"]
        kinds = [next(iter(event)) for event in events]
        assert kinds.count("artifactUpdate") > 3, "it comes in parts"
        assert list(reassembled(events).values()) == ["one two three"]
        assert events[-1]["statusUpdate"]["status"]["state"] == COMPLETED
        found = await talk.get(task["id"])
        assert text_of(found) == "one two three"
        assert [found["artifacts"][0]["artifactId"]] == list(reassembled(events))


@pytest.mark.parametrize("version", VERSIONS)
@run
async def test_a_question_is_answered_within_its_task(version: str) -> None:
    async with (
        serving("memory://", of=graphs()) as served,
        talking(served.url, "ask", version=version) as talk,
    ):
        asked = await talk.task("tea")
        assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        assert asked["status"]["message"]["parts"] == [{"text": "which cup?"}]
        with pytest.raises(A2AError, match="belongs to another context"):
            await talk.task("blue", task=asked["id"], context="another")
        done = await talk.task("blue", task=asked["id"])
        assert (done["id"], done["status"]["state"], text_of(done)) == (asked["id"], COMPLETED, "a blue cup")
        assert [one["parts"][0]["text"] for one in done["history"]] == ["tea", "blue"]
        with pytest.raises(A2AError, match="has ended; send the message to its contextId"):
            await talk.task("red", task=asked["id"])
        left = await talk.task("tea")
        cancelled = MessageToDict(await talk.client.cancel_task(types.CancelTaskRequest(id=left["id"])))
        assert cancelled["status"]["state"] == "TASK_STATE_CANCELED"
        assert (await talk.get(left["id"]))["status"]["state"] == "TASK_STATE_CANCELED"
        thread = await (await served.client()).threads.get(left["contextId"])
        assert thread["values"] is not None
        assert "interrupts" not in thread["values"]


@pytest.mark.slow
@run
async def test_an_answer_is_given_to_the_question_of_its_own_task_alone() -> None:
    async with serving("memory://", of=graphs()) as served, talking(served.url, "ask") as talk:
        first = await talk.task("tea")
        second = await talk.task("coffee", context=first["contextId"])
        left = await talk.get(first["id"])
        assert left["status"]["state"] == "TASK_STATE_CANCELED", "the context went on without its answer"
        assert "instead of an answer" in left["status"]["message"]["parts"][0]["text"]
        with pytest.raises(A2AError, match="has ended"):
            await talk.task("blue", task=first["id"])
        with pytest.raises(TaskNotCancelableError, match="has ended"):
            await talk.client.cancel_task(types.CancelTaskRequest(id=first["id"]))
        assert (await talk.get(second["id"]))["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        done = await talk.task("red", task=second["id"])
        assert (text_of(done), done["history"][1]["parts"]) == ("a red cup", [{"text": "red"}])
        asked = await talk.task("tea")
        api = await served.client()
        await api.runs.wait(asked["contextId"], "ask", command={"resume": "green"})
        elsewhere = await talk.get(asked["id"])
        assert text_of(elsewhere) == "a green cup", "an answer over the API of threads is one, too"


@pytest.mark.slow
@run
async def test_an_answer_that_is_sent_again_is_the_same_task() -> None:
    config = types.SendMessageConfiguration
    async with serving("memory://", of=graphs()) as served, talking(served.url, "ask") as talk:
        asked, message_id = await talk.task("tea"), str(uuid.uuid4())
        done = await talk.task("blue", task=asked["id"], message_id=message_id)
        again = await talk.task(
            "blue", task=asked["id"], message_id=message_id, configuration=config(return_immediately=True)
        )
        assert again == done
        with pytest.raises(InvalidParamsError, match="used for another answer"):
            await talk.task("red", task=asked["id"], message_id=message_id)


@run
async def test_an_answer_that_is_sent_twice_at_once_is_the_same_task(monkeypatch: pytest.MonkeyPatch) -> None:
    read = TenantRuntime.waiting_run
    async with serving("memory://", of=graphs()) as served, talking(served.url, "ask") as talk:
        asked, message_id = await talk.task("tea"), str(uuid.uuid4())
        done: list[Any] = []

        async def answer() -> Any:
            return await talk.task("blue", task=asked["id"], message_id=message_id)

        async def waiting_run(self: TenantRuntime, thread_id: str) -> str | None:
            monkeypatch.setattr(TenantRuntime, "waiting_run", read)
            done.append(await answer())
            return await read(self, thread_id)

        monkeypatch.setattr(TenantRuntime, "waiting_run", waiting_run)
        assert (await answer())["history"] == done[0]["history"]
        assert text_of(done[0]) == "a blue cup"


@pytest.mark.slow
@run
async def test_tasks_are_listed_in_pages_that_exist() -> None:
    async with serving("memory://", of=graphs()) as served, talking(served.url, "chat") as talk:
        made = [(await talk.task(text, context="c1"))["id"] for text in ("one", "two", "three")]
        asked = types.ListTasksRequest(context_id="c1", page_size=2)
        first = await talk.client.list_tasks(asked)
        asked.page_token = first.next_page_token
        rest = await talk.client.list_tasks(asked)
        assert [one.id for one in (*first.tasks, *rest.tasks)] == made[::-1]
        for wrong in ({"page_token": "first"}, {"page_token": "9" * 30}, {"page_size": -1}):
            with pytest.raises(InvalidParamsError, match=r"pageToken|pageSize|page_size"):
                await talk.client.list_tasks(types.ListTasksRequest(context_id="c1", **wrong))


@pytest.mark.parametrize("version", VERSIONS)
@run
async def test_a_task_is_followed_again_and_cancelled(version: str) -> None:
    gate = Gate()
    async with (
        serving("memory://", of=graphs(gate)) as served,
        talking(served.url, "rest", version=version) as talk,
        talking(served.url, "rest", version=version, streaming=True) as streaming,
    ):
        left = streaming.client.send_message(said("one"))
        task = MessageToDict(await anext(left))["task"]
        await left.aclose()
        await gate.reached.wait()
        assert (await talk.get(task["id"]))["status"]["state"] == WORKING
        with pytest.raises(UnsupportedOperationError, match="asks nothing now"):
            await talk.task("more", task=task["id"])
        again = streaming.client.subscribe(types.SubscribeToTaskRequest(id=task["id"]))
        events = [MessageToDict(await anext(again))]
        gate.opened.set()
        events += [MessageToDict(one) async for one in again]
        assert list(reassembled(events).values()) == ["rested"]
        assert events[-1]["statusUpdate"]["status"]["state"] == COMPLETED
        with pytest.raises(UnsupportedOperationError, match="has ended"):
            _ = [one async for one in streaming.client.subscribe(types.SubscribeToTaskRequest(id=task["id"]))]
        with pytest.raises(TaskNotCancelableError, match="nothing to cancel"):
            await talk.client.cancel_task(types.CancelTaskRequest(id=task["id"]))
        gate.opened.clear()
        gate.reached.clear()
        request = said("two", configuration=types.SendMessageConfiguration(return_immediately=True))
        (begun,) = await talk.events(request)
        await gate.reached.wait()
        cancelled = await talk.client.cancel_task(types.CancelTaskRequest(id=begun["task"]["id"]))
        assert MessageToDict(cancelled)["status"]["state"] == "TASK_STATE_CANCELED"


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
@run
async def test_errors_have_names_and_logs_no_texts(version: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "perdure")
    async with (
        serving("memory://", of=graphs()) as served,
        talking(served.url, "chat", version=version) as talk,
        talking(served.url, "boom", version=version) as boom,
        talking(served.url, "sum", version=version) as sums,
    ):
        failed = await boom.task("my secret")
        assert failed["status"]["state"] == "TASK_STATE_FAILED"
        assert failed["status"]["message"]["parts"] == [{"text": "ValueError: the kettle is dry"}]
        for wrong in ("nothing", "a:b", f"{uuid.uuid4()}:{failed['contextId']}", failed["id"]):
            with pytest.raises(TaskNotFoundError, match="there is no task"):
                await talk.get(wrong)
        total = await sums.task(data={"numbers": [1, 2, 3]})
        assert total["artifacts"][0]["parts"] == [{"data": {"numbers": [1, 2, 3], "total": 6}}]
        with pytest.raises(A2AError, match="has no chat messages"):
            await sums.task("one and two")
        with pytest.raises(InvalidParamsError, match=r"begin with 'perdure\.memory:'"):
            await talk.task("hello", context="perdure.memory:ada")
        assert "my secret" not in caplog.text
        http = await served.http()
        assert (await http.post(f"/a2a/{uuid.uuid4()}", json={})).status_code == 404
        unknown = await http.post("/a2a/nobody", json={})
        assert (unknown.status_code, "the graphs are ask, boom" in unknown.text) == (422, True)


@pytest.mark.slow
@run
async def test_a_missing_context_is_refused_where_one_is_needed() -> None:
    http = Http(a2a_needs_context=True)
    async with (
        serving("memory://", of=graphs(), http=http) as served,
        talking(served.url, "chat") as talk,
    ):
        with pytest.raises(InvalidParamsError, match="contextId is missing"):
            await talk.task("hello")
        assert await (await served.client()).threads.count() == 0
        assert text_of(await talk.task("hello", context="c1")) == "echo hello"


@pytest.mark.slow
@pytest.mark.parametrize("way", ["mounted", "included", "behind a proxy"])
@run
async def test_an_agent_within_an_application_has_its_prefix_and_its_settings(way: str) -> None:
    http = Http(a2a_needs_context=True)
    app = FastAPI(lifespan=checkpoint_lifespan("memory://", graphs=graphs(), serve=True))
    if way == "included":
        app.include_router(perdure_router(http), prefix="/agents")
    else:
        app.mount("/agents" if way == "mounted" else "", perdure_app(app, http))
    root = "/agents" if way == "behind a proxy" else ""

    async def proxied(scope: Any, receive: Any, send: Any) -> None:
        # As uvicorn passes on the path that a proxy has removed.
        path, raw = root + scope["path"], root.encode() + scope["raw_path"]
        await app({**scope, "root_path": root, "path": path, "raw_path": raw}, receive, send)

    base = "https://company.example" + ("" if root else "/agents")
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(proxied), base_url=base) as client,
    ):
        card = (await client.get("/.well-known/agent-card.json?assistant_id=chat")).json()
        for one in card["supportedInterfaces"]:
            assert one["url"].startswith("https://company.example/agents/a2a/")
        path = card["supportedInterfaces"][0]["url"].removeprefix("https://company.example/agents")
        message: dict[str, Any] = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
        version = {"A2A-Version": "1.0"}
        refused = (await client.post(path, json=body, headers=version)).json()
        assert "contextId is missing" in refused["error"]["message"]
        message["contextId"] = "c1"
        answer = (await client.post(path, json=body, headers=version)).json()
        assert text_of(answer["result"]["task"]) == "echo hello"


@pytest.mark.slow
@run
async def test_tasks_and_contexts_are_those_of_the_user() -> None:
    for gate in (owners, tenants):
        async with (
            serving("memory://", of=graphs(), gate=gate()) as served,
            talking(served.url, "ask", user="alice") as alice,
            talking(served.url, "ask", user="bob") as bob,
            talking(served.url, "ask", user="bob", streaming=True) as following,
        ):
            hers = await alice.task("my secret")
            for call in (
                bob.get(hers["id"]),
                bob.task("blue", task=hers["id"]),
                bob.client.cancel_task(types.CancelTaskRequest(id=hers["id"])),
                bob.client.list_task_push_notification_configs(
                    types.ListTaskPushNotificationConfigsRequest(task_id=hers["id"])
                ),
            ):
                with pytest.raises(TaskNotFoundError, match="there is no task"):
                    await call
            with pytest.raises(TaskNotFoundError, match="there is no task"):
                await anext(following.client.subscribe(types.SubscribeToTaskRequest(id=hers["id"])))
            if gate is owners:
                with pytest.raises(InvalidParamsError, match="not found"):
                    await bob.task("hello", context=hers["contextId"])
            else:
                own = await bob.task("hello", context=hers["contextId"])
                assert own["id"] != hers["id"], "the names of another tenant are free"
            for context in (f"{hers['contextId']}x", *([hers["contextId"]] if gate is owners else [])):
                listed = await bob.client.list_tasks(types.ListTasksRequest(context_id=context))
                assert not listed.tasks, "as if the context were not there"
            listed = await alice.client.list_tasks(types.ListTasksRequest(context_id=hers["contextId"]))
            assert [one.id for one in listed.tasks] == [hers["id"]]
            done = await alice.task("blue", task=hers["id"])
            assert text_of(done) == "a blue cup"


@pytest.mark.slow
@run
async def test_cards_need_the_credentials_that_they_name() -> None:
    async with serving("memory://", of=graphs(), gate=tenants()) as served:
        path = "/.well-known/agent-card.json"
        assert (await (await served.http()).get(path)).status_code == 401
        http = await served.http("alice")
        unnamed = await http.get(path)
        assert (unnamed.status_code, "?assistant_id=" in unnamed.json()["detail"]) == (422, True)
        api = await served.client("alice")
        made = await api.assistants.create("chat", name="waiter", description="Takes orders.")
        card = (await http.get(path, params={"assistant_id": made["assistant_id"]})).json()
        assert (card["name"], card["description"]) == ("waiter", "Takes orders.")
        assert card["supportedInterfaces"][0]["url"] == f"{served.url}/a2a/{made['assistant_id']}"
        assert card["securitySchemes"]["bearer"]["httpAuthSecurityScheme"] == {"scheme": "Bearer"}
        assert card["protocolVersion"].startswith("0.3"), "clients of the earlier release read it too"
        other = await (await served.http("bob")).get(path, params={"assistant_id": made["assistant_id"]})
        assert other.status_code == 404


@pytest.mark.slow
@run
async def test_without_the_extra_the_answer_names_it_and_it_can_be_disabled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "perdure.server.a2a.dispatch", None)
    monkeypatch.setitem(sys.modules, "perdure.server.a2a.cards", None)
    paths = (("POST", "/a2a/chat"), ("GET", "/.well-known/agent-card.json?assistant_id=chat"))
    async with serving("memory://", of=graphs()) as served:
        http = await served.http()
        for method, path in paths:
            refused = await http.request(method, path)
            assert refused.status_code == 501
            assert "pip install 'perdure[a2a]'" in refused.json()["detail"]
        foreign = await http.post("/a2a/chat", headers={"Origin": "https://elsewhere.example"})
        assert foreign.status_code == 403
    async with serving("memory://", of=graphs(), http=Http(disable_a2a=True)) as served:
        http = await served.http()
        for method, path in paths:
            assert (await http.request(method, path)).status_code == 404


@pytest.mark.slow
@run
async def test_a_server_that_stops_says_so_and_another_goes_on(url: str) -> None:
    gate = Gate()
    async with (
        serving(url, of=graphs(gate), drain=0.1) as served,
        talking(served.url, "rest", streaming=True) as talk,
    ):
        stream = talk.client.send_message(said("one"))
        task = MessageToDict(await anext(stream))["task"]
        await gate.reached.wait()
        served.host.closing.set()
        with pytest.raises(InternalError, match="subscribe to the task again"):
            _ = [one async for one in stream]
    gate.opened.set()
    async with serving(url, of=graphs(gate)) as other, talking(other.url, "rest", streaming=True) as talk:
        state = (await talk.get(task["id"]))["status"]["state"]
        if state != COMPLETED:
            request = types.SubscribeToTaskRequest(id=task["id"])
            events = [MessageToDict(one) async for one in talk.client.subscribe(request)]
            assert events[-1]["statusUpdate"]["status"]["state"] == COMPLETED
        assert text_of(await talk.get(task["id"])) == "rested"


@pytest.mark.parametrize("version", VERSIONS)
@run
async def test_a_message_that_is_not_what_it_seems_is_refused_before_a_run(version: str) -> None:
    """The protocol's own client cannot send these."""
    is_old = version == "0.3"
    role, file = ("user", "bytes") if is_old else ("ROLE_USER", "raw")

    def sent(part: Any, **others: Any) -> dict[str, Any]:
        return {"message": {"messageId": "1", "contextId": "c", "role": role, "parts": [part]}, **others}

    def holding(data: str) -> Any:
        return {"kind": "file", "file": {file: data}} if is_old else {file: data}

    text = {"kind": "text", "text": "x"} if is_old else {"text": "x"}
    method = "message/send" if is_old else "SendMessage"
    wrong = [
        (sent(holding("!!!!")), "part 0 of the message is not base64"),
        (sent(holding("QUJD\u00e9")), "part 0 of the message is not base64"),
        (sent(holding("QUJDR")), "part 0 of the message is not base64"),
        (sent(text, configuration={"historyLength": -1}), "historyLength is 0 or more, not -1"),
    ]
    async with (
        serving("memory://", of=graphs()) as served,
        httpx.AsyncClient(base_url=served.url, headers={"A2A-Version": version}) as client,
    ):

        async def ask(params: Any, method: str = method) -> Any:
            body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
            return (await client.post("/a2a/chat", json=body)).json()

        for params, says in wrong:
            answer = await ask(params)
            assert (answer["id"], answer["error"]["code"]) == (7, -32602)
            assert says in answer["error"]["message"]
        assert (await client.get("/threads/c")).status_code == 404, "nothing was accepted"
        for data in ("QUJD", "QUI=", "QU\nI=", *(() if is_old else ("QUI", "_-8="))):
            assert "result" in await ask(sent(holding(data)))
        if not is_old:
            task = (await ask(sent(text)))["result"]["task"]["id"]
            for method, params in (("GetTask", {"id": task}), ("ListTasks", {"contextId": "c"})):
                answer = await ask({**params, "historyLength": -2}, method)
                assert answer["error"]["code"] == -32602
