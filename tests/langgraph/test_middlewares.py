"""Middlewares of LangChain and deepagents, unchanged, on our checkpointer and store, across processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.types import Command

import perdure
from tests.conversation.models import Scripted

agents = pytest.importorskip("langchain.agents", reason="pip install 'perdure[conversation]'")
CONFIG: RunnableConfig = {"configurable": {"thread_id": "t"}}
sent: list[str] = []


@tool
def send(to: str) -> str:
    """Send a letter."""
    sent.append(to)
    return f"sent to {to}"


@pytest.fixture
def afresh(tmp_path: Path) -> Callable[..., Any]:
    """Opens the database anew for each step, as another process would."""
    sent.clear()

    @contextmanager
    def opened() -> Iterator[perdure.SyncDatabase]:
        with perdure.connect_sync(f"sqlite:///{tmp_path / 'threads.db'}", migrate=True) as db:
            yield db

    return opened


def calling(name: str, **args: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": name, "args": args, "id": f"call-{name}"}])


@pytest.mark.parametrize(
    ("decision", "goes_to"),
    [
        ({"type": "approve"}, ["ada"]),
        ({"type": "edit", "edited_action": {"name": "send", "args": {"to": "bea"}}}, ["bea"]),
        ({"type": "reject", "message": "not today"}, []),
    ],
    ids=["approve", "edit", "reject"],
)
def test_a_person_decides_in_another_process(
    afresh: Callable[..., Any], decision: dict[str, Any], goes_to: list[str]
) -> None:
    from langchain.agents.middleware import HumanInTheLoopMiddleware

    def agent(db: perdure.SyncDatabase, *answers: AIMessage) -> Any:
        middleware = HumanInTheLoopMiddleware(interrupt_on={"send": True})
        model = Scripted(answers=list(answers))
        return agents.create_agent(
            model, [send], middleware=[middleware], checkpointer=db.checkpointer(), store=db.store()
        )

    with afresh() as db:
        paused = agent(db, calling("send", to="ada")).invoke({"messages": [HumanMessage("write")]}, CONFIG)
        (asked,) = paused["__interrupt__"]
        assert asked.value["action_requests"][0]["args"] == {"to": "ada"}
        assert sent == []
    with afresh() as db:
        state = agent(db, AIMessage("done")).get_state(CONFIG)
        assert [each.id for each in state.interrupts] == [asked.id]
    with afresh() as db:
        ended = agent(db, AIMessage("done")).invoke(Command(resume={"decisions": [decision]}), CONFIG)
        assert ended["messages"][-1].text == "done"
        assert sent == goes_to
        results = [message for message in ended["messages"] if isinstance(message, ToolMessage)]
        assert len(results) == 1
        assert db.fsck("t") == []


def test_a_summary_takes_the_place_of_old_messages(afresh: Callable[..., Any]) -> None:
    from langchain.agents.middleware import SummarizationMiddleware

    lengths: list[int] = []
    for number in range(8):
        with afresh() as db:
            middleware = SummarizationMiddleware(
                model=Scripted(answers=[AIMessage("They spoke of rivers.")]),
                trigger=("messages", 6),
                keep=("messages", 2),
            )
            model = Scripted(answers=[AIMessage("noted")])
            agent = agents.create_agent(model, [], middleware=[middleware], checkpointer=db.checkpointer())
            state = agent.invoke({"messages": [HumanMessage(f"river {number}", id=f"h{number}")]}, CONFIG)
            lengths.append(len(state["messages"]))
            stored = agent.get_state(CONFIG).values["messages"]
            assert [message.id for message in stored] == [message.id for message in state["messages"]]
            assert db.fsck("t") == []
    assert max(lengths) <= 7
    assert any("They spoke of rivers." in message.text for message in state["messages"])
    assert state["messages"][-2].text == "river 7"


def test_a_deep_agent_keeps_its_plan_and_files_and_asks_before_it_acts(afresh: Callable[..., Any]) -> None:
    deepagents = pytest.importorskip("deepagents")
    from langchain.agents.middleware import TodoListMiddleware

    def agent(db: perdure.SyncDatabase, *answers: AIMessage) -> Any:
        return deepagents.create_deep_agent(
            model=Scripted(answers=list(answers)),
            system_prompt="Help.",
            tools=[send],
            middleware=[TodoListMiddleware()],
            interrupt_on={"send": True},
            checkpointer=db.checkpointer(),
            store=db.store(),
        )

    todos = [{"content": "write to ada", "status": "in_progress"}]
    with afresh() as db:
        paused = agent(
            db,
            calling("write_todos", todos=todos),
            calling("write_file", file_path="/letter.txt", content="Dear Ada"),
            calling("send", to="ada"),
        ).invoke({"messages": [HumanMessage("write to ada")]}, CONFIG)
        assert len(paused["__interrupt__"]) == 1
        assert sent == []
    with afresh() as db:
        held = agent(db).get_state(CONFIG)
        assert held.values["todos"] == todos
        assert "/letter.txt" in held.values["files"]
        decided: Command[Any] = Command(resume={"decisions": [{"type": "approve"}]})
        ended = agent(db, AIMessage("done")).invoke(decided, CONFIG)
        assert (ended["messages"][-1].text, sent) == ("done", ["ada"])
        assert db.fsck("t") == []


def test_a_deep_agent_hands_work_to_a_subagent(afresh: Callable[..., Any]) -> None:
    deepagents = pytest.importorskip("deepagents")
    helper = Scripted(answers=[calling("send", to="bea"), AIMessage("the letter is on its way")])
    with afresh() as db:
        agent = deepagents.create_deep_agent(
            model=Scripted(
                answers=[calling("task", description="write", subagent_type="writer"), AIMessage("all done")]
            ),
            system_prompt="Help.",
            subagents=[
                {
                    "name": "writer",
                    "description": "writes letters",
                    "system_prompt": "Write.",
                    "tools": [send],
                    "model": helper,
                }
            ],
            checkpointer=db.checkpointer(),
            store=db.store(),
        )
        ended = agent.invoke({"messages": [HumanMessage("write to bea")]}, CONFIG)
        results = [message.text for message in ended["messages"] if isinstance(message, ToolMessage)]
        assert (results, sent) == (["the letter is on its way"], ["bea"])
        assert db.fsck("t") == []
