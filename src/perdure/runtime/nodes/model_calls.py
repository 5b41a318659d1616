"""Calls of models in a run, measured by hop: the node of the outermost graph in which a call is made.

Each call becomes the event ``model.called``, with its time, its tokens and, for models with a known price,
its cost. The event contains neither what was sent to the model nor what it answered.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import get_ident
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.outputs import LLMResult

from perdure.model.model_calls import ModelCall, Prices, calls_in

Emit = Callable[[dict[str, Any]], object]
UNKNOWN = "unknown"


@dataclass(slots=True)
class _OpenCall:
    hop: str
    model: str
    began: float


class ModelCalls(BaseCallbackHandler):
    """Reports the calls of models in one attempt at a run, also those made in other OS threads, on the event
    loop on which this object is made. ``emit`` gets the fields of each event; ``answers`` is called once, at
    the first token of any of the calls, or at the first whole answer of a model that does not stream.

    Attributes:
        waited: Returns the seconds for which a call waited for a limit; they do not count as its time.
    """

    run_inline = True
    ignore_chain: Any = True  # nodes and graphs are not calls of models

    def __init__(
        self,
        emit: Emit,
        prices: Prices,
        user: str,
        answers: Callable[[], object] = lambda: None,
    ) -> None:
        self._emit, self._prices, self._user = emit, prices, user
        self._answers: Callable[[], object] | None = answers
        self._open: dict[UUID, _OpenCall] = {}
        self._loop, self._thread = asyncio.get_running_loop(), get_ident()
        self.waited: Callable[[UUID], float] = lambda _: 0.0

    def on_llm_start(
        self,
        serialized: dict[str, Any],
        prompts: Any,
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Begin a call of a model."""
        about = metadata or {}
        hop = str(about.get("langgraph_checkpoint_ns") or about.get("langgraph_node") or "").partition(":")[0]
        self._open[run_id] = _OpenCall(hop, model_name(serialized, about, kwargs), time.perf_counter())

    on_chat_model_start: Any = on_llm_start

    def on_llm_new_token(self, token: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Note the first token."""
        if self._answers is not None:
            answers, self._answers = self._answers, None
            self._report(answers)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """End a call with its response."""
        self.on_llm_new_token("", run_id=run_id)
        self._end(run_id, response)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """End a call that failed."""
        self._end(run_id, None, error)

    def _end(self, run_id: UUID, response: LLMResult | None, error: BaseException | None = None) -> None:
        call = self._open.pop(run_id, None)
        if call is None:
            return
        reported = read_calls(response)
        costs = [
            price.cost(each)
            for each in reported
            if (price := self._prices.of(call.model, each.model)) is not None
        ]
        took = time.perf_counter() - call.began - self.waited(run_id)
        fields: dict[str, Any] = {
            "hop": call.hop,
            "model": call.model,
            "user": self._user,
            "took": round(took * 1_000_000),
            "input_tokens": sum(each.input for each in reported),
            "output_tokens": sum(each.output for each in reported),
        }
        if costs:
            fields["cost"] = sum(costs)
        if error is not None:
            fields["error"] = type(error).__name__
        self._report(self._emit, fields)

    def _report(self, call: Callable[..., object], *args: Any) -> None:
        if get_ident() == self._thread:
            call(*args)
        else:
            self._loop.call_soon_threadsafe(call, *args)


def model_name(
    serialized: Mapping[str, Any] | None, metadata: Mapping[str, Any], kwargs: Mapping[str, Any]
) -> str:
    """Return the name of a model from the arguments of a callback that reports the start of its call."""
    asked = kwargs.get("invocation_params") or {}
    named = metadata.get("ls_model_name") or asked.get("model") or asked.get("model_name")
    return str(named or (serialized or {}).get("name") or kwargs.get("name") or UNKNOWN)


def read_calls(response: LLMResult | None) -> list[ModelCall]:
    """Return the calls that a response reports, with their tokens; empty if it reports none, and without a
    response."""
    if response is None:
        return []
    return [
        call
        for generations in response.generations
        for generation in generations
        if isinstance(message := getattr(generation, "message", None), BaseMessage)
        for call in calls_in(
            {
                "usage_metadata": getattr(message, "usage_metadata", None),
                "response_metadata": message.response_metadata,
                "id": message.id,
            }
        )
    ]
