"""Reads ``postgresql://`` URLs: libpq's own parameters, and those of Perdure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from math import ceil
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from perdure.errors import BadUrl, MissingExtra
from perdure.storage import cloud_tokens
from perdure.storage.credentials import Endpoint, Password, PasswordSource
from perdure.storage.outage import patience_of
from perdure.storage.url import redact

try:
    import psycopg
    from psycopg import conninfo
    from psycopg.conninfo import timeout_from_conninfo
except ModuleNotFoundError:
    raise
except ImportError as error:  # psycopg without its binary part finds no libpq
    raise MissingExtra('postgresql:// needs an extra: pip install "perdure[postgres]"') from error

_DEFAULTS: dict[str, str | int] = {
    "application_name": "perdure",
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
_SCHEMA, _POOL = "perdure", "8"
_CONNECTING_S = (2, 10)
"""The least and the most seconds for one attempt to connect, if the URL names none."""
_FORCED = {"client_encoding": "UTF8"}
_OWN_PARAMETERS = ("schema", "pool", "prepare", "patience", *cloud_tokens.PARAMETERS, "notify")
_NAME_BYTES_MOST = 63
"""Maximum number of bytes of a name in PostgreSQL, which truncates longer ones silently."""


@dataclass(frozen=True, slots=True)
class PostgresUrl:
    """A database and a schema in it, and their settings: ``pool``, the connections of this process;
    ``prepare``, True if statements may be prepared by name; ``patience``, the seconds for which a lost server
    is waited for; ``connecting_s``, those of one attempt to connect; ``notify``, the connection for
    notifications, ``None`` for none; ``password`` and ``notify_password``, the sources of their passwords,
    ``None`` where the URL, the environment or a file has them."""

    url: str = field(repr=False)
    conninfo: str = field(repr=False)
    schema: str
    pool: int
    prepare: bool
    patience: float
    connecting_s: float
    notify: str | None = field(default=None, repr=False)
    password: PasswordSource | None = field(default=None, repr=False)
    notify_password: PasswordSource | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The URL without its password, for errors."""
        return redact(self.url)

    @property
    def migrate(self) -> str:
        """The command that creates or upgrades the schema."""
        parameters = ""
        if self.schema != _SCHEMA:
            parameters = f"?schema={self.schema}"
        return f"perdure migrate --db {shlex.quote(self.name + parameters)}"


def parse_url(url: str, password: Password | None = None) -> PostgresUrl:
    """Read a URL; raise ``BadUrl`` if it is invalid.

    Args:
        url: The URL.
        password: The source of the password, if neither the URL nor its ``credentials`` name one.
    """
    try:
        parts = urlsplit(url)
        query = parse_qsl(parts.query, keep_blank_values=True)
        name = redact(url)
    except ValueError as error:
        raise BadUrl(f"the postgresql:// URL cannot be read: {error}") from None
    if parts.fragment:
        raise BadUrl(f"{name}: a '#' stands in the URL; write it as %23 within a password or a name")
    own_parameters = {key: value for key, value in query if key in _OWN_PARAMETERS}
    libpq_parameters = [(key, value) for key, value in query if key not in own_parameters]
    libpq_names = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    for key, _ in libpq_parameters:
        if key not in libpq_names:
            raise BadUrl(
                f"{name}: unknown parameter {key!r}; Perdure's are {', '.join(_OWN_PARAMETERS[:-1])} and "
                f"{_OWN_PARAMETERS[-1]}, the rest are libpq's"
            )
    libpq_url = urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(libpq_parameters), ""))
    patience = patience_of(name, own_parameters.get("patience"))
    main_conninfo = _make_conninfo(name, libpq_url, patience)
    notify = _parse_notify(name, own_parameters.get("notify", "on"), main_conninfo, patience)
    source = _choose_source(name, main_conninfo, own_parameters, password)
    notify_source = source
    if source is not None and notify is not None and notify != main_conninfo:
        # A token may be for one host only; a URL with a password of its own needs no token.
        notify_source = None
        if not conninfo.conninfo_to_dict(notify).get("password"):
            notify_source = _choose_source(f"{name}: notify", notify, own_parameters, password)
    return PostgresUrl(
        url,
        main_conninfo,
        _parse_schema(name, own_parameters.get("schema", _SCHEMA)),
        _parse_pool(name, own_parameters.get("pool", _POOL)),
        _parse_flag(name, "prepare", own_parameters.get("prepare", "0")),
        patience,
        timeout_from_conninfo(conninfo.conninfo_to_dict(main_conninfo)),
        notify,
        source,
        notify_source,
    )


def _choose_source(
    name: str, main_conninfo: str, own_parameters: dict[str, str], password: Password | None
) -> PasswordSource | None:
    given = conninfo.conninfo_to_dict(main_conninfo)
    host, port, user = (str(given.get(key) or "") for key in ("host", "port", "user"))
    # If the URL gives one host by name and by address, tokens and certificates are for the name.
    endpoint = Endpoint(name, host, int(port) if port.isdecimal() else 5432, user)
    return cloud_tokens.choose_source(
        "postgresql", own_parameters, endpoint, password, has_password=bool(given.get("password"))
    )


def _make_conninfo(name: str, libpq_url: str, patience: float) -> str:
    """Return a checked connection string for libpq, with defaults for what the URL leaves out: an attempt to
    connect ends within the patience, and so does a connection whose data the server's host does not
    confirm."""
    try:
        given = conninfo.conninfo_to_dict(libpq_url)
        if not all(port.isdecimal() for port in str(given.get("port") or "1").split(",") if port):
            raise psycopg.ProgrammingError
    except psycopg.Error:
        raise BadUrl(
            f"{name}: not a PostgreSQL URL; write postgresql://user:password@host:port/database, with "
            "special characters percent-encoded"
        ) from None
    least, most = _CONNECTING_S
    within_s = min(most, max(least, ceil(patience)))
    timeouts = {"connect_timeout": within_s, "tcp_user_timeout": within_s * 1000}
    parameters: dict[str, Any] = {
        **_DEFAULTS,
        **timeouts,
        **{k: v for k, v in given.items() if v is not None},
        **_FORCED,
    }
    return conninfo.make_conninfo(**parameters)


def _parse_notify(name: str, value: str, main_conninfo: str, patience: float) -> str | None:
    if value in ("on", "off"):
        if value == "on":
            return main_conninfo
        return None
    if not value.startswith(("postgresql://", "postgres://")):
        raise BadUrl(
            f"{name}: notify= must be on, off, or the percent-encoded URL of a direct connection to the same "
            "database"
        )
    return _make_conninfo(f"{name}: notify", value, patience)


def _parse_schema(name: str, schema: str) -> str:
    if not schema or "\0" in schema or len(schema.encode()) > _NAME_BYTES_MOST or schema.startswith("pg_"):
        raise BadUrl(
            f"{name}: schema={schema!r} cannot name a schema; give 1 to {_NAME_BYTES_MOST} bytes, "
            "not beginning with pg_"
        )
    return schema


def _parse_pool(name: str, value: str) -> int:
    if not (value.isascii() and value.isdecimal()) or not 2 <= int(value) <= 1000:
        raise BadUrl(f"{name}: pool={value!r} must be a whole number from 2 to 1000")
    return int(value)


def _parse_flag(name: str, key: str, value: str) -> bool:
    if value not in ("0", "1"):
        raise BadUrl(f"{name}: {key}={value!r} must be 0 or 1")
    return value == "1"
