"""Limits of calls within the nodes of one attempt at a run: calls of models and tools wait for their turns.

LangChain reports the start of a call to its callback handlers, and goes on when they return. The handlers of
a run share its turns: two of them wait in the event loop, for calls that are awaited, and one in the OS
thread of a call that blocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Self
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.outputs import LLMResult

from perdure.database.handle import DatabaseHandle
from perdure.engine.queue.runs import HeldRun
from perdure.errors import LimitPending, LimitReached
from perdure.model.arguments import read_mapping
from perdure.model.limits import MONEY, SharedLimit, Target
from perdure.model.model_calls import ModelCall, Prices
from perdure.runtime.limits.limiter import CallTurn, Limiter, limiter_of
from perdure.runtime.limits.waiting_permits import NOTHING_KNOWN, ExpectedUse
from perdure.runtime.nodes.model_calls import UNKNOWN, model_name, read_calls
from perdure.runtime.settings import Settings
from perdure.runtime.threads.user_and_title import user_of_options

CALLER: ContextVar[str] = ContextVar("perdure_limits_user", default="")
"""User of the current run, who takes turns with others."""

Emit = Callable[..., object]
Prompt = Sequence[BaseMessage | str]
"""Input of a model: messages, or texts."""
_FIRST_ANSWER = 1000
"""Tokens that an answer is assumed to have while no cost of a call is known."""
_AGAIN_S = 0.05
"""Seconds after which a run continues with a cheaper model."""


class Subject(NamedTuple):
    """Subject by which a limit counts.

    Attributes:
        tenant: The tenant.
        user: User of the run, ``""`` without one.
        graph: Name of the graph.
        assistant: Id of the assistant, or else the name of the graph.
    """

    tenant: str
    user: str
    graph: str
    assistant: str

    @classmethod
    def of(cls, tenant: str, graph: str, options: Mapping[str, Any]) -> Self:
        """Return the subject of the run of a message with these options."""
        configurable = read_mapping(read_mapping(options.get("config")).get("configurable"))
        named = configurable.get("assistant_id")
        if not isinstance(named, str):
            named = ""
        return cls(tenant, user_of_options(options) or "", graph, named or graph)

    def key(self, limit: SharedLimit, name: str = "") -> dict[str, str]:
        """Return the key of a limit for a call of a model or tool, or a run."""
        values = {"user": self.user, "graph": self.graph, "assistant": self.assistant, limit.of: name}
        return {by: values[by] for by in limit.by}


class _LimitedCall(NamedTuple):
    """A call in progress: its turn, the model or tool, and the tokens of its prompt as far as they are known
    before its end."""

    turn: CallTurn
    name: str
    prompt: int


LimitKeys = list[tuple[str, Mapping[str, str], str]]
"""Limits of a call or run: of each its name, its key, and the user who takes turns."""


def keys_of(
    limits: Mapping[str, SharedLimit], of: Target, name: str, subject: Subject, *, refuse: bool | None = None
) -> LimitKeys:
    """Return all limits that a call or run has.

    Narrow limits come first: a call that waits for a limit of its own user holds nothing that others could
    use.

    Args:
        limits: The limits by their names.
        of: The kind of call.
        name: Name of the model or tool.
        subject: The subject by which the limit counts.
        refuse: Only limits that do or do not refuse runs; all by default.
    """
    matching = [
        (each, limit)
        for each, limit in limits.items()
        if limit.of == of and limit.counts(name, subject.graph) and refuse in (None, limit.refuse)
    ]
    matching.sort(key=lambda pair: (-len(pair[1].by), pair[0]))
    return [(each, subject.key(limit, name), subject.user) for each, limit in matching]


class CallLimits:
    """Turns of the calls of one attempt.

    Args:
        limiter: Limits of this process.
        limits: The limits by their names.
        prices: Prices of models.
        subject: The subject by which the calls are counted.
        emit: Receives ``limit.waited`` for each call when it begins and ``limit.ended`` when it ends,
            ``limit.refused``, ``limit.unpriced`` and ``limit.estimated``.
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
        self._calls: dict[UUID, _LimitedCall] = {}
        self._parents: dict[UUID, UUID] = {}
        self.follows_chains = any(limit.concurrency is not None for limit in limits.values())
        self._is_cheaper = False
        self.user = subject.user
        self.handlers = (
            _InThread(self),
            _InLoop(self, is_of_chats=True),
            _InLoop(self, is_of_chats=False),
        )

    def close(self) -> None:
        """Give back the turns of calls whose ends were not reported: they were cut off."""
        while self._calls:
            _, call = self._calls.popitem()
            self._end(call.turn, None, self._estimate_cut_call(call, None))
        self._parents.clear()

    def note_parent(self, run_id: UUID, parent: UUID | None) -> None:
        """Note that a call, or a chain, is made within another."""
        if parent is not None and self.follows_chains:
            self._parents[run_id] = parent

    def forget_parent(self, run_id: UUID) -> None:
        """Forget what ``note_parent`` noted, at the end."""
        self._parents.pop(run_id, None)

    def _make_turn(self, run_id: UUID, of: Target, name: str, prompt: Prompt) -> CallTurn | None:
        if run_id in self._calls or not (keys := keys_of(self._limits, of, name, self._subject)):
            return None
        tokens, expected = 0, NOTHING_KNOWN
        if self._counts_tokens([limit for limit, *_ in keys]):
            tokens, expected = count_tokens_approximately(prompt), self._expect(name, prompt)
        turn = CallTurn(keys, within=self._list_outer_turns(run_id), expected=expected)
        self._calls[run_id] = _LimitedCall(turn, name, tokens)
        return turn

    def _expect(self, name: str, prompt: Prompt) -> ExpectedUse:
        """Return what a call uses at least. Only the text of its prompt is counted: the size of a file says
        nothing of its tokens."""
        texts = [each if isinstance(each, str) else str(each.text) for each in prompt]
        tokens = count_tokens_approximately(texts)
        price = self._prices.of(name)
        if price is None:
            return ExpectedUse(tokens)
        costs = (price.cost(ModelCall(None, name, tokens, answer)) for answer in (0, _FIRST_ANSWER))
        return ExpectedUse(tokens, *(round(cost * MONEY) for cost in costs))

    def _counts_tokens(self, names: Sequence[str]) -> bool:
        limits = [self._limits[each] for each in names]
        return any(limit.budget is not None or limit.tokens is not None for limit in limits)

    def _has_budget(self, turn: CallTurn) -> bool:
        return any(self._limits[each].budget is not None for each in turn.limits)

    def _list_outer_turns(self, run_id: UUID) -> list[CallTurn]:
        """Return the turns of the calls that a call is made within."""
        turns: list[CallTurn] = []
        parent = self._parents.get(run_id)
        while parent is not None:
            if (outer := self._calls.get(parent)) is not None:
                turns.append(outer.turn)
            parent = self._parents.get(parent)
        return turns

    def measure_wait(self, run_id: UUID) -> float:
        """Return the seconds for which a call that is under way waited for its turn."""
        call = self._calls.get(run_id)
        if call is None:
            return 0.0
        return call.turn.wait_s

    @contextmanager
    def _wait_for_turn(
        self, run_id: UUID, of: Target, name: str, parent: UUID | None, prompt: Prompt
    ) -> Iterator[CallTurn | None]:
        """Yield the turn of a call, ``None`` if it needs none, to a block that waits for it."""
        self.note_parent(run_id, parent)
        turn = self._make_turn(run_id, of, name, prompt)
        try:
            yield turn
        except BaseException as error:
            self._calls.pop(run_id, None)
            self._parents.pop(run_id, None)
            if isinstance(error, LimitReached):
                self._emit("limit.refused", limit=error.limit)
            raise self._choose_error(error) from None
        if turn is not None:
            self._emit("limit.waited", limit=",".join(turn.limits), waited=round(turn.wait_s * 1_000_000))

    async def begin(
        self, run_id: UUID, of: Target, name: str, parent: UUID | None, prompt: Prompt = ()
    ) -> None:
        """Wait for the turn of a call, made within another call or chain; raise the errors of
        ``Limiter.acquire``."""
        with self._wait_for_turn(run_id, of, name, parent, prompt) as turn:
            if turn is not None:
                await self._limiter.acquire(turn, self._subject.tenant)

    def begin_blocking(
        self, run_id: UUID, of: Target, name: str, parent: UUID | None, prompt: Prompt = ()
    ) -> None:
        """Wait as ``begin`` does, and block the OS thread."""
        with self._wait_for_turn(run_id, of, name, parent, prompt) as turn:
            if turn is not None:
                self._limiter.acquire_blocking(turn, self._subject.tenant)

    def _choose_error(self, error: BaseException) -> BaseException:
        """Return the error of a call that did not begin. If the limit has a cheaper model that the
        run does not use yet, the error makes the run continue with that."""
        if not isinstance(error, LimitReached) or isinstance(error, LimitPending):
            return error
        limit = self._limits.get(error.limit)
        if limit is None or limit.cheaper is None:
            return error
        if not self._is_cheaper:
            return LimitPending(f"{error}; its run goes on with {limit.cheaper}", error.limit, _AGAIN_S)
        return LimitReached(
            f"{error}. The run was to go on with {limit.cheaper!r}, its configurable value 'model', and "
            "called another model",
            error.limit,
            error.retry_after,
        )

    async def find_cheaper_model(self) -> str | None:
        """Return the cheaper model that a run has to use because a budget is used up, ``None`` if none is."""
        for name, limit in self._limits.items():
            if limit.cheaper is not None and await self._find_refusal(name, limit) is not None:
                self._is_cheaper = True
                return limit.cheaper
        return None

    async def require_budget(self, name: str | None) -> None:
        """Raise ``LimitPending`` before a run continues that a limit postponed, if its budget is still used
        up."""
        limit = self._limits.get(name or "")
        if name is None or limit is None or limit.cheaper is not None or "model" in limit.by:
            return
        if isinstance(error := await self._find_refusal(name, limit), LimitPending):
            raise error

    async def _find_refusal(self, name: str, limit: SharedLimit) -> LimitReached | None:
        return await self._limiter.find_refusal(self._subject.tenant, name, self._subject.key(limit))

    def _end(self, turn: CallTurn, tokens: int | None = None, cost: int | None = None) -> None:
        self._limiter.end(turn, tokens, cost)
        self._emit("limit.ended", limit=",".join(turn.limits))

    def end(
        self, run_id: UUID, response: LLMResult | None = None, error: BaseException | None = None
    ) -> None:
        """Release the turn of a call, with its tokens and money.

        Args:
            run_id: The call.
            response: Its response; after an error the part that came before.
            error: The error with which it ended.
        """
        self._parents.pop(run_id, None)
        ended = self._calls.pop(run_id, None)
        if ended is None:
            return
        is_cut = error is not None and not isinstance(error, Exception)
        calls = read_calls(response)
        if not calls and response is not None and not is_cut:
            calls = self._estimate(ended, response, has_failed=error is not None)
        tokens = None
        if calls:
            tokens = sum(call.input + call.output for call in calls)
        cost = None
        if response is not None:
            cost = round(self._compute_cost(ended, calls) * MONEY)
        if not calls and is_cut:
            cost = self._estimate_cut_call(ended, response)
        self._end(ended.turn, tokens, cost)

    def _estimate(self, call: _LimitedCall, response: LLMResult, *, has_failed: bool) -> list[ModelCall]:
        """Estimate the usage of a call whose model reports none, such as ``ChatOpenAI`` with an address of
        its own when it streams, by its prompt and its answer. A failed call counts if any part of an answer
        came."""
        answers = _list_answers(response)
        if not self._counts_tokens(call.turn.limits) or (has_failed and not answers):
            return []
        self._emit("limit.estimated", model=call.name)
        return [ModelCall(None, call.name, call.prompt, count_tokens_approximately(answers))]

    def _compute_cost(self, call: _LimitedCall, calls: list[ModelCall]) -> float:
        cost = 0.0
        for each in calls:
            # The name by which the model was called, or else the one that its provider gives.
            if (price := self._prices.of(call.name, each.model)) is not None:
                cost += price.cost(each)
            elif self._has_budget(call.turn):
                self._emit("limit.unpriced", model=call.name)
        return cost

    def _estimate_cut_call(self, call: _LimitedCall, response: LLMResult | None) -> int | None:
        """Return the cost of a call that was cancelled, or whose stream was left: its provider reports no
        usage, but bills it. The cost is the amount set aside for the call, and at least that of its prompt
        and the received part of its answer."""
        if not call.turn.is_under_way or not self._has_budget(call.turn):
            return None
        came = 0
        if response is not None:
            came = count_tokens_approximately(_list_answers(response))
        used = ModelCall(None, call.name, call.prompt, came)
        return max(call.turn.set_aside, round(self._compute_cost(call, [used]) * MONEY))


