"""What interfaces written elsewhere did is told as it is; what fails without a reason is noticed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from tools.foreign_uis import assistant_ui, chat_ui, copilotkit, graphs, inbox
from tools.foreign_uis.catalogue import ASSISTANT_UI, COPILOTKIT, PAGES, Pages
from tools.foreign_uis.driving import Failures
from tools.foreign_uis.report import Outcome, Told

REFUSED = "404 GET http://127.0.0.1:1/threads/x"


def test_an_action_that_fails_is_wrong() -> None:
    told = Told("ui", {"send": Outcome(), "stop": Outcome("not within 90 s")}, {})
    assert told.wrong == ["stop"]
    assert list(told.lines()) == [
        "ui: 1 of 2 done, 0 requests to the server failed",
        "  done    send",
        "  FAILED  stop: not within 90 s",
    ]


def test_a_request_that_fails_is_wrong_unless_it_has_a_reason() -> None:
    outcomes = {
        "send": Outcome("", Failures(server=[REFUSED], elsewhere=["net::ERR_FAILED GET https://fonts"]))
    }
    assert Told("ui", outcomes, {"^500 GET": "Not this."}).wrong == ["send"]
    told = Told("ui", outcomes, {"^404 GET": "It is made then."})
    assert told.wrong == []
    assert list(told.lines()) == [
        "ui: 1 of 1 done, 1 requests to the server failed",
        "  done    send",
        f"            request: {REFUSED} (It is made then.)",
        "  not the server's: net::ERR_FAILED GET https://fonts",
    ]


@pytest.mark.parametrize("pages", [ASSISTANT_UI, COPILOTKIT], ids=lambda pages: pages.name)
def test_pages_are_there_and_their_packages_pinned(pages: Pages) -> None:
    assert {path.name for path in (PAGES / pages.folder).iterdir()} == {"bundle.mjs", "page.jsx", "serve.mjs"}
    manifest = json.loads(json.dumps(pages.manifest))
    assert set(manifest["overrides"]) <= set(manifest["dependencies"])


def test_copilotkit_may_look_for_a_thread_and_cancel_twice() -> None:
    """Nothing else that its runtime is refused is excused."""
    cancel = "POST http://127.0.0.1:1/threads/x/runs/y/cancel?wait=0&action=interrupt"
    lines = [REFUSED, f"404 {cancel}", f"500 {cancel}", f"{REFUSED}/state"]
    excused = [Told("ui", {"a": Outcome("", Failures([line]))}, copilotkit.EXPECTED).wrong for line in lines]
    assert excused == [[], [], ["a"], ["a"]]


@pytest.mark.parametrize("actions", [m.ACTIONS for m in (assistant_ui, chat_ui, copilotkit, inbox)])
def test_each_interface_is_interrupted_in_each_way(actions: dict[str, object]) -> None:
    assert {"accept", "change", "respond", "reload"} <= set(actions)


def test_the_agent_asks_before_it_deletes() -> None:
    config: Any = {"configurable": {"thread_id": "t"}}
    agent: Any = graphs.agent.copy(update={"checkpointer": InMemorySaver()})
    asked = agent.invoke({"messages": [("user", "delete a.txt")]}, config)
    (question,) = asked["__interrupt__"]
    assert question.value["action_requests"][0]["args"] == {"path": "a.txt"}
    done = agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), config)
    assert done["messages"][-1].text.endswith("after: deleted a.txt")


def test_the_graphs_are_where_the_server_looks() -> None:
    config = Path(graphs.__file__).parent / "langgraph.json"
    named = json.loads(config.read_text(encoding="utf-8"))["graphs"]
    assert {path.partition(":")[2] for path in named.values()} == {"agent", "inbox"}
    assert all(hasattr(graphs, name) for name in named)
