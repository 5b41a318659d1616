"""Namespaces of users: injective, and one user's items never another's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perdure
from perdure.memory import Memory, namespace_of, users
from perdure.memory.users import user_of_namespace
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


def test_of_many_look_alikes_none_sees_anothers() -> None:
    count = how_many(60, 1000)
    names = look_alikes(count)
    assert len(set(names)) == count

    def embed(texts: list[str]) -> list[list[float]]:
        return [[1.0, 0.5] for _ in texts]

    with perdure.connect_sync("memory://") as db:
        store = db.store(index={"dims": 2, "embed": embed})
        for name in names:
            Memory(store, name).remember(f"This is {name!r}.")
        leaks = 0
        for name in names:
            memory = Memory(store, name)
            seen = {
                each.text for each in (*memory.facts(), *memory.recall("who", 5), *memory.recall(None, 5))
            }
            leaks += seen != {f"This is {name!r}."}
        assert leaks == 0
        assert users(store) == sorted(names)
        Memory(store, "a.b").forget()
        assert set(users(store)) == set(names) - {"a.b"}
