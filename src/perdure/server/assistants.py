"""Assistants: a graph under a name, with a configuration. Every graph has a default assistant.

The default assistant of a graph needs no storage: it is derived from the graph, under an id derived from
its name. Once a tenant has changed it, it is stored as the others are, under the same id, in that tenant's
partition. Access is not checked here.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from perdure.errors import NotFound
from perdure.runtime import Runtime
from perdure.runtime.agents.default_assistants import make_default_id
from perdure.runtime.documents import TenantDocuments, Versioned
from perdure.server.auth.identity import Refusal

NONE_TO_RUN = "Thread or assistant not found."
"""Error text of LangGraph's server for a run whose thread or assistant does not exist."""

_PARTS = ("graph_id", "name", "description", "config", "context", "metadata")


@dataclass(frozen=True, slots=True)
class Assistant:
    """An assistant at one of its versions. Times are microseconds since 1970, and 0 for an unchanged
    default assistant."""

    assistant_id: str
    graph_id: str
    name: str
    version: int = 1
    description: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    context: Mapping[str, Any] = field(default_factory=dict[str, Any])
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    created_at: int = 0
    updated_at: int = 0


Change = Callable[[Assistant], Assistant]
"""Function from an assistant to its new version. It may be called more than once, and may raise."""


class Assistants:
    """The assistants of a server, by id or by their graph's name. ``descriptions`` and ``configs`` are
    those of the default assistants, by graph name."""

    def __init__(
        self,
        runtime: Runtime,
        descriptions: Mapping[str, str] | None = None,
        configs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._runtime = runtime
        self._configs = configs or {}
        self._descriptions = descriptions or {}
        self._graph_of_default = {make_default_id(name): name for name in runtime.graphs}

    def id_of(self, named: str) -> str | None:
        """Return the id for an id or a graph's name, None if it can be neither."""
        if named in self._runtime.graphs:
            return make_default_id(named)
        try:
            return str(uuid.UUID(named))
        except ValueError:
            return None

    def is_default(self, assistant_id: str) -> bool:
        """Return True for the default assistant of a graph: all users share it, and no user can delete it."""
        return assistant_id in self._graph_of_default

    def check_graph(self, graph_id: str) -> None:
        """Raise ``Refusal`` unless such a graph is served."""
        if graph_id not in self._runtime.graphs:
            raise Refusal(422, f"There is no graph {graph_id!r}; {self._list_graphs()}.")

    async def find(self, tenant: str, named: str) -> Assistant:
        """Return the assistant of an id, or of a graph's name. ``NotFound`` if it does not exist, ``Refusal``
        if the name can be neither an id nor a graph."""
        if self.id_of(named) is None:
            raise Refusal(422, f"There is no graph or assistant {named!r}; {self._list_graphs()}.")
        found = await self.try_find(tenant, named)
        if found is None:
            raise NotFound(NONE_TO_RUN)
        return found

    async def try_find(self, tenant: str, named: str) -> Assistant | None:
        """Return the assistant of an id, or of a graph's name; None if there is none."""
        assistant_id = self.id_of(named)
        if assistant_id is None:
            return None
        document = await self._open_documents(tenant).get(assistant_id)
        if document is not None:
            return _make_assistant(document)
        if assistant_id in self._graph_of_default:
            return self._make_default_assistant(assistant_id)
        return None

    async def read_all(self, tenant: str) -> list[Assistant]:
        """Return all assistants of a tenant, including the default ones."""
        stored = await self._open_documents(tenant).read_all()
        changed = {document.name for document in stored}
        return [
            *(
                self._make_default_assistant(default_id)
                for default_id in self._graph_of_default
                if default_id not in changed
            ),
            *map(_make_assistant, stored),
        ]

    async def create(self, tenant: str, new: Assistant) -> Assistant | None:
        """Store a new assistant, and return it with its times and version; None if the id is in use."""
        if self.is_default(new.assistant_id):
            return None
        document = await self._open_documents(tenant).create(new.assistant_id, _make_body(new))
        if document is None:
            return None
        return _make_assistant(document)

    async def change(self, tenant: str, assistant_id: str, change: Change) -> Assistant | None:
        """Store a new version of an assistant and return it.

        Args:
            tenant: the tenant.
            assistant_id: the assistant's id.
            change: computes the new version from the current one.

        Returns:
            The new version; None if there is no such assistant.
        """
        default: Versioned | None = None
        if self.is_default(assistant_id):
            body = _make_body(self._make_default_assistant(assistant_id))
            default = Versioned(assistant_id, body, 1, 1, 0, 0)
        revised = await self._open_documents(tenant).revise(
            assistant_id, lambda current: _make_body(change(_make_assistant(current))), default
        )
        if revised is None:
            return None
        return _make_assistant(revised)

    async def choose(self, tenant: str, assistant_id: str, version: int) -> Assistant | None:
        """Make an earlier version the current one.

        Args:
            tenant: the tenant.
            assistant_id: the assistant's id.
            version: the number of the version.

        Returns:
            The assistant at that version; None if there is no such version.
        """
        document = await self._open_documents(tenant).choose(assistant_id, version)
        if document is not None:
            return _make_assistant(document)
        # An unchanged default assistant has one version.
        current = await self.try_find(tenant, assistant_id)
        if current is not None and current.version == version:
            return current
        return None

    async def read_versions(self, tenant: str, assistant_id: str) -> list[Assistant]:
        """Return every version of an assistant, the newest first."""
        documents = await self._open_documents(tenant).read_versions(assistant_id)
        if not documents and self.is_default(assistant_id):
            return [self._make_default_assistant(assistant_id)]
        return list(map(_make_assistant, documents))

    async def remove(self, tenant: str, assistant_id: str) -> bool:
        """Remove an assistant with its versions, and return True if it existed."""
        return await self._open_documents(tenant).remove(assistant_id)

    def _open_documents(self, tenant: str) -> TenantDocuments:
        return self._runtime.for_tenant(tenant).documents("assistant")

    def _make_default_assistant(self, assistant_id: str) -> Assistant:
        graph_id = self._graph_of_default[assistant_id]
        config = dict(self._configs.get(graph_id, {}))
        return Assistant(
            assistant_id,
            graph_id,
            graph_id,
            description=self._descriptions.get(graph_id),
            config=config,
            context=dict(config.get("configurable") or {}),
            metadata={"created_by": "system"},
        )

    def _list_graphs(self) -> str:
        return f"the graphs are {', '.join(sorted(self._runtime.graphs))}"


def no_assistant_error(named: str) -> NotFound:
    """Return the error for an assistant that does not exist, or that belongs to another user."""
    return NotFound(f"Assistant {named!r} not found.")


def _make_body(assistant: Assistant) -> dict[str, Any]:
    return {part: getattr(assistant, part) for part in _PARTS}


def _make_assistant(document: Versioned) -> Assistant:
    return Assistant(
        document.name,
        version=document.number,
        **{part: document.body[part] for part in _PARTS},
        created_at=document.created_at,
        updated_at=document.updated_at,
    )
