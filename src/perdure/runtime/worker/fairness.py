"""Who is served next when more is due than can be worked on: tenants in turn, the longest waiting first."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence

from perdure.model.records import Partition

Due = tuple[Partition, str]
"""A thread and the name of its lane."""


def in_turn(
    due: Iterable[Due], running: Mapping[str, int], slots: int, per_tenant: int | None
) -> Sequence[Due]:
    """At most ``slots`` of what is due, each tenant's in its order. Tenants with fewer runs under way come
    first, then they take turns; none gets past ``per_tenant`` runs."""
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
