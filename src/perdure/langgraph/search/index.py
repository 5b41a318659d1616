"""Search in the store by a query: the configuration of an index, the entries of items, and their ranking.

Entries are stored beside the items by ``engine.items.search_index``, on every backend in the same way, and
are compared in this process. LangGraph's ``IndexConfig`` has the meaning that it has in LangGraph's own
stores. The words of texts are compared only with ``text=True``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from logging import getLogger
from threading import Lock
from typing import Any, NamedTuple, TypedDict, get_args
from weakref import WeakSet

from langgraph.store.base import IndexConfig, Op, PutOp, SearchOp, get_text_at_path, tokenize_path

from perdure.engine.items import search_index
from perdure.engine.items.items import read_namespaces
from perdure.engine.items.known_generations import KnownGenerations
from perdure.engine.items.nearest_items import Candidate
from perdure.engine.items.search_index import IndexChanges, IndexEntry
from perdure.errors import ReindexRequired, TooLarge
from perdure.langgraph.search.cache import IndexCache, IndexUpdate, NamespaceIndex
from perdure.langgraph.search.embedding import TextEmbedder
from perdure.langgraph.search.offline import OFFLINE, OFFLINE_DIMS
from perdure.langgraph.search.ranking import RankedQuery, rank
from perdure.langgraph.search.segments import Distance, IndexedItem, import_numpy
from perdure.langgraph.search.terms import TermExtractor
from perdure.model.arguments import refuse_text
from perdure.model.ops import FindNearest, FindOutdated
from perdure.model.program import Program, ask
from perdure.model.records import Partition
from perdure.model.store_items import labels_of, name_of
from perdure.model.values.json_values import unpack
from perdure.storage.port import Driver

__all__ = ["NOTHING", "Embedded", "IndexConfig", "SearchConfig", "SearchIndex", "index_of"]

MOST_ITEMS = 200_000
"""Vectors, or texts, that one search compares at most."""

VECTOR_WEIGHT = 0.3
"""Share of the vectors in the score where words are compared, too."""

_log = getLogger("perdure.langgraph")
_WHOLE = "$"
_WITHOUT_MODEL = b""
_OF_VECTORS = ("distance_type", "vector_type", "ann_index_config")
_APPROXIMATION = ("m", "ef_construction", "nlist")
_READ_AHEAD = 64
_OUTDATED = 1000


class SearchConfig(TypedDict, total=False):
    """Settings of an index: LangGraph's ``IndexConfig``, and those of Perdure. See ``SearchIndex``."""

    dims: int
    embed: Any
    fields: list[str] | None
    name: str | None
    text: bool
    language: str | None
    vector_weight: float
    distance_type: Distance
    vector_type: str
    ann_index_config: Mapping[str, Any]


class Embedded(NamedTuple):
    """Vectors of the texts of a batch of operations: those of items by text, those of queries by query."""

    texts: Mapping[str, bytes]
    queries: Mapping[str, Any]


NOTHING = Embedded({}, {})


class IndexedTexts(NamedTuple):
    """Texts of an item that is put, which are embedded, and the paths that its put names: ``None`` for the
    configured ones, an empty tuple to keep the item out of the index."""

    paths: tuple[str, ...] | None
    texts: tuple[str, ...]


