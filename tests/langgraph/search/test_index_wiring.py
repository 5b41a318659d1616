"""Each part of the store's index, unplugged by itself: the check of the whole has to notice it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perdure.database.base import handle_of
from perdure.engine.items import search_index
from perdure.errors import ReindexRequired
from perdure.langgraph.search import index as module
from perdure.langgraph.search.index import SearchIndex
from perdure.langgraph.search.ranking import RankedQuery, rank
from perdure.langgraph.search.reindex import reindex
from perdure.langgraph.search.terms import TermExtractor
from perdure.model.store_items import partition_of
from perdure.storage.memory import MemoryDriver
from perdure.testing.conformance import Backend
from perdure.testing.conformance.meaning import new_index, new_text_index

HOME = ("users", "ada")


def found(store: Any, query: str, limit: int = 10) -> list[str]:
    return [item.key for item in store.search(HOME, query=query, limit=limit)]


def first(store: Any, query: str) -> str:
    (key,) = found(store, query, limit=1) or [""]
    return key


def by_vectors() -> None:
    """Items are found by their vectors, at their paths, as they are now, and by every process."""
    backend = Backend(MemoryDriver())
    store, elsewhere = backend.store(index=new_index()), backend.store(index=new_index())
    store.put(HOME, "a", {"text": "bread and butter"})
    store.put(HOME, "b", {"text": "music and trains", "more": "chess"}, index=["more"])
    store.put(HOME, "c", {"text": "mountains"}, index=False)
    store.put(HOME, "z", {"text": "green tea"})
    assert found(elsewhere, "tea", limit=1) == found(store, "tea", limit=1) == ["z"]
    assert first(store, "chess") == "b"
    assert first(store, "mountains") != "c"
    elsewhere.put(HOME, "a", {"text": "a winter garden"})
    assert first(store, "winter garden") == "a"
    elsewhere.delete(HOME, "z")
    assert "z" not in found(store, "tea")


def by_another_model() -> None:
    """What another model has indexed is not compared before it is indexed again."""
    backend = Backend(MemoryDriver())
    backend.store(index=new_index(name="old")).put(HOME, "a", {"text": "tea"})
    index = new_index(fields=["text"])
    store = backend.store(index=index)
    try:
        store.search(HOME, query="tea")
    except ReindexRequired:
        pass
    else:
        raise AssertionError("vectors of two models were compared")
    assert handle_of(backend.database()).run(reindex(partition_of("", HOME), index, 1)).indexed == 1
    assert first(store, "tea") == "a"


def by_words() -> None:
    """Items are found by their words, in another form, too, and as they are now."""
    backend = Backend(MemoryDriver())
    store = backend.store(index=new_text_index())
    store.put(HOME, "a", {"text": "She sings in the garden", "more": "mountains"})
    store.put(HOME, "z", {"text": "Trains to the coast"})
    assert first(store, "train") == "z"
    assert first(store, "singing") == "a"
    assert all(item.score is None or item.key != "a" for item in store.search(HOME, query="mountains"))
    backend.store(index=new_text_index()).put(HOME, "a", {"text": "He reads"})
    assert first(store, "reading") == "a"


def by_both() -> None:
    """Where both are compared, each of them counts."""
    for weight, best in ((1.0, "b"), (0.0, "a")):
        store = Backend(MemoryDriver()).store(index=new_index(text=True, vector_weight=weight))
        store.put(HOME, "a", {"text": "tea, rain, mountains, trains, music, chess, bread, winter, garden"})
        store.put(HOME, "b", {"text": "rainrain"})
        assert first(store, "rain") == best


WHOLE = (by_vectors, by_another_model, by_words, by_both)


def _no_candidates(*args: Any, **kwargs: Any) -> Any:
    return ()
    yield


def _unembedded(self: SearchIndex, body: bytes, of: Any, embedded: Any, real: Any = SearchIndex.entry) -> Any:
    return real(self, body, of._replace(paths=(), texts=()), embedded)


def _read_once(
    partition: Any, generation: Any, versions: Any, most: Any, real: Any = search_index.read_changes
) -> Any:
    """Read the entries once, and never again."""
    if versions:
        return None
    return (yield from real(partition, generation, versions, most))


MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "candidates": (SearchIndex, "candidates", _no_candidates),
    "entries": (SearchIndex, "entry", _unembedded),
    "paths of an item": (module, "_paths", lambda op: None),
    "items that are kept out": (module, "_paths", lambda op: tuple(op.index) if op.index else None),
    "the mark of a model": (SearchIndex, "is_outdated", lambda self, entry: False),
    "words of a query": (TermExtractor, "query_terms", lambda self, query: {}),
    "words of items": (TermExtractor, "terms", lambda self, text: {}),
    "fields": (SearchIndex, "texts", lambda self, value, paths: [str(dict(value))]),
    "order": (module, "rank", lambda *given, real=rank: reversed(list(real(*given)))),
    "the weight of the vectors": (
        module,
        "RankedQuery",
        lambda vector, terms, weight, real=RankedQuery: real(vector, terms, 0.5),
    ),
    "changes elsewhere": (search_index, "read_changes", _read_once),
}


@pytest.mark.parametrize("check", WHOLE, ids=lambda check: check.__name__)
def test_the_whole_works(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize("name", MUTANTS)
def test_an_unplugged_part_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, attribute, replacement = MUTANTS[name]
    monkeypatch.setattr(where, attribute, replacement)
    noticed: list[str] = []
    for check in WHOLE:
        try:
            check()
        except (AssertionError, ReindexRequired):
            noticed.append(check.__name__)
    assert noticed
