"""Choice of the threads that an export writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from perdure.cli.app import handle_in, quote_id, warn
from perdure.errors import Corrupt, NotFound
from perdure.model.missing_thread import missing_thread
from perdure.model.records import THREADS, Partition

if TYPE_CHECKING:
    from perdure.database.blocking import SyncDatabase


class ChosenThreads(NamedTuple):
    """Threads to export, and those of --all that are left out because they have no state."""

    wanted: list[str]
    stateless: list[str]


def list_threads(database: SyncDatabase, tenant: str) -> list[str]:
    """Return the ids of all threads of a tenant, in order, also of those without a state."""
    from perdure import admin

    return [p.thread for p in admin.partitions(database, tenant) if p.space == THREADS]


def require_named(thread_ids: Sequence[str] | None) -> list[str]:
    """Return the named threads, each once; raise ``NotFound`` if there is none."""
    if not thread_ids:
        raise NotFound("which thread? Name one or more, or pass --all")
    return list(dict.fromkeys(thread_ids))


def choose_threads(
    database: SyncDatabase, tenant: str, thread_ids: Sequence[str] | None, *, everything: bool
) -> ChosenThreads:
    """Return the threads to export when only their states are exported. A thread on which no run has
    stored a checkpoint has none, for instance one whose only message is delayed.

    Raises:
        NotFound: No thread is named, or a named one does not exist or has no state.
    """
    if everything:
        names = list_threads(database, tenant)
        wanted = [name for name in names if _has_state(database, tenant, name)]
        return ChosenThreads(wanted, sorted(set(names) - set(wanted)))
    named = require_named(thread_ids)
    for name in named:
        if not _has_state(database, tenant, name):
            if name not in list_threads(database, tenant):
                raise missing_thread(Partition(tenant, name))
            raise NotFound(
                f"thread {name!r} has no state to export: no run of it has stored a checkpoint, or its "
                "checkpoints were removed"
            )
    return ChosenThreads(named, [])


def report_stateless(names: Sequence[str]) -> None:
    """Print which threads were left out because they have no state."""
    for name in names:
        warn(f"{quote_id(name)}: left out, as it has no state")


def _has_state(database: SyncDatabase, tenant: str, name: str) -> bool:
    from perdure.engine.threads import history

    try:
        return bool(handle_in(database).run(history.read_namespaces(Partition(tenant, name))))
    except Corrupt:
        # The export reads it, and names the damage.
        return True
