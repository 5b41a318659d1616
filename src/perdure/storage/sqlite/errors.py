"""Calls to SQLite, with its exceptions translated to Perdure's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from perdure.errors import Corrupt, PerdureError, StatementRefused, TooLarge, Unavailable
from perdure.model.records import Partition
from perdure.model.store_items import describe_partition
from perdure.storage.sql import checksums
from perdure.storage.sql.refusals import describe_refusal, exceeds_limit
from perdure.storage.sqlite.forks import CALLS


@contextmanager
def translate_errors(path: Path, partition: Partition | None = None) -> Iterator[None]:
    """Surround a call to SQLite: translate its exceptions to Perdure's, and let no fork happen during it."""
    CALLS.enter()
    try:
        yield
    except (apsw.Error, OSError, OverflowError, UnicodeDecodeError) as error:
        raise translate(error, path, partition) from error
    finally:
        CALLS.leave()


def translate(error: Exception, path: Path, partition: Partition | None = None) -> Exception:
    """Return Perdure's exception for one of SQLite's; return any other exception as it is."""
    if isinstance(error, PerdureError):
        return error
    where = ""
    if partition is not None:
        where = f"{describe_partition(partition)}: "
    if isinstance(error, apsw.FullError):
        new: PerdureError = Unavailable(
            f"{path}: the disk is full; nothing of this write was stored. Free space and try again"
        )
    elif isinstance(error, apsw.ReadOnlyError):
        new = Unavailable(f"{path} is read-only; make it writable for this process and try again")
    elif isinstance(error, apsw.BusyError):
        new = Unavailable(
            f"{path} was locked by another process for too long; end the long transaction there"
        )
    elif isinstance(error, apsw.NotADBError):
        new = Corrupt(f"{path} is not a SQLite database; check the path, or move the file away")
    elif isinstance(error, apsw.SQLError) and exceeds_limit(str(error)):
        new = TooLarge(
            f"{where}{path}: the request has more parts than SQLite takes ({error}); make it smaller"
        )
    elif isinstance(error, apsw.MismatchError) or _is_of_trigger(error):
        new = StatementRefused(describe_refusal(f"{where}{path}", str(error)))
    elif isinstance(error, apsw.CorruptError | apsw.ConstraintError | apsw.SQLError | UnicodeDecodeError):
        # Perdure's tables do not fit its statements, or stored text is invalid.
        new = Corrupt(f"{where}{path} is damaged ({_describe_reason(error)}); {checksums.ADVICE}")
    elif isinstance(error, apsw.CantOpenError | OSError):
        new = Unavailable(
            f"{path} cannot be opened: {error}; check that it exists and may be read and written"
        )
    elif isinstance(error, apsw.IOError):
        new = Unavailable(
            f"{where}{path}: {error}; check the space, the limits and the health of its disk, and try again"
        )
    elif isinstance(error, apsw.TooBigError | OverflowError):
        new = TooLarge(f"{path}: a value is too large for SQLite: {error}")
    elif isinstance(error, apsw.Error):
        new = Unavailable(f"{where}{path}: SQLite failed: {error}")
    else:
        return error
    new.__cause__ = error
    return new


def _is_of_trigger(error: Exception) -> bool:
    # Perdure's tables have no triggers: the application has added one.
    is_of_constraint = isinstance(error, apsw.ConstraintError)
    return is_of_constraint and getattr(error, "extendedresult", 0) == apsw.SQLITE_CONSTRAINT_TRIGGER


def _describe_reason(error: Exception) -> str:
    # The error quotes the invalid text, which may be a user's.
    if isinstance(error, UnicodeDecodeError):
        return "text is not UTF-8"
    return str(error)
