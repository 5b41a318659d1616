"""The demo's requests, with a scripted model and the checkpointer in memory."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from perdure.demo.answers import Refused
from perdure.demo.web import MESSAGE_CHARACTERS
from perdure.errors import Unavailable
from tests.demo.staging import events, run, stage, until


def test_a_message_is_accepted_answered_and_kept() -> None:
    async def scenario() -> None:
        async with stage() as demo:
            thread = await demo.thread()
            response = await demo.say(thread, "Tell me a story", id="m1")
            assert response.headers["content-type"].startswith("text/event-stream")
            names = [name for name, _ in events(response.text)]
            assert names == ["accepted", "token", "token", "token", "token", "done"]
            told = events(response.text)
            assert json.loads(told[0][1]) == {"message_id": "m1"}
            assert json.loads(told[-1][1])["text"] == "Once upon a time."
            shown = (await demo.client.get(f"/api/threads/{thread}")).json()
            assert shown["status"] == "finished"
            assert [(m["role"], m["text"]) for m in shown["messages"]] == [
                ("user", "Tell me a story"),
                ("assistant", "Once upon a time."),
            ]

    run(scenario)


def test_accepted_is_said_only_after_the_message_is_stored() -> None:
    class SlowSaver(InMemorySaver):
        stored = 0

        async def aput(self, *args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0.05)
            config = await super().aput(*args, **kwargs)
            self.stored += 1
            return config

    async def scenario() -> None:
        saver = SlowSaver()
        async with stage(saver, hold_at=0) as demo:
            answer = demo.answers.ask("t", HumanMessage("hello", id="m1"))
            assert (await answer.first()).name == "accepted"
            assert saver.stored == 2, "the input's checkpoint and the one that asks for the answer"
            state = await demo.agent.aget_state({"configurable": {"thread_id": "t"}})
            assert [m.id for m in state.values["messages"]] == ["m1"]

    run(scenario)


def test_an_answer_cut_off_by_a_crash_is_unfinished_and_goes_on() -> None:
    async def scenario() -> None:
        async with stage(hold_at=2) as before:
            thread = await before.thread()
            answer = before.answers.ask(thread, HumanMessage("Tell me a story", id="m1"))
            seen = []
            async for event in answer.follow():
                seen.append(event.name)
                if len(seen) == 3:
                    break
            assert seen == ["accepted", "token", "token"]
        async with stage(before.saver) as after:
            listed = (await after.client.get("/api/threads")).json()["threads"]
            assert [(t["id"], t["title"], t["status"]) for t in listed] == [
                (thread, "Tell me a story", "unfinished")
            ]
            shown = (await after.client.get(f"/api/threads/{thread}")).json()
            assert shown["status"] == "unfinished"
            assert [m["text"] for m in shown["messages"]] == ["Tell me a story"]
            response = await after.client.post(f"/api/threads/{thread}/continue")
            assert [name for name, _ in events(response.text)][-1] == "done"
            shown = (await after.client.get(f"/api/threads/{thread}")).json()
            assert shown["status"] == "finished"
            assert [m["text"] for m in shown["messages"]] == ["Tell me a story", "Once upon a time."]

    run(scenario)


def test_a_second_request_follows_the_same_answer_from_its_beginning() -> None:
    async def scenario() -> None:
        async with stage(hold_at=2) as demo:
            thread = await demo.thread()
            first = asyncio.create_task(demo.say(thread, "Tell me a story"))
            await until(lambda: demo.answers.writing(thread))
            await demo.answers.resume(thread).first()
            second = asyncio.create_task(demo.client.post(f"/api/threads/{thread}/continue"))
            refused = await demo.say(thread, "And another")
            assert (refused.status_code, refused.json()["error"]["code"]) == (409, "answering")
            shown = (await demo.client.get(f"/api/threads/{thread}")).json()
            assert shown["status"] == "answering"
            demo.model.gate.set()
            assert events((await first).text) == events((await second).text)
            assert len(demo.model.prompts) == 1

    run(scenario)


def test_an_answer_goes_on_when_nobody_watches() -> None:
    async def scenario() -> None:
        async with stage(hold_at=1) as demo:
            watcher = asyncio.create_task(demo.say("t", "Tell me a story"))
            await until(lambda: bool(demo.model.prompts))
            watcher.cancel()
            demo.model.gate.set()
            await until(lambda: not demo.answers.writing("t"))
            shown = (await demo.client.get("/api/threads/t")).json()
            assert [m["text"] for m in shown["messages"]] == ["Tell me a story", "Once upon a time."]

    run(scenario)


def test_a_message_sent_twice_under_one_id_is_stored_and_answered_once() -> None:
    async def scenario() -> None:
        async with stage() as demo:
            once = await demo.say("t", "Hello", id="m1")
            again = await demo.say("t", "Hello", id="m1")
            assert [name for name, _ in events(again.text)] == ["accepted", "done"]
            assert events(once.text)[-1] == events(again.text)[-1]
            assert len(demo.model.prompts) == 1
            shown = (await demo.client.get("/api/threads/t")).json()
            assert len(shown["messages"]) == 2

    run(scenario)


def test_a_new_message_may_follow_one_that_never_got_an_answer() -> None:
    async def scenario() -> None:
        async with stage(fail_at=0) as broken:
            failed = await broken.say("t", "First")
            assert [name for name, _ in events(failed.text)] == ["accepted", "error"]
        async with stage(broken.saver) as mended:
            await mended.say("t", "Second")
            shown = (await mended.client.get("/api/threads/t")).json()
            assert [m["text"] for m in shown["messages"]] == ["First", "Second", "Once upon a time."]

    run(scenario)


def test_a_failing_model_is_named_without_its_words(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with stage(fail_at=1) as demo:
            told = events((await demo.say("t", "my private words")).text)
            assert [name for name, _ in told] == ["accepted", "token", "error"]
            problem = json.loads(told[-1][1])
            assert problem["code"] == "model"
            assert "ConnectionError" in problem["message"]
            assert "stored" in problem["message"]

    with caplog.at_level(logging.DEBUG, logger="perdure"):
        run(scenario)
    assert [record.getMessage() for record in caplog.records] == [
        "answer failed thread=t error=ConnectionError"
    ]


def test_a_database_that_is_gone_accepts_nothing() -> None:
    class GoneSaver(InMemorySaver):
        async def aput(self, *args: Any, **kwargs: Any) -> Any:
            raise Unavailable("no database")

        async def aget_tuple(self, config: Any) -> Any:
            if config["configurable"]["thread_id"] == "unread":
                raise Unavailable("no database")
            return await super().aget_tuple(config)

    async def scenario() -> None:
        async with stage(GoneSaver()) as demo:
            response = await demo.say("t", "Hello")
            assert (response.status_code, response.json()["error"]["code"]) == (503, "database_unavailable")
            assert "Nothing was stored" in response.json()["error"]["message"]
            response = await demo.client.get("/api/threads/unread")
            assert (response.status_code, response.json()["error"]["code"]) == (503, "database_unavailable")

    run(scenario)


def test_continue_with_nothing_unfinished_is_refused() -> None:
    async def scenario() -> None:
        async with stage() as demo:
            await demo.say("t", "Hello")
            response = await demo.client.post("/api/threads/t/continue")
            assert (response.status_code, response.json()["error"]["code"]) == (409, "nothing_unfinished")

    run(scenario)


def test_threads_are_listed_newest_first_under_their_first_message() -> None:
    async def scenario() -> None:
        async with stage() as demo:
            assert (await demo.client.get("/api/threads")).json() == {"threads": []}
            await demo.say("a", "First\n  thread")
            await demo.say("b", "word " * 40)
            listed = (await demo.client.get("/api/threads")).json()["threads"]
            assert [t["id"] for t in listed] == ["b", "a"]
            assert listed[1]["title"] == "First thread"
            assert listed[0]["title"].endswith("word…")
            assert len(listed[0]["title"]) <= 61
            assert {t["status"] for t in listed} == {"finished"}

    run(scenario)


def test_a_deleted_thread_is_gone_with_the_answer_being_written() -> None:
    async def scenario() -> None:
        async with stage(hold_at=1) as demo:
            answer = demo.answers.ask("t", HumanMessage("Hello", id="m1"))
            await answer.first()
            assert (await demo.client.delete("/api/threads/t")).status_code == 204
            assert [event.name async for event in answer.follow()][-1] == "error"
            response = await demo.client.get("/api/threads/t")
            assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
            assert (await demo.client.get("/api/threads")).json() == {"threads": []}
            assert (await demo.client.delete("/api/threads/t")).status_code == 204

    run(scenario)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"text": ""},
        {"text": " \n "},
        {"text": "x" * (MESSAGE_CHARACTERS + 1)},
        {"text": 7},
        {"text": "x", "id": "no spaces"},
        {"text": "x", "role": "system"},
    ],
)
def test_a_message_that_is_not_valid_is_refused_in_json(body: dict[str, object]) -> None:
    async def scenario() -> None:
        async with stage() as demo:
            response = await demo.client.post("/api/threads/t/messages", json=body)
            assert (response.status_code, response.json()["error"]["code"]) == (422, "invalid")
            assert len(response.text) < 400, "the refused text is not sent back"
            assert demo.model.prompts == []

    run(scenario)


def test_half_a_character_is_refused() -> None:
    async def scenario() -> None:
        async with stage() as demo:
            response = await demo.client.post(
                "/api/threads/t/messages",
                content=rb'{"text": "\ud83d"}',
                headers={"content-type": "application/json"},
            )
            assert response.status_code == 422

    run(scenario)


def test_unknown_addresses_are_json_errors() -> None:
    async def scenario() -> None:
        async with stage() as demo:
            for url in ("/api/threads/absent", "/api/nothing", "/page/nothing.js"):
                response = await demo.client.get(url)
                assert response.status_code == 404
                assert response.json()["error"]["message"]

    run(scenario)


def test_the_page_needs_no_other_host() -> None:
    async def scenario() -> None:
        async with stage() as demo:
            page = await demo.client.get("/")
            assert page.headers["content-security-policy"].startswith("default-src 'self'")
            parts = [page.text]
            for name in ("page.css", "page.js", "list.js", "api.js", "text.js"):
                part = await demo.client.get(f"/page/{name}")
                assert part.status_code == 200
                parts.append(part.text)
            assert not any("https://" in part or '"//' in part for part in parts)

    run(scenario)


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"sec-fetch-site": "same-origin"}, True),
        ({"origin": "http://127.0.0.1:8765"}, True),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"origin": "http://elsewhere.example"}, False),
        ({"host": "rebound.example:8765"}, False),
        ({"host": "localhost:9000"}, True),
    ],
)
def test_only_the_own_page_may_write(headers: dict[str, str], allowed: bool) -> None:
    async def scenario() -> None:
        async with stage() as demo:
            response = await demo.client.post("/api/threads", headers=headers)
            assert response.status_code == (201 if allowed else 403)

    run(scenario)


def test_closing_ends_answers_and_refuses_new_ones() -> None:
    async def scenario() -> None:
        async with stage(hold_at=1) as demo:
            watcher = asyncio.create_task(demo.say("t", "Hello"))
            await until(lambda: bool(demo.model.prompts))
            assert await demo.answers.close() == 1
            assert json.loads(events((await watcher).text)[-1][1])["code"] == "stopped"
            with pytest.raises(Refused):
                demo.answers.ask("t", HumanMessage("again"))
            assert (await demo.client.get("/api/threads/t")).json()["status"] == "unfinished"

    run(scenario)
