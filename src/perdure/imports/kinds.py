"""Names the kinds of sources, and opens a source by its kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from hashlib import blake2b
from os.path import abspath
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from perdure.errors import MissingExtra
from perdure.storage.url import redact

if TYPE_CHECKING:
    from perdure.imports.source import Source


class SourceKind(StrEnum):
    """A kind of source, as ``perdure import --from`` takes it."""

    ARCHIVE = "archive"
    LANGGRAPH_SQLITE = "langgraph-sqlite"
    LANGGRAPH_POSTGRES = "langgraph-postgres"
    LANGGRAPH_REDIS = "langgraph-redis"
    LANGGRAPH_SERVER = "langgraph-server"
    AWS_DYNAMODB = "aws-dynamodb"
    PLAIN = "plain"
    HISTORY = "history"
    SESSIONS = "sessions"


_PLACE_PARAMETERS = frozenset(
    ("db", "dbname", "endpoint", "host", "hostaddr", "options", "port", "prefix", "region", "service")
)
"""Parameters of a URL that are a part of its place: others may be secrets."""


def digest_place(kind: SourceKind, where: str) -> bytes:
    """Return a digest of a source's kind and place, without passwords: it is the same at each import of it.

    Args:
        kind: The source's kind.
        where: The source's path or URL.
    """
    if "://" not in where or where.startswith("sqlite:///"):
        parts = [abspath(where.removeprefix("sqlite:///"))]
    else:
        terms = parse_qsl(where.partition("?")[2])
        parts = [redact(where), *(f"{name}={value}" for name, value in terms if name in _PLACE_PARAMETERS)]
    return blake2b("\0".join((kind, *parts)).encode("utf-8", "surrogateescape"), digest_size=16).digest()


def open_source(kind: SourceKind, where: str) -> Source:
    """Open a source for reading; the caller closes it.

    Args:
        kind: The source's kind: one that has threads, other than an archive.
        where: The source's path or URL.

    Raises:
        BadUrl: There is no such source.
        MissingExtra: The client library of the source is not installed.
        Unavailable: The source does not answer.
    """
    match kind:
        case SourceKind.LANGGRAPH_SQLITE:
            from perdure.imports.sqlite import SqliteSource

            return SqliteSource(Path(where.removeprefix("sqlite:///")))
        case SourceKind.LANGGRAPH_POSTGRES:
            with require_extra("postgres"):
                from perdure.imports.postgres import PostgresSource
            return PostgresSource(where)
        case SourceKind.LANGGRAPH_REDIS:
            with require_extra("redis"):
                from perdure.imports.plainredis import RedisSource
            return RedisSource(where)
        case SourceKind.LANGGRAPH_SERVER:
            from perdure.imports.langgraph_server.api import ServerApi
            from perdure.imports.langgraph_server.source import ServerSource

            return ServerSource(ServerApi(where))
        case SourceKind.AWS_DYNAMODB:
            with require_extra("dynamodb"):
                from perdure.imports.dynamodb import DynamoSource
            return DynamoSource(where)
        case SourceKind.PLAIN:
            return _open_plain_source(where)
        case SourceKind.HISTORY:
            from perdure.imports.histories.conversations import HistorySource

            return HistorySource(Path(where))
        case _:
            raise ValueError(f"{kind} is opened in another way")


def _open_plain_source(where: str) -> Source:
    from perdure.imports.homemade_sqlite import open_d1, open_file

    if where.startswith(("postgresql://", "postgres://")):
        with require_extra("postgres"):
            from perdure.imports.homemade_postgres import open_postgres
        return open_postgres(where)
    if where.startswith("d1://"):
        with require_extra("d1"):
            return open_d1(where)
    return open_file(Path(where.removeprefix("sqlite:///")))


@contextmanager
def require_extra(extra: str) -> Iterator[None]:
    """Raise ``MissingExtra`` if a client library is not installed."""
    try:
        yield
    except ImportError as error:
        raise MissingExtra(f'this source needs an extra: pip install "perdure[{extra}]"') from error
