"""Settings of the store's index for searches by meaning, and the index that they describe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from perdure.errors import BadSetting
from perdure.runtime.agents.loading import find
from perdure.runtime.agents.module_files import names_file

if TYPE_CHECKING:
    from perdure.langgraph.search.index import SearchIndex


OFFLINE = "perdure:offline"
"""The embedding model that needs no network; the length of its vectors is known."""


class StoreIndex(NamedTuple):
    """Settings of the index.

    Attributes:
        dims: The length of a vector; ``None`` without a model, or for a model whose length is known.
        embed: The file and name of an ``Embeddings`` or of a function from texts to vectors, or a provider
            and its model, such as ``openai:text-embedding-3-small``, or ``perdure:offline``; ``None`` to
            compare words alone.
        fields: The paths of the texts that are indexed.
        name: A name for the embedding model, ``None`` for the name that it has itself.
        text: True to compare words.
        language: The language of the texts, ``None`` for the default.
        vector_weight: The share of the vectors in the score, ``None`` for the default.
    """

    dims: int | None
    embed: str | None
    fields: tuple[str, ...]
    name: str | None
    text: bool = False
    language: str | None = None
    vector_weight: float | None = None

    def load(self, root: Path | None = None) -> SearchIndex:
        """Return the index.

        Args:
            root: The project's folder, at which a file's path starts.

        Raises:
            GraphLoadError: There is no object at the place in ``embed``.
            BadSetting: The settings or the object cannot be used for an index.
        """
        from perdure.langgraph.search.index import SearchIndex

        given = {name: value for name, value in self._asdict().items() if value is not None}
        if self.embed is not None and names_file(self.embed):
            given["embed"] = find(self.embed, root=root).found
        try:
            return SearchIndex({**given, "fields": list(self.fields)})
        except ValueError as error:
            raise BadSetting(f"store.index cannot be used: {error}") from error
