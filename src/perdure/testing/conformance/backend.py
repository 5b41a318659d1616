"""Helpers of the saver contract: a backend that several processes share, and small steps on a thread."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, empty_checkpoint

from perdure.database.blocking import SyncDatabase
from perdure.database.opening import make_database
from perdure.langgraph import loop_state
from perdure.langgraph.saver import PerdureSaver
from perdure.langgraph.search.index import SearchIndex
from perdure.langgraph.store import Clock, PerdureStore, TTLConfig
from perdure.model.ops import Commit, Committed, Delete, Expect, Fetch, Get, Put, Range, Stage
from perdure.model.program import Effect
from perdure.model.records import CHUNK, EPOCH, Partition
from perdure.storage.encryption import EncryptedDriver, Keyring
from perdure.storage.port import CommitLimits, Driver, WrappingDriver
from perdure.testing.faults import FaultyDriver

E = TypeVar("E", bound=Exception)

THREAD = "thread"
AT = Partition("", THREAD)


@dataclass(frozen=True)
class Backend:
    """An open, empty driver, and the keys for it. Each database made here is as one process: it has caches of
    its own and shares only the driver with the others. ``finds_expired`` is False for a driver whose database
    removes expired items by itself."""

    driver: Driver
    keyring: Keyring | None = None
    finds_expired: bool = True

    def database(
        self, *, tenant: str = "", wrap: Callable[[Driver], Driver] = lambda driver: driver
    ) -> SyncDatabase:
        return make_database(wrap(self.driver), tenant=tenant, keyring=self.keyring)

    def saver(
        self, *, tenant: str = "", wrap: Callable[[Driver], Driver] = lambda driver: driver, **options: Any
    ) -> PerdureSaver:
        return self.database(tenant=tenant, wrap=wrap).checkpointer(**options)

    def saver_with(self, hook: Callable[[int, Effect[Any]], None]) -> PerdureSaver:
        """Return a saver that calls ``hook`` before each of its storage effects, with its number from 1."""
        return self.saver(wrap=lambda driver: FaultyDriver(driver, on_effect=hook))

    def store(
        self,
        *,
        tenant: str = "",
        ttl: TTLConfig | None = None,
        clock: Callable[[], int] | None = None,
        wrap: Callable[[Driver], Driver] = lambda driver: driver,
        index: SearchIndex | None = None,
    ) -> PerdureStore:
        """Return a store; ``clock``, if given, returns its time in microseconds."""
        driver = EncryptedDriver(wrap(self.driver), self.keyring)
        own = Clock(clock) if clock else Clock()
        return PerdureStore(driver, tenant=tenant, ttl=ttl, clock=own, index=index)

    def open_run(self, run_id: str | None, thread: str = THREAD) -> int:
        """Raise the thread's epoch, as a worker does that claims a run, or ends it (``None``); return the
        epoch."""
        at = Partition("", thread)
        (answer,) = self.driver.perform(Fetch(at, (Get(EPOCH, ()),)))
        before = answer[0].version if answer else 0
        put = Put(EPOCH, (), {"open_run": run_id}, expect=before or Expect.ABSENT, version=before + 1)
        assert isinstance(self.driver.perform(Commit(at, (put,))), Committed)
        return before + 1

    def chunks(self, thread: str = THREAD) -> int:
        """Return the count of chunks that a thread holds."""
        (answer,) = self.driver.perform(Fetch(Partition("", thread), (Range(CHUNK, bodies=False),)))
        return len(answer)


class Narrow(WrappingDriver):
    """Driver with limits that a test sets. A request beyond them is an error of the engine."""

    def __init__(self, inner: Driver, limits: CommitLimits) -> None:
        super().__init__(inner)
        self._limits = CommitLimits(min(limits.ops, inner.limits.ops), min(limits.bytes, inner.limits.bytes))
        self.staged = 0

    @property
    def limits(self) -> CommitLimits:
        return self._limits

    def _check_request(self, effect: Effect[Any]) -> None:
        if not isinstance(effect, Commit | Stage):
            return
        ops = effect.ops
        size = sum(len(op.body) for op in ops if isinstance(op, Put))
        assert len(ops) <= self._limits.ops, (
            f"{len(ops)} operations at once; the driver takes {self._limits.ops}"
        )
        assert size <= self._limits.bytes, f"{size} bytes at once; the driver takes {self._limits.bytes}"
        self.staged += isinstance(effect, Stage)


def configurable(config: RunnableConfig) -> dict[str, Any]:
    return config.get("configurable") or {}


def at(
    checkpoint_id: str | None = None, *, thread: str = THREAD, namespace: str = "", epoch: int | None = None
) -> RunnableConfig:
    """Return a config that names a checkpoint, without a load before it."""
    place: dict[str, Any] = {"thread_id": thread, "checkpoint_ns": namespace}
    if checkpoint_id is not None:
        place["checkpoint_id"] = checkpoint_id
    if epoch is not None:
        place = loop_state.with_lease(place, epoch)
    return {"configurable": place}


def with_lease(config: RunnableConfig, epoch: int) -> RunnableConfig:
    """Return the same config with the epoch of a lease holder."""
    return {"configurable": loop_state.with_lease(configurable(config), epoch)}


def on(loaded: RunnableConfig, checkpoint_id: str | None) -> RunnableConfig:
    """Return the config of a loop that loaded ``loaded`` and now builds on another checkpoint."""
    return {"configurable": {**configurable(loaded), "checkpoint_id": checkpoint_id}}


def put(
    saver: BaseCheckpointSaver[Any],
    config: RunnableConfig,
    checkpoint_id: str,
    values: Mapping[str, Any] | None = None,
    *,
    version: int = 1,
    new: Collection[str] | None = None,
    source: str = "loop",
    root: str | None = None,
    run_id: str | None = None,
) -> RunnableConfig:
    """Store a checkpoint on the one that the config names.

    Every channel has ``version``, and those in ``new`` (all by default) are announced as new. ``root`` is the
    root checkpoint to which a subgraph's checkpoint belongs, ``run_id`` the run that stores it.
    """
    values = {"x": checkpoint_id} if values is None else values
    checkpoint = empty_checkpoint()
    checkpoint["id"] = checkpoint_id
    checkpoint["channel_values"] = dict(values)
    checkpoint["channel_versions"] = dict.fromkeys(values, version)
    announced: dict[str, str | int | float] = dict.fromkeys(values if new is None else new, version)
    metadata: Any = {"source": source, "step": 1, "parents": {} if root is None else {"": root}}
    if run_id is not None:
        metadata["run_id"] = run_id
    saver.put(config, checkpoint, metadata, announced)
    return on(config, checkpoint_id)


def load(saver: BaseCheckpointSaver[Any], config: RunnableConfig | None = None) -> CheckpointTuple:
    """Return a checkpoint; fail if it is absent."""
    found = saver.get_tuple(config or at())
    assert found is not None, "a stored checkpoint was not found"
    return found


def long(word: str) -> str:
    """Return text that is too long for a reference, so that it is stored as a chunk."""
    return f"{word} " * 40


def latest(saver: BaseCheckpointSaver[Any], namespace: str = "") -> str:
    return load(saver, at(namespace=namespace)).checkpoint["id"]


def list_ids(saver: BaseCheckpointSaver[Any], namespace: str = "", **options: Any) -> list[str]:
    return [item.checkpoint["id"] for item in saver.list(at(namespace=namespace), **options)]


def expect_refusal(error: type[E], call: Callable[[], object]) -> E:
    """Return the error that a call must raise."""
    try:
        call()
    except error as raised:
        return raised
    raise AssertionError(f"the call went through; it must raise {error.__name__}")


def deletes_chunks(effect: Effect[Any]) -> bool:
    return isinstance(effect, Commit) and any(
        isinstance(op, Delete) and op.kind is CHUNK for op in effect.ops
    )
