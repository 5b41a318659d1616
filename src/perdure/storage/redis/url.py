"""Reads Redis URLs: the servers, the prefix of keys, and the lifetime of threads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from redis import connection as client

from perdure.errors import BadUrl
from perdure.storage import cloud_tokens
from perdure.storage.credentials import Endpoint, Password, PasswordSource
from perdure.storage.outage import PATIENCE_S, Outage, patience_of
from perdure.storage.url import redact

CLUSTER = "redis+cluster"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# The client declares no types for it.
_parse_client_url: Any = client.parse_url
_OWN_PARAMETERS = ("prefix", "ttl", "pool", "notify", "patience", *cloud_tokens.PARAMETERS)
_LONGEST_LIFE = 100 * 366 * 86_400_000


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """The settings of a URL. ``connect`` is for the client; ``life`` is in milliseconds, 0 for ever;
    ``notify`` is True if processes notify each other of changes; ``patience`` is in seconds, for a server
    that is unavailable or says nothing; ``password`` is the source of the password, ``None`` if the URL has
    it or none is needed."""

    shown: str
    cluster: bool
    connect: Mapping[str, Any] = field(repr=False)
    prefix: bytes
    life: int
    pool: int
    notify: bool = True
    patience: float = PATIENCE_S
    password: PasswordSource | None = field(default=None, repr=False)


def read(url: str, password: Password | None = None) -> RedisUrl:
    """Read a URL; raise ``BadUrl``, which names the fault, if it is invalid.

    Args:
        url: The URL.
        password: The source of the password, if neither the URL nor its ``credentials`` name one.
    """
    parts = urlsplit(url)
    shown = redact(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    own_parameters = {name: value for name, value in query if name in _OWN_PARAMETERS}
    cluster = parts.scheme == CLUSTER
    if parts.path.strip("/") and not re.fullmatch("[0-9]+", parts.path.strip("/")):
        raise BadUrl(f"{shown}: the path of a Redis URL is the number of a database, e.g. /0, or nothing")
    if cluster and parts.path.strip("/") not in ("", "0"):
        raise BadUrl(f"{shown}: a Redis Cluster has one database, number 0; leave the path out")
    client_parameters = [(name, value) for name, value in query if name not in _OWN_PARAMETERS]
    tls = cluster and ("tls", "true") in client_parameters
    scheme = parts.scheme
    if cluster:
        scheme = "rediss" if tls else "redis"
    client_query = urlencode([pair for pair in client_parameters if not (cluster and pair[0] == "tls")])
    try:
        connect: dict[str, Any] = _parse_client_url(
            urlunsplit((scheme, parts.netloc, parts.path, client_query, ""))
        )
    except ValueError as error:
        raise BadUrl(f"{shown}: {error}; use redis://user:password@host:6379/0") from error
    connect.setdefault("host", "localhost")
    connect.setdefault("port", 6379)
    patience = patience_of(shown, own_parameters.get("patience"))
    silence_s = Outage(patience).silence_s
    connect.setdefault("socket_connect_timeout", silence_s)
    connect.setdefault("socket_timeout", silence_s)
    connect.setdefault("socket_keepalive", True)
    endpoint = Endpoint(shown, connect["host"], connect["port"], connect.get("username") or "")
    source = cloud_tokens.choose_source(
        "redis", own_parameters, endpoint, password, has_password=bool(connect.get("password"))
    )
    return RedisUrl(
        shown,
        cluster,
        connect,
        _parse_prefix(shown, own_parameters.get("prefix", "perdure")),
        _parse_milliseconds(shown, own_parameters.get("ttl")),
        _parse_pool(shown, own_parameters.get("pool", "4")),
        _parse_notify(shown, own_parameters.get("notify", "on")),
        patience,
        source,
    )


def _parse_prefix(shown: str, value: str) -> bytes:
    if not value or "{" in value or "}" in value:
        raise BadUrl(f"{shown}: prefix={value!r} cannot begin keys; use letters, e.g. prefix=perdure")
    return value.encode()


def _parse_milliseconds(shown: str, value: str | None) -> int:
    if value is None:
        return 0
    found = re.fullmatch(r"([0-9]+)([smhd]?)", value)
    if found is None or not int(found[1]):
        raise BadUrl(f"{shown}: ttl={value!r} is not a span of time; use e.g. ttl=30d, ttl=12h or ttl=3600s")
    life = int(found[1]) * _UNITS[found[2] or "s"] * 1000
    if life > _LONGEST_LIFE:
        raise BadUrl(f"{shown}: ttl={value!r} is more than a hundred years; leave it out to keep for ever")
    return life


def _parse_pool(shown: str, value: str) -> int:
    if not re.fullmatch("[0-9]{1,3}", value) or not 1 <= int(value) <= 256:
        raise BadUrl(f"{shown}: pool={value!r} is not a number of connections; use 1 to 256, e.g. pool=4")
    return int(value)


def _parse_notify(shown: str, value: str) -> bool:
    if value not in ("on", "off"):
        raise BadUrl(f"{shown}: notify={value!r} must be on or off")
    return value == "on"
