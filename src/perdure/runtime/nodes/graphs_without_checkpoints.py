"""Runs of graphs that store no checkpoints, inside a run whose steps wait for theirs.

With the durability "sync" LangGraph waits after each step for the checkpoint of that step, also in a graph
that is compiled with ``checkpointer=False`` and has none: its loop lacks the future, and the run ends with
``AttributeError``. Some libraries call such graphs from a node: trustcall, and with it LangMem.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from langgraph.pregel._loop import PregelLoop

_FUTURE = "_put_checkpoint_fut"


class _NothingToStore:
    """The future of a checkpoint that is not stored: it is done, for ``result()`` and for ``await``."""

    def result(self) -> None:
        return None

    def __await__(self) -> Generator[Any, Any, None]:
        return
        yield


class _MissingFuture:
    """Stand-in for the future of the latest checkpoint in a loop without a saver. A loop with a saver
    sets its own future when it stores a checkpoint; until then the attribute is missing, as without this."""

    def __get__(self, loop: PregelLoop | None, owner: type[PregelLoop]) -> _NothingToStore:
        if loop is None or loop.checkpointer is not None:
            raise AttributeError(f"{owner.__name__} has no attribute {_FUTURE!r}")
        return _NothingToStore()


def let_steps_end() -> None:
    """Let graphs without checkpoints run with the durability "sync", in this process."""
    setattr(PregelLoop, _FUTURE, _MissingFuture())
