"""Which driver a URL names. A URL that cannot be used is an error with the mend, never another backend."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from perdure.errors import BadUrl
from perdure.storage.memory import MemoryDriver
from perdure.storage.port import Driver

FORMS = "sqlite:///relative/path.db, sqlite:////absolute/path.db, or memory:// (nothing is kept)"
_PLANNED = ("postgresql", "postgres", "redis", "rediss", "dynamodb", "d1")


def open_driver(url: str, *, migrate: bool = False) -> Driver:
    """Open the backend of a URL; with ``migrate`` bring its schema to this release's version first."""
    scheme = _scheme(url)
    if scheme == "memory":
        return MemoryDriver()
    path = sqlite_path(url)
    from perdure.storage.sql import sqlite

    if migrate:
        sqlite.migrate(path)
    elif not path.exists():
        raise BadUrl(
            f"{url}: there is no file {path}; run `perdure migrate {url}` to create it, "
            "or connect with migrate=True"
        )
    sqlite.check(path)
    return sqlite.SqliteDriver(path)


def migrate_url(url: str) -> tuple[int, int]:
    """Bring a database's schema to this release's version; the version before and after."""
    from perdure.storage.sql import schema, sqlite

    if _scheme(url) == "memory":
        raise BadUrl("memory:// has no schema to migrate; it is ready when it is opened")
    return sqlite.migrate(sqlite_path(url)), schema.SCHEMA_VERSION


def sqlite_path(url: str) -> Path:
    """The file of a ``sqlite:`` URL."""
    parts = urlsplit(url)
    if parts.netloc:
        raise BadUrl(
            f"{url}: a SQLite URL has no host; write three slashes before a relative path and four before "
            f"an absolute one: sqlite:///{parts.netloc}{parts.path}"
        )
    if parts.query or parts.fragment:
        raise BadUrl(f"{url}: a SQLite URL takes no parameters; remove everything after the path")
    name = unquote(parts.path).removeprefix("/")
    if name in ("", ":memory:"):
        raise BadUrl(f"{url}: a path is missing; use {FORMS}")
    path = Path(name)
    if path.is_dir():
        raise BadUrl(f"{url}: {path} is a directory; name a file in it")
    if not path.absolute().parent.is_dir():
        raise BadUrl(f"{url}: there is no directory {path.absolute().parent}; create it first")
    return path


def _scheme(url: str) -> str:
    scheme = urlsplit(url).scheme
    if scheme in ("sqlite", "memory"):
        return scheme
    if scheme in _PLANNED:
        raise BadUrl(f"the backend {scheme!r} is not in this release; use {FORMS}")
    raise BadUrl(f"the database URL has the unknown scheme {scheme!r}; use {FORMS}")
