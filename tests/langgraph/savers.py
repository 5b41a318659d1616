"""Savers to test: every driver, each opened afresh, and wrappers that slow one down or turn it sync."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

import perdure
from tests.backends import BACKENDS, EMPTY

DRIVERS = BACKENDS

S = TypeVar("S", bound=BaseCheckpointSaver[Any])


@contextmanager
def opened(driver: str, folder: Path) -> Iterator[perdure.SyncDatabase]:
    """A new database of a backend; a second one of SQLite in the same folder opens the same file."""
    with ExitStack() as stack:
        url = (
            f"sqlite:///{folder / 'threads.db'}"
            if driver == "sqlite"
            else stack.enter_context(EMPTY[driver]())
        )
        yield stack.enter_context(perdure.connect_sync(url, migrate=True))


def slow_root(saver: S, seconds: float = 0.03) -> S:
    """The saver, whose puts in the root namespace take their time, so that a subgraph's come first."""
    kind = type(saver)

    def delay(config: RunnableConfig) -> float:
        return 0.0 if config["configurable"].get("checkpoint_ns") else seconds

    class Slow(kind):  # type: ignore[misc,valid-type]
        def put(self, config: RunnableConfig, *args: Any) -> RunnableConfig:
            time.sleep(delay(config))
            return super().put(config, *args)

        async def aput(self, config: RunnableConfig, *args: Any) -> RunnableConfig:
            await asyncio.sleep(delay(config))
            return await super().aput(config, *args)

    saver.__class__ = Slow
    return saver


class SyncOnly(BaseCheckpointSaver[int]):
    """A saver whose async methods call the sync ones of another: it brings async checks to sync code."""

    def __init__(self, inner: BaseCheckpointSaver[int]) -> None:
        super().__init__()
        self.inner = inner

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self.inner.get_tuple(config)

    async def alist(self, config: RunnableConfig | None, **options: Any) -> AsyncIterator[CheckpointTuple]:
        for found in self.inner.list(config, **options):
            yield found

    async def aput(self, config: RunnableConfig, *args: Any) -> RunnableConfig:
        return self.inner.put(config, *args)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self.inner.put_writes(config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        self.inner.delete_thread(thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        self.inner.delete_for_runs(run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self.inner.copy_thread(source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], **options: Any) -> None:
        self.inner.prune(thread_ids, **options)

    def get_next_version(self, current: int | None, channel: None) -> int:
        return self.inner.get_next_version(current, channel)
