"""The user of a thread, as its metadata or the config of a run names one, and its title."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.engine.decoding import read_each
from perdure.engine.queue.inbox import try_read_postponed
from perdure.engine.threads import history
from perdure.langgraph.reading import plain_reading
from perdure.model.heads import ROOT
from perdure.model.ops import Fetch, Range
from perdure.model.program import Program, ask
from perdure.model.records import DOCUMENT, INBOX, Partition
from perdure.model.runs.messages import Message
from perdure.model.runs.queue import LATER
from perdure.model.users import name_user
from perdure.runtime.agents.run_user import user_of_config

USER_KEYS = ("user_id", "langgraph_auth_user_id", "owner", "user")
"""Keys of the metadata that may name a thread's user; the first that exists counts. Handlers of a server's
authentication usually write ``owner``."""

_TITLES = ("title", "name")
_PAGE = 64
"""Messages that are read together; each may be large."""


def find_user(metadata: Mapping[str, Any]) -> str | None:
    """Return the user that a thread's metadata names, ``None`` if it names none."""
    return next((user for key in USER_KEYS if (user := name_user(metadata.get(key))) is not None), None)


def user_of_options(options: Mapping[str, Any]) -> str | None:
    """Return the user that the options of a run name in its config, or ``None``."""
    return user_of_config(options.get("config"))


def read_message_users(partition: Partition) -> Program[set[str]]:
    """Return the users whom the stored messages of a thread name: those that wait, are postponed, or were
    taken by a run. A run that failed may have left nothing else."""
    users = set[str | None]()
    for messages in (Range(INBOX), Range(DOCUMENT, (LATER,))):
        after = None
        while True:
            (page,) = yield from ask(Fetch(partition, (messages._replace(limit=_PAGE, after=after),)))
            if messages.kind is INBOX:
                found = list(read_each(partition, Message.read, page))
            else:
                found = [message for message in map(try_read_postponed, page) if message is not None]
            users.update(user_of_options(message.options) for message in found)
            if len(page) < _PAGE:
                break
            after = page[-1].key
    return {user for user in users if user is not None}


def read_users(partition: Partition) -> Program[set[str]]:
    """Return the users whom the metadata of a thread's stored checkpoints name."""
    users = set[str]()
    # The checkpoints of one run name the same user, so one of them is read, however many there are.
    names = yield from history.list_newest_of_runs(partition, ROOT)
    for at in range(0, len(names), history.PAGE):
        records = yield from history.find_all(partition, ROOT, names[at : at + history.PAGE])
        found = (find_user(plain_reading.metadata_of(record)) for record in records)
        users.update(user for user in found if user is not None)
    return users


def find_title(metadata: Mapping[str, Any]) -> str:
    """Return the title that a thread's metadata has, ``""`` without one: ``title``, or else ``name``."""
    found = next((metadata[key] for key in _TITLES if metadata.get(key) is not None), "")
    if isinstance(found, str):
        return found
    return ""
