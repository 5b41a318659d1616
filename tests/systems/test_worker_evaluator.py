"""A worker-evaluator handler over a session's history: its exits, its budget, its processes, and its cost."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import Database
from perdure.database.handle import DatabaseHandle
from perdure.database.opening import open_database
from perdure.model.values.chunks import Digester
from perdure.storage.dynamodb.driver import DynamoDriver
from perdure.storage.url import open_driver
from tests import backends
from tests.serverless.lambda_api import LambdaContainer, TimedOut, http_api_event, http_event, rest_event
from tests.servers.dynamodb_wire import watched
from tests.systems import worker_evaluator
from tests.systems.worker_evaluator import MAX_TURNS, wingman

PLACE = "tests.systems.worker_evaluator.handler"
NEVER = "never good enough"


class Context:
    def get_remaining_time_in_millis(self) -> int:
        return 60_000


def event(session: str, message: str, key: str = "", of: Callable[..., Any] = http_event) -> Any:
    body = {"session_id": session, "message": message}
    return of("POST", "/api/chat", body, {"Idempotency-Key": key} if key else {})


def url_event(*asked: Any) -> Any:
    """An event of a function URL: the format of HTTP APIs, with names in small letters."""
    found = http_event(*asked)
    found["headers"] = {name.lower(): value for name, value in found["headers"].items()}
    return found


EVENTS = {"REST API": rest_event, "HTTP API": http_api_event, "function URL": url_event}


def history(answer: Any) -> list[dict[str, Any]]:
    assert answer["statusCode"] == 200, answer
    return list(json.loads(answer["body"])["history"])


def texts(rows: list[dict[str, Any]]) -> list[str]:
    return [row["content"] for row in rows]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[dict[str, Any]]]]:
    """The handler in this process, over a file."""
    url = f"sqlite:///{tmp_path / 'sessions.db'}"
    open_database(url, migrate=True).close()
    monkeypatch.setenv("DATABASE_URL", url)
    yield lambda *asked: history(worker_evaluator.handler(event(*asked), Context()))
    worker_evaluator.handler.close()


@pytest.mark.parametrize(
    ("message", "drafts"), [("good on 1", 1), ("good on 3", 3), ("unclear", 1), (NEVER, MAX_TURNS)]
)
def test_it_ends_when_met_when_it_needs_the_user_and_at_the_cap(
    call: Callable[..., Any], message: str, drafts: int
) -> None:
    rows = call("s", message)
    assert [row["content"] for row in rows if row.get("tags") != ["evaluator"]] == [
        message,
        *(f"draft {n} of 1" for n in range(1, drafts + 1)),
    ]
    assert sum(row.get("tags") == ["evaluator"] for row in rows) == drafts
    assert wingman.memory.threads == 0


def test_the_budget_of_a_task_spans_requests_and_the_feedback_stays_out_of_later_prompts(
    call: Callable[..., Any],
) -> None:
    assert texts(call("s", "unclear"))[1] == "draft 1 of 1"
    assert texts(call("s", NEVER))[-2] == f"draft {MAX_TURNS - 1} of 2", "four turns were left"
    assert texts(call("s", "good on 1"))[-1] == "This task has used its turns."
    assert texts(call("other", "good on 1"))[1] == "draft 1 of 1"


def test_a_request_that_is_sent_again_adds_nothing(call: Callable[..., Any]) -> None:
    first = call("s", "good on 2", "k1")
    assert call("s", "good on 2", "k1") == first
    assert len(call("s", "good on 2", "k2")) == 2 * len(first)


def test_racing_requests_lose_nothing(call: Callable[..., Any]) -> None:
    call("s", "good on 1")

    async def race() -> int:
        async with perdure.connect(os.environ["DATABASE_URL"]) as database:
            histories = database.history()

            async def ask(n: int) -> None:
                async def turn(held: Any) -> Any:
                    return await wingman.run_superstep(f"good on 1 for {n}", None, held)

                await histories.update("s", turn)

            await asyncio.gather(*(ask(n) for n in range(8)))
            return len((await histories.load("s")).messages)

    assert asyncio.run(race()) == 9 * 3


# On Lambda's own runtime client, over DynamoDB


@pytest.fixture
def dynamodb() -> Iterator[str]:
    with backends.EMPTY["dynamodb"]() as url:
        open_database(url, migrate=True).close()
        yield url


@pytest.mark.slow
def test_each_turn_in_a_process_of_its_own_is_as_in_one(dynamodb: str, tmp_path: Path) -> None:
    def container() -> LambdaContainer:
        return LambdaContainer(PLACE, {"DATABASE_URL": dynamodb}, timeout=60, log=tmp_path / "log")

    asked = ["good on 2", "unclear", "good on 3", "good on 1"]
    warm = container()
    alike: list[Any] = []
    try:
        for n, message in enumerate(asked):
            cold = container()
            try:
                alike.append(history(cold.call(event("cold", message, f"{n}"))))
                again = history(cold.call(event("cold", message, f"{n}")))
            finally:
                cold.close()
            assert again == alike[-1]
            one = history(warm.call(event("warm", message, f"{n}")))
            assert [{**row, "id": None} for row in alike[-1]] == [{**row, "id": None} for row in one]
        assert warm.starts == 1
        with ThreadPoolExecutor(2) as pool:
            others = [container(), container()]
            try:
                racing = [
                    pool.submit(c.call, event("cold", "good on 1", f"r{n}")) for n, c in enumerate(others)
                ]
                assert all(one.result(60)["statusCode"] == 200 for one in racing)
            finally:
                for other in others:
                    other.close()
        rows = history(warm.call(event("cold", "good on 1", "r0")))
        assert len(rows) == len(alike[-1]) + 2 * 3
    finally:
        warm.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", EVENTS)
def test_a_request_is_one_turn_however_its_container_fares(dynamodb: str, tmp_path: Path, kind: str) -> None:
    """Cold, warm, frozen, timed out, and given up by a client that sends again."""
    slow, of = tmp_path / "slow", EVENTS[kind]

    def container(timeout: float = 60.0) -> LambdaContainer:
        variables = {"DATABASE_URL": dynamodb, "SLOW": str(slow)}
        made = LambdaContainer(PLACE, variables, timeout=timeout, log=tmp_path / "log")
        containers.append(made)
        return made

    def turns(answer: Any) -> list[str]:
        return [text for text in texts(history(answer)) if text.startswith("good on")]

    containers: list[LambdaContainer] = []
    try:
        first, hasty = container(), container(timeout=20)
        asked = [event("s", f"good on 1 for {n}", f"k{n}", of) for n in range(4)]
        said = [f"good on 1 for {n}" for n in range(4)]
        assert turns(first.call(asked[0])) == said[:1], "cold"
        assert turns(first.call(asked[1])) == said[:2], "warm"
        assert turns(first.call(asked[1])) == said[:2], "sent again"
        # Between calls it is frozen: its connections are those of before.
        slow.write_text("60")
        with pytest.raises(TimedOut):
            hasty.call(asked[2])
        slow.unlink()
        assert turns(hasty.call(asked[2])) == said[:3]
        assert hasty.starts == 2
        slow.write_text("6")
        with ThreadPoolExecutor(2) as pool:
            left = pool.submit(first.call, asked[3])
            again = pool.submit(container().call, asked[3])
            assert turns(left.result(60)) == turns(again.result(60)) == said
        slow.unlink()
        assert turns(first.call(asked[3])) == said
        assert first.starts == 1
    finally:
        for each in containers:
            each.close()


@pytest.mark.slow
def test_a_turn_costs_two_requests_and_the_units_of_its_session(dynamodb: str) -> None:
    """Counted on the wire: requests, capacity units, and bytes both ways. The cost of a turn is that of the
    session's size: a read unit for 4 KB, two write units for 1 KB, and about its bytes once."""
    driver = open_driver(dynamodb)
    assert isinstance(driver, DynamoDriver)
    database = Database(DatabaseHandle(driver, tenant="", digest=Digester()))
    measured: list[tuple[float, float, int, int]] = []

    async def main() -> None:
        histories = database.history()

        async def turn(held: Any) -> Any:
            return await wingman.run_superstep("good on 2", None, held)

        await histories.update("s", turn)
        for _ in range(12):
            with watched(driver, weigh=True) as wire:
                rows = (await histories.update("s", turn)).messages
            assert wire.count() == {"GetItem": 1, "TransactWriteItems": 1}
            sent = sum(len(json.dumps(call.parameters, default=repr)) for call in wire.calls)
            measured.append((wire.reads, wire.writes, sent, len(json.dumps(rows))))

    asyncio.run(main())
    driver.close()
    for reads, writes, sent, size in measured:
        print(f"a turn of a session of {size} B: {reads} read units, {writes} write units, {sent} B sent")
        assert reads <= -(-(size + 512) // 4096)
        assert writes <= 2 * -(-(size + 512) // 1024)
        assert sent < 2 * size + 2_000
