"""A deep agent: a lead that plans, three researchers that look things up, and an editor that asks first.

Its files are in the thread; those below ``/memories/`` are in the store, for each user.
"""

from __future__ import annotations

import time
from typing import Any

from deepagents import create_deep_agent
from deepagents.backends import CompositeBackend, StateBackend, StoreBackend
from langchain.agents.middleware import TodoListMiddleware
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.config import get_config

from .models import Scripted, calls

FIELDS = ("history", "costs", "risks")
LOOK_UPS = 3
"""Facts that each researcher looks up, one after the other."""
REPORT = "/report.md"


def agent(pace: float = 0.0, look_ups: int = LOOK_UPS) -> Any:
    """Return the graph. Every answer of a model, and every look-up, takes ``pace`` seconds."""

    @tool
    def look_up(field: str, number: int) -> str:
        """Look up one fact of a field."""
        time.sleep(pace)
        return f"Fact {number} about {field}."

    @tool
    def publish(path: str) -> str:
        """Publish a file for everybody."""
        time.sleep(pace)
        return f"{path} is published."

    def research(asked: str, number: int) -> AIMessage:
        field, _, _ = asked.partition(" ")
        if number < look_ups:
            return calls(("look_up", {"field": field, "number": number}), of=f"{field}-{number}")
        if number == look_ups:
            facts = "".join(f"- Fact {each} about {field}.\n" for each in range(look_ups))
            note = {"file_path": f"/notes/{field}.md", "content": facts}
            return calls(("write_file", note), of=f"{field}-{number}")
        return AIMessage(f"/notes/{field}.md has {look_ups} facts.")

    def edit(asked: str, number: int) -> AIMessage:
        if number == 0:
            return calls(("publish", {"path": REPORT}), of="publish")
        return AIMessage("The editor is done.")

    researchers: list[Any] = [
        {
            "name": field,
            "description": f"Looks up {field}.",
            "system_prompt": "Look things up, and write down what you find.",
            "model": Scripted(script=research, pace=pace),
            "tools": [look_up],
        }
        for field in FIELDS
    ]
    editor: Any = {
        "name": "editor",
        "description": "Publishes reports.",
        "system_prompt": "Publish the report.",
        "model": Scripted(script=edit, pace=pace),
        "tools": [publish],
        "interrupt_on": {"publish": {"allowed_decisions": ["approve", "reject"]}},
    }
    files = CompositeBackend(
        default=StateBackend(), routes={"/memories/": StoreBackend(namespace=_own_namespace)}
    )
    return create_deep_agent(
        Scripted(script=_lead, pace=pace),
        subagents=[*researchers, editor],
        middleware=[TodoListMiddleware()],
        backend=files,
    )


def _lead(asked: str, number: int) -> AIMessage:
    """Return the lead's next answer: plan, research, report, publish, and an end."""
    match number:
        case 0:
            return calls(("write_todos", _todos("in_progress", "pending")), of="plan")
        case 1:
            tasks = [
                ("task", {"description": f"{field} of {asked}", "subagent_type": field}) for field in FIELDS
            ]
            return calls(*tasks, of="research")
        case 2:
            text = f"# {asked}\n\n" + "".join(f"See /notes/{field}.md.\n" for field in FIELDS)
            report = {"file_path": REPORT, "content": text}
            memory = {"file_path": "/memories/asked.md", "content": f"{asked}\n"}
            return calls(("write_file", report), ("write_file", memory), of="report")
        case 3:
            old, new = "See /notes/risks.md.", "Above all, see /notes/risks.md."
            change = {"file_path": REPORT, "old_string": old, "new_string": new}
            return calls(
                ("edit_file", change), ("write_todos", _todos("completed", "in_progress")), of="change"
            )
        case 4:
            publication = {"description": f"Publish {REPORT}", "subagent_type": "editor"}
            return calls(("task", publication), of="publication")
        case 5:
            return calls(("write_todos", _todos("completed", "completed")), of="end")
        case _:
            return AIMessage(f"The report is in {REPORT}.")


def _todos(research: str, report: str) -> dict[str, Any]:
    return {
        "todos": [
            {"content": "Have three researchers look things up", "status": research},
            {"content": "Write the report and have it published", "status": report},
        ]
    }


def _own_namespace(runtime: Any) -> tuple[str, ...]:
    """Return the namespace of the files that a user keeps over threads."""
    return ("files", str(get_config()["configurable"].get("user_id", "nobody")))
