"""Checks of the checkpoints that requests name.

A checkpoint that is not stored, or belongs to another thread, causes a 404 before anything is changed, and a
reference that names another thread a 422. If it is removed later, while the run is queued, the run fails.
"""

from __future__ import annotations

from perdure.server.auth.identity import Refusal
from perdure.server.requests import NewRun, Ref
from perdure.server.resources import Caller
from perdure.server.thread_ids import require_same


class NoCheckpoint(Refusal):
    """The checkpoint that a request names does not exist."""

    def __init__(self, thread_id: str, checkpoint_id: str) -> None:
        super().__init__(404, f"Thread {thread_id!r} has no checkpoint {checkpoint_id!r}.")


def start_of(new: NewRun, thread_id: str) -> Ref | None:
    """Return the checkpoint that a run is to start from, None for the latest. A client may name it beside
    the input, or in ``config.configurable``. ``Refusal`` if it names another thread."""
    configured = (new.config.get("configurable") or {}).get("checkpoint_id")
    if not isinstance(configured, str | None):
        raise Refusal(422, "config.configurable.checkpoint_id is the id of a checkpoint, which is text")
    ref = new.checkpoint or Ref()
    require_same(thread_id, ref.thread_id)
    chosen = choose_id(ref.checkpoint_id, new.checkpoint_id, configured)
    if chosen is None:
        return None
    return ref.model_copy(update={"checkpoint_id": chosen})


def choose_id(*named: str | None) -> str | None:
    """Return the checkpoint's id that a request names in several places, None if it names none. ``Refusal``
    if it names two."""
    different = set(filter(None, named))
    if len(different) > 1:
        raise Refusal(
            422, "the request names two checkpoints, by checkpoint and checkpoint_id; send one of them"
        )
    return next(iter(different), None)


async def require(caller: Caller, thread_id: str, ref: Ref) -> None:
    """Raise ``NoCheckpoint`` unless the thread has the checkpoint that a reference names, if it names one.
    ``Refusal`` if it names another thread."""
    require_same(thread_id, ref.thread_id)
    if not ref.checkpoint_id:
        return
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
