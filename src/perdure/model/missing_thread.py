"""Error about a thread that does not exist, with the commands that list the existing ones."""

from __future__ import annotations

from perdure.errors import NotFound
from perdure.model.records import Partition


def missing_thread(partition: Partition) -> NotFound:
    """Return the error about a thread that its tenant, or the database without tenants, does not have."""
    if partition.tenant:
        return NotFound(
            f"tenant {partition.tenant!r} has no thread {partition.thread!r}; "
            f"`perdure threads ls --tenant {partition.tenant}` lists what there is"
        )
    return NotFound(
        f"there is no thread {partition.thread!r}; `perdure threads ls` lists what there is, "
        "`perdure tenants ls` the tenants with threads of their own"
    )
