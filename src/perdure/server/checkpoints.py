"""The checkpoints that requests name: from which of them a run starts, and whether they are there.

One that is not stored, or is another thread's, is answered with 404 before anything is changed. A checkpoint
that is removed later, while a run waits, is the run's to fail with.
"""

from __future__ import annotations

from perdure.engine import history
from perdure.model.messages import dedupe_digest
from perdure.model.ops import Fetch, Get
from perdure.model.program import Program, ask
from perdure.model.records import DEDUPE, Partition
from perdure.server.auth.identity import Refusal
from perdure.server.requests import NewRun, Ref
from perdure.server.state import Caller


class NoCheckpoint(Refusal):
    """A checkpoint that a request names is not there."""

    def __init__(self, thread_id: str, checkpoint_id: str) -> None:
        super().__init__(404, f"Thread {thread_id!r} has no checkpoint {checkpoint_id!r}.")


def start_of(new: NewRun) -> Ref | None:
    """The checkpoint that a run is to start from, ``None`` for the latest. A client may name it beside the
    input, or among what can be configured."""
    configured = (new.config.get("configurable") or {}).get("checkpoint_id")
    if not isinstance(configured, str | None):
        raise Refusal(422, "config.configurable.checkpoint_id is the id of a checkpoint, which is text")
    for ref in (new.checkpoint, Ref(checkpoint_id=new.checkpoint_id), Ref(checkpoint_id=configured)):
        if ref is not None and ref.checkpoint_id:
            return ref
    return None


async def require(caller: Caller, thread_id: str, ref: Ref) -> None:
    """``NoCheckpoint`` unless the thread has the checkpoint that a reference names, if it names one."""
    if not ref.checkpoint_id:
        return
    if ref.thread_id not in (None, thread_id):
        raise NoCheckpoint(thread_id, ref.checkpoint_id)
    program = history.find(caller.partition(thread_id), ref.checkpoint_ns or "", ref.checkpoint_id)
    if await caller.host.database.arun(program) is None:
        raise NoCheckpoint(thread_id, ref.checkpoint_id)


async def require_start(caller: Caller, thread_id: str, ref: Ref, key: str | None) -> None:
    """As ``require``, for a run that is accepted under a key. One that was accepted before is answered as
    the first time, whatever became of its checkpoint since."""
    try:
        await require(caller, thread_id, ref)
    except NoCheckpoint:
        if key is None or not await caller.host.database.arun(
            _was_accepted(caller.partition(thread_id), key)
        ):
            raise


def _was_accepted(partition: Partition, key: str) -> Program[bool]:
    (found,) = yield from ask(Fetch(partition, (Get(DEDUPE, (dedupe_digest(key),)),)))
    return bool(found)
