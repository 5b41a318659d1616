"""Settings of the store's index for searches by meaning, and the index that they describe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import BadSetting
from perdure.runtime.loading import find
from perdure.runtime.module_files import names_file

if TYPE_CHECKING:
    from perdure.langgraph.search.index import SearchIndex


class StoreIndex(NamedTuple):
    """Settings of the index.

    Attributes:
        dims: The length of a vector.
        embed: The file and name of an ``Embeddings`` or of a function from texts to vectors, or a provider
            and its model, such as ``openai:text-embedding-3-small``.
        fields: The paths of the texts that are embedded.
        name: The name of the embedding model, ``None`` for its own.
    """

    dims: int
    embed: str
    fields: tuple[str, ...]
    name: str | None

    def load(self, root: Path | None = None) -> SearchIndex:
        """Return the index.

        Args:
            root: The project's folder, at which a file's path starts.

        Raises:
            GraphLoadError: There is no object of this name.
            BadSetting: It cannot be used for an index.
        """
        from perdure.langgraph.search.index import SearchIndex

        embed: Any = find(self.embed, root=root).found if names_file(self.embed) else self.embed
        name = {} if self.name is None else {"name": self.name}
        try:
            return SearchIndex({"dims": self.dims, "embed": embed, "fields": list(self.fields), **name})
        except ValueError as error:
            raise BadSetting(f"store.index cannot be used: {error}") from error
