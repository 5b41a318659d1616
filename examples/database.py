"""Where an example keeps its threads: in the database that you name, or in a file of its own."""

from __future__ import annotations

import os


def database_of(name: str, db_url: str | None = None) -> tuple[str, bool]:
    """Return the URL of an example's database, and whether the example migrates it when it starts.

    Without a URL, and without ``PERDURE_DB`` or ``DATABASE_URL``, it is the SQLite file ``NAME.db`` of the
    current folder, which nobody else migrates.
    """
    named = db_url or os.environ.get("PERDURE_DB") or os.environ.get("DATABASE_URL")
    return (named, False) if named else (f"sqlite:///{name}.db", True)
