"""Findings of a backend's own check of a thread, as those of ``fsck``."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.engine.checks.fsck_report import REPAIR, RESTORE, Damage, Finding
from perdure.model.records import Partition
from perdure.storage.port import NOT_LATEST

_ACCEPT = f"{REPAIR}, after which what is left is the thread, or restore it from a backup"


def report_changes(partition: Partition, details: Sequence[str]) -> list[Finding]:
    """Return a finding for each detail. Only records that are missing can be repaired, by doing without; none
    is if a record is itself damaged."""
    is_settled = list(details) == [NOT_LATEST]
    advice = _ACCEPT if is_settled else RESTORE
    return [Finding(partition.thread, "", None, Damage.CHANGED, each, advice, is_settled) for each in details]
