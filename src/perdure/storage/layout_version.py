"""Refusal of a database that has another version of the layout, in the same words for every backend."""

from __future__ import annotations

from perdure.errors import MigrationRequired

TAKE_ALONG = (
    "Nothing was changed. Run `perdure export --all --as history`, for sessions `--as sessions`, with the "
    "version that wrote it, and `perdure import FILE --from history` with this one"
)
"""What to do with data that this release does not read: these exports are the same in every version."""


def other_version(name: str, found: int, first: int, present: int, command: str) -> MigrationRequired:
    """Return the error for a database with another version of the layout.

    Args:
        name: The database's name for errors.
        found: Its version.
        first: The first version from which the steps lead to the present one.
        present: This release's version.
        command: The command that migrates the database.
    """
    what = f"{name} has layout version {found}"
    if found > present:
        return MigrationRequired(f"{what}, this release knows {present}; upgrade perdure")
    if found < first:
        reads = f"{present} only" if first == present else f"{first} to {present}"
        return MigrationRequired(f"{what}, this release reads {reads}. {TAKE_ALONG}")
    return MigrationRequired(f"{what}, not {present}; run `{command}`, or connect with migrate=True")
