"""Who may do what in langgraphjs' auth suite: users by token, rights by scope, owners of what they make."""

from __future__ import annotations

from typing import Any

import jwt
from langgraph_sdk import Auth

# The key that the suite signs its tokens with.
_KEY = "09d25e094faa6ca2556c818166b7a9563b93f7099f6f0f4caa6cf63b88e8d3e7"
_RIGHTS = ("read", "write", "assistants:write", "me")
_USERS = {name: {"identity": name, "email": f"{name}@example.com"} for name in ("johndoe", "alice")}

auth = Auth()


def _refuse(detail: str = "Not authorized") -> Exception:
    return Auth.exceptions.HTTPException(status_code=403, detail=detail)


@auth.authenticate
async def authenticate(authorization: str | None) -> Any:
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer":
        raise Auth.exceptions.HTTPException(status_code=401, detail="Could not validate credentials")
    try:
        claims = jwt.decode(token, _KEY, algorithms=["HS256"])
    except jwt.PyJWTError:
        raise Auth.exceptions.HTTPException(status_code=401, detail="Failed to verify JWT token") from None
    user = _USERS.get(claims.get("sub", ""))
    if user is None:
        raise Auth.exceptions.HTTPException(status_code=401, detail="Could not validate credentials")
    return {**user, "permissions": [scope for scope in claims.get("scopes", ()) if scope in _RIGHTS]}


def _mark_owner(ctx: Auth.types.AuthContext, value: Any) -> dict[str, Any]:
    # The handler's dict is the server's: it is changed in place.
    if value.get("metadata") is None:
        value["metadata"] = {}
    value["metadata"]["owner"] = ctx.user.identity
    return {"owner": ctx.user.identity}


@auth.on
async def anything(ctx: Auth.types.AuthContext, value: Any) -> None:
    if not ctx.permissions:
        raise _refuse()


@auth.on.assistants.create
async def new_assistant(ctx: Auth.types.AuthContext, value: Any) -> None:
    if "assistants:write" not in ctx.permissions:
        raise _refuse()
    _mark_owner(ctx, value)


@auth.on.assistants.search
async def find_assistants(ctx: Auth.types.AuthContext, value: Any) -> dict[str, Any]:
    return {"owner": ctx.user.identity}


@auth.on.threads
async def threads(ctx: Auth.types.AuthContext, value: Any) -> dict[str, Any]:
    return _theirs(ctx, value)


@auth.on.assistants
async def assistants(ctx: Auth.types.AuthContext, value: Any) -> dict[str, Any]:
    return _theirs(ctx, value)


def _theirs(ctx: Auth.types.AuthContext, value: Any) -> dict[str, Any]:
    if ctx.action in ("create", "update", "create_run"):
        return _mark_owner(ctx, value)
    return {"owner": ctx.user.identity}


@auth.on.threads.create
async def new_thread(ctx: Auth.types.AuthContext, value: Any) -> dict[str, Any]:
    if not {"me", "threads:write", "threads:*"} & set(ctx.permissions):
        raise _refuse()
    return _mark_owner(ctx, value)


@auth.on.store()
async def items(ctx: Auth.types.AuthContext, value: Any) -> None:
    namespace = tuple(value.get("namespace") or ())
    if namespace and ctx.user.identity not in namespace:
        raise _refuse()
    value["namespace"] = namespace or (ctx.user.identity,)
