"""Commands of the event streaming protocol that go on with a thread.

Covers perdure.server.streaming.protocol_commands.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from langgraph_sdk import Auth

from perdure.server.auth.handlers import Handlers
from tests.server.acceptance.saying import heard, said
from tests.server.acceptance.serving import eventually
from tests.server.graphs import graphs
from tests.server.hosting import known, run, serving


async def _command(http: httpx.AsyncClient, thread_id: str, method: str, **params: Any) -> Any:
    answer = await http.post(
        f"/threads/{thread_id}/commands", json={"id": 1, "method": method, "params": params}
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


async def _ask(client: Any, thread_id: str, assistant_id: str) -> Any:
    """Let a run ask, and return the state with its question."""
    await client.runs.wait(thread_id, assistant_id, input=said("hello"), if_not_exists="create")
    state = await client.threads.get_state(thread_id)
    assert state["interrupts"]
    return state


async def _is_answered(client: Any, thread_id: str, text: str) -> None:
    async def has_ended() -> bool:
        return (await client.threads.get(thread_id))["status"] == "idle"

    await eventually(has_ended)
    assert heard((await client.threads.get_state(thread_id))["values"])[-1] == f"you said {text}"


@pytest.mark.parametrize("how", ["deleted", "another graph's", "metadata"])
@run
async def test_a_question_outlives_the_assistant_that_asked_it(near: str, how: str) -> None:
    async with serving(near, of=graphs()) as server:
        client, http = await server.client(), await server.http()
        assistant_id = (await client.assistants.create("ask"))["assistant_id"]
        states = {thread_id: await _ask(client, thread_id, assistant_id) for thread_id in ("t", "forked")}
        if how == "deleted":
            await client.assistants.delete(assistant_id)
        elif how == "metadata":
            for name, thread_id in zip(("no assistant", 7), states, strict=True):
                await client.threads.update(thread_id, metadata={"assistant_id": name})
        else:
            await client.assistants.update(assistant_id, graph_id="chat")
        question = states["t"]["interrupts"][0]["id"]
        answered = await _command(http, "t", "input.respond", interrupt_id=question, response="yes")
        assert answered["type"] == "success", answered
        await _is_answered(client, "t", "yes")
        checkpoint_id = states["forked"]["checkpoint"]["checkpoint_id"]
        forked = await _command(http, "forked", "state.fork", checkpoint_id=checkpoint_id)
        assert forked["type"] == "success", forked


@run
async def test_who_may_not_see_the_assistant_answers_on_the_thread_that_they_may_use(near: str) -> None:
    auth = known()

    @auth.on.assistants.read
    async def read(ctx: Auth.types.AuthContext, value: Any) -> Any:
        if ctx.user.identity == "bob":
            raise Auth.exceptions.HTTPException(status_code=403, detail="no assistants for you")

    async with serving(near, of=graphs(), gate=Handlers(auth)) as server:
        ada, bob = await server.client("ada"), await server.http("bob")
        assistant_id = (await ada.assistants.create("ask"))["assistant_id"]
        (question,) = (await _ask(ada, "t", assistant_id))["interrupts"]
        answered = await _command(bob, "t", "input.respond", interrupt_id=question["id"], response="yes")
        assert answered["type"] == "success", answered
        await _is_answered(ada, "t", "yes")


@run
async def test_an_answer_that_is_given_twice_or_elsewhere_answers_nothing(near: str) -> None:
    async with serving(near, of=graphs()) as server:
        client, http = await server.client(), await server.http()
        state = await _ask(client, "t", "ask")
        question = {"interrupt_id": state["interrupts"][0]["id"], "response": "yes"}
        twice = await _command(
            http, "t", "input.respond", responses=[question, {**question, "response": "no"}]
        )
        assert (twice["error"], "two answers" in twice["message"]) == ("invalid_argument", True)
        for namespace in (["x"], ["talk:1"], ["x", "ask:1"]):
            elsewhere = await _command(http, "t", "input.respond", namespace=namespace, **question)
            assert elsewhere["error"] == "no_such_namespace", elsewhere
            several = await _command(
                http, "t", "input.respond", responses=[{**question, "namespace": namespace}]
            )
            assert several["error"] == "no_such_namespace", several
        assert (await client.threads.get("t"))["status"] == "interrupted"
        place = f"{state['tasks'][0]['name']}:{state['tasks'][0]['id']}"
        answered = await _command(http, "t", "input.respond", namespace=[place], **question)
        assert answered["type"] == "success", answered
        await _is_answered(client, "t", "yes")


@run
async def test_a_namespace_that_a_thread_does_not_have_is_refused(near: str) -> None:
    async with serving(near, of=graphs()) as server:
        client, http = await server.client(), await server.http()
        await client.runs.wait("t", "chat", input=said("hello"), if_not_exists="create")
        for method in ("state.get", "state.listCheckpoints"):
            refused = await _command(http, "t", method, namespace=["nope"])
            assert refused["error"] == "no_such_namespace", refused
            assert (await _command(http, "t", method, namespace=["talk:1"]))["type"] == "success"
            assert (await _command(http, "t", method, namespace=[]))["type"] == "success"
        checkpoint_id = (await client.threads.get_state("t"))["checkpoint"]["checkpoint_id"]
        for name in ("checkpoint_ns", "checkpointNs"):
            fork = {"checkpoint_id": checkpoint_id, name: "nope"}
            refused = await _command(
                http, "t", "run.start", assistant_id="chat", input=said("x"), forkFrom=fork
            )
            assert (refused["error"], "not of a subgraph" in refused["message"]) == ("invalid_argument", True)
        assert len(await client.runs.list("t")) == 1
        fork = {"checkpoint_id": checkpoint_id, "checkpoint_ns": ""}
        started = await _command(http, "t", "run.start", assistant_id="chat", input=said("x"), forkFrom=fork)
        assert started["type"] == "success", started


@run
async def test_a_command_that_comes_again_is_the_same_run(near: str) -> None:
    async with serving(near, of=graphs()) as server:
        client, http = await server.client(), await server.http()
        state = await _ask(client, "t", "ask")
        http.headers["Idempotency-Key"] = "answer"
        question = {"interrupt_id": state["interrupts"][0]["id"], "response": "yes"}
        copies = [_command(http, "t", "input.respond", **question) for _ in range(3)]
        answers = await asyncio.gather(*copies)
        answers.append(await _command(http, "t", "input.respond", **question))
        assert len({answer["result"]["run_id"] for answer in answers}) == 1, answers
        await _is_answered(client, "t", "yes")
        other = await _command(http, "t", "input.respond", **{**question, "response": "no"})
        assert "used for another run" in other["message"], other


@run
async def test_an_input_that_comes_again_is_no_answer_to_the_question_of_its_run(near: str) -> None:
    async with serving(near, of=graphs()) as server:
        client, http = await server.client(), await server.http()
        for thread in ("new", "asking"):
            if thread == "asking":
                await _ask(client, thread, "ask")
            http.headers["Idempotency-Key"] = "start"
            start = {"assistant_id": "ask", "input": said("yes")}
            first = await _command(http, thread, "run.start", **start)
            await http.get(f"/threads/{thread}/runs/{first['result']['run_id']}/join")
            again = await _command(http, thread, "run.start", **start)
            assert again["result"] == first["result"]
            del http.headers["Idempotency-Key"]
