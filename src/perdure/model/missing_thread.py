"""Error about a thread that does not exist, with the commands that list the existing ones."""

from __future__ import annotations

import shlex

from perdure.errors import NotFound
from perdure.model.records import Partition


def missing_thread(partition: Partition) -> NotFound:
    """Return the error for a missing thread of a tenant, or of the nameless tenant."""
    if partition.tenant:
        return NotFound(
            f"tenant {partition.tenant!r} has no thread {partition.thread!r}; "
            f"`perdure threads ls --tenant {shlex.quote(partition.tenant)}` lists what there is"
        )
    return NotFound(
        f"there is no thread {partition.thread!r}; `perdure threads ls` lists what there is, "
        "`perdure tenants ls` the tenants with threads of their own"
    )
