"""Users of a thread: the one rule by which threads of a user are found, and removed with the user."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from perdure.database.handle import DatabaseHandle
from perdure.engine.retention.thread_expiry import check_unchanged
from perdure.errors import Contention, Corrupt
from perdure.model.ops import Check, Fetch, Get
from perdure.model.program import Program, ask
from perdure.model.records import DOCUMENT, LANE, OF_THREAD, Partition
from perdure.model.runs.queue import IN, LATER
from perdure.runtime.threads.rows import ThreadRow
from perdure.runtime.threads.user_and_title import (
    find_user,
    read_message_users,
    read_users,
)


def find_owner(row: ThreadRow) -> str | None:
    """Return the only user of a thread that clients created and whose metadata names one, else ``None``. The
    metadata of a thread that an application created are those of its latest run."""
    if row.has_document:
        return find_user(row.metadata)
    return None


class UsersOfRow(NamedTuple):
    """The users whom the row of a thread names: its owner, and the user in its metadata."""

    owner: str | None = None
    named: str | None = None

    @classmethod
    def read(cls, row: ThreadRow | None) -> UsersOfRow:
        """Return the users of a row; of none if there is no thread yet."""
        if row is None:
            return cls()
        return cls(find_owner(row), find_user(row.metadata))

    def choose_for(self, of_message: str | None) -> str | None:
        """Return the user of a run: the owner of its thread, or else the user of its first message or, if
        that names none, the user whom the thread's metadata name."""
        return self.owner or of_message or self.named


async def load_users(database: DatabaseHandle, partition: Partition, row: ThreadRow | None) -> frozenset[str]:
    """Return the users of a thread: its owner, or else those of all of its runs and of its messages, also of
    those that wait or are postponed. A part that cannot be read names no user."""
    users = set[str | None]()
    if row is not None:
        users.add(find_user(row.metadata))
        if find_owner(row) is not None:
            return frozenset(name for name in users if name is not None)
    for program in (read_users, read_message_users):
        with suppress(Corrupt, Contention):
            users |= await database.arun(program(partition))
    return frozenset(name for name in users if name is not None)


def read_user_checks(partition: Partition) -> Program[tuple[Check, ...]]:
    """Return checks that hold while no message is accepted for a thread, and its owner stays the same."""
    items = (Get(LANE, (IN,)), Get(LANE, (LATER,)), Get(DOCUMENT, OF_THREAD))
    found = yield from ask(Fetch(partition, items))
    return tuple(
        check_unchanged(item.kind, item.key, records) for item, records in zip(items, found, strict=True)
    )
