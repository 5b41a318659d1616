"""Wingman's promises: its exits, its budget over cold requests, its contract over HTTP, and no lost turn."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import httpx
import pytest
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage
from langchain_core.runnables import RunnableLambda

import perdure
from examples.wingman.agent import DEFAULT_CRITERIA, MAX_TURNS, Verdict, Wingman, first_state
from examples.wingman.app import create_app
from examples.wingman.models import UNKNOWN, UNSURE, wingman
from perdure.database import opening
from perdure.database.opening import open_database
from perdure.history import NeutralMessage, SessionHistory, TaskBudget
from tests import backends
from tests.servers.dynamodb_wire import watched

Script = Sequence[str]
MET, ASKS, POOR = "met", "asks", "poor"


class Scripted:
    """Models that follow a script of verdicts, and what the worker was prompted with."""

    def __init__(self, *verdicts: str, feedback: Any = "drop") -> None:
        self.prompts: list[list[BaseMessage]] = []
        self._verdicts = iter(verdicts)
        self.agent = Wingman(RunnableLambda(self._work), RunnableLambda(self._judge), feedback)

    def _work(self, messages: list[BaseMessage]) -> AIMessage:
        self.prompts.append(messages)
        return AIMessage(f"answer {len(self.prompts)}")

    def _judge(self, messages: list[BaseMessage]) -> Any:
        verdict = next(self._verdicts)
        return Verdict(
            feedback=f"it is {verdict}",
            success_criteria_met=verdict == MET,
            user_input_needed=verdict == ASKS,
        )


def turn(agent: Wingman, url: str, message: str = "hi", criteria: str | None = None) -> SessionHistory:
    """One cold request: the database is opened for it alone."""
    database = open_database(url, migrate=True)
    try:
        histories = database.history()
        history = histories.load("s1")
        made = asyncio.run(agent.run_superstep(message, criteria, history))
        return histories.commit(history, made.messages, budget=made.budget)
    finally:
        database.close()


@pytest.fixture
def url(tmp_path: Any) -> str:
    return f"sqlite:///{tmp_path / 'wingman.db'}"


def texts(history: SessionHistory) -> list[Any]:
    return [message["content"] for message in history.messages]


@pytest.mark.parametrize(
    ("verdicts", "answers"),
    [((MET,), 1), ((POOR, POOR, MET), 3), ((ASKS,), 1), ((POOR, ASKS), 2), ((POOR,) * MAX_TURNS, MAX_TURNS)],
)
def test_a_superstep_ends_when_met_when_it_asks_and_at_the_cap(
    url: str, verdicts: Script, answers: int
) -> None:
    scripted = Scripted(*verdicts)
    history = turn(scripted.agent, url)
    expected = ["hi"]
    for n in range(answers):
        expected += [f"answer {n + 1}", f"Evaluator: it is {verdicts[n]}"]
    assert texts(history) == expected
    assert [m.get("tags") for m in history.messages[1:3]] == [None, ["evaluator"]]
    assert history.budget.used == (answers if verdicts[-1] == ASKS else 0)
    assert scripted.agent.saver.threads == 0


def test_within_a_turn_the_evaluator_s_text_reaches_the_worker() -> None:
    scripted = Scripted(POOR, MET)
    asyncio.run(scripted.agent.run_superstep("hi", "be short", _empty()))
    first, second = (prompt[0] for prompt in scripted.prompts)
    assert isinstance(first, SystemMessage)
    assert "be short" in first.text
    assert "rejected" not in first.text
    assert "it is poor" in second.text


@pytest.mark.parametrize("criteria", [None, "", "  "])
def test_the_defaults_of_a_superstep(criteria: str | None) -> None:
    assert first_state([], criteria) == {
        "messages": [],
        "success_criteria": "The answer should be clear and accurate",
        "feedback_on_work": None,
        "success_criteria_met": False,
        "user_input_needed": False,
        "turn_count": 0,
    }
    assert DEFAULT_CRITERIA == "The answer should be clear and accurate"


def test_the_budget_of_a_task_holds_over_cold_requests_and_resets_for_a_new_one(url: str) -> None:
    used = [turn(Scripted(POOR, ASKS).agent, url).budget.used for _ in range(2)]
    last = Scripted(POOR, POOR)
    history = turn(last.agent, url)
    assert (used, len(last.prompts), history.budget.used) == ([2, 4], 1, 0)
    fresh = history.with_budget(TaskBudget("a task", 4).of("another task"))
    made = asyncio.run(Scripted(POOR, ASKS).agent.run_superstep("hi", None, fresh))
    assert made.budget == TaskBudget("another task", 2)


@pytest.mark.parametrize("last", [POOR, ASKS])
def test_a_task_that_has_spent_its_turns_leaves_later_ones_all_of_theirs(url: str, last: str) -> None:
    turn(Scripted(POOR, POOR, POOR, POOR, last).agent, url)
    for _ in range(2):
        later = Scripted(POOR, POOR, POOR, POOR, MET)
        assert texts(turn(later.agent, url))[-2:] == ["answer 5", "Evaluator: it is met"]


def test_a_session_in_which_every_turn_was_spent_goes_on() -> None:
    spent = _empty().with_budget(TaskBudget("", MAX_TURNS))
    made = asyncio.run(Scripted(POOR, ASKS).agent.run_superstep("hi", None, spent))
    assert made.budget == TaskBudget("", 2)


@pytest.mark.parametrize("policy", ["drop", "keep", "summarise"])
def test_the_evaluator_s_rows_of_earlier_turns_follow_their_policy(url: str, policy: str) -> None:
    def summarise(rows: Sequence[NeutralMessage]) -> dict[str, str]:
        return {"role": "system", "content": f"{len(rows)} verdicts"}

    turn(Scripted(POOR, MET).agent, url, "q1")
    second = Scripted(MET, feedback=summarise if policy == "summarise" else policy)
    history = turn(second.agent, url, "q2")
    prompt = [m.content for m in second.prompts[0][1:]]
    verdicts = {"drop": [], "keep": ["Evaluator: it is poor"], "summarise": ["1 verdicts"]}[policy]
    assert prompt[: 2 + len(verdicts)] == ["q1", "answer 1", *verdicts]
    assert sum("Evaluator" in str(text) for text in texts(history)) == 3, "all stay in the history"


@asynccontextmanager
async def served(url: str, agent: Wingman | None = None) -> AsyncIterator[httpx.AsyncClient]:
    async with perdure.connect(url, migrate=True):
        pass
    app = create_app(url, agent)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://wingman") as client,
    ):
        yield client


def test_the_contract_over_http(url: str) -> None:
    async def drive() -> None:
        async with served(url) as http:
            assert (await http.get("/api/health")).json() == {"status": "ok"}
            assert (await http.get("/api/history/s1")).json() == {"history": []}
            asked = {"session_id": "s1", "message": "hi"}
            answer = await http.post("/api/chat", json=asked, headers={"Idempotency-Key": "k1"})
            rows = answer.json()["history"]
            assert list(answer.json()) == ["history"]
            assert [(r["role"], r["content"]) for r in rows] == [
                ("user", "hi"),
                ("assistant", UNSURE),
                ("assistant", "Evaluator: Be sure, and say it in one sentence."),
                ("assistant", UNKNOWN),
                ("assistant", "Evaluator: It meets the criteria."),
            ]
            again = await http.post("/api/chat", json=asked, headers={"Idempotency-Key": "k1"})
            assert again.json() == answer.json(), "sent again with its key it is one turn"
            assert (await http.get("/api/history/s1")).json() == answer.json()
            more = {**asked, "message": "more", "success_criteria": "c", "new_task": True}
            longer = (await http.post("/api/chat", json=more)).json()["history"]
            assert (len(longer), longer[:5]) == (10, rows)
            begun = (await http.post("/api/init", json={"session_id": "s1"})).json()
            assert begun == {"session_id": "s1", "history": longer}
            new = (await http.post("/api/init", json={})).json()
            assert (len(new["session_id"]), new["history"]) == (32, [])
            assert (await http.post("/api/reset", json={"session_id": "s1"})).json() == {"history": []}
            assert (await http.get("/api/history/s1")).json() == {"history": []}
            for bad in ({"message": "x"}, {"session_id": "", "message": "x"}, {"session_id": "s"}):
                assert (await http.post("/api/chat", json=bad)).status_code == 422

    asyncio.run(drive())


@pytest.mark.parametrize("backend", ["sqlite", pytest.param("dynamodb", marks=pytest.mark.slow)])
@pytest.mark.parametrize("racers", [2, 16])
def test_racing_requests_lose_nothing(backend: str, racers: int) -> None:
    async def drive(url: str) -> None:
        async with served(url) as http:
            asked = [{"session_id": "s1", "message": f"q{n}"} for n in range(racers)]
            answers = await asyncio.gather(*(http.post("/api/chat", json=body) for body in asked))
            stored = (await http.get("/api/history/s1")).json()["history"]
        answered = {f"q{n}" for n, answer in enumerate(answers) if answer.status_code == 200}
        assert {answer.status_code for answer in answers} <= {200, 409}
        assert answered
        assert {row["content"] for row in stored if row["role"] == "user"} == answered
        assert len(stored) == 5 * len(answered), "turns are whole, one after another"
        for n, answer in enumerate(answers):
            if answer.status_code == 200:
                rows = answer.json()["history"]
                assert rows == stored[: len(rows)]
                assert rows[-5]["content"] == f"q{n}"

    with backends.EMPTY[backend]() as url:
        asyncio.run(drive(url))


@pytest.mark.slow
def test_a_message_on_dynamodb_is_one_strong_read_and_one_conditional_write() -> None:
    made: list[Any] = []

    of_url = opening.open_driver  # type: ignore[attr-defined]

    def kept(*args: Any, **options: Any) -> Any:
        made.append(of_url(*args, **options))
        return made[-1]

    async def drive(url: str) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(opening, "open_driver", kept)
            app = create_app(url)
            transport = httpx.ASGITransport(app)
            async with (
                app.router.lifespan_context(app),
                httpx.AsyncClient(transport=transport, base_url="http://wingman") as http,
            ):
                asked = {"session_id": "s1", "message": "hi"}
                (await http.post("/api/chat", json=asked)).raise_for_status()
                with watched(made[-1]) as wire:
                    for _ in range(5):
                        (await http.post("/api/chat", json=asked)).raise_for_status()
        assert wire.count() == {"GetItem": 5, "TransactWriteItems": 5}
        for call in wire.calls:
            if call.operation == "GetItem":
                assert call.parameters["ConsistentRead"]
            else:
                actions = [each for action in call.parameters["TransactItems"] for each in action.values()]
                assert all("ConditionExpression" in each for each in actions)

    with backends.EMPTY["dynamodb"]() as url:
        open_database(url, migrate=True).close()
        asyncio.run(drive(url))


def test_many_warm_calls_leave_nothing_in_memory() -> None:
    agent = wingman()
    calls = 30

    def objects_after_calls() -> int:
        async def some() -> None:
            for _ in range(calls):
                await agent.run_superstep("hi", None, _empty())

        asyncio.run(some())
        gc.collect()
        return len(gc.get_objects())

    objects_after_calls()
    # What a call leaves is there after each series; what else the interpreter makes once is not.
    counts = [objects_after_calls() for _ in range(4)]
    assert min(after - before for before, after in pairwise(counts)) < calls, counts
    assert agent.saver.threads == 0


_PROCESSES = """
import asyncio, json, os, sys
from examples.wingman.app import create_app
from perdure.storage.url import backend_of
import httpx

