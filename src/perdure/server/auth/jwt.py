"""Authentication by a signed token (a JWT) that an identity provider issued.

A token is accepted if it is of a configured issuer, for this server, signed with a configured algorithm and a
key of its kind, and within its period of validity. The user of an accepted token may do everything with the
threads of the tenant that its claims name; ``Rules`` of an ``Auth`` may restrict that.

The algorithm never depends on the token alone: a shared secret is used with HS algorithms only, a public key
and a published key set with the others only, so that no public key can pass for a secret.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.requests import HTTPConnection

from perdure.errors import BadSetting, MissingExtra
from perdure.model.users import name_user
from perdure.server.auth.filters import Filter
from perdure.server.auth.handlers import read_single_header
from perdure.server.auth.identity import Refusal, User, check_names, tenant_of
from perdure.server.auth.json_data import json_data

try:
    import jwt
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    from perdure.server.auth.jwks import KeySet, PublicKey, fits
except ImportError as error:
    raise MissingExtra('tokens need an extra: pip install "perdure[server]"') from error

TOKEN_MAX = 16 * 1024
"""Maximum length of a token in characters."""

_SECRET_BYTES = {"HS256": 32, "HS384": 48, "HS512": 64}
_DIFFERENT_BYTES_MIN = 8
_SIGNED = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_LEEWAY_MAX = 300.0
_PERMISSIONS = ("permissions", "scope", "scp")
"""Claims in which providers list a user's permissions: a list, or one text separated by spaces."""


class Authorizer(Protocol):
    """The half of a gate that authorises actions."""

    async def authorize(
        self, user: User, resource: str, action: str, value: dict[str, Any]
    ) -> Filter | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class JwtSettings:
    """Conditions that an accepted token meets. A setting that cannot work, or is not safe, raises
    ``BadSetting`` with the correction.

    Exactly one of ``secret``, ``public_key`` and ``jwks_url`` is set.

    Args:
        issuer: accepted issuers (``iss``).
        audience: accepted audiences (``aud``).
        algorithms: accepted signature algorithms.
        secret: shared secret for HS algorithms, of as many random bytes as the algorithm's digest.
        public_key: public key as PEM.
        jwks_url: URL of a published key set.
        leeway: accepted clock difference in seconds.
        tenant_claims: claims that form the tenant. With several issuers ``iss`` has to be one of them,
            because each issuer chooses its users' names independently.
        required: further claims that a token has to have; ``exp``, ``iss`` and ``aud`` are always required.
        identity_claim: claim that is the user's identity for handlers.
        header: header with the token, by default ``Authorization``, where the word Bearer precedes the token.
        jwks_timeout: maximum duration of a fetch of the key set in seconds.
    """

    issuer: str | Sequence[str]
    audience: str | Sequence[str]
    algorithms: Sequence[str]
    secret: str | bytes | None = field(default=None, repr=False)
    public_key: str | bytes | None = field(default=None, repr=False)
    jwks_url: str | None = None
    leeway: float = 30.0
    tenant_claims: Sequence[str] = ("sub",)
    required: Sequence[str] = ()
    identity_claim: str = "sub"
    header: str = "authorization"
    jwks_timeout: float = 5.0

    def __post_init__(self) -> None:
        for name in ("issuer", "audience"):
            values = _to_list(getattr(self, name))
            if not values or not all(values):
                raise BadSetting(f"{name} is not set, so any token would be accepted; name the one to accept")
        check_names(self.tenant_claims, "tenant_claims")
        check_names(self.required, "required")
        check_names([self.identity_claim], "identity_claim")
        if len(_to_list(self.issuer)) > 1 and "iss" not in self.tenant_claims:
            raise BadSetting(
                "there are several issuers, which may give one name to different users; put 'iss' first in "
                "tenant_claims"
            )
        if not math.isfinite(self.leeway) or not 0 <= self.leeway <= _LEEWAY_MAX:
            raise BadSetting(f"leeway is {self.leeway} s; it has to be from 0 to {_LEEWAY_MAX:.0f}")
        if not math.isfinite(self.jwks_timeout) or self.jwks_timeout <= 0:
            raise BadSetting(f"jwks_timeout is {self.jwks_timeout} s; it has to be more than 0")
        if not self.header or not self.header.isascii():
            raise BadSetting("header has to be the name of the header that holds the token")
        if sum(one is not None for one in (self.secret, self.public_key, self.jwks_url)) != 1:
            raise BadSetting("set exactly one of secret, public_key and jwks_url")
        self._check_algorithms()
        if self.secret is not None:
            self._check_secret(self.secret)

    def _check_algorithms(self) -> None:
        kind = "public key"
        known: Sequence[str] = _SIGNED
        if self.secret is not None:
            kind, known = "secret", tuple(_SECRET_BYTES)
        if isinstance(self.algorithms, str) or not self.algorithms:
            raise BadSetting(f"algorithms has to be a list of the ones to accept, of {', '.join(known)}")
        for algorithm in self.algorithms:
            if algorithm not in known:
                raise BadSetting(
                    f"algorithms has {algorithm!r}, which does not go with a {kind}; use {', '.join(known)}"
                )

    def _check_secret(self, secret: str | bytes) -> None:
        data = secret.encode() if isinstance(secret, str) else secret
        least = max(_SECRET_BYTES[algorithm] for algorithm in self.algorithms)
        if len(data) < least:
            raise BadSetting(
                f"secret has {len(data)} bytes; these algorithms need {least} random ones or more"
            )
        if len(set(data)) < _DIFFERENT_BYTES_MIN:
            raise BadSetting("secret repeats itself, so that it can be guessed; use random bytes")
        if b"-----BEGIN" in data or data.startswith((b"ssh-", b"ecdsa-")):
            raise BadSetting("secret is a key of a key pair; a public one belongs into public_key")