def limits_of(
    held: HeldRun, database: DatabaseHandle, settings: Settings, prices: Prices, emit: Emit
) -> CallLimits | None:
    """Return the limits of the calls of an attempt at a run, ``None`` if calls have none."""
    limits = {
        name: limit
        for name, limit in settings.limits.items()
        if limit.of != "run" and limit.is_of(held.run.graph)
    }
    if not limits:
        return None
    subject = Subject.of(held.partition.tenant, held.run.graph, held.messages[0].options)
    return CallLimits(limiter_of(database), limits, prices, subject, emit)


def _find_tool_name(serialized: Mapping[str, Any] | None, kwargs: Mapping[str, Any]) -> str:
    return str((serialized or {}).get("name") or kwargs.get("name") or UNKNOWN)


def _flatten(prompts: Sequence[str | Sequence[BaseMessage]]) -> Prompt:
    """Return the texts or messages of prompts."""
    return [each for prompt in prompts for each in ([prompt] if isinstance(prompt, str) else prompt)]


def _list_answers(response: LLMResult) -> Prompt:
    """Return the messages or texts of a response that are not empty."""
    answers = [getattr(each, "message", each.text) for part in response.generations for each in part]
    return [each for each in answers if getattr(each, "content", each) or getattr(each, "tool_calls", None)]