class SearchIndex:
    """Index of the texts of items, for ``Database.store(index=…)``. One object keeps what it has read, so
    share it among the stores of a process.

    With ``dims`` and ``embed`` items are found by the likeness of vectors, as in LangGraph's stores; with
    ``text`` by their words (BM25); with all three by both.

    Args:
        config: LangGraph's ``IndexConfig``: ``dims``, the length of a vector; ``embed``, an ``Embeddings``, a
            function from texts to vectors, sync or async, or text such as
            ``"openai:text-embedding-3-small"``, or ``"perdure:offline"``, a small model without a network
            whose ``dims`` are known; ``fields``, the paths of indexed texts, by default ``["$"]``,
            the whole value. ``name`` is a name for the embedding model, by default that of the class or
            function and its model: items that were indexed under another name have to be indexed again.
            ``text=True`` compares words; then ``language`` is the language whose words are reduced to their
            stems, by default ``"english"``, ``None`` for words as they are, and ``vector_weight`` the share
            of the vectors in the score, from 0 to 1, by default 0.3. ``distance_type`` is what vectors are
            compared by: ``"cosine"``, the default, ``"l2"`` or ``"inner_product"``. ``vector_type`` and
            ``ann_index_config`` of ``PostgresStore`` are accepted and have no effect.

    Raises:
        ValueError: The configuration is not valid.
        MissingExtra: The extra ``search`` is not installed, or ``memory`` for ``"perdure:offline"``.
    """

    def __init__(self, config: SearchConfig | IndexConfig | Mapping[str, Any]) -> None:
        given = _check(config)
        self.fields: tuple[str, ...] = tuple(given.get("fields") or [_WHOLE])
        has_model = given.get("embed") is not None
        self.embedder = TextEmbedder(given["embed"], given["dims"], given.get("name")) if has_model else None
        # After the model: if its extra is missing, too, that error comes first, as that extra may include
        # this one.
        import_numpy()
        self.extractor = TermExtractor(given.get("language", "english")) if given.get("text") else None
        self.vector_weight: float = given.get("vector_weight", VECTOR_WEIGHT)
        self.distance: Distance = given.get("distance_type", "cosine")
        self._marks = {is_default: self._mark(is_default) for is_default in (True, False)}
        self._cache = IndexCache()
        self.generations = KnownGenerations(Lock())
        self._announced: WeakSet[Driver] = WeakSet()

    @property
    def name(self) -> str:
        """The name of the embedding model, empty without one."""
        if self.embedder is None:
            return ""
        return self.embedder.name

    @property
    def _dims(self) -> int:
        if self.embedder is None:
            return 0
        return self.embedder.dims

    def close(self) -> None:
        """End the event loop in which ``vectors`` has embedded texts, if there is one; repeatable."""
        if self.embedder is not None:
            self.embedder.close()

    def mark(self, paths: tuple[str, ...] | None) -> bytes:
        """Return the digest of everything that an entry depends on: the model, its dimensions, and the
        configured fields unless an item has paths of its own."""
        return self._marks[paths is None]

    def _mark(self, is_default: bool) -> bytes:
        if self.embedder is None:
            return _WITHOUT_MODEL
        parts = [str(self._dims), self.name, *(self.fields if is_default else ())]
        return blake2b("\0".join(parts).encode(), digest_size=8).digest()

    def is_outdated(self, entry: IndexEntry) -> bool:
        """Return True if an entry's item has to be indexed again before it can be compared. An index without
        vectors reads texts from the items themselves, so every entry serves it."""
        if self.embedder is None or entry.paths == ():
            return False
        has_no_model = entry.model == _WITHOUT_MODEL
        return has_no_model or (bool(entry.vectors) and entry.model != self.mark(entry.paths))

    # Texts and their vectors

    def texts(self, value: Mapping[str, Any], paths: Iterable[str] | None) -> list[str]:
        """Return the texts of a value at some paths, by default the configured ones, without empty ones."""
        out: list[str] = []
        for path in self.fields if paths is None else paths:
            out += [text for text in get_text_at_path(value, _tokenize(path)) if text]
        return list(dict.fromkeys(out))

    def texts_of(self, op: PutOp, value: Mapping[str, Any]) -> IndexedTexts:
        """Return the texts of an item that is put, taken from its value as it is stored."""
        paths = _paths(op)
        return IndexedTexts(paths, () if self.embedder is None else tuple(self.texts(value, paths)))

    def embed(self, texts: Iterable[str], ops: Sequence[Op]) -> Embedded:
        """Embed texts, and the queries of a batch."""
        if self.embedder is None:
            return NOTHING
        return Embedded(*self.embedder.embed(list(dict.fromkeys(texts)), _list_queries(ops)))

    async def aembed(self, texts: Iterable[str], ops: Sequence[Op], *, in_threads: bool = True) -> Embedded:
        """See ``embed``."""
        if self.embedder is None:
            return NOTHING
        wanted = list(dict.fromkeys(texts))
        return Embedded(*await self.embedder.aembed(wanted, _list_queries(ops), in_threads=in_threads))

    def entry(self, body: bytes, of: IndexedTexts, embedded: Embedded) -> bytes:
        """Return the packed entry of an item that is put, made of its stored value and its texts."""
        vectors = tuple(map(embedded.texts.__getitem__, of.texts))
        content = search_index.content_of(body)
        return search_index.pack(IndexEntry(self.mark(of.paths), content, of.paths, vectors))

    def vectors(self, texts: Sequence[str]) -> dict[str, bytes]:
        """Embed texts, for items that are indexed again; an index without vectors returns none. If the
        embedding function is asynchronous, it gets an event loop of its own, which ``close`` ends, so this OS
        thread must not run one."""
        if self.embedder is None:
            return {}
        return self.embedder.embed_blocking(texts)

    # Search

    def method(self, driver: Driver) -> str:
        """Return in words how the items of a database are compared with a query."""
        if self.embedder is None:
            return "words in this process"
        if self.extractor is not None:
            return "vectors and words in this process"
        if self.distance != "cosine":
            return f"vectors by {self.distance} in this process"
        return f"vectors {driver.capabilities.vector_method(self._dims)}"

    def announce(self, driver: Driver) -> None:
        """Log once how the items of a database are compared with a query."""
        if driver not in self._announced:
            self._announced.add(driver)
            _log.info("searches in the store compare %s", self.method(driver))

    def is_stored_in(self, driver: Driver) -> bool:
        """Return True if the database itself compares the vectors, which it does by cosines. Where words are
        compared, too, the scores of all items are needed, so that both are compared in the process."""
        is_possible = self.extractor is None and self.distance == "cosine"
        return is_possible and 0 < self._dims <= driver.capabilities.vector_dims()

    def prepare(self, driver: Driver) -> int:
        """Prepare the database for searches, where it compares the vectors itself; return the number of items
        whose vectors were wrong there."""
        if self.is_stored_in(driver):
            vectors = driver.capabilities.vectors
        else:
            vectors = None
        if vectors is None or isinstance(vectors, str):
            return 0
        return vectors.prepare(self._dims)

    def request(self, tenant: str, op: SearchOp, now: int, embedded: Embedded) -> Program[FindNearest]:
        """Return the request for the items nearest to the query, for a database that compares the vectors.

        Raises:
            ReindexRequired: Items were indexed by another model.
        """
        vector = import_numpy().asarray(embedded.queries[op.query or ""], dtype="<f4")
        prefix, models = name_of(tuple(op.namespace_prefix)), tuple(sorted(self._marks.values()))
        outdated = yield from ask(FindOutdated(tenant, prefix, models, limit=_OUTDATED))
        if outdated:
            partition = outdated[0].partition
            raise self._reindex_required(partition, sum(hit.partition == partition for hit in outdated))
        return FindNearest(tenant, prefix, now, vector.tobytes(), models)

    def candidates(
        self, driver: Driver, tenant: str, op: SearchOp, embedded: Embedded
    ) -> Program[Iterable[Candidate]]:
        """Return the items within a namespace in the order of their scores for the query.

        Raises:
            ReindexRequired: Items were indexed by another model.
            TooLarge: There are more vectors or texts than one search compares.
        """
        found: dict[Partition, NamespaceIndex] = {}
        rows = 0
        for partition in (yield from read_namespaces(tenant, tuple(op.namespace_prefix))):
            found[partition] = known = yield from self._refresh(driver, partition)
            if known.outdated:
                raise self._reindex_required(partition, len(known.outdated))
            rows += known.rows
            if rows > MOST_ITEMS:
                raise TooLarge(
                    f"there are more than {MOST_ITEMS:,} vectors or texts within "
                    f"{tuple(op.namespace_prefix)!r}, more than one search compares; search a narrower "
                    "namespace, such as one user's"
                )
        vector = None if self.embedder is None else import_numpy().asarray(embedded.queries[op.query or ""])
        terms = None if self.extractor is None else self.extractor.query_terms(op.query or "")
        return rank(
            found, RankedQuery(vector, terms, self.vector_weight), 2 * (op.offset + op.limit) + _READ_AHEAD
        )

    def _reindex_required(self, partition: Partition, count: int) -> ReindexRequired:
        return ReindexRequired(
            f"items of {labels_of(partition.thread)!r} ({count} of those searched) were indexed by another "
            f"embedding model than {self.name!r} with {self._dims} dimensions, by none, or for other fields; "
            "run `perdure store reindex`, or give the index the name= of the model that made them"
        )

    def _refresh(self, driver: Driver, partition: Partition) -> Program[NamespaceIndex]:
        known = self._cache.get(driver, partition)
        changes = yield from search_index.read_changes(
            partition, known.generation, known.versions, MOST_ITEMS
        )
        if changes is None:
            return known
        bodies: dict[str, bytes] = {}
        if self.extractor is not None:
            bodies = yield from search_index.read_values(partition, changes.written)
        updated = known.apply(self._update(partition, changes, bodies), self._dims, self.distance)
        self._cache.put(driver, partition, updated)
        return updated

    def _update(
        self, partition: Partition, changes: IndexChanges, bodies: Mapping[str, bytes]
    ) -> IndexUpdate:
        items: list[IndexedItem] = []
        outdated: list[str] = []
        for key, (_, entry) in changes.written.items():
            if self.is_outdated(entry):
                outdated.append(key)
                continue
            vectors = () if self.embedder is None else entry.vectors
            terms: Mapping[str, int] = {}
            if self.extractor is not None and key in bodies and entry.paths != ():
                value = unpack(bodies[key], f"item {key!r} of {labels_of(partition.thread)!r}")
                terms = self.extractor.terms("\n".join(self.texts(value, entry.paths)))
            if vectors or terms:
                items.append(IndexedItem(key, entry.content, vectors, terms))
        versions = {key: version for key, (version, _) in changes.written.items()}
        return IndexUpdate(changes.generation, versions, changes.removed, items, outdated)


