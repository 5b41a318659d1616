"""Limits of calls within the nodes of one attempt at a run: calls of models and tools wait for their turns.

LangChain reports the start of a call to its callback handlers, and goes on when they return. Two handlers
share the turns of a run: one waits in the event loop that awaits a call, the other in the thread that blocks
for one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from fnmatch import fnmatchcase
from typing import Any, NamedTuple
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.outputs import LLMResult

from perdure.database.handle import DatabaseHandle
from perdure.engine.queue.runs import HeldRun
from perdure.model.limits import MONEY, SharedLimit, Target
from perdure.model.model_calls import ModelCall, Prices, calls_in
from perdure.runtime.limits.limiter import CallTurn, Limiter, limiter_of
from perdure.runtime.nodes.model_calls import UNKNOWN, model_name
from perdure.runtime.settings import Settings
from perdure.runtime.threads.users import user_of_options

CALLER: ContextVar[str] = ContextVar("perdure_limits_user", default="")
"""User of the current run, who takes turns with others."""

Emit = Callable[..., object]


class Subject(NamedTuple):
    """What a limit is counted by.

    Attributes:
        tenant: The tenant.
        user: User of the run, ``""`` without one.
        graph: Name of the graph.
    """

    tenant: str
    user: str
    graph: str


def turn_of(limits: Mapping[str, SharedLimit], of: Target, name: str, subject: Subject) -> CallTurn | None:
    """Return a turn under all limits that a call or run has, ``None`` if it has none.

    Narrow limits come first: who waits for one of its own user's holds nothing that others could use.
    """
    found = [
        (each, limit)
        for each, limit in limits.items()
        if limit.of == of and (not limit.names or any(fnmatchcase(name, one) for one in limit.names))
    ]
    if not found:
        return None
    values = {"user": subject.user, "graph": subject.graph, of: name}
    found.sort(key=lambda pair: (-len(pair[1].by), pair[0]))
    return CallTurn((each, {by: values[by] for by in limit.by}, subject.user) for each, limit in found)


class CallLimits:
    """Turns of the calls of one attempt.

    Args:
        limiter: Limits of this process.
        limits: The limits by their names.
        prices: Prices of models.
        subject: What the calls are counted by.
        emit: Receives ``limit.waited`` for each call that waited, and ``limit.unpriced``.
    """

    def __init__(
        self,
        limiter: Limiter,
        limits: Mapping[str, SharedLimit],
        prices: Prices,
        subject: Subject,
        emit: Emit,
    ) -> None:
        self._limiter, self._limits, self._prices = limiter, limits, prices
        self._subject, self._emit = subject, emit
        self._turns: dict[UUID, tuple[CallTurn, str]] = {}
        self.user = subject.user
        self.handlers = (_InThread(self), _InLoop(self))

    def close(self) -> None:
        """Give back the turns of calls whose ends were not reported."""
        while self._turns:
            _, (turn, _) = self._turns.popitem()
            self._limiter.end(turn)

    def _turn(self, run_id: UUID, of: Target, name: str) -> CallTurn | None:
        turn = None if run_id in self._turns else turn_of(self._limits, of, name, self._subject)
        if turn is not None:
            self._turns[run_id] = turn, name
        return turn

    def measure_wait(self, run_id: UUID) -> float:
        """Return the seconds for which a call that is under way waited for its turn."""
        found = self._turns.get(run_id)
        return 0.0 if found is None else found[0].wait_s

    async def begin(self, run_id: UUID, of: Target, name: str) -> None:
        """Wait for the turn of a call; raises as ``Limiter.acquire``."""
        if (turn := self._turn(run_id, of, name)) is None:
            return
        try:
            await self._limiter.acquire(turn, self._subject.tenant)
        except BaseException:
            self._turns.pop(run_id, None)
            raise
        self._note(turn)

    def begin_blocking(self, run_id: UUID, of: Target, name: str) -> None:
        """Wait for the turn of a call in a thread; raises as ``Limiter.acquire``."""
        if (turn := self._turn(run_id, of, name)) is None:
            return
        try:
            self._limiter.acquire_blocking(turn, self._subject.tenant)
        except BaseException:
            self._turns.pop(run_id, None)
            raise
        self._note(turn)

    def _note(self, turn: CallTurn) -> None:
        self._emit("limit.waited", limit=",".join(turn.limits), waited=round(turn.wait_s * 1_000_000))

    def end(self, run_id: UUID, response: LLMResult | None = None) -> None:
        """Give back the turn of a call, with what it took of tokens and money."""
        found = self._turns.pop(run_id, None)
        if found is None:
            return
        turn, name = found
        if response is None:
            self._limiter.end(turn)
            return
        calls = _calls(response)
        tokens = sum(call.input + call.output for call in calls)
        cost = 0.0
        for call in calls:
            # The name by which the model was called, or else the one that its provider gives.
            price = self._prices.of(name) or self._prices.of(call.model)
            if price is not None:
                cost += price.cost(call)
            elif any(self._limits[each].budget is not None for each in turn.limits):
                self._emit("limit.unpriced", model=name)
        self._limiter.end(turn, tokens if calls else None, round(cost * MONEY))


def limits_of(held: HeldRun, database: DatabaseHandle, settings: Settings, emit: Emit) -> CallLimits | None:
    """Return the limits of the calls of an attempt at a run, ``None`` if none is declared."""
    if not settings.limits:
        return None
    user = user_of_options(held.messages[0].options) or ""
    subject = Subject(held.partition.tenant, user, held.run.graph)
    return CallLimits(limiter_of(database), settings.limits, settings.prices, subject, emit)


def _calls(response: LLMResult) -> list[ModelCall]:
    messages = [
        message
        for generations in response.generations
        for generation in generations
        if isinstance(message := getattr(generation, "message", None), BaseMessage)
    ]
    return [
        call
        for message in messages
        for call in calls_in(
            {
                "usage_metadata": getattr(message, "usage_metadata", None),
                "response_metadata": message.response_metadata,
                "id": message.id,
            }
        )
    ]


def _tool_name(serialized: Mapping[str, Any] | None, kwargs: Mapping[str, Any]) -> str:
    return str((serialized or {}).get("name") or kwargs.get("name") or UNKNOWN)


class _CallHandler(BaseCallbackHandler):
    """Handler of the calls that limits are on."""

    raise_error = True

    def __init__(self, limits: CallLimits) -> None:
        self._limits = limits

    @property
    def ignore_chain(self) -> bool:
        """True: nodes and graphs are not calls."""
        return True

    @property
    def ignore_retriever(self) -> bool:
        """True: nor are retrievers."""
        return True


class _InLoop(_CallHandler):
    """Lets calls that are awaited wait in their event loop."""

    # Inline, its error would leave the coroutines of other handlers behind, which nobody awaits.
    run_inline = False

    async def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Wait for the turn of a chat model."""
        await self._limits.begin(run_id, "model", model_name(serialized, metadata or {}, kwargs))

    async def on_llm_start(
        self,
        serialized: dict[str, Any],
        prompts: list[str],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Wait for the turn of a text model."""
        await self._limits.begin(run_id, "model", model_name(serialized, metadata or {}, kwargs))

    async def on_tool_start(
        self, serialized: dict[str, Any], input_str: str, *, run_id: UUID, **kwargs: Any
    ) -> None:
        """Wait for the turn of a tool."""
        await self._limits.begin(run_id, "tool", _tool_name(serialized, kwargs))


class _InThread(_CallHandler):
    """Lets calls that block wait in their thread, and ends all calls."""

    run_inline = True

    def _begin(self, run_id: UUID, of: Target, name: str) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._limits.begin_blocking(run_id, of, name)

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Wait for the turn of a chat model."""
        self._begin(run_id, "model", model_name(serialized, metadata or {}, kwargs))

    def on_llm_start(
        self,
        serialized: dict[str, Any],
        prompts: list[str],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Wait for the turn of a text model."""
        self._begin(run_id, "model", model_name(serialized, metadata or {}, kwargs))

    def on_tool_start(
        self, serialized: dict[str, Any], input_str: str, *, run_id: UUID, **kwargs: Any
    ) -> None:
        """Wait for the turn of a tool."""
        self._begin(run_id, "tool", _tool_name(serialized, kwargs))

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """End a call with its response."""
        self._limits.end(run_id, response)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """End a call that failed."""
        self._limits.end(run_id)

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """End a call of a tool."""
        self._limits.end(run_id)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """End a call of a tool that failed."""
        self._limits.end(run_id)
