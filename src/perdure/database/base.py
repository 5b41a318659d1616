"""Base of ``Database`` and ``SyncDatabase``: the methods that neither of them awaits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Generic, cast

from typing_extensions import TypeVar

from perdure.database.handle import DatabaseHandle
from perdure.engine.checks.fsck_report import REPAIR, RESTORE, Damage, Finding
from perdure.langgraph.codecs import Codec
from perdure.langgraph.values.large_channel_warning import WARN_BYTES
from perdure.model.arguments import refuse_text, require_text
from perdure.model.records import Partition
from perdure.model.retention_policy import RetentionRules
from perdure.schema.schema import Schema
from perdure.storage.port import NOT_LATEST

if TYPE_CHECKING:
    from perdure.langgraph.saver import OnConflict, PerdureSaver
    from perdure.langgraph.search.index import IndexConfig, SearchConfig, SearchIndex
    from perdure.langgraph.store import PerdureStore, TTLConfig
    from perdure.langgraph.values.datatypes import Allow

DEFAULT_METADATA_KEYS = ("run_id", "assistant_id", "graph_id", "user_id", "langgraph_auth_user_id")
"""Configurable values that are stored in checkpoint metadata by default."""


Store = TypeVar("Store", bound="PerdureStore", default="PerdureStore", covariant=True)


class DatabaseBase(ABC, Generic[Store]):
    """An open database, made by ``connect`` or ``connect_sync``; OS threads and event loops can share it.

    What needs LangGraph is imported when it is first used: its imports take over a second, and a command that
    shows a queue needs none of them.
    """

    def __init__(self, handle: DatabaseHandle) -> None:
        self._handle = handle

    @property
    def tenant(self) -> str:
        """Tenant of these threads unless a call names another."""
        return self._handle.tenant

    @property
    def retention(self) -> RetentionRules:
        """Retention policies of these threads."""
        return self._handle.retention

    def checkpointer(
        self,
        *,
        tenant: str | None = None,
        allow: Allow | None = None,
        codecs: Collection[Codec] = (),
        on_conflict: OnConflict = "raise",
        may_list_all_threads: bool = False,
        metadata_keys: Collection[str] = DEFAULT_METADATA_KEYS,
        schema: Schema | None = None,
        warn_bytes: int | None = WARN_BYTES,
        task_times: bool = True,
        serde: None = None,
    ) -> PerdureSaver:
        """Return a checkpointer for ``graph.compile(checkpointer=…)``, sync and async.

        Args:
            tenant: Owner of the threads; that of the database unless given.
            allow: Types that checkpoints may hold beyond LangChain's messages and the standard library's
                values. ``"imported"``: every pydantic model, dataclass, enum and named tuple that this
                program has imported. ``"listed"``: none. A list: those in it, classes (the types of their
                fields are included) or ``(module, name)``. The default is ``"imported"``, or ``"listed"`` if
                ``LANGGRAPH_STRICT_MSGPACK`` is set.
            codecs: Store objects of other types.
            on_conflict: With ``"raise"`` a run that loses the race for its thread gets ``HeadConflict``;
                ``"fork"`` keeps the checkpoints of both runs, as the stock savers do.
            may_list_all_threads: Permits ``list(None)``.
            metadata_keys: Configurable values that are stored as metadata; all others are left out.
            schema: Version of the graph, and the steps by which threads of older versions are migrated when
                they are read; version 1 unless given.
            warn_bytes: Size in bytes from which a channel of the state is named in a warning of the logger
                ``perdure.langgraph``, once a thread; ``None`` for no warnings.
            task_times: Store, with a task's result, the time in which the task ran: a few bytes, so that the
                inspector can show a time for each task of a step.
            serde: Not supported; anything but ``None`` raises ``TypeError``.
        """
        from perdure.langgraph.saver import SERDE, PerdureSaver
        from perdure.langgraph.values.datatypes import get_default_allow

        if serde is not None:
            raise TypeError(SERDE)
        refuse_text("metadata_keys", metadata_keys)
        if not isinstance(cast(object, may_list_all_threads), bool):
            raise TypeError(f"may_list_all_threads is True or False, not {may_list_all_threads!r:.40}")
        if on_conflict not in ("raise", "fork"):
            raise ValueError(f"on_conflict is 'raise' or 'fork', not {on_conflict!r}")
        saver = PerdureSaver(
            self._handle.driver,
            tenant=self._owner(tenant),
            digest=self._handle.digest,
            allow=get_default_allow() if allow is None else allow,
            codecs=codecs,
            on_conflict=on_conflict,
            may_list_all_threads=may_list_all_threads,
            metadata_keys=metadata_keys,
            schema=schema,
        )
        saver.task_times = task_times
        if warn_bytes is not None:
            saver.on_stored = self._handle.get_large_channels(warn_bytes).check
        return saver

    def store(
        self,
        *,
        tenant: str | None = None,
        ttl: TTLConfig | None = None,
        index: SearchIndex | SearchConfig | IndexConfig | None = None,
    ) -> Store:
        """Return a store for ``graph.compile(store=…)``, sync and async.

        Args:
            tenant: Owner of the items; that of the database unless given.
            ttl: LangGraph's ``TTLConfig``: ``default_ttl`` and ``sweep_interval_minutes`` in minutes,
                ``refresh_on_read``. An expired item is never returned, swept or not.
            index: For ``search(query=…)``: LangGraph's ``IndexConfig``, with ``dims``, ``embed`` and
                ``fields``; with ``text=True`` besides, or alone, words are compared; or a ``SearchIndex``,
                which several stores can share. The logger ``perdure.langgraph`` says once how searches are
                made: by pgvector on PostgreSQL, where it is installed, or else in the process.
        """
        from perdure.langgraph.search.index import index_of

        search = index_of(index)
        if search is not None:
            search.announce(self._handle.driver)
        store = self._store_class()(
            self._handle.driver,
            tenant=self._owner(tenant),
            ttl=ttl,
            index=search,
        )
        self._handle.add_store(store)
        return store

    @abstractmethod
    def _store_class(self) -> type[Store]: ...

    def _owner(self, tenant: str | None) -> str:
        if tenant is None:
            return self.tenant
        require_text("tenant", tenant)
        return tenant


def handle_of(database: DatabaseBase) -> DatabaseHandle:
    """Return the internal handle of a database, for Perdure's own packages."""
    return database._handle  # pyright: ignore[reportPrivateUsage]


_ACCEPT = f"{REPAIR}, after which what is left is the thread, or restore it from a backup"


def report_changes(partition: Partition, details: Sequence[str]) -> list[Finding]:
    """Return a finding for each detail. If the records are sound but not the latest ones, the thread can be
    repaired by going on with them; if a record itself is damaged, the advice is to restore a backup."""
    advice, is_repairable = RESTORE, list(details) == [NOT_LATEST]
    if is_repairable:
        advice = _ACCEPT
    return [
        Finding(partition.thread, "", None, Damage.CHANGED, each, advice, is_repairable) for each in details
    ]
