"""Conditions under which a message is accepted, checked in the commit that stores it."""

from __future__ import annotations

from perdure.errors import Conflict, NotFound
from perdure.model.ops import Check, Put, Refused
from perdure.model.records import Partition

Precondition = Check | Put
"""Condition of a message: a record that must exist, or one that is created or replaced in the same commit and
must be as expected before."""


class AlreadyCreated(Conflict):
    """The record to write with a message was written by another writer; nothing of the message was stored."""


def check_precondition(partition: Partition, precondition: Precondition | None, outcome: Refused) -> None:
    """Raise if a commit was refused because of a message's precondition.

    Args:
        precondition: the condition, if there is one.
        outcome: the refusal of the commit that carried it.

    Raises:
        NotFound: the record that must exist does not.
        AlreadyCreated: the record to write was written meanwhile.
    """
    if precondition is None or (outcome.kind, outcome.key) != (precondition.kind, precondition.key):
        return
    if isinstance(precondition, Put):
        raise AlreadyCreated(
            f"thread {partition.thread!r} was written meanwhile; nothing of this message was stored"
        )
    raise NotFound(f"there is no thread {partition.thread!r}; nothing of this message was stored")
