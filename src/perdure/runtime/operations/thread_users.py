"""Users of a thread: the one rule by which threads of a user are found, and removed with the user."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from perdure.database.handle import DatabaseHandle
from perdure.engine.queue import inbox
from perdure.errors import Contention, Corrupt
from perdure.model.records import Partition
from perdure.runtime.threads.rows import ThreadRow
from perdure.runtime.threads.user_and_title import (
    find_user,
    read_users,
    user_of_message,
    user_of_options,
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


async def load_users(database: DatabaseHandle, partition: Partition, row: ThreadRow) -> frozenset[str]:
    """Return the users of a thread: its owner, or else the users of all of its runs, and that of its newest
    message if none has begun. A part that cannot be read names no user."""
    users = set[str | None]()
    with suppress(Corrupt, Contention):
        users.add(await _load_latest_user(database, partition, row))
        if find_owner(row) is None:
            users |= await database.arun(read_users(partition))
    return frozenset(name for name in users if name is not None)


async def _load_latest_user(database: DatabaseHandle, partition: Partition, row: ThreadRow) -> str | None:
    user = find_user(row.metadata)
    if user is not None:
        return user
    if row.run is not None:
        return await database.arun(user_of_message(partition, row.run.first))
    for newest in await database.arun(inbox.read_latest(partition, 1)):
        return user_of_options(newest.message.options)
    return None
