"""Programs' own ``Auth`` objects: one as tutorials have it, and those whose handlers say just one thing."""

from __future__ import annotations

from typing import Any

from langgraph_sdk import Auth

from perdure.server.auth.handlers import Handlers, Rules
from perdure.server.auth.identity import User

TOKENS = {"token-a": {"id": "alice", "name": "Alice"}, "token-b": {"id": "bob", "name": "Bob"}}
ALICE, BOB = User("alice", "", ("read",), {"org": "acme"}), User("bob", "")


def known_by_tokens() -> Auth:
    """An auth.py as tutorials have it: tokens, and everything is its creator's."""
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None) -> Auth.types.MinimalUserDict:
        assert authorization
        scheme, token = authorization.split()
        assert scheme.lower() == "bearer"
        if token not in TOKENS:
            raise Auth.exceptions.HTTPException(status_code=401, detail="Invalid token")
        return {"identity": TOKENS[token]["id"], "display_name": TOKENS[token]["name"]}

    @auth.on
    async def own(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> dict[str, str]:
        filters = {"owner": ctx.user.identity}
        value.setdefault("metadata", {}).update(filters)
        return filters

    return auth


def answering(said: Any) -> Handlers:
    """A gate whose authenticate handler returns, or raises, just that."""
    auth = Auth()

    @auth.authenticate
    async def authenticate() -> Any:
        if isinstance(said, BaseException):
            raise said
        return said

    return Handlers(auth)


def ruling(said: Any) -> Rules:
    """Rules whose only handler returns, or raises, just that."""
    auth = Auth()

    @auth.on
    async def rule(ctx: Any, value: Any) -> Any:
        if isinstance(said, BaseException):
            raise said
        return said

    return Rules(auth)


def asking(authenticate: Any) -> Handlers:
    auth = Auth()
    auth.authenticate(authenticate)
    return Handlers(auth)
