"""Namespaces of users in a store: one of each user's own, whatever the user's id looks like."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

ROOT = ("memories",)
"""Namespace that contains those of all users, by default."""
FACTS, SUMMARIES = "facts", "summaries"
REMOVALS = "%forgotten"
"""Label, which no user has, of the namespace with the times at which users were forgotten."""

_USER_MAX = 200
_TOOL_ROOTS: set[tuple[str, ...]] = set()


def add_tool_root(root: Sequence[str]) -> None:
    """Note a namespace in which tools of this process keep memories, so that a server refuses its users
    those of others there."""
    _TOOL_ROOTS.add(tuple(root))


def tool_roots() -> frozenset[tuple[str, ...]]:
    """Return the namespaces in which tools of this process keep memories."""
    return frozenset(_TOOL_ROOTS)


def user_id(user: object) -> str:
    """Return the id of a user as text: a number or a UUID, as applications have them, by its usual form.

    Raises:
        TypeError: It is of another type.
        ValueError: It is empty, longer than 200 characters, or has a character that stores refuse.
    """
    if isinstance(user, UUID) or (isinstance(user, int) and not isinstance(user, bool)):
        user = str(user)
    if not isinstance(user, str):
        raise TypeError(f"a user is named by text, a whole number or a UUID, not by {type(user).__name__}")
    if not 0 < len(user) <= _USER_MAX:
        raise ValueError(f"a user's id has 1 to {_USER_MAX} characters, this one has {len(user)}")
    if "\0" in user or any("\ud800" <= character <= "\udfff" for character in user):
        raise ValueError("a user's id cannot contain the character NUL, or half of a surrogate pair")
    return user


def namespace_of(user: str | int | UUID, root: Sequence[str] = ROOT) -> tuple[str, ...]:
    """Return the namespace of a user. Different users have different ones, none within another's.

    LangGraph refuses dots in namespaces, so they are escaped, and the sign that escapes them too.

    Args:
        user: The user's id, compared character by character.
        root: The namespace that contains those of all users.

    Raises:
        TypeError: The id is not text, number or UUID.
        ValueError: It is empty, longer than 200 characters, or has a character that stores refuse.
    """
    return (*root, user_id(user).replace("%", "%25").replace(".", "%2E"))


def user_of_namespace(namespace: Sequence[str], root: Sequence[str] = ROOT) -> str:
    """Return the user whose namespace this is, or within whose namespace it lies."""
    return namespace[len(root)].replace("%2E", ".").replace("%25", "%")
