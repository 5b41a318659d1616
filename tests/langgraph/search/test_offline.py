"""The embedding model that comes with a package."""

from __future__ import annotations

import importlib.util
import socket
import sys
from typing import Any

import numpy as np
import pytest

from perdure.config.store_index import OFFLINE, StoreIndex
from perdure.errors import BadSetting, MissingExtra
from perdure.langgraph.search import offline
from perdure.langgraph.search.index import SearchIndex
from perdure.langgraph.search.offline import OfflineEmbeddings
from perdure.storage.memory import MemoryDriver
from perdure.testing.conformance import Backend


def test_vectors_are_those_of_the_package_itself() -> None:
    from safetensors import safe_open
    from tokenizers import Tokenizer
    from wordllama.inference import WordLlamaInference

    folder = offline._folder()
    with safe_open(folder / offline._WEIGHTS, framework="np") as file:
        reference = WordLlamaInference(
            file.get_tensor("embedding.weight"), Tokenizer.from_file(str(folder / offline._TOKENIZER))
        )
    texts = ["Ada likes tea.", "a", "Grüße aus Köln 茶", "long " * 500]
    found = OfflineEmbeddings().embed_documents(texts)
    assert np.allclose(found, reference.embed(texts), atol=1e-3)
    assert not any(OfflineEmbeddings().embed_query(""))


def test_a_stranger_without_a_key_finds_by_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", never)
    store = Backend(MemoryDriver()).store(index=SearchIndex({"embed": "perdure:offline", "text": True}))
    store.put(("u",), "pet", {"text": "We have a beagle called Biscuit"})
    store.put(("u",), "job", {"text": "She teaches mathematics"})
    assert [item.key for item in store.search(("u",), query="Do they own a dog?", limit=1)] == ["pet"]
    assert SearchIndex({"embed": "perdure:offline"}).name.endswith("wordllama-l2-supercat-256")


@pytest.mark.parametrize(
    ("given", "dims", "has_words"),
    [({"embed": "perdure:offline"}, 256, False), ({"text": True}, 0, True)],
)
def test_settings_need_no_dims(given: dict[str, Any], dims: int, has_words: bool) -> None:
    values = {"dims": None, "embed": None, "fields": ("text",), "name": None, **given}
    index = StoreIndex(**values).load()
    assert (index._dims, index.extractor is not None) == (dims, has_words)
    assert OFFLINE == offline.OFFLINE
    with pytest.raises(BadSetting, match=r"store\.index cannot be used: .*'klingon'"):
        StoreIndex(**{**values, "text": True, "language": "klingon"}).load()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(offline, "find_spec", lambda name: None if name == "wordllama" else find(name))
    with pytest.raises(MissingExtra, match=r"perdure\[memory\]"):
        SearchIndex({"embed": "perdure:offline"})
    # Where both are missing, the extra that contains the other one is named.
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(MissingExtra, match=r"perdure\[memory\]"):
        SearchIndex({"embed": "perdure:offline"})
    with pytest.raises(MissingExtra, match=r"perdure\[search\]"):
        SearchIndex({"embed": len, "dims": 2})
    with pytest.raises(ValueError, match="dims"):
        SearchIndex({"embed": "perdure:other", "text": True})
