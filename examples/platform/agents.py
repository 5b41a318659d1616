"""Two agents: a guide, which remembers its users, and a desk, which asks before it books."""

from __future__ import annotations

import html
import re
from typing import Any

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from perdure.memory import RECALL_ID, ExtractedFact, MemoryPolicy
from perdure.memory.extraction import ExtractionRequest
from perdure.runtime import Agent, Question

_STATED = "User: I "
DAY_S = 86_400.0


def facts(request: ExtractionRequest) -> list[ExtractedFact]:
    """Find what a user states about themselves, in place of a model that extracts facts."""
    lines = [line for line in request.messages.splitlines() if line.startswith(_STATED)]
    return [ExtractedFact(line.removeprefix("User: ")) for line in lines]


async def guide(state: MessagesState) -> dict[str, Any]:
    """Answer with what is known of the user, in place of a model."""
    recalled = "".join(message.text for message in state["messages"] if message.id == RECALL_ID)
    known = [html.unescape(fact) for fact in re.findall(r"<fact[^>]*>(.*?)</fact>", recalled)]
    is_question = state["messages"][-1].text.endswith("?")
    reply = f"You told me: “{'”, “'.join(known)}”." if known else "You have not told me yet."
    return {"messages": [AIMessage(reply if is_question else "Noted.")]}


async def desk(state: MessagesState) -> dict[str, Any]:
    """Book once the user has agreed."""
    asked = state["messages"][-1].text
    agreed = interrupt(f"Book {asked!r}?")
    return {"messages": [AIMessage(f"{asked} is booked." if agreed == "yes" else "Nothing is booked.")]}


def _graph(node: Any) -> Any:
    return StateGraph(MessagesState).add_node("turn", node).add_edge(START, "turn")


def agents(answer_within: float = DAY_S) -> dict[str, Agent]:
    """Return the agents by name. Each has threads of its own, and all share the users' memories.
    ``answer_within`` is for how many seconds the desk waits for an answer."""
    memory = MemoryPolicy(extract=facts, debounce=0)
    # A booking that nobody agrees to within a day is not made; the graph knows nothing of that.
    agreed = Question(node="turn", within=answer_within, default="no", remind=answer_within / 2)
    return {
        "guide": Agent(_graph(guide).compile(), memory=memory),
        "desk": Agent(_graph(desk).compile(), questions=[agreed]),
    }
