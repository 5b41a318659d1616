"""Refusal of a database that has another version of the layout, in the same words for every backend."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version

from perdure.errors import MigrationRequired

EXPORT_AND_IMPORT = (
    "Nothing was changed. Run `perdure export --all --as history`, for sessions `--as sessions`, with the "
    "version of perdure that wrote it, and `perdure import FILE` with this one. If that version has no such "
    "command, see docs/deployment.md, Earlier layouts"
)
"""The remedy where the data are of a version that this release does not read."""


def name_release() -> str:
    """Return the name of this release with its version."""
    return f"this release (perdure {version('perdure')})"


def first_version(steps: Mapping[int, object], present: int) -> int:
    """Return the oldest version from which the steps lead to the present one. ``steps`` names each step by
    the version that it leads to."""
    return min(steps, default=present + 1) - 1


def require_steps(name: str, found: int, first: int, present: int, command: str) -> None:
    """Raise ``MigrationRequired`` if no steps lead from a version to the present one. From 0, a database
    without a layout, they always do. The arguments are those of ``other_version_error``."""
    if found and not first <= found <= present:
        raise other_version_error(name, found, first, present, command)


def other_version_error(name: str, found: int, first: int, present: int, command: str) -> MigrationRequired:
    """Return the error for a database with another version of the layout.

    Args:
        name: The database's name for errors.
        found: Its version.
        first: The oldest version from which the steps lead to the present one.
        present: This release's version.
        command: The command that migrates the database.
    """
    what = f"{name} has layout version {found}"
    if found > present:
        return MigrationRequired(f"{what}, {name_release()} knows {present}; upgrade perdure")
    if found < first:
        readable = f"{first} to {present}"
        if first == present:
            readable = f"{present} only"
        return MigrationRequired(f"{what}, {name_release()} reads {readable}. {EXPORT_AND_IMPORT}")
    return MigrationRequired(f"{what}, not {present}; run `{command}`, or connect with migrate=True")
