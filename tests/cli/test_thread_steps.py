"""The path of a thread through its nodes on the command line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure.cli.runs import format_duration
from perdure.runtime import Runtime
from tests.cli.test_commands import Shell, shell

__all__ = ["shell"]

PRICES = '[prices]\ncurrency = "EUR"\n[prices.models."large*"]\ninput = 2\noutput = 4\n'
URL = {"PERDURE_DB": "sqlite:///t.db"}


def converse(path: Path, turns: int) -> None:
    def plan(state: MessagesState) -> None:
        return None

    def answer(state: MessagesState) -> Any:
        usage: Any = {"input_tokens": 1_000_000, "output_tokens": 500_000, "total_tokens": 1_500_000}
        model = {"model_name": "large-2"}
        return {"messages": [AIMessage("yes", usage_metadata=usage, response_metadata=model)]}

    built = StateGraph(MessagesState)
    built.add_node("[bold]", plan).add_node("answer", answer)
    built.add_edge(START, "[bold]").add_edge("[bold]", "answer")
    with perdure.connect_sync(f"sqlite:///{path / 't.db'}", migrate=True) as database:
        app = built.compile(checkpointer=database.checkpointer())
        for _ in range(turns):
            app.invoke({"messages": [HumanMessage("a question")]}, {"configurable": {"thread_id": "ada"}})


def test_a_thread_is_shown_with_its_way_times_tokens_and_costs(shell: Shell, tmp_path: Path) -> None:
    converse(tmp_path, 2)
    shown = shell("threads", "show", "ada", **URL).stdout
    assert "ada  a question" in shown
    assert "path [bold] → answer → [bold] → answer" in shown
    assert "tokens 2,000,000 in, 1,000,000 out, in 2 calls\n" in shown
    (tmp_path / "perdure.toml").write_text(PRICES, encoding="utf-8")
    assert "in 2 calls; cost 8 EUR\n" in shell("threads", "show", "ada", **URL).stdout
    found = json.loads(shell("threads", "show", "ada", "--json", **URL).stdout)
    assert (found["title"], found["way"]) == ("a question", [["[bold]"], ["answer"]] * 2)
    assert (found["usage"]["cost"], found["usage"]["currency"]) == (8.0, "EUR")
    answers = [task for step in found["steps"] for task in step["tasks"] if task["node"] == "answer"]
    assert [task["usage"]["cost"] for task in answers] == [4.0, 4.0]
    assert all(task["began_at"] <= task["ended_at"] for task in answers)


def test_the_title_of_the_metadata_comes_first(shell: Shell, tmp_path: Path) -> None:
    converse(tmp_path, 1)
    assert shell("threads", "show", "ada", **URL).stdout.startswith("ada  a question\n")

    async def name_it() -> None:
        graph = StateGraph(MessagesState).add_node("a", lambda _: {}).add_edge(START, "a").compile()
        async with (
            perdure.connect(f"sqlite:///{tmp_path / 't.db'}") as database,
            Runtime(database, graph, works=False, observers=()) as runtime,
        ):
            row = await runtime.threads.get("ada")
            await runtime.threads.adopt(row._replace(metadata={"title": "Ada on tides"}))

    asyncio.run(name_it())
    assert shell("threads", "show", "ada", **URL).stdout.startswith("ada  Ada on tides\n")
    assert json.loads(shell("threads", "show", "ada", "--json", **URL).stdout)["title"] == "Ada on tides"


def test_steps_have_the_numbers_of_their_checkpoints(shell: Shell, tmp_path: Path) -> None:
    converse(tmp_path, 2)
    lines = shell("threads", "show", "ada", **URL).stdout.splitlines()
    heading = next(place for place, line in enumerate(lines) if line.startswith("step  node"))
    numbers = [line.split()[:2] for line in lines[heading + 1 : heading + 7]]
    assert numbers == [
        ["-1", "input"],
        ["1", "[bold]"],
        ["2", "answer"],
        ["3", "input"],
        ["5", "[bold]"],
        ["6", "answer"],
    ]


def test_at_a_checkpoint_the_path_ends_there_and_the_rest_is_called_that_of_now(
    shell: Shell, tmp_path: Path
) -> None:
    converse(tmp_path, 2)
    shown = shell("threads", "show", "ada", "--checkpoint", "1", **URL).stdout
    assert "ada  title now: a question" in shown
    assert "path [bold]\n" in shown
    assert "source loop  step 1\n" in shown
    assert "tokens now 2,000,000 in" in shown
    found = json.loads(shell("threads", "show", "ada", "--checkpoint", "1", "--json", **URL).stdout)
    assert [step["step"] for step in found["steps"]] == [-1, 0, 1]
    assert found["steps"][-1]["checkpoint_id"] == found["checkpoint_id"]


def test_the_newest_steps_are_shown(shell: Shell, tmp_path: Path) -> None:
    converse(tmp_path, 2)
    assert "path … → answer\n" in shell("threads", "show", "ada", "--steps", "1", **URL).stdout
    found = json.loads(shell("threads", "show", "ada", "--steps", "1", "--json", **URL).stdout)
    assert (len(found["steps"]), found["has_earlier_steps"], found["usage"]["calls"]) == (1, True, 2)


def test_a_price_that_is_none_is_an_error(shell: Shell, tmp_path: Path) -> None:
    converse(tmp_path, 1)
    (tmp_path / "perdure.toml").write_text('[prices.models]\nm = { input = "1" }\n', encoding="utf-8")
    done = shell("threads", "show", "ada", **URL)
    assert done.returncode == 1
    assert "prices.models" in done.stderr


@pytest.mark.parametrize(
    ("micros", "words"),
    [
        (0, "0 ms"),
        (1_234, "1.23 ms"),
        (45_678, "45 ms"),
        (1_500_000, "1.5 s"),
        (90_000_000, "1 min 30 s"),
        (7_260_000_000, "2 h 1 min"),
    ],
)
def test_a_duration_is_read_by_people(micros: int, words: str) -> None:
    assert format_duration(micros) == words
