"""Users and tokens: argon2 hashes, short access tokens, and refresh tokens that are used once."""

from __future__ import annotations

import os
import secrets
import time
import uuid
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import jwt
from argon2 import PasswordHasher
from argon2.exceptions import VerifyMismatchError
from fastapi import HTTPException
from sqlalchemy import Connection, Engine, insert, select, update
from sqlalchemy.exc import IntegrityError

from perdure.errors import BadSetting

from .database import tokens, users

ACCESS_S, REFRESH_S = 15 * 60, 30 * 86400
_hasher = PasswordHasher()
_NOBODY = _hasher.hash(secrets.token_hex())


def secret_of(engine: Engine, secret: str | None = None) -> str:
    """Return the secret that signs access tokens: the given one, that of ``MOVIES_SECRET``, or on SQLite one
    of its own, which is in a file beside the database. Raise ``BadSetting`` if there is none."""
    if found := secret or os.environ.get("MOVIES_SECRET"):
        return found
    if engine.dialect.name != "sqlite" or not engine.url.database:
        raise BadSetting(
            "MOVIES_SECRET is not set: all replicas sign access tokens with it. Make one with "
            "openssl rand -hex 32"
        )
    file = Path(engine.url.database).with_suffix(".secret")
    if not file.exists():
        made = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
        made.touch(0o600)
        made.write_text(secrets.token_hex(32))
        with suppress(FileExistsError):  # another process was first
            os.link(made, file)
        made.unlink()
    return file.read_text()


class Accounts:
    """Accounts in a database. ``secret`` signs access tokens and has at least 32 bytes."""

    def __init__(self, engine: Engine, secret: str) -> None:
        self._engine, self._secret = engine, secret

    def register(self, email: str, password: str) -> str:
        """Add a user, and return the id."""
        user_id = str(uuid.uuid4())
        values = {"id": user_id, "email": email.lower(), "password": _hasher.hash(password)}
        try:
            with self._engine.begin() as connection:
                connection.execute(insert(users).values(values))
        except IntegrityError:
            raise HTTPException(409, "There is an account with this email; log in.") from None
        return user_id

    def log_in(self, email: str, password: str) -> dict[str, str]:
        """Return tokens for a user's password."""
        with self._engine.begin() as connection:
            found = connection.execute(select(users).where(users.c.email == email.lower())).first()
        try:  # an unknown email takes as long as a wrong password
            _hasher.verify(found.password if found else _NOBODY, password)
        except VerifyMismatchError:
            found = None
        if found is None:
            raise HTTPException(401, "The email or the password is wrong.")
        with self._engine.begin() as connection:
            return self._issue(connection, found.id, str(uuid.uuid4()))

    def refresh(self, token: str) -> dict[str, str]:
        """Return new tokens for a refresh token. One that was used before revokes all that came of it."""
        mine = tokens.c.digest == _digest(token)
        now = time.time()
        with self._engine.begin() as connection:
            _lock(connection, token)
            is_open = mine & tokens.c.revoked_at.is_(None) & (tokens.c.expires_at > now)
            used = connection.execute(update(tokens).where(is_open).values(revoked_at=now)).rowcount
            found = connection.execute(select(tokens).where(mine)).first()
            if found is not None and not used:
                family = tokens.c.family == found.family
                connection.execute(update(tokens).where(family).values(revoked_at=now))
            elif found is not None:
                # In the same transaction: revoking the family then revokes the new token too.
                return self._issue(connection, found.user_id, found.family)
        raise HTTPException(401, "This refresh token is not valid; log in again.")

    def log_out(self, token: str) -> None:
        """Revoke a refresh token and all that came of it."""
        with self._engine.begin() as connection:
            _lock(connection, token)
            family = select(tokens.c.family).where(tokens.c.digest == _digest(token)).scalar_subquery()
            revoked = update(tokens).where(tokens.c.family == family).values(revoked_at=time.time())
            connection.execute(revoked)

    def user_of(self, access: str) -> str:
        """Return the user of an access token."""
        try:
            claims: dict[str, Any] = jwt.decode(access, self._secret, ["HS256"], audience="movies")
        except jwt.PyJWTError:
            raise HTTPException(401, "The access token is not valid; refresh it.") from None
        return str(claims["sub"])

    def _issue(self, connection: Connection, user_id: str, family: str) -> dict[str, str]:
        refresh, now = secrets.token_urlsafe(32), time.time()
        row = {
            "digest": _digest(refresh),
            "family": family,
            "user_id": user_id,
            "expires_at": now + REFRESH_S,
        }
        connection.execute(insert(tokens).values(row))
        claims = {"sub": user_id, "aud": "movies", "exp": now + ACCESS_S}
        return {"access_token": jwt.encode(claims, self._secret, "HS256"), "refresh_token": refresh}


def _lock(connection: Connection, token: str) -> None:
    """Let no other request use or revoke the user's tokens until the transaction ends. SQLite needs no
    lock: it has one writer, which waits at its first change."""
    owner = select(tokens.c.user_id).where(tokens.c.digest == _digest(token)).scalar_subquery()
    connection.execute(select(users.c.id).where(users.c.id == owner).with_for_update())


def _digest(token: str) -> str:
    return sha256(token.encode()).hexdigest()
