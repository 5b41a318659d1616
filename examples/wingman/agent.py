"""A worker answers, an evaluator judges, rejected work is repeated; nothing is kept but a plain history."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage
from langchain_core.runnables import Runnable
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from pydantic import BaseModel, Field

from perdure.history import DisposableSaver, NewTurn, SessionHistory
from perdure.history.model_messages import Policy, rebuild

MAX_TURNS = 5
DEFAULT_CRITERIA = "The answer should be clear and accurate"
EVALUATOR = "evaluator"


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    success_criteria: str
    feedback_on_work: str | None
    success_criteria_met: bool
    user_input_needed: bool
    turn_count: int


class Verdict(BaseModel):
    """What the evaluator returns."""

    feedback: str = Field(description="Feedback on the worker's answer")
    success_criteria_met: bool = Field(description="True if the answer meets the criteria")
    user_input_needed: bool = Field(description="True if the worker needs more input from the user")


def first_state(messages: list[AnyMessage], success_criteria: str | None, turn_count: int = 0) -> State:
    """Return the state of a super-step before its first node."""
    return {
        "messages": messages,
        "success_criteria": (success_criteria or "").strip() or DEFAULT_CRITERIA,
        "feedback_on_work": None,
        "success_criteria_met": False,
        "user_input_needed": False,
        "turn_count": turn_count,
    }


def _carry_over(used: int) -> int:
    """Return the turns that the next message finds used. A task without a turn left has failed and is over:
    that message begins another one, with all turns."""
    return used if used < MAX_TURNS else 0


class Wingman:
    """The agent over two models: ``worker`` returns a message, ``evaluator`` a ``Verdict``.

    ``feedback`` is the policy for the evaluator's rows of earlier turns: ``"drop"``, ``"keep"`` or a function
    that summarises them.
    """

    def __init__(
        self, worker: Runnable[Any, Any], evaluator: Runnable[Any, Any], feedback: Policy = "drop"
    ) -> None:
        self._worker, self._evaluator, self._feedback = worker, evaluator, feedback
        self.saver = DisposableSaver()
        builder = StateGraph(State)
        builder.add_node("work", self._work)
        builder.add_node("evaluate", self._evaluate)
        builder.add_edge(START, "work")
        builder.add_edge("work", "evaluate")
        builder.add_conditional_edges("evaluate", self._next, ["work", END])
        self.graph = builder.compile(checkpointer=self.saver)

    async def run_superstep(
        self, message: str, success_criteria: str | None, history: SessionHistory
    ) -> NewTurn:
        """Return the rows that a message adds to a history, and the budget of its task afterwards."""
        asked = HumanMessage(message)
        before: list[Any] = rebuild(history.messages, {EVALUATOR: self._feedback})
        state = first_state([*before, asked], success_criteria, _carry_over(history.budget.used))
        with self.saver.call() as config:
            after = await self.graph.ainvoke(state, config)
        used = 0 if after["success_criteria_met"] else _carry_over(after["turn_count"])
        budget = history.budget.spend(used - history.budget.used)
        return NewTurn([asked, *after["messages"][len(before) + 1 :]], budget)

    async def _work(self, state: State) -> dict[str, Any]:
        prompt = f"Complete the task. Success criteria: {state['success_criteria']}"
        if state["feedback_on_work"]:
            prompt += f"\nYour last answer was rejected: {state['feedback_on_work']}\nImprove it."
        answer = await self._worker.ainvoke([SystemMessage(prompt), *state["messages"]])
        return {"messages": [answer], "turn_count": state["turn_count"] + 1}

    async def _evaluate(self, state: State) -> dict[str, Any]:
        prompt = f"Judge the last answer of the assistant. Success criteria: {state['success_criteria']}"
        verdict: Verdict = await self._evaluator.ainvoke([SystemMessage(prompt), *state["messages"]])
        row = AIMessage(f"Evaluator: {verdict.feedback}", additional_kwargs={"tags": [EVALUATOR]})
        return {
            "messages": [row],
            "feedback_on_work": verdict.feedback,
            "success_criteria_met": verdict.success_criteria_met,
            "user_input_needed": verdict.user_input_needed,
        }

    def _next(self, state: State) -> Literal["work", "__end__"]:
        is_over = state["success_criteria_met"] or state["user_input_needed"]
        return "__end__" if is_over or state["turn_count"] >= MAX_TURNS else "work"
