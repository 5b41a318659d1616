"""Fair order of due queues when there are more than slots: tenants in turn, the longest waiting first."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence

from perdure.model.records import Partition

Due = tuple[Partition, str]
"""Thread and the name of its queue."""


def choose_in_turn(
    due: Iterable[Due], running: Mapping[str, int], slots: int, per_tenant: int | None
) -> Sequence[Due]:
    """Choose at most ``slots`` of the due queues, in order for each tenant.

    Tenants with fewer runs under way come first, then they take turns.

    Args:
        due: The due queues, the longest waiting first.
        running: The number of runs under way for each tenant.
        slots: The maximum number of queues to return.
        per_tenant: The maximum number of runs of one tenant, if any.
    """
    queues: OrderedDict[str, deque[Due]] = OrderedDict()
    for item in due:
        queues.setdefault(item[0].tenant, deque()).append(item)
    busy = Counter(dict(running))
    chosen: list[Due] = []
    while queues and len(chosen) < slots:
        tenant = min(queues, key=lambda name: busy[name])
        if per_tenant is not None and busy[tenant] >= per_tenant:
            break
        chosen.append(queues[tenant].popleft())
        busy[tenant] += 1
        if not queues[tenant]:
            del queues[tenant]
    return chosen
