"""The user of a thread, as its metadata or the config of a run names one, and its title."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.engine.decoding import read_each
from perdure.model.ops import Fetch, Get
from perdure.model.program import Program, ask
from perdure.model.records import INBOX, Partition
from perdure.model.runs.messages import Message
from perdure.runtime.agents.run_user import USER, USER_ID

USER_KEYS = ("user_id", "langgraph_auth_user_id", "owner", "user")
"""Keys of the metadata that may name a thread's user; the first that exists counts. Handlers of a server's
authentication usually write ``owner``."""

_TITLES = ("title", "name")


def find_user(metadata: Mapping[str, Any]) -> str | None:
    """Return the user that a thread's metadata names, ``None`` if it names none."""
    return next((v for key in USER_KEYS if isinstance(v := metadata.get(key), str) and v), None)


def user_of_options(options: Mapping[str, Any]) -> str | None:
    """Return the user named by the stored options of a message, in the config of its run, or ``None``:
    ``user_id``, or else the verified user of a server."""
    config = options.get("config")
    configurable = None
    if isinstance(config, Mapping):
        configurable = config.get("configurable")
    if not isinstance(configurable, Mapping):
        return None
    named = configurable.get(USER_ID)
    if not isinstance(named, str) or not named:
        verified = configurable.get(USER)
        named = None
        if isinstance(verified, Mapping):
            named = verified.get("identity")
    if isinstance(named, str) and named:
        return named
    return None


def user_of_message(partition: Partition, seq: int) -> Program[str | None]:
    """Return the user of an accepted message, ``None`` if it names none or was removed. Used where
    the thread has no metadata: a run without stored checkpoints leaves none."""
    (found,) = yield from ask(Fetch(partition, (Get(INBOX, (seq,)),)))
    return next(
        (user_of_options(message.options) for message in read_each(partition, Message.read, found)), None
    )


def find_title(metadata: Mapping[str, Any]) -> str:
    """Return the title that a thread's metadata has, ``""`` without one: ``title``, or else ``name``."""
    found = next((metadata[key] for key in _TITLES if metadata.get(key) is not None), "")
    if isinstance(found, str):
        return found
    return ""
