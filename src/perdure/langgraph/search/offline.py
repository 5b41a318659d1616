"""Embedding model that needs no network and no key: static word vectors which come with a package.

It is small and quick, and knows words rather than sentences: combine it with ``text=True``. The weights are
those of WordLlama (MIT), read from their files: its own loader may try to download others.
"""

from __future__ import annotations

from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

from langchain_core.embeddings import Embeddings

from perdure.errors import MissingExtra
from perdure.langgraph.search.segments import import_numpy

__all__ = ["OFFLINE", "OFFLINE_DIMS", "OfflineEmbeddings"]

OFFLINE = "perdure:offline"
"""The name by which settings and an index's ``embed`` ask for it."""

OFFLINE_DIMS = 256
"""The length of its vectors."""

_WEIGHTS = "weights/l2_supercat_256.safetensors"
_TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"


class OfflineEmbeddings(Embeddings):
    """Embeddings of 256 numbers without a network. The files are read at the first use; safe in many OS
    threads.

    Raises:
        MissingExtra: The extra ``memory`` is not installed.
    """

    model = "wordllama-l2-supercat-256"

    def __init__(self) -> None:
        self._lock = Lock()
        self._folder = _folder()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return a vector for each text."""
        return [self._embed_text(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a query."""
        return self._embed_text(text)

    def _embed_text(self, text: str) -> list[float]:
        tokenizer, weights = self._load()
        tokens = tokenizer.encode(text, add_special_tokens=False).ids
        if tokens:
            mean = weights[tokens].mean(axis=0, dtype="f4")
        else:
            mean = import_numpy().zeros(OFFLINE_DIMS, dtype="f4")
        return mean.tolist()  # type: ignore[no-any-return]

    def _load(self) -> tuple[Any, Any]:
        with self._lock:
            return self._model

    @cached_property
    def _model(self) -> tuple[Any, Any]:
        from safetensors import safe_open
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(self._folder / _TOKENIZER))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        with safe_open(self._folder / _WEIGHTS, framework="np") as file:
            return tokenizer, file.get_tensor("embedding.weight")


def _folder() -> Path:
    """Return the folder of the package that has the files, without importing it."""
    found = find_spec("wordllama")
    if found is None or found.origin is None or find_spec("tokenizers") is None:
        raise MissingExtra('the offline embedding model needs an extra: pip install "perdure[memory]"')
    return Path(found.origin).parent
