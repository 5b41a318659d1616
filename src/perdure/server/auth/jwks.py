"""The published public keys (JWKS) of a token issuer.

The module decides when keys are fetched, and which key verifies a token. Keys are fetched when the first is
needed, and again every ten minutes. For an unknown key id they are fetched, too, at most once a minute. After
a failed fetch, the next one follows ten seconds later at the earliest. While the issuer does not answer, the
present keys stay in use for a day. Only public keys count: with a symmetric key among them, everyone who
reads it could sign tokens.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

import httpx
import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from perdure.errors import BadSetting
from perdure.server.auth.identity import Refusal

FRESH_S = 600.0
"""Seconds after which keys are fetched again."""
STALE_S = 86400.0
"""Seconds for which keys stay in use while the issuer does not answer."""
PAUSE_S = 60.0
"""Seconds after a response before an unknown key id causes another fetch."""
RETRY_S = 10.0
"""Seconds after a failure before the next fetch."""
ANSWER_MAX = 1 << 20

RSA_BITS_MIN = 2048
_CURVES = {"ES256": "secp256r1", "ES384": "secp384r1", "ES512": "secp521r1"}
_KINDS = ("RSA", "EC", "OKP")

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey
_log = logging.getLogger("perdure.server")


class _PublishedKey(NamedTuple):
    kid: str | None
    algorithm: str | None
    key: PublicKey


class KeySet:
    """The keys behind a URL. ``BadSetting`` for a URL whose response could be forged on the network."""

    def __init__(
        self, url: str, *, timeout: float = 5.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._url = url
        self._is_local = _is_local(url)
        self._host = urlsplit(url).hostname
        self._timeout = timeout
        self._clock = clock
        self._tls = httpx.create_ssl_context()
        self._update_lock = asyncio.Lock()
        self._keys: Sequence[_PublishedKey] = ()
        self._read_at = clock()
        self._next_fetch_at = self._read_at
        self._is_down = False

    async def load_key(self, algorithm: str, kid: str | None) -> PublicKey:
        """Return the key of a token. ``Refusal`` with 401 if there is none of that id and algorithm, with 503
        if the keys cannot be fetched."""
        found = self._find_key(algorithm, kid)
        if found is not None and self._age() < FRESH_S:
            return found
        # Only one request fetches; those that have a usable key do not wait for it.
        if found is None or self._age() >= STALE_S or not self._update_lock.locked():
            async with self._update_lock:
                if self._clock() >= self._next_fetch_at:
                    await self._update()
            found = self._find_key(algorithm, kid)
        if self._is_down and (found is None or self._age() >= STALE_S):
            raise Refusal(
                503,
                "the keys that verify tokens cannot be fetched; try again later",
                {"Retry-After": f"{RETRY_S:.0f}"},
            )
        if found is None:
            raise Refusal(
                401, "the token is signed with a key that is not known here", {"WWW-Authenticate": "Bearer"}
            )
        return found

    def _age(self) -> float:
        return self._clock() - self._read_at

    def _find_key(self, algorithm: str, kid: str | None) -> PublicKey | None:
        """Return the key of this id; for a token without an id, the only key that fits the algorithm."""
        fitting = [
            published.key
            for published in self._keys
            if published.algorithm in (None, algorithm)
            and fits(algorithm, published.key)
            and kid in (None, published.kid)
        ]
        if kid is None and len(fitting) != 1:
            return None
        return next(iter(fitting), None)

    async def _update(self) -> None:
        # Set before the fetch: if the client disconnects, this request ends here, and the next one must not
        # fetch at once.
        self._next_fetch_at = self._clock() + RETRY_S
        try:
            async with asyncio.timeout(self._timeout):
                keys = _read_keys(await self._fetch())
        except (httpx.HTTPError, TimeoutError, ValueError) as error:
            self._is_down = True
            reason = type(error).__name__
            if isinstance(error, _Unusable):
                reason = str(error)
            _log.warning("keys for tokens: %s gave none (%s)", self._host, reason)
            return
        self._keys = keys
        self._is_down = False
        self._read_at = self._clock()
        self._next_fetch_at = self._read_at + PAUSE_S

    async def _fetch(self) -> bytes:
        # Each fetch has a client of its own: fetches are rare, and no client stays bound to a closed event
        # loop. Redirects are not followed: they might lead to a URL that ``KeySet`` would refuse.
        client = httpx.AsyncClient(verify=self._tls, timeout=self._timeout, trust_env=not self._is_local)
        async with client, client.stream("GET", self._url) as answer:
            if not answer.is_success:
                raise _Unusable(f"status {answer.status_code}")
            body = bytearray()
            async for part in answer.aiter_bytes():
                body += part
                if len(body) > ANSWER_MAX:
                    raise _Unusable(f"an answer of more than {ANSWER_MAX} bytes")
        return bytes(body)


class _Unusable(ValueError):
    """A response without keys; the message contains nothing of it."""


def fits(algorithm: str, key: object) -> bool:
    """Return True if a key has the kind, the curve and the strength that an algorithm needs."""
    if algorithm[:2] in ("RS", "PS"):
        return isinstance(key, RSAPublicKey) and key.key_size >= RSA_BITS_MIN
    if algorithm == "EdDSA":
        return isinstance(key, Ed25519PublicKey)
    return isinstance(key, EllipticCurvePublicKey) and key.curve.name == _CURVES.get(algorithm)


def _is_local(url: str) -> bool:
    """Return True for a URL of this host. ``BadSetting`` if it is neither that nor https."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise BadSetting(f"jwks_url is not a URL: {error}") from error
    host = parts.hostname or ""
    try:
        is_local = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        is_local = False
    if not host or parts.scheme not in ("https", "http") or (parts.scheme == "http" and not is_local):
        raise BadSetting(
            f"jwks_url has to be an https:// URL, not one with {parts.scheme!r}: its keys decide which "
            "tokens are accepted (http:// is for this machine alone)"
        )
    return is_local


def _read_keys(body: bytes) -> Sequence[_PublishedKey]:
    try:
        data: object = json.loads(body)
    except RecursionError as error:
        raise _Unusable("an answer that is nested too deep") from error
    published: object = None
    if isinstance(data, dict):
        published = cast(dict[str, Any], data).get("keys")
    if not isinstance(published, list):
        raise _Unusable("an answer that is not JWKS")
    keys = [key for entry in cast(list[object], published) if (key := _read_key(entry)) is not None]
    if not keys:
        raise _Unusable("a JWKS without a public key that verifies signatures")
    return keys


def _read_key(entry: object) -> _PublishedKey | None:
    """Return a published key, or None if it is not for signatures, not public, or of an unknown kind."""
    if not isinstance(entry, dict):
        return None
    data = cast(dict[str, Any], entry)
    uses: object = data.get("key_ops")
    is_other = data.get("kty") not in _KINDS or data.get("use", "sig") != "sig"
    if is_other or (isinstance(uses, list) and "verify" not in uses):
        return None
    try:
        key: object = jwt.PyJWK(data).key
    except (jwt.PyJWTError, UnsupportedAlgorithm, ValueError, TypeError, KeyError) as error:
        _log.warning("keys for tokens: one is left out (%s)", type(error).__name__)
        return None
    if not isinstance(key, PublicKey):
        return None
    kid, algorithm = data.get("kid"), data.get("alg")
    return _PublishedKey(
        kid if isinstance(kid, str) else None, algorithm if isinstance(algorithm, str) else None, key
    )
