"""A worker and an evaluator on AWS Lambda, as their author wrote them: one class, one handler, a plain
history.

The models answer by what they are asked, so that every process answers alike: ``good on 3`` is met by the
third draft, ``unclear`` needs the user, anything else is never good enough.
"""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableLambda
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from pydantic import BaseModel

import perdure
from perdure.history import DisposableSaver, NewTurn, SessionHistory
from perdure.history.model_messages import rebuild
from perdure.serverless import lambda_function

MAX_TURNS = 5
DEFAULT = "The answer should be clear and accurate"


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]
    success_criteria: str
    feedback_on_work: str | None
    success_criteria_met: bool
    user_input_needed: bool
    turn_count: int


class EvaluatorOutput(BaseModel):
    feedback: str
    success_criteria_met: bool
    user_input_needed: bool


def worker_model(messages: list[Any]) -> AIMessage:
    """Write a draft, and say what it was told of the one before. It takes as long as a file says."""
    if (slow := Path(os.environ.get("SLOW", ""))).is_file():
        time.sleep(float(slow.read_text()))
    drafts = int(found[1]) if (found := re.search(r"draft (\d+) was rejected", messages[0].text)) else 0
    return AIMessage(f"draft {drafts + 1} of {sum(m.type == 'human' for m in messages)}")


def evaluator_model(messages: list[Any]) -> EvaluatorOutput:
    """Judge the last draft."""
    asked = next(m.text for m in reversed(messages) if m.type == "human")
    draft = int(messages[-1].text.split()[1])
    is_good = asked.startswith("good on ") and draft >= int(asked.split()[2])
    return EvaluatorOutput(
        feedback=f"draft {draft} was {'accepted' if is_good else 'rejected'}",
        success_criteria_met=is_good,
        user_input_needed=asked == "unclear",
    )


class Wingman:
    """The agent. Nothing of a call stays in it."""

    def __init__(self) -> None:
        self.worker = RunnableLambda(worker_model)
        self.evaluator = RunnableLambda(evaluator_model)
        self.memory = DisposableSaver()
        builder = StateGraph(State)
        builder.add_node("worker", self.work)
        builder.add_node("evaluator", self.evaluate)
        builder.add_edge(START, "worker")
        builder.add_edge("worker", "evaluator")
        builder.add_conditional_edges("evaluator", self.route, {"worker": "worker", "END": END})
        self.graph = builder.compile(checkpointer=self.memory)

    def work(self, state: State) -> dict[str, Any]:
        prompt = f"You complete tasks. The success criteria: {state['success_criteria']}"
        if state["feedback_on_work"]:
            prompt += f"\nYour work was not accepted: {state['feedback_on_work']}"
        answer = self.worker.invoke([SystemMessage(prompt), *state["messages"]])
        return {"messages": [answer], "turn_count": state["turn_count"] + 1}

    def evaluate(self, state: State) -> dict[str, Any]:
        verdict = self.evaluator.invoke(state["messages"])
        row = AIMessage(
            f"Evaluator Feedback on this answer: {verdict.feedback}",
            additional_kwargs={"tags": ["evaluator"]},
        )
        return {
            "messages": [row],
            "feedback_on_work": verdict.feedback,
            "success_criteria_met": verdict.success_criteria_met,
            "user_input_needed": verdict.user_input_needed,
        }

    def route(self, state: State) -> str:
        is_over = state["success_criteria_met"] or state["user_input_needed"]
        return "END" if is_over or state["turn_count"] >= MAX_TURNS else "worker"

    async def run_superstep(self, message: str, criteria: str | None, history: SessionHistory) -> NewTurn:
        asked = HumanMessage(message)
        budget = history.budget
        if not budget.rest_of(MAX_TURNS):
            return NewTurn([asked, AIMessage("This task has used its turns.")])
        before: list[Any] = rebuild(history.messages, {"evaluator": "drop"})
        state: State = {
            "messages": [*before, asked],
            "success_criteria": criteria or DEFAULT,
            "feedback_on_work": None,
            "success_criteria_met": False,
            "user_input_needed": False,
            "turn_count": budget.used,
        }
        with self.memory.call() as config:
            result = await self.graph.ainvoke(state, config)
        is_met = result["success_criteria_met"]
        spent = -budget.used if is_met else result["turn_count"] - budget.used
        return NewTurn([asked, *result["messages"][len(before) + 1 :]], budget.spend(spent))


wingman = Wingman()


@lambda_function(lambda: perdure.connect(os.environ["DATABASE_URL"]))
async def handler(event: Any, context: Any, database: perdure.Database) -> Any:
    """Answer ``POST /api/chat`` and ``POST /api/reset`` of a function URL, an HTTP API or a REST API."""
    body = json.loads(event["body"])
    histories = database.history()
    session = body["session_id"]
    if event.get("rawPath", event.get("path")) == "/api/reset":
        await histories.delete(session)
        return _answer([])

    async def turn(history: SessionHistory) -> NewTurn:
        return await wingman.run_superstep(body["message"], body.get("success_criteria"), history)

    # A REST API leaves the letters of the names as they were sent.
    headers = {name.lower(): value for name, value in event["headers"].items()}
    key = headers.get("idempotency-key")
    return _answer((await histories.update(session, turn, key=key)).messages)


def _answer(history: Any) -> dict[str, Any]:
    return {
        "statusCode": 200,
        "headers": {"content-type": "application/json"},
        "body": json.dumps({"history": history}),
    }
