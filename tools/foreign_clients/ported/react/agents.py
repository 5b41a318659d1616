"""The agents of @langchain/react's suite: with tools, with tools that ask, and with subagents."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

from deepagents import create_deep_agent
from graphs import WORKERS  # type: ignore[import-not-found]
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.types import Command, interrupt
from models import Letters, Locating, Scripted, calling, using  # type: ignore[import-not-found]


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


@tool
async def get_weather(city: str) -> str:
    """Get weather for a city"""
    await asyncio.sleep(0.2)
    return _json({"city": city, "temp_f": 64, "condition": "Foggy"})


create_agent_graph = create_agent(
    using(
        "call-weather-1",
        "get_weather",
        {"city": "San Francisco"},
        "It's 64F and foggy in San Francisco.",
    ),
    [get_weather],
    system_prompt="You are a deterministic weather agent for protocol testing.",
)


@tool
async def review_action(toolArg: str) -> str:  # noqa: N803 - the suite's name
    """Perform a sensitive action that requires human approval."""
    card = {"kind": "tool_validation", "action": toolArg, "buttons": ["approve", "reject"]}
    answer = interrupt(
        {
            "type": "ai",
            "content": f'Please review the "{toolArg}" action.',
            "response_metadata": {"cards": card},
        }
    )
    if answer is not True and not (isinstance(answer, dict) and answer.get("approved") is True):
        return "User has rejected the toolcall"
    await asyncio.sleep(1)
    return f'Executed "{toolArg}".'


interrupt_card_graph = create_agent(
    using("call-review-1", "review_action", {"toolArg": "delete_db"}, "Done."),
    [review_action],
    system_prompt="You are a deterministic approval agent for protocol testing.",
)


@tool
def get_location(tool_call_id: Annotated[str, InjectedToolCallId], highAccuracy: bool | None = None) -> Any:  # noqa: N803
    """Get the user's current GPS location"""
    call = {"id": tool_call_id, "name": "get_location", "args": {"highAccuracy": highAccuracy}}
    return interrupt({"type": "tool", "toolCall": call})


headless_tool_graph = create_agent(Locating(), [get_location])


# Subagents


@tool
async def search_web(query: str) -> str:
    """Search the web for information on a topic"""
    results = [
        {"title": f"Result for: {query}", "url": "https://example.com/1"},
        {"title": f"More on: {query}", "url": "https://example.com/2"},
    ]
    return _json({"status": "success", "query": query, "results": results})


@tool
async def query_database(table: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
    """Query a database table with optional filters"""
    records = [{"id": 1, "name": "Record A", "value": 42}, {"id": 2, "name": "Record B", "value": 87}]
    content = _json({"status": "success", "table": table, "records": records, "count": 2})
    message = ToolMessage(content, tool_call_id=tool_call_id, name="query_database")
    return Command(update={"messages": [message]})


def _task(call: str, kind: str, description: str) -> tuple[str, str, dict[str, Any]]:
    return call, "task", {"description": description, "subagent_type": kind}


def _subagent(name: str, description: str, prompt: str, tools: list[Any], model: Any) -> Any:
    return {
        "name": name,
        "description": description,
        "system_prompt": prompt,
        "tools": tools,
        "model": model,
    }


deep_agent = create_deep_agent(
    Scripted(
        answers=[
            calling(
                "deep-orchestrator-tool-call",
                _task("task-1", "researcher", "Search the web for protocol risks"),
                _task("task-2", "data-analyst", "Inspect the sample dataset"),
            ),
            AIMessage("Both subagents completed their tasks successfully.", id="deep-orchestrator-final"),
        ]
    ),
    subagents=[
        _subagent(
            "researcher",
            "Research specialist that searches the web for information.",
            "You are a research specialist.",
            [search_web],
            using(
                "search-1",
                "search_web",
                {"query": "protocol risks"},
                "Research completed: reconnect and lifecycle handling need coverage.",
            ),
        ),
        _subagent(
            "data-analyst",
            "Data analysis expert that queries databases for insights.",
            "You are a data analysis expert.",
            [query_database],
            using(
                "query-1",
                "query_database",
                {"table": "sample_data"},
                "Analysis completed: found 2 sample records.",
            ),
        ),
    ],
    system_prompt="You are an AI coordinator that delegates tasks.",
)


@tool
async def request_approval() -> str:
    """Request human approval before proceeding."""
    decision = interrupt({"prompt": "Approve subagent tool action?"})
    return _json({"approved": True} if decision is None else decision)


deep_agent_interrupt = create_deep_agent(
    Scripted(
        answers=[
            calling(
                "deep-interrupt-orchestrator",
                _task("task-approve-1", "approver", "Request approval for the pending change"),
            ),
            AIMessage("Subagent approval completed.", id="deep-interrupt-final"),
        ]
    ),
    subagents=[
        _subagent(
            "approver",
            "Requests human approval before acting.",
            "You must request approval before proceeding.",
            [request_approval],
            Scripted(
                answers=[
                    calling("approver-call", ("approval-1", "request_approval", {})),
                    AIMessage("Approval recorded.", id="approver-done"),
                ]
            ),
        )
    ],
    system_prompt="Delegate approval work to the approver subagent.",
)

parallel_fanout = create_deep_agent(
    Scripted(
        answers=[
            calling(
                "fanout-orchestrator",
                *(
                    _task(f"task-{n}", "worker", f"Worker worker-{n:03} covering topic {n}")
                    for n in range(1, WORKERS + 1)
                ),
            ),
            AIMessage("All workers completed.", id="fanout-final"),
        ]
    ),
    subagents=[
        _subagent(
            "worker",
            "A worker that completes a single delegated subtask.",
            "You are a worker. Complete the task and report back.",
            [],
            Letters(texts=[f"Worker {n} done." for n in range(1, WORKERS + 1)]),
        )
    ],
    system_prompt="You are a coordinator that fans out work to many workers.",
)
