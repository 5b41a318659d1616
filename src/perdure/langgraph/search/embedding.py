"""Embedding of texts: the model of an index, and the check of what it returns."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from langchain_core.embeddings import Embeddings
from langgraph.store.base import ensure_embeddings
from langgraph.store.base.embed import EmbeddingsLambda

from perdure.errors import BadEmbedding, EmbeddingFailed, PerdureError
from perdure.langgraph.search.model_failures import describe_failure, describe_unmade
from perdure.langgraph.search.offline import OFFLINE, OfflineEmbeddings
from perdure.langgraph.search.segments import import_numpy
from perdure.storage.own_threads import run_in_own_thread

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]

__all__ = ["TextEmbedder"]

_NUMBERS_AT_ONCE = 20_000
"""Maximum count of numbers in vectors that are packed in an event loop's OS thread: about a millisecond."""


class TextEmbedder:
    """Embedding model of an index.

    Args:
        embed: An ``Embeddings``, a function from texts to vectors, sync or async, or text such as
            ``"openai:text-embedding-3-small"``, or ``"perdure:offline"``.
        dims: The length of a vector.
        name: A name for the model, ``None`` for that of the class or function and its model.

    Raises:
        ValueError: The model cannot be made.
    """

    def __init__(self, embed: Any, dims: int, name: str | None) -> None:
        self.dims = dims
        self._packing = struct.Struct(f"<{dims}f")
        self.embeddings: Embeddings = _make_model(embed)
        self.name = str(name or _name_model(embed, self.embeddings))
        self._runner: asyncio.Runner | None = None

    def close(self) -> None:
        """End the event loop in which an asynchronous function has embedded texts for ``embed_blocking``;
        repeatable."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def embed(self, texts: Sequence[str], queries: Sequence[str]) -> tuple[dict[str, bytes], dict[str, Any]]:
        """Return the packed vectors of texts, and the vectors of queries.

        Raises:
            EmbeddingFailed: The model raised an error.
            BadEmbedding: The result is not one vector of ``dims`` numbers for each text.
        """
        try:
            if texts:
                vectors = self.embeddings.embed_documents(list(texts))
            else:
                vectors = []
            query_vectors = {query: self.embeddings.embed_query(query) for query in queries}
        except Exception as error:
            raise self._failed_error(error) from error
        return self._pack(texts, vectors), self._check_all(query_vectors)

    async def aembed(
        self, texts: Sequence[str], queries: Sequence[str], *, in_threads: bool = True
    ) -> tuple[dict[str, bytes], dict[str, Any]]:
        """See ``embed``. Unless ``in_threads``, everything is computed in this OS thread."""
        if not in_threads and self._is_blocking:
            return self.embed(texts, queries)
        try:
            if texts:
                vectors = await self.embeddings.aembed_documents(list(texts))
            else:
                vectors = []
            query_vectors = {query: await self.embeddings.aembed_query(query) for query in queries}
        except Exception as error:
            raise self._failed_error(error) from error
        if in_threads and len(texts) * self.dims > _NUMBERS_AT_ONCE:
            return await run_in_own_thread(self._pack, texts, vectors), self._check_all(query_vectors)
        return self._pack(texts, vectors), self._check_all(query_vectors)

    def embed_blocking(self, texts: Sequence[str]) -> dict[str, bytes]:
        """Return the packed vectors of texts. An asynchronous function is run in an event loop of its own, so
        this OS thread must not run one."""
        if not texts:
            return {}
        if not isinstance(self.embeddings, EmbeddingsLambda) or hasattr(self.embeddings, "func"):
            return self.embed(texts, ())[0]
        # All calls share one event loop, as clients keep connections that belong to it.
        self._runner = self._runner or asyncio.Runner()
        return self._runner.run(self.aembed(texts, ()))[0]

    @property
    def _is_blocking(self) -> bool:
        """True if the model's asynchronous methods call the blocking ones in an OS thread."""
        if isinstance(self.embeddings, EmbeddingsLambda):
            return not hasattr(self.embeddings, "afunc")
        return type(self.embeddings).aembed_documents is Embeddings.aembed_documents

    def _failed_error(self, error: Exception) -> PerdureError:
        if isinstance(error, PerdureError):
            return error
        # A provider's message may quote the texts.
        return EmbeddingFailed(
            f"the embedding model {self.name!r} {describe_failure(error)}; nothing was stored. Its own "
            "message is the cause of this error (__cause__)"
        )

    def _pack(self, texts: Sequence[str], vectors: Sequence[Any]) -> dict[str, bytes]:
        if not hasattr(vectors, "__len__"):
            raise BadEmbedding(f"embed returned no list of vectors: {type(vectors).__name__}")
        if len(vectors) != len(texts):
            raise BadEmbedding(f"embed returned {len(vectors)} vectors for {len(texts)} texts")
        return {text: self._check(vector).tobytes() for text, vector in zip(texts, vectors, strict=True)}

    def _check_all(self, query_vectors: Mapping[str, Any]) -> dict[str, Any]:
        return {query: self._check(vector) for query, vector in query_vectors.items()}

    def _check(self, vector: Any) -> Vector:
        try:
            row: Vector = self._to_row(vector)
        except (TypeError, ValueError, OverflowError) as error:
            raise BadEmbedding(f"embed returned no vector of numbers: {type(vector).__name__}") from error
        if row.shape != (self.dims,):
            raise BadEmbedding(
                f"embed returned a vector of shape {row.shape}; the index has dims={self.dims}. Give the "
                "length that the embedding model has"
            )
        # Looking at the bytes takes a tenth of the time of a reduction.
        if 0 in import_numpy().isfinite(row).tobytes():
            raise BadEmbedding("embed returned a vector with numbers that are not finite")
        return row

    def _to_row(self, vector: Any) -> Any:
        np = import_numpy()
        if type(vector) is list:
            # Most models return lists, which are packed in half the time that NumPy takes for them. NumPy
            # handles lists of another length, and those with other values than numbers.
            with suppress(struct.error, OverflowError):
                return np.frombuffer(self._packing.pack(*vector), "<f4")
        with np.errstate(over="ignore"):
            return np.asarray(vector, dtype="<f4")


def _make_model(embed: Any) -> Embeddings:
    if embed == OFFLINE:
        return OfflineEmbeddings()
    try:
        return ensure_embeddings(embed)
    except Exception as error:
        # Providers raise errors of their own, whose texts may hold a key.
        if not isinstance(embed, str):
            raise ValueError(f"embed is {type(embed).__name__!r}, which {describe_failure(error)}") from error
        raise ValueError(
            f"embed is {embed!r}, {describe_unmade(embed, error)}. It is a provider and its model, e.g. "
            "openai:text-embedding-3-small, an Embeddings or a function"
        ) from error


def _name_model(embed: Any, embeddings: Embeddings) -> str:
    if isinstance(embeddings, OfflineEmbeddings):
        return f"{OFFLINE}:{embeddings.model}"
    if isinstance(embed, str):
        return embed
    if isinstance(embeddings, EmbeddingsLambda):
        if hasattr(embed, "__qualname__"):
            function = embed
        else:
            function = type(embed)
        return f"{function.__module__}.{function.__qualname__}"
    model = getattr(embeddings, "model", None) or getattr(embeddings, "model_name", None)
    kind = f"{type(embeddings).__module__}.{type(embeddings).__qualname__}"
    if isinstance(model, str):
        return f"{kind}:{model}"
    return kind
