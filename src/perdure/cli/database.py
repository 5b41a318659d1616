"""Commands on a whole database: set-up and checking."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.app import out
from perdure.storage.url import migrate_url


def migrate(
    url: Annotated[
        str, typer.Argument(envvar=["PERDURE_URL", "DATABASE_URL"], help="e.g. sqlite:///threads.db")
    ],
) -> None:
    """Create or upgrade the schema. Safe to run again, and from many processes at once."""
    before, after = migrate_url(url)
    if before == after:
        out.print(f"{url} is at schema version {after} already")
    elif before == 0:
        out.print(f"{url} is ready, at schema version {after}")
    else:
        out.print(f"{url} went from schema version {before} to {after}")