class Jwt:
    """A gate that authenticates by tokens and allows users everything with their own tenant's threads, or
    what ``rules`` allow. ``BadSetting`` if nothing would separate users."""

    def __init__(self, settings: JwtSettings, rules: Authorizer | None = None) -> None:
        if not settings.tenant_claims and rules is None:
            raise BadSetting(
                "tenant_claims is empty and there are no rules: all users would see all threads; name claims"
            )
        self._settings = settings
        self._rules = rules
        self._key = _make_key(settings)

    async def authenticate(self, request: HTTPConnection) -> User:
        """Return the user of a request. ``Refusal`` with 401 for a token that is not accepted, with 403 for a
        valid token that names no tenant, and with 503 while the keys cannot be fetched."""
        claims = await self._read_claims(self._read_token(request))
        name = self._settings.identity_claim
        identity = name_user(claims.get(name))
        if identity is None:
            raise _unauthorized_error(
                f"the token's {name} claim is missing or empty, or neither text nor a number"
            )
        tenant = tenant_of(claims, self._settings.tenant_claims)
        fields = {"display_name": claims.get("name"), **claims}
        return User(identity, tenant, _read_permissions(claims), fields)

    async def authorize(self, user: User, resource: str, action: str, value: dict[str, Any]) -> Filter | None:
        if self._rules is None:
            return None
        return await self._rules.authorize(user, resource, action, value)

    def _read_token(self, request: HTTPConnection) -> str:
        header = self._settings.header.lower()
        scheme, _, token = (read_single_header(request, header) or "").strip().partition(" ")
        if header != "authorization" and not token:
            scheme, token = "bearer", scheme
        if scheme.lower() != "bearer" or not token.strip():
            raise _unauthorized_error(
                f"there is no token; send it in the header {header}, as 'Bearer <token>'"
            )
        if len(token) > TOKEN_MAX:
            raise _unauthorized_error(f"the token has more than {TOKEN_MAX} characters")
        return token.strip()

    async def _read_claims(self, token: str) -> dict[str, Any]:
        settings = self._settings
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise _unauthorized_error("the token cannot be read; it has to be a signed JWT") from None
        algorithm: object = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in settings.algorithms:
            raise _unauthorized_error(
                f"the token's algorithm is not accepted; this server takes {', '.join(settings.algorithms)}"
            )
        key = self._key
        if isinstance(key, KeySet):
            key = await key.load_key(algorithm, header.get("kid"))
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=list(settings.algorithms),
                audience=_to_list(settings.audience),
                issuer=_to_list(settings.issuer),
                leeway=settings.leeway,
                options={"require": ["exp", "iss", "aud", *settings.required], "verify_sub": False},
            )
            return dict(json_data(claims, "the token"))
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            # The cause is left out: PyJWT's own messages may quote the token.
            raise _unauthorized_error(_describe_fault(error)) from None


def _to_list(value: str | Sequence[str]) -> list[str]:
    if isinstance(value, str):
        return [value]
    return list(value)


def _make_key(settings: JwtSettings) -> KeySet | PublicKey | str | bytes:
    if settings.jwks_url is not None:
        return KeySet(settings.jwks_url, timeout=settings.jwks_timeout)
    if settings.public_key is not None:
        return _load_public_key(settings.public_key, settings.algorithms)
    return settings.secret or b""


def _load_public_key(text: str | bytes, algorithms: Sequence[str]) -> PublicKey:
    data = text.encode() if isinstance(text, str) else text
    if b"PRIVATE KEY" in data:
        raise BadSetting("public_key is a private key, whose holder can sign; give the server the public one")
    try:
        key = load_pem_public_key(data)
    except ValueError:
        raise BadSetting("public_key cannot be read; it has to be a public key as PEM") from None
    unfit = [algorithm for algorithm in algorithms if not fits(algorithm, key)]
    if unfit or not isinstance(key, PublicKey):
        raise BadSetting(f"public_key is not of the kind, or too weak, for {', '.join(unfit)}")
    return key


def _read_permissions(claims: dict[str, Any]) -> tuple[str, ...]:
    found: list[str] = []
    for name in _PERMISSIONS:
        claim = claims.get(name)
        parts = claim.split() if isinstance(claim, str) else claim
        if isinstance(parts, list):
            found += [one for one in parts if isinstance(one, str)]
    return tuple(dict.fromkeys(found))


def _unauthorized_error(detail: str) -> Refusal:
    return Refusal(401, detail, {"WWW-Authenticate": "Bearer"})


def _describe_fault(error: Exception) -> str:
    """Return the reason why a token is refused, without a part of the token."""
    match error:
        case jwt.ExpiredSignatureError():
            return "the token has expired; ask for a new one"
        case jwt.ImmatureSignatureError():
            return "the token is not valid yet"
        case jwt.InvalidAudienceError():
            return "the token is for another audience"
        case jwt.InvalidIssuerError():
            return "the token is of another issuer"
        case jwt.MissingRequiredClaimError():
            return f"the token has no {error.claim} claim"
        case jwt.InvalidSignatureError():
            return "the token's signature is wrong"
        case _:
            return "the token is malformed"
