"""Who may do what in Aegra's tests of authentication: users by tokens that name them, with a role and a team.
Its own handlers take headers as text, which neither Perdure nor LangGraph's server gives them as."""

from __future__ import annotations

from typing import Any

from langgraph_sdk import Auth

_BEGIN = "Bearer mock-jwt-"

auth = Auth()


@auth.authenticate
async def authenticate(authorization: str | None) -> Any:
    user, _, rest = (authorization or "").removeprefix(_BEGIN).partition("-")
    role, _, team = rest.partition("-")
    if not (authorization or "").startswith(_BEGIN) or not role:
        raise Auth.exceptions.HTTPException(status_code=401, detail="Invalid token")
    return {
        "identity": user,
        "display_name": f"User {user}",
        "is_authenticated": True,
        "permissions": [role],
        "role": role,
        "team_id": team,
        "subscription_tier": "premium" if role in ("admin", "premium") else "free",
        "email": f"{user}@example.com",
    }


def _mark(value: Any, **marks: str) -> None:
    # The handler's dict is the server's: it is changed in place.
    if value.get("metadata") is None:
        value["metadata"] = {}
    value["metadata"].update(marks)


@auth.on.threads
async def threads(ctx: Auth.types.AuthContext, value: Any) -> dict[str, Any]:
    """A thread is its maker's, as Aegra has it without being asked."""
    if ctx.action == "create":
        _mark(value, owner=ctx.user.identity, team_id=ctx.user["team_id"])
    return {"owner": ctx.user.identity}


@auth.on.store
async def store(ctx: Auth.types.AuthContext, value: Any) -> bool:
    """What is below "orgs" is the team's, as Aegra has it where it is configured so."""
    first, *rest = value.get("namespace") or ("",)
    if first != "orgs":
        return True
    team = ctx.user["team_id"]
    value["namespace"] = (first, team, *(rest[1:] if rest[:1] == [team] else rest))
    return bool(team)


@auth.on.assistants.create
async def new_assistant(ctx: Auth.types.AuthContext, value: Any) -> None:
    _mark(value, created_by=ctx.user.identity, team_id=ctx.user["team_id"])


@auth.on.assistants.delete
async def authorize_deletion(ctx: Auth.types.AuthContext, value: Any) -> bool:
    return bool(ctx.user["role"] == "admin")
