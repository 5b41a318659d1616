"""Namespaces of users in a store: a separate one for each user, whatever characters the user's id
contains."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from perdure.model.users import name_user

ROOT = ("memories",)
"""Default namespace that contains the namespaces of all users."""
FACTS, SUMMARIES = "facts", "summaries"
REMOVALS = "%forgotten"
"""Label of the namespace with the times at which users were forgotten; no user's label is the same."""

_USER_MAX = 200
_TOOL_ROOTS: set[tuple[str, ...]] = set()


def add_tool_root(root: Sequence[str]) -> None:
    """Register a namespace in which tools of this process keep memories, so that a server does not let users
    access other users' memories there."""
    _TOOL_ROOTS.add(tuple(root))


def list_tool_roots() -> frozenset[tuple[str, ...]]:
    """Return the namespaces in which tools of this process keep memories."""
    return frozenset(_TOOL_ROOTS)


def user_id(user: object) -> str:
    """Return the id of a user as text; a number or a UUID, as applications use them, in its usual form.

    Raises:
        TypeError: The id is of another type.
        ValueError: The id is empty, longer than 200 characters, or has a character that stores refuse.
    """
    named = name_user(user)
    if named is None and user != "":
        raise TypeError(f"a user is named by text, a whole number or a UUID, not by {type(user).__name__}")
    named = named or ""
    if not 0 < len(named) <= _USER_MAX:
        raise ValueError(f"a user's id has 1 to {_USER_MAX} characters, this one has {len(named)}")
    if "\0" in named or any("\ud800" <= character <= "\udfff" for character in named):
        raise ValueError("a user's id cannot contain the character NUL, or half of a surrogate pair")
    return named


def namespace_of(user: str | int | UUID, root: Sequence[str] = ROOT) -> tuple[str, ...]:
    """Return the namespace of a user. Different users have different namespaces, none inside another.

    LangGraph refuses dots in namespaces, so dots are escaped with ``%``, and ``%`` itself too.

    Args:
        user: The user's id, compared character by character.
        root: The namespace that contains the namespaces of all users.

    Raises:
        TypeError: The id is not text, a number or a UUID.
        ValueError: The id is empty, longer than 200 characters, or has a character that stores refuse.
    """
    return (*root, user_id(user).replace("%", "%25").replace(".", "%2E"))


def user_of_namespace(namespace: Sequence[str], root: Sequence[str] = ROOT) -> str:
    """Return the user to whom a namespace, or the namespace that contains it, belongs."""
    return namespace[len(root)].replace("%2E", ".").replace("%25", "%")
