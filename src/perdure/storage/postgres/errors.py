"""Translation of psycopg's exceptions to Perdure's, and the choice of failed connections to retry."""

from __future__ import annotations

import psycopg

from perdure.errors import (
    BadUrl,
    Corrupt,
    MigrationRequired,
    PerdureError,
    StatementRefused,
    TooLarge,
    Unavailable,
)
from perdure.storage.postgres.url import PostgresUrl
from perdure.storage.sql.refusals import describe_refusal

_TRANSIENT_STATES = {"57P03", "53300", "57P01", "57P02"}
"""States in which a server will take connections again: starting, full, stopping, crashed."""

_OF_STATEMENTS = ("21", "22", "23", "42", "44", "P0")
"""Classes of states that are about a statement: its form, its values, what it breaks, or what a trigger
raised."""

_WRONG_PASSWORD = ("authentication failed", "no password supplied")
_HOPELESS = (
    *_WRONG_PASSWORD,
    "does not exist",
    "no pg_hba.conf",
    "role ",
    "certificate",
    "does not support SSL",
)
"""Signs of a failure that another attempt would meet, too."""


def is_wrong_password(error: psycopg.Error) -> bool:
    """Return True if a server refused the user's name or password."""
    return any(sign in str(error) for sign in _WRONG_PASSWORD)


def is_transient(error: psycopg.Error) -> bool:
    """Return True if a connection that failed with this error may succeed a little later."""
    if error.sqlstate is not None:
        return error.sqlstate in _TRANSIENT_STATES
    return not any(sign in str(error) for sign in _HOPELESS)


def unreachable_error(error: Exception, settings: PostgresUrl) -> PerdureError:
    """Return the error for a failed connection, with its reason in one sentence."""
    text = " ".join(str(error).split())
    if any(sign in text for sign in _WRONG_PASSWORD):
        return Unavailable(
            f"{settings.name}: the server refused the user's name or password; check both in the URL, "
            "or PGPASSWORD"
        )
    if "database" in text and "does not exist" in text:
        return Unavailable(
            f"{settings.name}: there is no such database; create it (createdb), or correct the URL"
        )
    if "role" in text and "does not exist" in text:
        return Unavailable(
            f"{settings.name}: there is no such user; create it (createuser), or correct the URL"
        )
    if "server does not support SSL" in text:
        return Unavailable(
            f"{settings.name}: the server does not offer TLS and sslmode= in the URL demands it; turn TLS on "
            "there (ssl = on), or change sslmode="
        )
    if "root certificate file" in text:
        detail = text.partition("root certificate file")[2]
        return Unavailable(
            f"{settings.name}: root certificate file{detail}; name the file of the authority that signed the "
            "server's certificate in sslrootcert="
        )
    if "certificate" in text:
        detail = "certificate verify failed"
        if "verify failed" not in text:
            detail = text.rpartition("failed: ")[2]
        return Unavailable(
            f"{settings.name}: the server's TLS certificate was not accepted ({detail}); use a host name "
            "in the URL that the certificate names, see that it has not expired, and name the file of the "
            "authority that signed it in sslrootcert="
        )
    if "too many c" in text or "remaining connection slots" in text:
        return Unavailable(
            f"{settings.name}: the server has no connection left; lower pool= in the URLs, raise "
            "max_connections, or put a pooler between"
        )
    if "starting up" in text or "shutting down" in text or "recovery" in text:
        return Unavailable(f"{settings.name}: the server is starting or stopping; try again when it is up")
    return Unavailable(
        f"{settings.name}: no server answers there; check host and port, and that PostgreSQL runs and may be "
        f"reached ({text.partition('Multiple connection')[0].strip() or type(error).__name__})"
    )


def translate(error: psycopg.Error, settings: PostgresUrl) -> PerdureError:
    """Return the error for a refused statement."""
    state = error.sqlstate or ""
    message = error.diag.message_primary or type(error).__name__
    is_of_vectors = state == "42883" and "vectors_sent" in message
    if state == "42883" and not is_of_vectors:
        return MigrationRequired(
            f"{settings.name} has no functions of this release in schema {settings.schema!r}: a newer "
            "release has migrated it since this process opened it, and the process needs that release; or "
            f"they were removed: run `{settings.migrate}`"
        )
    if state in ("42P01", "3F000", "42703"):
        return MigrationRequired(
            f"{settings.name} has no Perdure schema {settings.schema!r}; run `{settings.migrate}`"
        )
    if state in ("42704", "42601", "42804") or is_of_vectors:
        # Only the functions that maintain the vectors use a type or function that may be missing.
        return MigrationRequired(
            f"{settings.name}: pgvector was dropped from the database or moved within it ({message}); "
            f"nothing was stored: run `{settings.migrate}`"
        )
    if state in ("42P05", "26000") and settings.prepare:
        return BadUrl(
            f"{settings.name}: a pooler between this process and PostgreSQL gives each statement another "
            "session, where statements prepared by name are missing or another client's; remove prepare=1 "
            "from the URL"
        )
    if state == "25006":
        return Unavailable(
            f"{settings.name} takes no writes (a standby, or read-only by setting); connect to the primary"
        )
    if state == "42501":
        return Unavailable(
            f"{settings.name}: the user lacks a right in schema {settings.schema!r} ({message}); "
            "grant it USAGE on the schema, and SELECT, INSERT, UPDATE, DELETE on its tables"
        )
    if state == "55P03":
        return Unavailable(
            f"{settings.name}: another session held rows of this thread in an open transaction for too long; "
            "nothing was stored: end that transaction and try again"
        )
    if state == "57014":
        return Unavailable(
            f"{settings.name} cancelled a statement by its statement_timeout; nothing was stored: "
            "raise the timeout"
        )
    if state == "P5001":
        return Unavailable(
            f"{settings.name} has another default isolation than read committed; "
            "ALTER ROLE … SET default_transaction_isolation = 'read committed'"
        )
    if state.startswith("54") or state in ("22003", "22P02", "22023", "0A000"):
        return TooLarge(f"{settings.name}: a value is too large for PostgreSQL: {message}")
    if state == "53100":
        return Unavailable(
            f"{settings.name}: the server's disk is full; nothing was stored. Free space there"
        )
    if state.startswith("XX"):
        return Corrupt(f"{settings.name}: PostgreSQL reports damage ({state}); look into the server's log")
    if state.startswith(_OF_STATEMENTS):
        return StatementRefused(describe_refusal(settings.name, f"{state}: {message}"))
    return Unavailable(f"{settings.name}: PostgreSQL refused a statement ({state}: {message})")
