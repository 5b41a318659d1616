"""The end of a run is told to its webhook: whatever it came to, and until it was taken."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.database.opening import connect
from perdure.model.runs.messages import DEAD, READY, SENT
from perdure.runtime import Agent, Options
from perdure.runtime.options import WEBHOOK
from tests.runtime.graphs import Heard, Storage, eventually, eventually_stored, go, settings, vanish
from tests.server.graphs import graphs
from tests.server.receiving import SECRET, begun, made, notices, opened, receiving, said, texts
from tests.servers.ports import free_port

# ---------------------------------------------------------------- what is told


def test_the_end_of_a_run_is_told_with_its_values(storage: Storage) -> None:
    async def main() -> None:
        async with receiving() as receiver, made(storage) as runtime:
            about = {"assistant_id": "a1", "metadata": {"who": "ada"}, "kwargs": {"stream_mode": ["values"]}}
            run_id = await begun(runtime, receiver.url, "chat", "hi", about=about)
            (told,) = await receiver.told()
            (notice,) = await notices(runtime, SENT)
        assert texts(told) == ["hi", "echo hi"]
        known = {"run_id": run_id, "thread_id": "ada", "status": "success", "assistant_id": "a1"}
        assert known.items() <= told.items()
        assert told["metadata"] == {"who": "ada"}
        assert told["kwargs"]["stream_mode"] == ["values"]
        times = [told[name] for name in ("created_at", "run_started_at", "run_ended_at", "webhook_sent_at")]
        assert times == sorted(times)
        assert times[0] == times[1]  # one commit accepts and claims it
        assert len(set(times)) == 3
        assert "error" not in told
        (call,) = receiver.calls
        assert call.path == f"/hook?{SECRET}"
        assert call.headers["content-type"] == "application/json"
        assert call.headers["host"] == f"127.0.0.1:{receiver.port}"
        assert receiver.keys == [notice.id] == [f"{run_id}:0"]

    go(main())


def test_a_question_is_told_and_then_its_answer(memory: Storage) -> None:
    async def main() -> None:
        async with receiving() as receiver, made(memory) as runtime:
            await begun(runtime, receiver.url, "ask", "hi")
            (asked,) = await receiver.told()
            assert asked["status"] == "success"
            assert [one["value"] for one in asked["values"]["__interrupt__"]] == [{"question": "really?"}]
            await runtime.answer("ada", "yes", channel=WEBHOOK, options=Options(webhook=receiver.url))
            _, told = await receiver.told(2)
            assert told["status"] == "success"
            assert texts(told) == ["hi", "you said yes"]
            assert told["run_id"] != asked["run_id"]

    go(main())


def test_an_answer_without_a_webhook_tells_nothing(memory: Storage) -> None:
    async def main() -> None:
        async with receiving() as receiver, made(memory) as runtime:
            await begun(runtime, receiver.url, "ask", "hi")
            await receiver.told()
            ticket = await runtime.answer("ada", "yes")
            run = await runtime.wait(ticket)
            assert (run.state, run.channel) == ("done", WEBHOOK)
            await notices(runtime, SENT)
        assert len(receiver.calls) == 1

    go(main())


def test_a_failure_is_told_without_an_apology(memory: Storage) -> None:
    async def main() -> None:
        sorry = {name: Agent(graph, apology="Sorry!") for name, graph in graphs().items()}
        async with receiving() as receiver, made(memory, graphs=sorry) as runtime:
            await begun(runtime, receiver.url, "boom", "hi")
            (told,) = await receiver.told()
            assert (told["status"], told["error"]) == ("error", "it broke")
            assert texts(told) == ["hi"]
            await notices(runtime, SENT)
        assert "Sorry" not in receiver.calls[0].said

    go(main())


def test_no_replies_are_made_for_a_webhook(memory: Storage) -> None:
    """They would be made for nobody, and may not be possible."""

    def impossible(values: Any, messages: Any) -> list[Any]:
        raise RuntimeError("there are no replies in these values")

    async def main() -> None:
        mute = {name: Agent(graph, to_replies=impossible) for name, graph in graphs().items()}
        async with receiving() as receiver, made(memory, graphs=mute) as runtime:
            await begun(runtime, receiver.url, "walk", {"steps": 2})
            (told,) = await receiver.told()
            assert (told["status"], told["values"]["trail"]) == ("success", [0, 1])

    go(main())


@pytest.mark.parametrize("rollback", [False, True], ids=["interrupt", "rollback"])
def test_a_run_that_is_cancelled_is_told(memory: Storage, rollback: bool) -> None:
    async def main() -> None:
        async with receiving() as receiver, made(memory) as runtime:
            await begun(runtime, receiver.url, "chat", "hi")
            await receiver.told()
            run_id = await begun(runtime, receiver.url, "slow", "60")

            async def is_at_rest() -> bool:
                graph = runtime.graph("slow")
                state = await graph.aget_state({"configurable": {"thread_id": "ada"}})
                return state.next == ("rest",)

            await eventually_stored(is_at_rest)
            assert await runtime.cancel("ada", run_id, rollback=rollback)
            _, told = await receiver.told(2)
        if rollback:
            assert told["status"] == "rollback"
            assert texts(told) == ["hi", "echo hi"]
        else:
            assert told["status"] == "interrupted"
            assert texts(told) == ["hi", "echo hi", "60", "noted"]

    go(main())


def test_a_run_that_is_cancelled_before_it_begins_is_told(memory: Storage) -> None:
    async def main() -> None:
        async with receiving() as receiver, made(memory) as runtime:
            first = await begun(runtime, receiver.url, "slow", "60")
            second = await begun(runtime, receiver.url, "chat", "never mind")
            assert await runtime.cancel("ada", second)
            assert await runtime.cancel("ada", first)
            told = await receiver.told(2)
        assert [(one["run_id"], one["status"]) for one in told] == [
            (first, "interrupted"),
            (second, "interrupted"),
        ]
        assert "never mind" not in str(told[1]["values"])

    go(main())


def test_a_deadline_is_told(memory: Storage) -> None:
    async def main() -> None:
        async with (
            receiving() as receiver,
            made(memory, settings=settings(shared_threads=True, deadline=0.3)) as runtime,
        ):
            await begun(runtime, receiver.url, "slow", "60")
            (told,) = await receiver.told()
        assert told["status"] == "timeout"

    go(main())


def test_the_values_are_those_of_the_run_when_others_have_gone_on(memory: Storage) -> None:
    """The receiver is away for a while; the thread is not."""

    async def main() -> None:
        async with (
            receiving(500) as receiver,
            made(memory, settings=settings(shared_threads=True, max_backoff=5.0)) as runtime,
        ):
            first = await begun(runtime, receiver.url, "chat", "one")
            await receiver.told()
            failed = await begun(runtime, receiver.url, "boom", "two")
            third = await runtime.submit("ada", said("three"), graph="chat")
            assert (await runtime.wait(third)).state == "done"
            before = len(receiver.calls)
            receiver.answers = [200]
            await notices(runtime, SENT, SENT)
        told = {call.body["run_id"]: call.body for call in receiver.calls[before:]}
        assert texts(told[first]) == ["one", "echo one"]
        assert texts(told[failed]) == ["one", "echo one", "two"]

    go(main())


def test_a_run_that_stored_nothing_has_the_values_that_it_found(memory: Storage) -> None:
    async def main() -> None:
        async with (
            receiving(200, 500) as receiver,
            made(memory, settings=settings(shared_threads=True, max_backoff=5.0)) as runtime,
        ):
            await begun(runtime, receiver.url, "chat", "one")
            await receiver.told()
            taken_back = await begun(runtime, receiver.url, "slow", "60")
            assert await runtime.cancel("ada", taken_back, rollback=True)
            await receiver.told(2)
            later = await runtime.submit("ada", said("three"), graph="chat")
            assert (await runtime.wait(later)).state == "done"
            receiver.answers = [200]
            await notices(runtime, SENT, SENT)
        last = receiver.calls[-1].body
        assert last["run_id"] == taken_back
        assert texts(last) == ["one", "echo one"]

    go(main())


def test_every_tenant_is_told_of_its_own(memory: Storage) -> None:
    async def main() -> None:
        async with receiving() as receiver, made(memory, all_tenants=True) as runtime:
            options = Options(webhook=receiver.url)
            for tenant in ("red", "blue"):
                theirs = runtime.for_tenant(tenant)
                ticket = await theirs.submit(
                    "ada", said(tenant), graph="chat", channel=WEBHOOK, options=options
                )
                await runtime.wait(ticket)
            told = await receiver.told(2)
        assert sorted(texts(one) for one in told) == [["blue", "echo blue"], ["red", "echo red"]]

    go(main())


# ---------------------------------------------------------------- until it is taken


@pytest.mark.parametrize("status", [500, 503, 408, 429, 302, None])
def test_it_is_sent_again_until_it_is_taken(memory: Storage, status: int | None) -> None:
    async def main() -> None:
        async with receiving(status, status, 204) as receiver, made(memory) as runtime:
            await begun(runtime, receiver.url, "chat", "hi")
            (notice,) = await notices(runtime, SENT)
        assert receiver.keys == [notice.id] * 3
        assert {call.path for call in receiver.calls} == {f"/hook?{SECRET}"}
        assert notice.attempts == 3

    go(main())


@pytest.mark.parametrize("status", [400, 401, 404, 410, 422])
def test_what_the_receiver_refuses_is_dead_at_once(memory: Storage, status: int) -> None:
    async def main() -> None:
        async with receiving(status) as receiver, made(memory) as runtime:
            await begun(runtime, receiver.url, "chat", "hi")
            (notice,) = await notices(runtime, DEAD)
            assert notice.attempts == 1
            assert notice.error == f"Undeliverable: the webhook answered {status}"
            receiver.answers = [200]
            await runtime.retry_reply("ada", notice.seq)
            await notices(runtime, SENT)
        assert receiver.keys == [notice.id] * 2

    go(main())


def test_nobody_who_listens_is_tried_again(memory: Storage) -> None:
    async def main() -> None:
        port = free_port()
        async with made(memory) as runtime:
            await begun(runtime, f"http://127.0.0.1:{port}/?{SECRET}", "chat", "hi")

            async def is_tried() -> bool:
                return any(r.attempts > 2 and r.state == READY for r in await runtime.replies("ada"))

            await eventually_stored(is_tried)
            (notice,) = await runtime.replies("ada")
        assert notice.error == "NotSent: no connection to the webhook's host"

    go(main())


def test_an_answer_is_not_read(memory: Storage) -> None:
    """It has a gigabyte, or says so, and only its status counts."""

    async def main() -> None:
        async with receiving(200) as receiver, made(memory) as runtime:
            receiver.more = b"x" * 100_000
            await begun(runtime, receiver.url, "chat", "hi")
            await notices(runtime, SENT)
        assert len(receiver.calls) == 1

    go(main())


class Ends(Heard):
    """Says when a run has ended, before anything of it is sent."""

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__()
        self._then = then

    def event(self, name: str, fields: dict[str, Any]) -> None:
        if name == "run.done":
            self._then()


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("mark", ["sending", "sent"])
def test_a_process_that_dies_leaves_the_notice_to_the_next_one_under_the_same_key(
    storage: Storage, mark: str, when: str
) -> None:
    """It dies when it marks the notice as being sent, or as sent: the receiver has it then."""

    async def main() -> None:
        database, line = storage.open()
        short = settings(shared_threads=True, lease=2.0)
        ends = Ends(lambda: line.die_at(1, when) if mark == "sending" else None)
        async with receiving() as receiver:
            receiver.taken = lambda: line.die_at(1, when) if mark == "sent" else None
            async with opened(database, settings=short, observers=[ends]) as dying:
                run_id = await begun(dying, receiver.url, "chat", "hi")
                await eventually(lambda: line.is_dead)
                vanish(dying, line)
            assert len(receiver.calls) == (mark == "sent")
            receiver.taken = lambda: None
            async with made(storage, settings=short) as heir:
                await notices(heir, SENT)
        is_told_twice = (mark, when) == ("sent", "before")
        assert receiver.keys == [f"{run_id}:0"] * (2 if is_told_twice else 1)
        assert texts(receiver.calls[-1].body) == ["hi", "echo hi"]

    go(main())


def test_a_process_without_the_graph_leaves_it_to_one_that_has_it(memory: Storage) -> None:
    async def main() -> None:
        async with receiving(500) as receiver:
            async with made(memory) as first:
                run_id = await begun(first, receiver.url, "chat", "hi")
                await receiver.told()
            before = len(receiver.calls)
            receiver.answers = [200]
            async with made(memory, graphs={"other": graphs()["boom"]}) as other:

                async def was_seen() -> bool:
                    return "does not serve" in str((await other.replies("ada"))[0].error)

                await eventually_stored(was_seen)
            assert len(receiver.calls) == before
            async with made(memory) as again:
                await notices(again, SENT)
        assert receiver.keys[-1] == f"{run_id}:0"

    go(main())


APP = """
from langgraph.graph import START, MessagesState, StateGraph

graph = StateGraph(MessagesState).add_node("rest", lambda state: {}).add_edge(START, "rest")
"""


@pytest.mark.slow
def test_a_worker_process_tells_what_a_server_accepted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    (tmp_path / "app.py").write_text(APP)
    program = Path(sys.executable).with_name("perdure")
    environ = {**os.environ, "PERDURE_HTTP_WEBHOOK_HOSTS": "127.0.0.1"}

    async def main() -> None:
        async with (
            receiving() as receiver,
            connect(url, migrate=True) as database,
            opened(database, works=False) as accepting,
        ):
            run_id = await begun(accepting, receiver.url, "chat", "hi")
            worker = await asyncio.create_subprocess_exec(
                program, "worker", "chat=app:graph", "--db", url, cwd=tmp_path, env=environ
            )
            try:
                (told,) = await receiver.told()
                await notices(accepting, SENT)
            finally:
                worker.terminate()
                await worker.wait()
        assert (told["run_id"], told["status"]) == (run_id, "success")

    go(main())
