"""Side effects in nodes: stable idempotency keys, and a journal of results.

    async def pay(state):
        receipt = await effect(charge, state["amount"])
        return {"receipt": receipt}

A step that was committed is never repeated. A step that ended before its commit is repeated, by the same run
or by one that answers its interrupt or continues its failed run. Recorded side effects are not repeated. A
side effect that was called but not recorded is repeated under the same key, by which its receiver can
recognise it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config

from perdure.database.handle import DatabaseHandle
from perdure.engine.queue import effect_journal
from perdure.errors import NotAllowed, UnrecordedCall
from perdure.langgraph.awaited_checkpoints import StoredCheckpoints
from perdure.langgraph.loop_state import read_carrier
from perdure.model.records import Key, Partition
from perdure.model.runs.messages import encode
from perdure.model.runs.waits import Wait
from perdure.runtime.nodes.lease_check import LeaseCheck, is_on_loop
from perdure.runtime.nodes.repeatable_task_names import claim_for_try, find_task_name, origins

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class EffectJournal:
    """Journal of the side effects of a held run.

    ``stored`` knows which of the run's checkpoints are stored; it is set if steps begin before the checkpoint
    of the previous one is. An effect then waits for the checkpoint that its key is derived from: if that were
    lost in a crash, the effect would be repeated under another key. ``lease`` is the check of the run's lease
    before a side effect. ``waits`` are the waits that the run's nodes have begun, by the ids of their
    interrupts.
    """

    database: DatabaseHandle
    partition: Partition
    run_id: str
    epoch: int
    stored: StoredCheckpoints | None = field(default=None, kw_only=True)
    lease: LeaseCheck | None = field(default=None, kw_only=True)
    waits: dict[str, Wait] = field(default_factory=dict[str, Wait], kw_only=True)

    async def await_origins(self, config: RunnableConfig) -> None:
        """Wait until the checkpoints are stored from which the current task's keys are derived."""
        if self.stored is not None:
            for origin in origins(config):
                await asyncio.wrap_future(self.stored.future_of(*origin))

    def wait_for_origins(self, config: RunnableConfig) -> None:
        """Wait like ``await_origins``, blocking.

        Raises:
            NotAllowed: Called on an event loop, which would have to store the checkpoint meanwhile.
        """
        if self.stored is None:
            return
        if is_on_loop():
            raise NotAllowed(
                "effects_sync was called on the event loop, in a run with durability='async': it would wait "
                "for a checkpoint that this event loop stores; in an async node use effects, or make the "
                "node a plain function"
            )
        for origin in origins(config):
            self.stored.future_of(*origin).result()

    async def arecall(self, name: str, number: int) -> bytes | None:
        """Return the recorded result of an effect, ``None`` if there is none."""
        return await self.database.arun(effect_journal.recall(self.partition, self.run_id, name, number))

    def recall(self, name: str, number: int) -> bytes | None:
        """See ``arecall``."""
        return self.database.run(effect_journal.recall(self.partition, self.run_id, name, number))


@dataclass(frozen=True)
class ReplayedEffects(EffectJournal):
    """Journal for a replay, which repeats no side effect: ``results`` are the
    thread's recorded ones, by key."""

    results: Mapping[Key, bytes]

    async def arecall(self, name: str, number: int) -> bytes | None:
        """Return the recorded result of an effect."""
        return self.recall(name, number)

    def recall(self, name: str, number: int) -> bytes | None:
        """Return the recorded result of an effect, and raise ``UnrecordedCall`` if there is none."""
        body = effect_journal.recall_from(self.results, self.run_id, name, number)
        if body is None:
            raise UnrecordedCall(
                f"thread {self.partition.thread!r} has no recorded result of the side effect "
                f"{name.partition(':')[2]!r}: its run was removed, or had no runtime; it was not repeated"
            )
        return body


def effect_key(label: str, number: int = 0) -> str:
    """Return an idempotency key for a side effect of the current node, with or without a runtime.

    It is the same at every attempt of this step, and different from every other step's. In a subgraph this
    holds only in a run of a ``Runtime``, and in an ``isolated_subgraph``.

    Args:
        label: Name of the effect within the step.
        number: Distinguishes effects with the same label.

    Raises:
        NotAllowed: Called outside of a node.
    """
    return f"{_make_name(label)}:{number}"


