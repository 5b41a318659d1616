"""The demo's application with a scripted model: the page, the guard, answers that outlive their process."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path

import pytest

from perdure.server.routes.chat import PAGE
from tests.demo.process import saying
from tests.demo.staging import run, stage, until

NAMESPACES = {"http://www.w3.org/2000/svg", "http://www.w3.org/1998/Math/MathML"}


def test_a_message_is_answered_and_kept() -> None:
    async def scenario() -> None:
        async with stage() as demo:
            told = await demo.say(await demo.thread(), "Sing for me")
            assert told[0][0] == "metadata"
            pieces = [data[0]["content"] for name, data in told if name == "messages"]
            assert "".join(pieces) == "Once upon a time."
            assert told[-1][1]["status"] == "success"
            (thread,) = (await demo.client.post("/threads/search", json={})).json()
            assert await demo.kept(thread["thread_id"]) == ["Sing for me", "Once upon a time."]

    run(scenario)


def test_an_answer_cut_off_goes_on_by_itself_when_the_demo_starts_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'demo.db'}"

    async def scenario() -> None:
        async with stage(url, hold_at=2) as before:
            watcher = asyncio.create_task(before.client.post("/threads/t/runs/stream", json=saying("Hello")))
            await until(lambda: bool(before.model.prompts))
            await before.demo.host.close()
            # The run has not ended: its stream is broken off, which is not an answer to this transport.
            with pytest.raises(AssertionError):
                await watcher
        assert before.demo.handed_over.count == 1
        async with stage(url) as after:
            while (await after.client.get("/threads/t")).json()["status"] == "busy":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            assert await after.kept("t") == ["Hello", "Once upon a time."]
            assert len(after.model.prompts) == 1

    run(scenario)


def test_an_answer_goes_on_when_nobody_watches() -> None:
    async def scenario() -> None:
        async with stage(hold_at=1) as demo:
            watcher = asyncio.create_task(demo.client.post("/threads/t/runs/stream", json=saying("Hello")))
            await until(lambda: bool(demo.model.prompts))
            watcher.cancel()
            demo.model.gate.set()
            while (await demo.client.get("/threads/t")).json()["status"] == "busy":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            assert await demo.kept("t") == ["Hello", "Once upon a time."]

    run(scenario)


def test_a_message_sent_twice_under_one_key_is_stored_and_answered_once() -> None:
    async def scenario() -> None:
        async with stage() as demo:
            key = {"Idempotency-Key": "m1"}
            once = await demo.say("t", "Hello", **key)
            again = await demo.say("t", "Hello", **key)
            assert once == again
            assert len(demo.model.prompts) == 1
            assert len(await demo.kept("t")) == 2

    run(scenario)


def test_a_failing_model_leaves_the_message_and_no_words_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with stage(fail_at=1) as demo:
            told = dict(await demo.say("t", "my private words"))
            assert told["error"]["error"] == "ConnectionError"
            assert await demo.kept("t") == ["my private words"]
            demo.model.fail_at = None
            await demo.say("t", "again")
            assert await demo.kept("t") == ["my private words", "again", "Once upon a time."]

    with caplog.at_level(logging.INFO, logger="perdure"):
        run(scenario)
    logged = " ".join(record.getMessage() for record in caplog.records)
    assert "ConnectionError" in logged
    assert "private words" not in logged


def test_the_page_needs_no_other_host_and_no_inline_script() -> None:
    async def scenario() -> None:
        async with stage() as demo:
            page = await demo.client.get("/", follow_redirects=True)
            assert page.url.path == "/chat/"
            assert "<script>" not in page.text
            assert "style=" not in page.text
            for part in (part for part in PAGE.rglob("*") if part.is_file()):
                name = part.relative_to(PAGE).as_posix()
                served = await demo.client.get(f"/chat/{name}")
                assert served.status_code == 200, name
                policy = served.headers["content-security-policy"]
                assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
                assert "unsafe" not in policy
                if name.startswith("vendor/"):
                    continue  # Libraries name their homes in comments; the policy is what holds them.
                assert "innerHTML" not in served.text
                named = re.findall(r"https?://[a-z][^\"'\s]*", served.text)
                assert set(named) <= NAMESPACES, name
            told = (await demo.client.get("/chat/about.json")).json()
            assert (told["model"], told["database"]) == ("scripted", "memory")
            assert (await demo.client.get("/chat/nothing.js")).status_code == 404

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
            response = await demo.client.post("/threads", json={}, headers=headers)
            assert response.status_code == (200 if allowed else 403)
            assert allowed or response.json()["detail"]
            if "host" in headers:
                read = await demo.client.get("/chat/", headers=headers)
                assert read.status_code == (200 if allowed else 403)

    run(scenario)


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ([(b"host", b"127.0.0.1:8765"), (b"origin", b"http://elsewhere.example")], True),
        ([(b"host", b"rebound.example"), (b"origin", b"http://rebound.example")], True),
        ([(b"host", b"127.0.0.1:8765"), (b"origin", b"http://127.0.0.1:8765")], False),
    ],
)
def test_a_web_socket_of_another_page_is_refused(headers: list[tuple[bytes, bytes]], refused: bool) -> None:
    from perdure.web.guard import Guard

    async def scenario() -> None:
        reached: list[str] = []

        async def app(scope: object, receive: object, send: object) -> None:
            reached.append("app")

        async def send(message: object) -> None:
            reached.append(message["type"])  # type: ignore[index]

        guard = Guard(app, loopback=True)
        await guard({"type": "websocket", "headers": headers}, None, send)  # type: ignore[arg-type]
        assert reached == (["websocket.close"] if refused else ["app"])

    run(scenario)
