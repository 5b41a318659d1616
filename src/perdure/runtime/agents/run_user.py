"""Verified user of a run, as its graph sees it.

A user's own fields may hold tokens, so they are kept in this process's memory and never stored. A worker in
another process gives its graph the fields that every user has.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from threading import Lock
from typing import Any

from perdure.model.arguments import read_mapping
from perdure.model.bounded_cache import BoundedCache
from perdure.model.users import name_user

USER = "langgraph_auth_user"
"""Configurable name under which LangGraph's server passes the verified user to a graph."""

USER_ID, USER_EMAIL = "user_id", "user_email"
CLAIMED = frozenset((USER_ID, USER_EMAIL))
"""Names under which a run has only verified values of an authenticated user."""


class GraphUser(Mapping[str, Any]):
    """Verified user with all fields as items and attributes: ``user.identity`` and ``user["identity"]``. It
    is not a dict: no field can make it pass for a user of LangGraph's studio."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = dict(fields)

    @property
    def identity(self) -> str:
        return str(self._fields["identity"])

    @property
    def is_authenticated(self) -> bool:
        return bool(self._fields.get("is_authenticated", True))

    @property
    def display_name(self) -> str:
        return str(self._fields.get("display_name") or self.identity)

    @property
    def permissions(self) -> list[str]:
        return list(self._fields.get("permissions") or ())

    def dict(self) -> dict[str, Any]:
        """Return all fields as JSON data."""
        return dict(self._fields)

    def __getitem__(self, key: str) -> Any:
        return self._fields[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        # Fields may hold tokens, and a repr ends up in logs.
        return "GraphUser(…)"

    def __getattr__(self, name: str) -> Any:
        # While a copy is being made, ``_fields`` does not exist yet.
        if name == "_fields" or name.startswith("__") or name not in self._fields:
            raise AttributeError(f"the user has no field {name!r}")
        return wrap_dotted(self._fields[name])


_COMMON = ("identity", "is_authenticated", "display_name", "permissions")
_REFERENCE = "reference"
_USERS_MAX = 10_000
_users: BoundedCache[str, Mapping[str, Any]] = BoundedCache(_USERS_MAX)
_lock = Lock()


def choose_storable(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that may be stored with a message.

    If there are others, the result has a reference by which ``user_of`` finds them, in the process that
    called this, for the last 10,000 users.
    """
    common = {name: fields[name] for name in _COMMON if name in fields}
    if len(common) == len(fields):
        return common
    reference = secrets.token_hex(8)
    with _lock:
        _users[reference] = dict(fields)
    return {**common, _REFERENCE: reference}


def user_of(fields: Any) -> GraphUser | None:
    """Return the user of the fields that were stored with a message, or of a request, if there is one."""
    if not isinstance(fields, Mapping) or not fields.get("identity"):
        return None
    stored = {name: value for name, value in fields.items() if name != _REFERENCE}
    with _lock:
        all_fields = _users.get(str(fields.get(_REFERENCE, "")))
    if all_fields is not None and all_fields["identity"] == stored["identity"]:
        return GraphUser(all_fields)
    return GraphUser(stored)


def user_of_config(config: Any) -> str | None:
    """Return the user that the config of a run or an assistant names, or ``None``: ``user_id``, or else the
    verified user of a server."""
    configurable = read_mapping(read_mapping(config).get("configurable"))
    verified = read_mapping(configurable.get(USER))
    return name_user(configurable.get(USER_ID)) or name_user(verified.get("identity"))


class _Dotted(dict[str, Any]):
    """Dict whose entries are attributes too."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"the user has no field {name!r} there")
        return wrap_dotted(self[name])


def wrap_dotted(value: Any) -> Any:
    """Return a field of a user with its inner entries as attributes too, where it is a dict."""
    if isinstance(value, dict):
        return _Dotted(value)
    return value