async def main(url, *messages):
    app = create_app(url)
    async with app.router.lifespan_context(app):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://w") as http:
            for message in messages:
                answer = await http.post("/api/chat", json={"session_id": "s1", "message": message})
                answer.raise_for_status()
    print(json.dumps(answer.json()), flush=True)

url, *processes = json.loads(sys.argv[1])
backend_of(url)
for messages in processes:
    if (child := os.fork()) == 0:
        asyncio.run(main(url, *messages))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        sys.exit(f"the process of {messages} ended with {status}")
"""
"""Runs messages in processes, each forked from one that has imported everything and done nothing else."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", ["sqlite", "dynamodb"])
def test_twenty_turns_in_fresh_processes_equal_one_long_process(backend: str) -> None:
    messages = [f"q{n}" for n in range(20)]

    def histories(*processes: Sequence[str]) -> list[Any]:
        with backends.EMPTY[backend]() as url:
            open_database(url, migrate=True).close()
            done = subprocess.run(
                [sys.executable, "-c", _PROCESSES, json.dumps([url, *processes])],
                stdout=subprocess.PIPE,
                text=True,
                timeout=300,
                check=True,
            )
        # LangGraph gives each message a random id.
        return [
            [{name: row[name] for name in row if name != "id"} for row in json.loads(line)["history"]]
            for line in done.stdout.splitlines()
        ]

    cold = histories(*([message] for message in messages))
    assert [len(rows) for rows in cold] == [5 * n for n in range(1, 21)]
    assert cold[-1:] == histories(messages)


def _empty() -> SessionHistory:
    database = open_database("memory://", migrate=True)
    try:
        return database.history().load("s1")
    finally:
        database.close()
