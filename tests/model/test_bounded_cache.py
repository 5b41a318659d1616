from threading import Thread

from hypothesis import given
from hypothesis import strategies as st

from perdure.model.bounded_cache import BoundedCache


@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 7), st.integers())))
def test_the_entries_that_were_set_last_are_kept(most: int, sets: list[tuple[int, int]]) -> None:
    cache: BoundedCache[int, int] = BoundedCache(most)
    for key, value in sets:
        cache[key] = value
    latest = list(dict.fromkeys(key for key, _ in reversed(sets)))[:most]
    assert list(cache.items()) == [(key, dict(sets)[key]) for key in reversed(latest)]


def test_a_default_counts_as_set() -> None:
    cache: BoundedCache[str, list[int]] = BoundedCache(2)
    for key in "abc":
        cache.setdefault(key, []).append(1)
    assert dict(cache) == {"b": [1], "c": [1]}


def test_threads_may_set_the_same_entries() -> None:
    cache: BoundedCache[int, int] = BoundedCache(3)
    failed: list[Exception] = []

    def fill() -> None:
        try:
            for number in range(20_000):
                cache[number % 7] = number
        except Exception as error:
            failed.append(error)

    threads = [Thread(target=fill) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(cache) <= 3