async def effect(call: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function once and record its result, which later attempts return instead of a second call.

    The result has to be plain JSON data. Outside of a run of a ``Runtime`` the function is just called. Two
    calls of one function within a step, of two objects' methods of one name, or of a callable without a name
    (a ``functools.partial``, a lambda) need ``effects``.

    Raises:
        NotAllowed: The function has no name, or another effect of the step has the same.
        Fenced: The run has ended, or another worker may hold it; the function is not called.
    """
    return await effects(call)(*args, **kwargs)


def effects(
    call: Callable[P, Awaitable[R]], *, label: str | None = None, number: int = 0
) -> Callable[P, Awaitable[R]]:
    """Return a function that calls ``call`` as ``effect`` does, under a label and number of its own.

    A call is written as ``await effects(charge, number=n)(amount)``.

    Args:
        call: The function.
        label: Name of the effect within the step; by default the function's, with its module.
        number: Distinguishes effects with the same label.

    Raises:
        NotAllowed: The function has no name and there is no label, or, when it is called, another effect of
            the step has the same label and number.
    """
    full_label = label or _make_label(call)

    async def call_once(*args: P.args, **kwargs: P.kwargs) -> R:
        journal = find_node_journal()
        if journal is None:
            return await call(*args, **kwargs)
        name = _make_name(full_label)
        with claim_for_try(_require_config(), (name, number), full_label):
            recorded = await journal.arecall(name, number)
            if recorded is None:
                await journal.await_origins(_require_config())
                if journal.lease is not None:
                    await journal.lease.aconfirm()
                body = encode(await call(*args, **kwargs), "side effect's result")
                recorded = await journal.database.arun(
                    effect_journal.note(journal.partition, journal.run_id, name, number, body, journal.epoch)
                )
        return cast(R, json.loads(recorded))

    return call_once


def effects_sync(call: Callable[P, R], *, label: str | None = None, number: int = 0) -> Callable[P, R]:
    """Return the same as ``effects``, for nodes that are plain functions.

    In a run with the durability ``"async"`` the returned function raises ``NotAllowed`` if it is called on an
    event loop, where it would wait for ever.
    """
    full_label = label or _make_label(call)

    def call_once(*args: P.args, **kwargs: P.kwargs) -> R:
        journal = find_node_journal()
        if journal is None:
            return call(*args, **kwargs)
        name = _make_name(full_label)
        with claim_for_try(_require_config(), (name, number), full_label):
            journal.wait_for_origins(_require_config())
            recorded = journal.recall(name, number)
            if recorded is None:
                if journal.lease is not None:
                    journal.lease.confirm()
                body = encode(call(*args, **kwargs), "side effect's result")
                recorded = journal.database.run(
                    effect_journal.note(journal.partition, journal.run_id, name, number, body, journal.epoch)
                )
        return cast(R, json.loads(recorded))

    return call_once


def _make_label(call: Callable[..., Any]) -> str:
    name = getattr(call, "__qualname__", None)
    if name is None or name.endswith("<lambda>"):
        raise NotAllowed(
            f"a side effect is recorded under its function's name, and a {type(call).__name__!r} without a "
            "name was given; name it: effects(call, label=…)"
        )
    return f"{getattr(call, '__module__', None) or ''}.{name}"


def _require_config() -> RunnableConfig:
    try:
        return get_config()
    except RuntimeError as error:
        raise NotAllowed("a side effect's key is a node's own; ask for it inside a node") from error


def find_node_journal() -> EffectJournal | None:
    """Return the journal of the run of the current node, ``None`` outside of a run of a ``Runtime``."""
    journal = read_carrier(_require_config().get("configurable", {})).journal
    if isinstance(journal, EffectJournal):
        return journal
    return None


def _make_name(label: str) -> str:
    name = find_task_name(_require_config())
    if not name:
        raise NotAllowed("a side effect's key is a node's own; ask for it inside a node")
    return f"{name}:{label}"