class _InLoop(BaseCallbackHandler):
    """Lets calls that are awaited wait in their event loop.

    LangChain runs a plain method of a handler, such as that for a token, in an OS thread, unless the handler
    is inline or ignores the call. But if an inline handler refuses a chat model, the coroutines of the other
    handlers are never awaited. So chat models have a handler of their own, which is not inline, and ignores
    all but the starts of their calls; the handler of text models and tools is inline.
    """

    raise_error = True
    ignore_chain: Any = True  # nodes and graphs are not calls

    def __init__(self, limits: CallLimits, *, is_of_chats: bool) -> None:
        self._limits, self._is_of_chats = limits, is_of_chats
        self.run_inline = not is_of_chats

    @property
    def ignore_chat_model(self) -> bool:
        """True for the handler of text models and tools."""
        return not self._is_of_chats

    @property
    def ignore_llm(self) -> bool:
        """True for the handler of chat models, also of the rest of their calls."""
        return self._is_of_chats

    ignore_agent: Any = ignore_llm
    ignore_retriever: Any = ignore_llm
    ignore_retry: Any = ignore_llm
    ignore_custom_event: Any = ignore_llm

    async def on_llm_start(
        self,
        serialized: dict[str, Any],
        prompts: Any,
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Wait for the turn of a model."""
        name = model_name(serialized, metadata or {}, kwargs)
        await self._limits.begin(run_id, "model", name, kwargs.get("parent_run_id"), _flatten(prompts))

    on_chat_model_start: Any = on_llm_start

    async def on_tool_start(
        self, serialized: dict[str, Any], input_str: str, *, run_id: UUID, **kwargs: Any
    ) -> None:
        """Wait for the turn of a tool."""
        name = _find_tool_name(serialized, kwargs)
        await self._limits.begin(run_id, "tool", name, kwargs.get("parent_run_id"))


class _InThread(BaseCallbackHandler):
    """Lets calls that block wait in their OS thread, and ends all calls."""

    raise_error = True
    run_inline = True

    def __init__(self, limits: CallLimits) -> None:
        self._limits = limits

    @property
    def ignore_chain(self) -> bool:
        """True, unless it has to be known which calls are made within others."""
        return not self._limits.follows_chains

    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: dict[str, Any],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **kwargs: Any,
    ) -> None:
        """Note what a chain is a part of."""
        self._limits.note_parent(run_id, parent_run_id)

    def on_chain_end(self, outputs: dict[str, Any], *, run_id: UUID, **kwargs: Any) -> None:
        """Forget a chain."""
        self._limits.forget_parent(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Forget a chain that failed."""
        self._limits.forget_parent(run_id)

    def _begin(self, run_id: UUID, of: Target, name: str, parent: UUID | None, prompt: Prompt = ()) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._limits.begin_blocking(run_id, of, name, parent, prompt)

    def on_llm_start(
        self,
        serialized: dict[str, Any],
        prompts: Any,
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Wait for the turn of a model."""
        name = model_name(serialized, metadata or {}, kwargs)
        self._begin(run_id, "model", name, kwargs.get("parent_run_id"), _flatten(prompts))

    on_chat_model_start: Any = on_llm_start

    def on_tool_start(
        self, serialized: dict[str, Any], input_str: str, *, run_id: UUID, **kwargs: Any
    ) -> None:
        """Wait for the turn of a tool."""
        self._begin(run_id, "tool", _find_tool_name(serialized, kwargs), kwargs.get("parent_run_id"))

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """End a call with its response."""
        self._limits.end(run_id, response)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """End a call that failed, or was cut off."""
        self._limits.end(run_id, kwargs.get("response"), error)

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """End a call of a tool."""
        self._limits.end(run_id)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """End a call of a tool that failed."""
        self._limits.end(run_id)
