"""The model of an index: what it returns is checked, and what it raises names no text."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from perdure.errors import BadEmbedding, EmbeddingFailed, PerdureError
from perdure.langgraph.search.embedding import TextEmbedder
from perdure.langgraph.search.ranking import rank
from perdure.storage.memory import MemoryDriver
from perdure.testing.conformance import Backend
from perdure.testing.conformance.meaning import new_index


@pytest.mark.parametrize(
    ("returned", "advice"),
    [
        ([[1.0, 2.0], [1.0, 2.0]], "2 vectors for 1 texts"),
        ([[1.0]], "dims=2"),
        ([["a", "b"]], "no vector of numbers"),
        ([[10**400, 1.0]], "no vector of numbers"),
        ([(10**400, 1.0)], "no vector of numbers"),
        ([[1.0, [2.0]]], "no vector of numbers"),
        ([[float("nan"), 1.0]], "not finite"),
        ([[1.0, float("-inf")]], "not finite"),
        ([[float("inf"), float("-inf")]], "not finite"),
        ([(1.0, float("inf"))], "not finite"),
        ([[1e300, 1.0]], "not finite"),
        ([[1.0, 2.0, 3.0]], "dims=2"),
        ([[1.0, "b"]], "no vector of numbers"),
        (None, "no list of vectors"),
    ],
)
def test_what_is_no_vector_is_refused(returned: Any, advice: str) -> None:
    embedder = TextEmbedder(lambda _: returned, 2, "mine")
    with pytest.raises(BadEmbedding, match=advice):
        embedder.embed(["tea"], ())
    with pytest.raises(BadEmbedding, match=advice):
        asyncio.run(embedder.aembed(["tea"], ()))


@pytest.mark.parametrize("vector", [[3e38, -3e38], (1e20, 1e20), np.array([1.5, 2.5]), [True, 2]])
def test_numbers_of_any_size_and_type_are_a_vector(vector: Any) -> None:
    embedder = TextEmbedder(lambda _: [vector], 2, "mine")
    packed, _ = embedder.embed(["tea"], ())
    assert packed["tea"] == np.asarray(vector, dtype="<f4").tobytes()


def test_an_error_of_a_model_is_named_without_its_text() -> None:
    def failing(texts: Sequence[str]) -> list[list[float]]:
        raise ValueError(f"too long: {texts[0]}")

    store = Backend(MemoryDriver()).store(index=new_index(embed=failing))
    for call in (
        lambda: store.put(("u",), "k", {"text": "a secret"}),
        lambda: asyncio.run(store.aput(("u",), "k", {"text": "a secret"})),
        lambda: store.search(("u",), query="a secret"),
    ):
        with pytest.raises(EmbeddingFailed, match="ValueError") as raised:
            call()
        assert "secret" not in str(raised.value)
        assert "secret" in str(raised.value.__cause__)
    assert store.get(("u",), "k") is None


def test_an_error_of_perdure_s_own_stays() -> None:
    def failing(_: Sequence[str]) -> list[list[float]]:
        raise PerdureError("as it is")

    with pytest.raises(PerdureError, match="as it is"):
        TextEmbedder(failing, 2, None).embed(["tea"], ())


def test_a_model_that_cannot_be_made_is_named_without_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    from perdure.langgraph.search import embedding

    def failing(_: Any) -> Any:
        raise RuntimeError("the key sk-123 is not valid")

    monkeypatch.setattr(embedding, "ensure_embeddings", failing)
    with pytest.raises(ValueError, match=r"'openai:small', which raised RuntimeError") as raised:
        TextEmbedder("openai:small", 2, None)
    assert "sk-123" not in str(raised.value)


def test_searches_compute_beside_the_event_loop() -> None:
    import threading

    from perdure.langgraph.search import index as module

    store = Backend(MemoryDriver()).store(index=new_index())
    threads: list[threading.Thread] = []

    async def work(monkeypatch: pytest.MonkeyPatch) -> None:
        def noted(*arguments: Any) -> Any:
            threads.append(threading.current_thread())
            return rank(*arguments)

        monkeypatch.setattr(module, "rank", noted)
        await store.aput(("u",), "k", {"text": "tea"})
        assert [item.key for item in await store.asearch(("u",), query="tea")] == ["k"]
        assert threads
        assert threading.current_thread() not in threads

    with pytest.MonkeyPatch.context() as patch:
        asyncio.run(work(patch))
