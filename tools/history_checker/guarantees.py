"""The guarantees that are checked, by the headings of their sections on the page."""

from __future__ import annotations

from enum import StrEnum


class Guarantee(StrEnum):
    """A guarantee of ``docs/guarantees.md``."""

    NOTHING_LOST = "Nothing acknowledged is lost"
    ONE_MESSAGE = "A message that is sent again is one message"
    IN_ORDER = "A message is applied once, in order"
    ONE_RUN = "One run a thread"
    NOT_STALE = "No stale write"
    NO_FORK = "No unintended fork"
    NO_REPEAT = "A committed step is not run twice"
    REPLIES = "Replies are those of runs that ended"
    ONE_KEY = "A reply is sent under one key, in order"
    NOT_FORGOTTEN = "No queue entry is forgotten"
    ANSWERED_ONCE = "An interrupt is answered once"
    NOT_BLOCKED = "A message that always fails does not block its thread"
    ISOLATED = "Threads and tenants are isolated"
    DELETED = "Deleted is deleted"
    REGISTERS = "Items of the store are registers"
    TURNS = "Turns of a history are one after the other"