def _check(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the configuration; raise ``ValueError`` for one that is not valid."""
    known = SearchConfig.__annotations__
    if unknown := sorted(set(config) - set(known)):
        raise ValueError(f"index has no setting {unknown[0]!r}; it has {', '.join(sorted(known))}")
    if not isinstance(config.get("text", False), bool):
        raise ValueError(f"index takes text=True to compare words, or False, not {config.get('text')!r}")
    has_text, has_model = config.get("text", False), config.get("embed") is not None
    if not has_model and not has_text:
        raise ValueError(
            "index needs embed: an Embeddings, a function, or text such as 'openai:MODEL'; or text=True, to "
            "compare words without a model"
        )
    if config.get("embed") == OFFLINE:
        config = {"dims": OFFLINE_DIMS, **config}
    dims: Any = config.get("dims")
    if has_model and (isinstance(dims, bool) or not isinstance(dims, int) or dims < 1):
        raise ValueError(f"index needs dims, the length of a vector, at least 1, not {dims!r}")
    refuse_text("fields", config.get("fields") or [_WHOLE])
    for name in () if has_model else ("dims", "name", "vector_weight", *_OF_VECTORS):
        if config.get(name) is not None:
            raise ValueError(f"index has {name} and no embed: there are no vectors without a model")
    for name in () if has_text else ("language", "vector_weight"):
        if name in config:
            raise ValueError(f"index has {name}, which has an effect with text=True only")
    weight: Any = config.get("vector_weight", VECTOR_WEIGHT)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= 1:
        raise ValueError(f"index takes a vector_weight from 0 to 1, not {weight!r}")
    if config.get("distance_type", "cosine") not in get_args(Distance):
        raise ValueError(
            f"index takes a distance_type of {', '.join(get_args(Distance))}, not {config['distance_type']!r}"
        )
    _check_vector_type(config, "vector_type")
    _check_approximation(config.get("ann_index_config", {}))
    return config


def _check_vector_type(config: Mapping[str, Any], name: str) -> None:
    if config.get("vector_type", "vector") not in ("vector", "halfvec"):
        raise ValueError(f"index takes a {name} of vector or halfvec, not {config['vector_type']!r}")


def _check_approximation(config: Any) -> None:
    """Refuse a setting of ``PostgresStore``'s approximate index that is unknown, or that would change what
    vectors mean; the others make a search faster there, and have no effect."""
    if not isinstance(config, Mapping):
        raise ValueError(f"index takes an ann_index_config as a dict, not {config!r}")
    if unknown := [name for name in config if name not in ("kind", "vector_type", *_APPROXIMATION)]:
        raise ValueError(f"index has no setting ann_index_config[{unknown[0]!r}]")
    if config.get("kind", "hnsw") not in ("hnsw", "ivfflat", "flat"):
        raise ValueError(
            f"index takes an ann_index_config['kind'] of hnsw, ivfflat or flat, not {config['kind']!r}"
        )
    _check_vector_type(config, "ann_index_config['vector_type']")
    for name in _APPROXIMATION:
        value = config.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"index takes an ann_index_config[{name!r}] of at least 1, not {value!r}")


@lru_cache(maxsize=256)
def _tokenize(path: str) -> Any:
    if path == _WHOLE:
        return path
    return tokenize_path(path)


def _paths(op: PutOp) -> tuple[str, ...] | None:
    """Return the paths that a put names, as in ``IndexedTexts``."""
    if op.index is False:
        return ()
    if op.index is None:
        return None
    return tuple(op.index)


def _list_queries(ops: Sequence[Op]) -> list[str]:
    return list(dict.fromkeys(op.query for op in ops if isinstance(op, SearchOp) and op.query))


def index_of(given: SearchIndex | SearchConfig | IndexConfig | None) -> SearchIndex | None:
    """Return the index of an argument: an index, a configuration of one, or ``None``."""
    if given is None or isinstance(given, SearchIndex):
        return given
    return SearchIndex(given)
