"""Named documents: a tenant's, such as assistants, with all versions; and a thread's, removed with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.database.handle import DatabaseHandle
from perdure.engine import documents, versioned_documents
from perdure.engine.documents import Document
from perdure.engine.versioned_documents import Change, Versioned
from perdure.model.records import SERVER, Partition
from perdure.runtime.clock import DatabaseClock

__all__ = ["Document", "TenantDocuments", "ThreadDocuments", "Versioned"]


class TenantDocuments:
    """Documents of one kind. Every version stays under its number, and one of them is current."""

    def __init__(self, database: DatabaseHandle, clock: DatabaseClock, tenant: str, kind: str) -> None:
        """Bind to the documents of a kind, in the singular such as ``"assistant"``, of a tenant."""
        self._database = database
        self._clock = clock
        self._partition = Partition(tenant, f"{kind}s", SERVER)
        self._kind = kind

    async def get(self, name: str) -> Versioned | None:
        """Return the current version of a document, None if there is none."""
        return await self._database.arun(versioned_documents.get(self._partition, self._kind, name))

    async def read_all(self) -> list[Versioned]:
        """Return the current versions of all documents, by name."""
        return await self._database.arun(versioned_documents.read_all_current(self._partition, self._kind))

    async def create(self, name: str, body: Mapping[str, Any]) -> Versioned | None:
        """Store the first version of a document; None if it exists."""
        now, fresh = await self._clock.now(), self._database.draw_version()
        return await self._database.arun(
            versioned_documents.create(self._partition, self._kind, name, body, now, fresh)
        )

    async def revise(self, name: str, change: Change, before: Versioned | None = None) -> Versioned | None:
        """Add a new version and make it current.

        Args:
            name: the document's name.
            change: computes the new body from the current version; it may be called more than once.
            before: first version of a document that is not stored.

        Returns:
            The new version; None if there is neither a document nor ``before``.
        """
        now, fresh = await self._clock.now(), self._database.draw_version()
        program = versioned_documents.revise(
            self._partition, self._kind, name, change, now, fresh, before=before
        )
        return await self._database.arun(program)

    async def choose(self, name: str, number: int) -> Versioned | None:
        """Make an earlier version the current one; None if there is no such version."""
        now, fresh = await self._clock.now(), self._database.draw_version()
        return await self._database.arun(
            versioned_documents.choose(self._partition, self._kind, name, number, now, fresh)
        )

    async def read_versions(self, name: str) -> list[Versioned]:
        """Return every version of a document, the newest first."""
        return await self._database.arun(versioned_documents.list_versions(self._partition, self._kind, name))

    async def remove(self, name: str) -> bool:
        """Remove a document with its versions, and return True if it existed."""
        return await self._database.arun(versioned_documents.remove(self._partition, self._kind, name))


class ThreadDocuments:
    """Documents of one kind that are stored in a thread and removed with it, however it is removed."""

    def __init__(self, database: DatabaseHandle, clock: DatabaseClock, thread: Partition, kind: str) -> None:
        """Bind to the documents of a kind, such as ``"task_push"``, of a thread."""
        self._database = database
        self._clock = clock
        self._partition = thread
        self._kind = kind

    async def get(self, name: str) -> Document | None:
        """Return a document, None if there is none."""
        return await self._database.arun(documents.get(self._partition, self._kind, name))

    async def change(self, name: str, change: documents.Change) -> Document | None:
        """Create or replace a document.

        Args:
            name: the document's name.
            change: computes the new body from the stored document or None; it may be called more than once.

        Returns:
            The document; None if the thread does not exist any more.
        """
        now, fresh = await self._clock.now(), self._database.draw_version()
        return await self._database.arun(
            documents.change(self._partition, self._kind, name, change, now, fresh, in_thread=True)
        )

    async def remove(self, name: str) -> bool:
        """Remove a document, and return True if it existed."""
        return await self._database.arun(documents.remove(self._partition, self._kind, name))
