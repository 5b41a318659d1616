"""The server: LangGraph's API, A2A and MCP for users with a signed token."""

from __future__ import annotations

import os
import time

import jwt
from fastapi import FastAPI

from perdure.server import checkpoint_lifespan, perdure_app
from perdure.server.auth.jwt import Jwt, JwtSettings

from .agents import agents

SECRET = "an example has no secret; take 32 random bytes"
ISSUER, AUDIENCE = "https://login.example", "platform"


def token(user: str, hours: float = 24) -> str:
    """Return a token, as the company's sign-in would."""
    claims = {"sub": user, "email": f"{user}@example.org", "iss": ISSUER, "aud": AUDIENCE}
    return jwt.encode({**claims, "exp": time.time() + hours * 3600}, _secret(), "HS256")


def create_app(db_url: str | None = None) -> FastAPI:
    """Return the application over a database, by default that of ``PERDURE_DB``."""
    settings = JwtSettings(
        issuer=ISSUER, audience=AUDIENCE, algorithms=["HS256"], secret=_secret(), tenant_claims=["sub"]
    )
    lifespan = checkpoint_lifespan(db_url, graphs=agents(), serve=True, gate=Jwt(settings))
    app = FastAPI(title="Platform", lifespan=lifespan)
    app.mount("", perdure_app(app))
    return app


def _secret() -> str:
    return os.environ.get("PLATFORM_SECRET", SECRET)


if __name__ == "__main__":
    print(token("ada"))
