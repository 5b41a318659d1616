"""Search by meaning for the store: the configuration, the embedding of texts, and the ranking of items.

The vectors are stored beside the items by ``engine.search_index``, on every backend in the same way, and are
compared in this process. LangGraph's ``IndexConfig`` is understood as its own stores understand it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from langchain_core.embeddings import Embeddings
from langgraph.store.base import (
    IndexConfig,
    Op,
    PutOp,
    SearchOp,
    ensure_embeddings,
    get_text_at_path,
    tokenize_path,
)
from langgraph.store.base.embed import EmbeddingsLambda

from perdure.engine import search_index
from perdure.engine.items import Candidate, namespaces
from perdure.engine.search_index import IndexEntry
from perdure.errors import BadEmbedding, ReindexRequired, TooLarge
from perdure.langgraph.vector_cache import NamespaceVectors, VectorCache, numpy, ranked
from perdure.model.arguments import refuse_text
from perdure.model.items import labels_of
from perdure.model.program import Program
from perdure.model.records import Partition
from perdure.storage.port import Driver

__all__ = ["NOTHING", "Embedded", "IndexConfig", "SearchIndex", "index_of"]

MOST_VECTORS = 200_000
"""Vectors that one search compares at most."""

_KEYS = {"dims", "embed", "fields", "name"}
_WHOLE = "$"


class Embedded(NamedTuple):
    """Vectors of the texts of a batch of operations: those of items by text, those of queries by query."""

    texts: Mapping[str, bytes]
    queries: Mapping[str, Sequence[float]]


NOTHING = Embedded({}, {})


class SearchIndex:
    """Index of the texts of items, for ``Database.store(index=…)``. One object keeps the vectors that it has
    read, so share it among the stores of a process.

    Args:
        config: LangGraph's ``IndexConfig``: ``dims``, the length of a vector; ``embed``, an ``Embeddings``, a
            function from texts to vectors, sync or async, or text such as
            ``"openai:text-embedding-3-small"``; ``fields``, the paths of indexed texts, by default ``["$"]``,
            the whole value. Besides, ``name`` is a name for the embedding model, by default that of the class
            or function and its model: items that were indexed under another name have to be indexed again.

    Raises:
        ValueError: the configuration is not valid.
        MissingExtra: numpy is not installed.
    """

    def __init__(self, config: IndexConfig | Mapping[str, Any]) -> None:
        numpy()
        if unknown := sorted(set(config) - _KEYS):
            raise ValueError(f"index has no setting {unknown[0]!r}; it has {', '.join(sorted(_KEYS))}")
        dims: Any = config.get("dims")
        if isinstance(dims, bool) or not isinstance(dims, int) or dims < 1:
            raise ValueError(f"index needs dims, the length of a vector, from 1 on, not {dims!r}")
        if config.get("embed") is None:
            raise ValueError("index needs embed: an Embeddings, a function, or text such as 'openai:MODEL'")
        fields = config.get("fields") or [_WHOLE]
        refuse_text("fields", fields)
        self.dims: int = dims
        self.fields: tuple[str, ...] = tuple(fields)
        self.embeddings: Embeddings = ensure_embeddings(config.get("embed"))
        self.name: str = str(config.get("name") or _name(config.get("embed"), self.embeddings))
        self._marks = {is_default: self._mark(is_default) for is_default in (True, False)}
        self._cache = VectorCache()
        self._runner: asyncio.Runner | None = None

    def close(self) -> None:
        """End the event loop in which an asynchronous function has embedded what was indexed again;
        repeatable."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def mark(self, paths: tuple[str, ...] | None) -> bytes:
        """Return the digest of what an entry depends on: the model, its dimensions, and the configured fields
        unless an item has paths of its own."""
        return self._marks[paths is None]

    def _mark(self, is_default: bool) -> bytes:
        known = [str(self.dims), self.name, *(self.fields if is_default else ())]
        return blake2b("\0".join(known).encode(), digest_size=8).digest()

    # Texts and their vectors

    def texts(self, value: Mapping[str, Any], paths: Iterable[str] | None) -> list[str]:
        """Return the texts of a value at some paths, by default the configured ones, without empty ones."""
        out: list[str] = []
        for path in self.fields if paths is None else paths:
            tokens: Any = path if path == _WHOLE else tokenize_path(path)
            out += [text for text in get_text_at_path(value, tokens) if text]
        return list(dict.fromkeys(out))

    def embed(self, ops: Sequence[Op]) -> Embedded:
        """Embed the texts and queries of a batch."""
        texts, queries = self._wanted(ops)
        vectors = self.embeddings.embed_documents(texts) if texts else []
        found = {query: self.embeddings.embed_query(query) for query in queries}
        return self._embedded(texts, vectors, found)

    async def aembed(self, ops: Sequence[Op]) -> Embedded:
        """See ``embed``."""
        texts, queries = self._wanted(ops)
        vectors = await self.embeddings.aembed_documents(texts) if texts else []
        found = {query: await self.embeddings.aembed_query(query) for query in queries}
        return self._embedded(texts, vectors, found)

    def entry(self, op: PutOp, body: bytes, embedded: Embedded) -> bytes:
        """Return the packed entry of an item that is put."""
        paths = _paths(op)
        vectors = tuple(embedded.texts[text] for text in self.texts(op.value or {}, paths))
        return search_index.pack(IndexEntry(self.mark(paths), search_index.content_of(body), paths, vectors))

    def vectors(self, texts: Sequence[str]) -> dict[str, bytes]:
        """Embed texts, for items that are indexed again. No event loop may run in this thread if the
        embedding function is asynchronous; ``close`` ends the one that is used for it."""
        if not texts:
            return {}
        if isinstance(self.embeddings, EmbeddingsLambda) and not hasattr(self.embeddings, "func"):
            # Clients keep connections that belong to one event loop.
            self._runner = self._runner or asyncio.Runner()
            vectors = self._runner.run(self.embeddings.aembed_documents(list(texts)))
        else:
            vectors = self.embeddings.embed_documents(list(texts))
        return dict(self._embedded(texts, vectors, {}).texts)

    def _wanted(self, ops: Sequence[Op]) -> tuple[list[str], list[str]]:
        last = {(tuple(op.namespace), op.key): op for op in ops if isinstance(op, PutOp)}
        texts = {
            text: None
            for op in last.values()
            if op.value is not None
            for text in self.texts(op.value, _paths(op))
        }
        queries = {op.query: None for op in ops if isinstance(op, SearchOp) and op.query}
        return list(texts), list(queries)

    def _embedded(self, texts: Sequence[str], vectors: Sequence[Any], queries: Mapping[str, Any]) -> Embedded:
        if len(vectors) != len(texts):
            raise BadEmbedding(f"embed returned {len(vectors)} vectors for {len(texts)} texts")
        packed = {text: self._checked(vector).tobytes() for text, vector in zip(texts, vectors, strict=True)}
        return Embedded(packed, {query: self._checked(vector) for query, vector in queries.items()})

    def _checked(self, vector: Any) -> Any:
        np = numpy()
        try:
            row = np.asarray(vector, dtype="<f4")
        except (TypeError, ValueError) as error:
            raise BadEmbedding(f"embed returned no vector of numbers: {type(vector).__name__}") from error
        if row.shape != (self.dims,):
            raise BadEmbedding(
                f"embed returned a vector of shape {row.shape}; the index has dims={self.dims}. Give the "
                "length that the embedding model has"
            )
        if not np.isfinite(row).all():
            raise BadEmbedding("embed returned a vector with numbers that are not finite")
        return row

    # Search

    def candidates(
        self, driver: Driver, tenant: str, op: SearchOp, embedded: Embedded
    ) -> Program[Iterable[Candidate]]:
        """Return the items within a namespace in the order of their likeness to the query.

        Raises:
            ReindexRequired: items were indexed by another model.
            TooLarge: there are more vectors than one search compares.
        """
        found: dict[Partition, NamespaceVectors] = {}
        rows = 0
        for partition in (yield from namespaces(tenant, tuple(op.namespace_prefix))):
            found[partition] = vectors = yield from self._refreshed(driver, partition)
            if vectors.outdated:
                raise ReindexRequired(
                    f"{len(vectors.outdated)} items of {labels_of(partition.thread)!r} were indexed by "
                    f"another embedding model than {self.name!r} with {self.dims} dimensions, or for other "
                    "fields; run `perdure store reindex`, or give the index the name= of the model that made "
                    "them"
                )
            rows += vectors.rows
            if rows > MOST_VECTORS:
                raise TooLarge(
                    f"there are more than {MOST_VECTORS:,} vectors within {tuple(op.namespace_prefix)!r}, "
                    "more than one search compares; search a narrower namespace, such as one user's"
                )
        return ranked(found, numpy().asarray(embedded.queries[op.query or ""]), 2 * (op.offset + op.limit))

    def _refreshed(self, driver: Driver, partition: Partition) -> Program[NamespaceVectors]:
        known = self._cache.get(driver, partition)
        changes = yield from search_index.changes(partition, known.generation, known.versions, MOST_VECTORS)
        if changes is None:
            return known
        vectors = known.changed(changes, self.mark, self.dims)
        self._cache.put(driver, partition, vectors)
        return vectors


def _paths(op: PutOp) -> tuple[str, ...] | None:
    """Return the paths that a put names: ``None`` for the configured ones, none to keep the item out."""
    if op.index is False:
        return ()
    return None if op.index is None else tuple(op.index)


def _name(embed: Any, embeddings: Embeddings) -> str:
    if isinstance(embed, str):
        return embed
    if isinstance(embeddings, EmbeddingsLambda):
        function = embed if hasattr(embed, "__qualname__") else type(embed)
        return f"{function.__module__}.{function.__qualname__}"
    model = getattr(embeddings, "model", None) or getattr(embeddings, "model_name", None)
    kind = f"{type(embeddings).__module__}.{type(embeddings).__qualname__}"
    return f"{kind}:{model}" if isinstance(model, str) else kind


def index_of(given: SearchIndex | IndexConfig | None) -> SearchIndex | None:
    """Return the index of an argument: an index, LangGraph's configuration of one, or ``None``."""
    return given if given is None or isinstance(given, SearchIndex) else SearchIndex(given)
