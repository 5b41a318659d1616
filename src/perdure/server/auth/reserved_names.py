"""Names under which a client could state who the user is: only what was verified is stored under them.

The rule holds for authenticated users. Without authentication there is no verified user, and the values are
the client's own data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.runtime.agents.run_user import CLAIMED, USER_EMAIL, USER_ID
from perdure.server.auth.identity import User


def list_verified_names(user: User) -> dict[str, Any]:
    """Return the verified values by their names; none for a user who is not authenticated.

    The email is the field ``email`` of an authenticator or token. It is left out if the issuer marks it with
    ``email_verified`` as not verified.
    """
    if not user.identity:
        return {}
    email = user.fields.get("email")
    is_known = isinstance(email, str) and bool(email) and user.fields.get("email_verified", True) is True
    return {USER_ID: user.identity, **({USER_EMAIL: email} if is_known else {})}


def without_claims(user: User, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a client's values without what they state about an authenticated user."""
    if not user.identity:
        return dict(values)
    return {name: value for name, value in values.items() if not _is_claim(name.lower())}


def _is_claim(name: str) -> bool:
    return name in CLAIMED or name.startswith("langgraph_auth_")


def with_verified(user: User, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a client's values with the verified values in place of what the client stated about the user."""
    verified = list_verified_names(user)
    named = {name: verified[name] for name in values if name in verified}
    return {**without_claims(user, values), **named}


def remove_claims(user: User, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a LangGraph config without a client's claims: at its top level, in ``configurable`` and in
    ``metadata``."""
    parts = {
        name: without_claims(user, config[name]) for name in ("configurable", "metadata") if config.get(name)
    }
    return {**without_claims(user, config), **parts}
