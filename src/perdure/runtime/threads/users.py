"""The user of a thread, as its metadata names one, and its title."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

USER_KEYS = ("user_id", "langgraph_auth_user_id", "owner", "user")
"""Keys of the metadata that may name a thread's user; the first one that is there does. Handlers of a
server's authentication usually write ``owner``."""

_TITLES = ("title", "name")


def user_in(metadata: Mapping[str, Any]) -> str | None:
    """Return the user that a thread's metadata names, ``None`` if it names none."""
    return next((v for key in USER_KEYS if isinstance(v := metadata.get(key), str) and v), None)


def title_in(metadata: Mapping[str, Any]) -> str:
    """Return the title that a thread's metadata has, ``""`` without one: ``title`` or ``name``, the first one
    that is there."""
    found = next((metadata[key] for key in _TITLES if metadata.get(key) is not None), "")
    return found if isinstance(found, str) else ""
