"""Namespaces of users: injective, and one user's items never another's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perdure
from perdure.database.base import handle_of
from perdure.engine.items import items
from perdure.memory import Memory, namespace_of, users
from perdure.memory.users import REMOVALS, user_of_namespace
from perdure.model.store_items import labels_of
from perdure.storage.postgres import vector_search
from tests.backends import BACKENDS, EMPTY
from tests.conversation.histories import how_many

ODD = st.text("aA.%_2Ee5-@/: \té\u0301é", min_size=1, max_size=8)


def look_alikes(count: int) -> list[str]:
    """User ids that differ in a sign, its escape, its case, or its end."""
    bases = ["alice", "a.b", "a_b", "a%2Eb", "a%2eb", "A.B", "a..b", "a.b.", ".", "%", "é", "e\u0301"]
    out = list(bases)
    number = 0
    while len(out) < count:
        out += [f"{base}{number}" for base in bases]
        number += 1
    return out[:count]


@given(ODD, ODD)
def test_different_users_have_different_namespaces(one: str, other: str) -> None:
    assert (namespace_of(one) == namespace_of(other)) == (one == other)


@given(ODD)
def test_a_namespace_names_its_user(user: str) -> None:
    assert user_of_namespace((*namespace_of(user), "facts")) == user
    assert "." not in "".join(namespace_of(user))


@pytest.mark.parametrize("user", ["", "x" * 201])
def test_an_id_that_is_none_is_refused(user: str) -> None:
    with pytest.raises(ValueError, match="1 to 200"):
        namespace_of(user)


INDEXES: dict[str, dict[str, Any]] = {
    "vectors": {"dims": 2, "embed": lambda texts: [[1.0, 0.5] for _ in texts]},
    "words": {"text": True, "fields": ["text"]},
}
"""Indexes in which all that users store is equally near to a query."""

WAYS = [
    pytest.param(on, how, is_graph, id=f"{on}-{how}{'-hnsw' * is_graph}", marks=marks)
    for on, how, is_graph, marks in (
        ("memory", "vectors", False, []),
        ("memory", "words", False, [pytest.mark.slow]),
        ("sqlite", "words", False, [pytest.mark.slow]),
        ("postgresql", "vectors", False, [pytest.mark.slow]),
        ("postgresql", "vectors", True, [pytest.mark.slow]),
    )
]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("on", "how", "is_graph"), WAYS)
def test_of_many_look_alikes_none_sees_anothers(
    on: str, how: str, is_graph: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = how_many(60, 1000)
    names = look_alikes(count)
    assert len(set(names)) == count
    if is_graph:
        monkeypatch.setattr(vector_search, "EXACT_MOST", 0)
    with EMPTY[on]() as url, perdure.connect_sync(url, migrate=True) as db:
        index = perdure.SearchIndex(INDEXES[how])
        store = db.store(index=index)
        for name in names:
            Memory(store, name).remember(f"This is {name!r}.")
        if is_graph:
            index.prepare(handle_of(db).driver)
            assert "through HNSW" in index.method(handle_of(db).driver)
        leaks = 0
        for name in names:
            memory = Memory(store, name)
            seen = {
                each.text for each in (*memory.facts(), *memory.recall("this", 5), *memory.recall(None, 5))
            }
            leaks += seen != {f"This is {name!r}."}
            found = store.search(memory.namespace, query="this", limit=99)
            leaks += [item.value["text"] for item in found] != [f"This is {name!r}."]
        assert leaks == 0
        assert users(store) == sorted(names)
        Memory(store, "a.b").forget()
        assert set(users(store)) == set(names) - {"a.b"}


HOSTILE = [
    *("a", "a.", "a.b", "a%", "a%2E", "a\x01", "a\x01b", "a\x02", "a\x02\x03", "a\x7f", "a\u202eb", "a\r\n"),
    *(
        "a\u2028",
        "*",
        "**",
        "facts",
        "summaries",
        "%forgotten",
        "memories",
        "é",
        "e\u0301",
        "É",
        "\uff45",
        " ",
    ),
    *("a/b", "a:b", "a'b", 'a"b', "a\\", "a\\x00", "{a}", "\ufeff", "\x1f" * 200, "." * 200),
    *("😀" * 200, "😀" * 199 + "😁", "😀" * 199),
]
"""User ids with separators, escapes and control characters, those that are labels elsewhere, equal ones to
the eye, and the longest ones."""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("on", BACKENDS)
def test_each_user_is_forgotten_alone_whatever_the_id(on: str) -> None:
    with EMPTY[on]() as url, perdure.connect_sync(url, migrate=True) as db:
        store = db.store()
        for name in HOSTILE:
            Memory(store, name).remember(f"This is {name!r}.")
            Memory(store, name).summarise("t" * 200, f"They talked to {name!r}.")
        left = set(HOSTILE)
        assert users(store) == sorted(left)
        for name in HOSTILE[::2]:
            assert Memory(store, name).forget() == 2, name
            left.remove(name)
        assert users(store) == sorted(left)
        for name in HOSTILE:
            memory = Memory(store, name)
            known: list[Any] = [*memory.facts(), *memory.summaries()]
            assert [each.text for each in known] == [f"This is {name!r}.", f"They talked to {name!r}."] * (
                name in left
            )
            assert (memory.forgotten_at() is None) == (name in left)


def list_names(db: perdure.SyncDatabase) -> set[tuple[str, ...]]:
    """The namespaces in the catalogue, whether they hold items or not."""
    return {labels_of(each.thread) for each in handle_of(db).run(items.read_namespaces("", ()))}


@pytest.mark.parametrize("on", BACKENDS)
def test_no_name_of_a_forgotten_user_stays(on: str) -> None:
    with EMPTY[on]() as url, perdure.connect_sync(url, migrate=True) as db:
        store = db.store(index=perdure.SearchIndex(INDEXES["words"]))
        for name in ("ada", "bob"):
            Memory(store, name).remember("Likes tea.")
            Memory(store, name).summarise("t", "They talked.")
        store.put((*namespace_of("ada"), "other"), "own", {"of": "the application"})
        Memory(store, "ada").forget()
        Memory(store, "none").forget()
        kept = {("memories", "bob", "facts"), ("memories", "bob", "summaries"), ("memories", REMOVALS)}
        assert list_names(db) == kept
        assert [fact.text for fact in Memory(store, "bob").facts()] == ["Likes tea."]
        Memory(store, "ada").remember("Likes cake.")
        assert [fact.text for fact in Memory(store, "ada").facts()] == ["Likes cake."]
