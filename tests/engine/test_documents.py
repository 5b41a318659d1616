"""Documents are replaced over what was read and over nothing else, on every backend.

Covers perdure.engine.requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from perdure.engine import documents
from perdure.engine.documents import Document
from perdure.engine.transact import ATTEMPTS
from perdure.errors import Contention, DecryptionError, TooLarge, Unserialisable
from perdure.model.ops import Commit, Drop, Expect
from perdure.model.program import Effect
from perdure.model.records import DOCUMENT, SERVER, Partition
from perdure.model.runs.messages import MESSAGE_MAX
from perdure.storage.encryption import DataKeys, EncryptedDriver, Keyring
from perdure.storage.key_providers import LocalKeys
from perdure.storage.memory import MemoryDriver
from perdure.storage.port import Driver, run
from perdure.storage.stored_keys import load_or_create_keys
from perdure.testing.conformance import rows
from perdure.testing.faults import FaultyDriver
from tests import backends

AT = Partition("acme", "threads", SERVER)
FRESH = 1 << 24
NOW = 1_700_000_000_000_000


@pytest.fixture
def driver() -> MemoryDriver:
    return MemoryDriver()


@pytest.fixture(params=backends.BACKENDS)
def anywhere(request: pytest.FixtureRequest) -> Iterator[Driver]:
    with backends.fresh(request.param) as driver:
        yield driver


def put(driver: Driver, name: str, expect: Any = Expect.ABSENT, now: int = NOW, **body: Any) -> Any:
    return run(documents.put(AT, "c", name, body, now, expect, fresh=FRESH), driver)


def get(driver: Driver, name: str) -> Document | None:
    return run(documents.get(AT, "c", name), driver)


def names(driver: Driver, limit: int = 100) -> list[str]:
    return [d.name for d in run(documents.list_newest(AT, "c", limit), driver)]


def test_a_document_is_set_over_what_was_read_and_over_nothing_else(driver: MemoryDriver) -> None:
    assert get(driver, "a") is None
    first = put(driver, "a", n=1)
    assert first == get(driver, "a") == Document("a", {"n": 1}, NOW, FRESH)
    assert put(driver, "a", n=2) is None
    assert put(driver, "a", FRESH - 1, n=2) is None
    second = put(driver, "a", FRESH, NOW + 1, n=2)
    assert second == get(driver, "a") == Document("a", {"n": 2}, NOW + 1, second.version)
    assert second.version > FRESH
    assert put(driver, "a", FRESH, n=3) is None
    assert get(driver, "a") == second
    assert put(driver, "b", FRESH) is None
    assert get(driver, "b") is None


def test_without_a_version_it_is_still_set_over_what_stands_there(driver: MemoryDriver) -> None:
    assert put(driver, "a", Expect.PRESENT, n=1) is None
    assert get(driver, "a") is None
    for number, expect in enumerate((Expect.ANY, Expect.ANY, Expect.PRESENT)):
        fresh = FRESH + 100 * number
        program = documents.put(AT, "c", "a", {"n": number}, NOW, expect, fresh=fresh)
        assert run(program, driver) == get(driver, "a") == Document("a", {"n": number}, NOW, fresh)
    assert put(driver, "a", FRESH, n=9) is None


def test_collections_partitions_and_names_are_apart(driver: MemoryDriver) -> None:
    put(driver, "a", n=1)
    for at, collection, name in (
        (AT, "d", "a"),
        (AT._replace(thread="t"), "c", "a"),
        (AT._replace(space="thread"), "c", "a"),
    ):
        assert run(documents.get(at, collection, name), driver) is None
        assert run(documents.list_newest(at, collection, 9), driver) == ()
        assert not run(documents.remove(at, collection, name), driver)
    assert get(driver, "a") is not None


def test_one_that_was_removed_and_made_anew_is_not_met_under_an_old_version(driver: MemoryDriver) -> None:
    old = put(driver, "a", n=1)
    assert run(documents.remove(AT, "c", "a"), driver)
    assert not run(documents.remove(AT, "c", "a"), driver)
    assert get(driver, "a") is None
    new = run(documents.put(AT, "c", "a", {"n": 9}, NOW, Expect.ABSENT, fresh=2 * FRESH), driver)
    assert new == Document("a", {"n": 9}, NOW, 2 * FRESH)
    assert put(driver, "a", old.version, n=2) is None
    assert get(driver, "a") == new


def test_a_change_that_lost_is_computed_anew_from_what_stands_there(driver: MemoryDriver) -> None:
    put(driver, "n", n=0)
    seen: list[int] = []

    def other(number: int, effect: Effect[Any]) -> None:
        if isinstance(effect, Commit) and len(seen) < 3:
            now = get(driver, "n")
            assert now is not None
            assert put(driver, "n", now.version, n=now.body["n"] + 10) is not None

    def one_more(before: Document | None) -> Mapping[str, Any]:
        assert before is not None
        seen.append(before.body["n"])
        return {"n": before.body["n"] + 1}

    program = documents.change(AT, "c", "n", one_more, NOW + 5, FRESH)
    after = run(program, FaultyDriver(driver, on_effect=other))
    assert seen == [0, 10, 20]
    assert after is not None
    assert after == get(driver, "n") == Document("n", {"n": 21}, NOW + 5, after.version)


def test_a_change_that_always_loses_gives_up(driver: MemoryDriver) -> None:
    tries: list[int] = []

    def other(number: int, effect: Effect[Any]) -> None:
        if isinstance(effect, Commit):
            program = documents.put(AT, "c", "n", {"n": -1}, NOW, Expect.ANY, fresh=FRESH + 1 + len(tries))
            run(program, driver)

    def one(before: Document | None) -> Mapping[str, Any]:
        tries.append(1)
        return {"n": 1}

    with pytest.raises(Contention, match="try again"):
        run(documents.change(AT, "c", "n", one, NOW, FRESH), FaultyDriver(driver, on_effect=other))
    assert len(tries) == ATTEMPTS


def test_a_change_may_make_a_document_or_leave_things_as_they_are(driver: MemoryDriver) -> None:
    assert run(documents.change(AT, "c", "a", lambda before: None, NOW, FRESH), driver) is None
    assert get(driver, "a") is None
    made = run(documents.change(AT, "c", "a", lambda before: {"had": before is not None}, NOW, FRESH), driver)
    assert made == get(driver, "a") == Document("a", {"had": False}, NOW, FRESH)
    kept = run(documents.change(AT, "c", "a", lambda before: None, NOW + 1, FRESH), driver)
    assert kept == made == get(driver, "a")
    emptied = run(documents.change(AT, "c", "a", lambda before: {}, NOW + 1, FRESH), driver)
    assert emptied is not None
    assert emptied == get(driver, "a") == Document("a", {}, NOW + 1, emptied.version)


def test_what_is_answered_is_what_the_next_reader_is_told(driver: MemoryDriver) -> None:
    body = {"list": [1]}
    stored = run(documents.put(AT, "c", "a", body, NOW, Expect.ABSENT, fresh=FRESH), driver)
    body["list"].append(2)
    assert stored is not None
    assert stored.body == {"list": [1]}
    assert put(driver, "t", pair=(1, 2)).body == {"pair": [1, 2]}


def test_the_newest_come_first(driver: MemoryDriver) -> None:
    for name, now in (("old", 1), ("x", 5), ("y", 5), ("z", 5), ("new", 9)):
        put(driver, name, now=NOW + now)
    found = names(driver)
    assert (found[0], sorted(found[1:4]), found[4]) == ("new", ["x", "y", "z"], "old")
    assert names(driver, 2) == found[:2]
    put(driver, "old", FRESH, NOW + 10)
    assert names(driver, 1) == ["old"]


@pytest.mark.parametrize("body", [{"x": object()}, {"x": float("nan")}])
def test_what_is_no_plain_data_is_refused_and_nothing_stored(driver: MemoryDriver, body: Any) -> None:
    with pytest.raises(Unserialisable, match="a document has to be plain JSON"):
        put(driver, "a", **body)
    assert get(driver, "a") is None


def test_half_an_emoji_comes_back_as_it_was_put(driver: Driver) -> None:
    put(driver, "a", x="cut \ud83d")
    found = get(driver, "a")
    assert found is not None
    assert found.body == {"x": "cut \ud83d"}


def test_a_document_has_a_largest_size(driver: Driver) -> None:
    largest = "x" * (MESSAGE_MAX - len('{"x":""}'))
    assert put(driver, "a", x=largest) is not None
    with pytest.raises(TooLarge, match=f"a document has {MESSAGE_MAX + 1} bytes"):
        put(driver, "a", FRESH, x=largest + "x")
    found = get(driver, "a")
    assert found is not None
    assert found.version == FRESH


def test_documents_in_the_clear_admit_no_key(driver: MemoryDriver) -> None:
    pytest.importorskip("cryptography", reason='pip install "perdure[encryption]"')
    keyring = Keyring(DataKeys.create(0))
    put(driver, "a", n=1)
    with pytest.raises(DecryptionError, match="in the clear"):
        load_or_create_keys(driver, LocalKeys((bytes(32),)), "memory://")
    with pytest.raises(
        DecryptionError, match="what the server keeps as 'threads': document c/a is stored in the clear"
    ):
        get(EncryptedDriver(driver, keyring), "a")
    other = MemoryDriver()
    put(EncryptedDriver(other, keyring), "a", n=1)
    with pytest.raises(DecryptionError, match="document c/a is encrypted; pass its key"):
        get(EncryptedDriver(other, None), "a")


def test_every_backend_keeps_documents(anywhere: Driver) -> None:
    driver = anywhere
    pytest.importorskip("cryptography", reason='pip install "perdure[encryption]"')
    sealed = EncryptedDriver(driver, Keyring(DataKeys.create(0)))
    largest = "x" * (MESSAGE_MAX - len('{"x":""}'))
    for door, at in ((driver, AT), (sealed, AT._replace(thread="sealed"))):
        for n, name in enumerate(rows.NAMES):
            body = {"text": name, "n": n}
            assert run(documents.put(at, "c", name, body, NOW + n, Expect.ABSENT, fresh=FRESH), door)
        assert run(documents.put(at, "c", "a", {}, NOW, Expect.ABSENT, fresh=FRESH), door) is None
        found = run(documents.list_newest(at, "c", 100), door)
        assert [(d.name, d.body["text"]) for d in found] == [(name, name) for name in rows.NAMES[::-1]]

        def larger(before: Document | None) -> Mapping[str, Any]:
            assert before is not None
            return {"x": largest}

        changed = run(documents.change(at, "c", "é", larger, NOW + 99, FRESH), door)
        assert changed is not None
        assert changed == run(documents.get(at, "c", "é"), door)
        assert changed is not None
        assert changed == Document("é", {"x": largest}, NOW + 99, changed.version)
        assert [d.name for d in run(documents.list_newest(at, "c", 1), door)] == ["é"]
        assert run(documents.remove(at, "c", "é"), door)
        assert not run(documents.remove(at, "c", "é"), door)
        assert len(run(documents.list_newest(at, "c", 100), door)) == len(rows.NAMES) - 1
        driver.perform(Drop(at))
        assert run(documents.list_newest(at, "c", 100), door) == ()
        assert rows.get(driver, DOCUMENT, "c", "a", at=at) is None


def test_a_document_read_before_a_loss_replaces_none_since() -> None:
    lost, restored = MemoryDriver(), MemoryDriver()
    for driver in (lost, restored):
        put(driver, "a", n=1)
    read_before = put(lost, "a", FRESH, now=NOW + 1, n=2)
    since = put(restored, "a", FRESH, now=NOW + 2, n=3)
    assert put(restored, "a", read_before.version, n=4) is None
    assert run(documents.get(AT, "c", "a"), restored) == since
