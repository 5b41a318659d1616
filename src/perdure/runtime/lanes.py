"""What this process remembers of inboxes: a guess that saves a fetch, and that the next commit verifies."""

from __future__ import annotations

from collections import OrderedDict

from perdure.model.lane import IN, Lane
from perdure.model.records import Partition

_MOST = 20_000


class Lanes:
    """The inboxes that were seen last, up to a number."""

    def __init__(self) -> None:
        self._lanes: OrderedDict[Partition, Lane] = OrderedDict()

    def known(self, partition: Partition) -> Lane | None:
        return self._lanes.get(partition)

    def remember(self, partition: Partition, lane: Lane) -> None:
        if lane.name != IN:
            return
        self._lanes[partition] = lane
        self._lanes.move_to_end(partition)
        while len(self._lanes) > _MOST:
            self._lanes.popitem(last=False)

    def forget(self, partition: Partition) -> None:
        self._lanes.pop(partition, None)
