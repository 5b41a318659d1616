"""Rules for the questions of graphs without deadlines of their own: an observer finds out which node or tool
asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphInterrupt
from langgraph.types import Interrupt

from perdure.model.runs.waits import Wait
from perdure.runtime.nodes.callback_handlers import NodesOnly, with_handlers
from perdure.runtime.nodes.waiting import Question
from perdure.runtime.question_forms import find_human_interrupt, find_requests


class QuestionRules(NodesOnly):
    """Observer of one attempt at a run, for the rules of its agent. An interrupt leaves a node
    or tool as an error, by which the observer learns which of them asks."""

    def __init__(self, rules: Sequence[Question]) -> None:
        self._rules = rules
        self._names: dict[UUID, str] = {}
        self._nodes: dict[str, set[str]] = {}
        self._tools: dict[str, set[str]] = {}

    def watch(self, config: RunnableConfig) -> RunnableConfig:
        """Return a config with which a graph notes which node or tool asks; the config itself without
        rules."""
        if not self._rules:
            return config
        return {**config, "callbacks": with_handlers(config.get("callbacks"), self)}

    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: Any,
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Note a node that begins."""
        if name := (metadata or {}).get("langgraph_node"):
            self._names[run_id] = str(name)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Forget a node that asked nothing."""
        self._names.pop(run_id, None)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Note what a node asks."""
        self._note(self._nodes, error, run_id)

    def on_tool_start(
        self, serialized: dict[str, Any] | None, input_str: str, *, run_id: UUID, **kwargs: Any
    ) -> None:
        """Note a tool that begins."""
        self._names[run_id] = str((serialized or {}).get("name") or kwargs.get("name") or "")

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Forget a tool that asked nothing."""
        self._names.pop(run_id, None)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Note what a tool asks."""
        self._note(self._tools, error, run_id)

    def _note(self, places: dict[str, set[str]], error: BaseException, run_id: UUID) -> None:
        name = self._names.pop(run_id, "")
        if name and isinstance(error, GraphInterrupt):
            for asked in error.args[0] if error.args else ():
                places.setdefault(asked.id, set()).add(name)

    def wait_of(self, asked: Interrupt) -> Wait | None:
        """Return the wait of a question by the first rule that fits, ``None`` if none does."""
        requests, human = find_requests(asked.value) or [], find_human_interrupt(asked.value)
        tools = {str(each.get("name")) for each in requests} | self._tools.get(asked.id, set())
        if human is not None:
            tools.add(str(human["action_request"].get("action")))
        nodes = frozenset(self._nodes.get(asked.id, ()))
        rule = next((rule for rule in self._rules if rule.fits(nodes, frozenset(tools))), None)
        if rule is None:
            return None
        return rule.wait(len(requests))

    def apply(self, interrupts: Sequence[Interrupt], waits: dict[str, Wait]) -> None:
        """Add a wait for each question that has none of its own, if a rule fits it."""
        for asked in interrupts if self._rules else ():
            if asked.id not in waits and (wait := self.wait_of(asked)) is not None:
                waits[asked.id] = wait
