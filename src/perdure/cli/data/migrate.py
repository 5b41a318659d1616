"""Command ``perdure migrate``: creates or upgrades the schema of a database."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.app import Db, make_legible, say, url_of, warn
from perdure.storage.url import backend_of, redact


def migrate(
    db: Db = None,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit code 1 when there is something to do")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; print what would be done")
    ] = False,
) -> None:
    """Create or upgrade the schema. Safe to run again, and from many processes at once."""
    url = url_of(db)
    backend, after, name = backend_of(url), backend_of(url).SCHEMA_VERSION, make_legible(redact(url))
    if check or dry_run:
        found = backend.schema_version(url)
        steps = backend.plan_migration(url)
        for step in steps if dry_run else ():
            say(step)
        if steps:
            needed = f"this release needs {after}" if found < after else "but parts of it are missing"
            if not dry_run:
                needed += "; run `perdure migrate` with this URL"
            warn(f"{name} is at schema version {found}, {needed}")
            raise typer.Exit(1 if check else 0)
        say(f"{name} is at schema version {after} already")
        return
    is_short = bool(backend.plan_migration(url))
    before = backend.migrate(url)
    if before == after and is_short:
        say(f"{name} was at schema version {after} already; parts of it that were missing were added")
    elif before == after:
        say(f"{name} is at schema version {after} already")
    elif before == 0:
        say(f"{name} is ready, at schema version {after}")
    else:
        say(f"{name} went from schema version {before} to {after}")
