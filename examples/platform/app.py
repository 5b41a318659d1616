"""The server: LangGraph's API, A2A and MCP for users with a signed token."""

from __future__ import annotations

import os
import time
from typing import Literal

import jwt
from fastapi import FastAPI

from examples.database import database_of
from examples.page import own_page, serve_page
from perdure.server import checkpoint_lifespan, perdure_app
from perdure.server.auth.jwt import Jwt, JwtSettings
from perdure.server.config import Http

from .agents import DAY_S, agents

SECRET = "an example has no secret; take 32 random bytes"
ISSUER, AUDIENCE = "https://login.example", "platform"


def token(user: str, hours: float = 24) -> str:
    """Return a token, as the company's sign-in would."""
    claims = {"sub": user, "email": f"{user}@example.org", "iss": ISSUER, "aud": AUDIENCE}
    return jwt.encode({**claims, "exp": time.time() + hours * 3600}, _secret(), "HS256")


def create_app(db_url: str | None = None) -> FastAPI:
    """Return the application over a database, by default that of ``PERDURE_DB`` or ``platform.db``."""
    url, migrates = database_of("platform", db_url)
    settings = JwtSettings(
        issuer=ISSUER, audience=AUDIENCE, algorithms=["HS256"], secret=_secret(), tenant_claims=["sub"]
    )
    graphs = agents(float(os.environ.get("PLATFORM_ANSWER_WITHIN", DAY_S)))
    lifespan = checkpoint_lifespan(url, graphs=graphs, serve=True, migrate=migrates, gate=Jwt(settings))
    app = FastAPI(title="Platform", lifespan=lifespan, docs_url=None, openapi_url=None)
    serve_page(app, own_page(__file__))
    if "PLATFORM_SECRET" not in os.environ:
        app.add_api_route("/tokens/{user}", _sign_in)
    app.mount("", perdure_app(app, Http(page=True)))
    return app


async def _sign_in(user: Literal["ada", "bob"]) -> dict[str, str]:
    """Return the token of a user of the page. Without a secret of your own anyone could make it."""
    return {"token": token(user)}


def _secret() -> str:
    return os.environ.get("PLATFORM_SECRET", SECRET)


if __name__ == "__main__":
    print(token("ada"))
