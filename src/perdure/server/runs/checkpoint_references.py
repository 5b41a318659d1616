"""Checks of the checkpoints that requests name.

A checkpoint that is not stored, or belongs to another thread, causes a 404 before anything is changed. If
it is removed later, while the run is queued, the run fails.
"""

from __future__ import annotations

from perdure.server.auth.identity import Refusal
from perdure.server.requests import NewRun, Ref, check_text
from perdure.server.resources import Caller


class NoCheckpoint(Refusal):
    """The checkpoint that a request names does not exist."""

    def __init__(self, thread_id: str, checkpoint_id: str) -> None:
        super().__init__(404, f"Thread {thread_id!r} has no checkpoint {checkpoint_id!r}.")


def start_of(new: NewRun) -> Ref | None:
    """Return the checkpoint that a run is to start from, None for the latest. A client may name it beside
    the input, or in ``config.configurable``."""
    configured = (new.config.get("configurable") or {}).get("checkpoint_id")
    if not isinstance(configured, str | None):
        raise Refusal(422, "config.configurable.checkpoint_id is the id of a checkpoint, which is text")
    try:
        check_text({"config.configurable.checkpoint_id": configured})
    except ValueError as error:
        raise Refusal(422, str(error)) from None
    for ref in (new.checkpoint, Ref(checkpoint_id=new.checkpoint_id), Ref(checkpoint_id=configured)):
        if ref is not None and ref.checkpoint_id:
            return ref
    return None


async def require(caller: Caller, thread_id: str, ref: Ref) -> None:
    """Raise ``NoCheckpoint`` unless the thread has the checkpoint that a reference names, if it names one."""
    if not ref.checkpoint_id:
        return
    if ref.thread_id not in (None, thread_id):
        raise NoCheckpoint(thread_id, ref.checkpoint_id)
    if not await caller.threads.has_checkpoint(thread_id, ref.checkpoint_ns or "", ref.checkpoint_id):
        raise NoCheckpoint(thread_id, ref.checkpoint_id)


async def require_start(caller: Caller, thread_id: str, ref: Ref, key: str | None) -> None:
    """Check the start of a run as ``require`` does, for a run with an idempotency key.

    A run that was accepted before under this key gets the same response as the first time, even if its
    checkpoint was removed since.

    Args:
        caller: the authenticated user of the request.
        thread_id: the run's thread.
        ref: the checkpoint to start from.
        key: the idempotency key, if any.

    Raises:
        NoCheckpoint: the checkpoint does not exist, and no run was accepted under the key.
    """
    try:
        await require(caller, thread_id, ref)
    except NoCheckpoint:
        if key is None or not await caller.threads.was_accepted(thread_id, key):
            raise
