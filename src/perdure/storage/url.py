"""Chooses the backend of a URL. An unusable URL is an error that names the fix, never another backend."""

from __future__ import annotations

import shlex
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast
from urllib.parse import quote, urlencode, urlsplit

from perdure.errors import BadUrl, MissingExtra

if TYPE_CHECKING:
    from perdure.storage.credentials import Password
    from perdure.storage.port import Driver


class BackendModule(Protocol):
    """The functions of a backend's module. Each takes a URL, and raises ``BadUrl`` if it cannot use the URL
    and ``Unavailable`` if no server answers; both errors name the fix and never show a secret."""

    @property
    def SCHEMA_VERSION(self) -> int:  # noqa: N802 - a module's constant
        """The version of the layout that this release reads and writes; 0 for backends without one."""
        ...

    def open_driver(self, url: str) -> Driver:
        """Open the database; raise ``MigrationRequired`` unless its layout has this release's version."""
        ...

    def schema_version(self, url: str) -> int:
        """Return the version of the database's layout, 0 if there is none. Changes nothing."""
        ...

    def plan_migration(self, url: str) -> list[str]:
        """Return the steps that ``migrate`` would execute now, as descriptions or statements. Changes
        nothing."""
        ...

    def migrate(self, url: str) -> int:
        """Migrate the layout to this release's version, once for all concurrent callers, and return the
        previous version."""
        ...


class PasswordBackend(Protocol):
    """The functions of a backend whose servers accept a password that is not in the URL."""

    def open_driver(self, url: str, password: Password | None = None) -> Driver: ...

    def migrate(self, url: str, password: Password | None = None) -> int: ...


_WITH_PASSWORDS = frozenset(("postgresql", "postgres", "redis", "rediss", "redis+cluster"))
_BACKENDS = {
    "memory": ("perdure.storage.memory", None),
    "sqlite": ("perdure.storage.sqlite.driver", None),
    "postgresql": ("perdure.storage.postgres.opening", "postgres"),
    "postgres": ("perdure.storage.postgres.opening", "postgres"),
    "redis": ("perdure.storage.redis.driver", "redis"),
    "rediss": ("perdure.storage.redis.driver", "redis"),
    "redis+cluster": ("perdure.storage.redis.driver", "redis"),
    "dynamodb": ("perdure.storage.dynamodb.driver", "dynamodb"),
    "d1": ("perdure.storage.d1.driver", "d1"),
    "d1+binding": ("perdure.storage.d1.driver", "d1"),
}
SCHEMES = frozenset(_BACKENDS)
"""The schemes of database URLs."""
FORMS = (
    "sqlite:///relative/path.db, sqlite:////absolute/path.db, postgresql://user@host/database, "
    "redis://host:6379/0, dynamodb://table?region=…, d1://account/database, or memory:// (nothing is kept)"
)


_SCHEMES_WITH_DRIVERS = ("postgresql", "postgres", "sqlite")
_DSN_PARAMETERS = ("host", "hostaddr", "port", "dbname", "user", "password", "service")


def find_plain_url(url: str) -> str:
    """Return the URL of a database that is named in the form of another library: SQLAlchemy, which includes a
    driver (``postgresql+asyncpg://…``), or libpq (``host=db dbname=app``). Any other text is returned
    unchanged."""
    scheme, colon, rest = url.partition("://")
    name, plus, _ = scheme.partition("+")
    if plus and name in _SCHEMES_WITH_DRIVERS:
        return f"{name}{colon}{rest}"
    if colon or not _is_libpq_dsn(url):
        return url
    return _parse_dsn(url)


def _is_libpq_dsn(text: str) -> bool:
    return text.strip().partition("=")[0].strip() in _DSN_PARAMETERS


def _parse_dsn(text: str) -> str:
    try:
        pairs = [word.partition("=") for word in shlex.split(text)]
    except ValueError:
        raise BadUrl("a quotation mark in the database's DSN is not closed") from None
    parameters = {name: value for name, _, value in pairs}
    login = quote(parameters.pop("user", ""), safe="")
    password = parameters.pop("password", "")
    if password:
        login += f":{quote(password, safe='')}"
    host, port = parameters.pop("host", ""), parameters.pop("port", "")
    if host.startswith("/"):
        host = quote(host, safe="")
    where = f"{host}:{port}" if port else host
    name = quote(parameters.pop("dbname", ""), safe="")
    query = f"?{urlencode(parameters)}" if parameters else ""
    if login:
        login += "@"
    return f"postgresql://{login}{where}/{name}{query}"


def open_driver(url: str, *, migrate: bool = False, password: Password | None = None) -> Driver:
    """Open the backend of a URL; with ``migrate``, migrate its layout to this release's version first.
    ``password`` is as for ``connect``."""
    backend = backend_of(url)
    if password is not None:
        if _scheme_of(url) not in _WITH_PASSWORDS:
            raise BadUrl(f"{redact(url)}: password= is for PostgreSQL and Redis only; remove it")
        with_password = cast(PasswordBackend, backend)
        if migrate:
            with_password.migrate(url, password)
        return with_password.open_driver(url, password)
    if migrate and backend.SCHEMA_VERSION:
        backend.migrate(url)
    return backend.open_driver(url)


def has_one_thread(url: str) -> bool:
    """Return True if a database can be used only in the OS thread that opens it, and no other thread may be
    started."""
    return _scheme_of(url) == "d1+binding"


def backend_of(url: str) -> BackendModule:
    """Return the backend module for a URL. It is imported here, with its client library."""
    scheme = _scheme_of(url)
    if url == ":memory:":
        raise BadUrl("':memory:' is not a database URL; write memory:// for a database that keeps nothing")
    if "://" not in url and _is_libpq_dsn(url):
        # The DSN may contain a password, so it is not shown.
        raise BadUrl(f"the database's DSN is not a URL; use {FORMS}")
    if "://" not in url and "@" not in url:
        raise BadUrl(
            f"{url!r} is not a database URL; for a SQLite file write "
            f"sqlite:///{url.removeprefix('sqlite:')}, or use {FORMS}"
        )
    if scheme not in _BACKENDS:
        raise BadUrl(f"the database URL has the unknown scheme {scheme!r}; use {FORMS}")
    module, extra = _BACKENDS[scheme]
    try:
        return cast(BackendModule, import_module(module))
    except ModuleNotFoundError as error:
        if extra is None or (error.name or "").startswith("perdure"):
            raise
        raise MissingExtra(f'{scheme}:// needs an extra: pip install "perdure[{extra}]"') from error


def _scheme_of(url: object) -> str:
    if not isinstance(url, str):
        raise BadUrl(
            f"a database URL is text, not {type(url).__name__}; for a SQLite file write f'sqlite:///{{path}}'"
        )
    try:
        return urlsplit(url).scheme
    except ValueError as error:
        # The error's own text may contain the password.
        raise BadUrl(
            "the database URL cannot be parsed: [ and ] surround an IPv6 address, e.g. redis://[::1]:6379/0. "
            "Write brackets in a password or a path as %5B and %5D"
        ) from error


def redact(url: str) -> str:
    """Return the URL without its password and parameters, for messages. A password with unescaped ``/``,
    ``?`` or ``@`` is left out too."""
    scheme, _, rest = url.partition("://")
    login, _, place = rest.rpartition("@")
    user = login.partition(":")[0]
    place = place.partition("?")[0].partition("#")[0]
    if user:
        return f"{scheme}://{user}@{place}"
    return f"{scheme}://{place}"
