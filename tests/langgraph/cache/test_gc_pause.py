"""Pausing the cycle collector: nested, from several threads, and never against the program's own choice."""

from __future__ import annotations

import gc
from threading import Barrier, Thread

import pytest

from perdure.langgraph.cache.gc_pause import collection_paused


def test_the_collector_is_off_inside_and_on_again_after() -> None:
    assert gc.isenabled()
    with collection_paused:
        assert not gc.isenabled()
        with collection_paused:
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_ends_the_pause() -> None:
    with pytest.raises(ZeroDivisionError), collection_paused:
        raise ZeroDivisionError
    assert gc.isenabled()


def test_a_program_that_turned_the_collector_off_finds_it_off() -> None:
    gc.disable()
    try:
        with collection_paused:
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_last_of_several_threads_ends_the_pause() -> None:
    inside, leave = Barrier(5), Barrier(5)
    seen: list[bool] = []

    def work() -> None:
        with collection_paused:
            inside.wait(60)
            seen.append(gc.isenabled())
            leave.wait(60)

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    inside.wait(60)
    assert not gc.isenabled()
    leave.wait(60)
    for thread in threads:
        thread.join(60)
    assert seen == [False] * 4
    assert gc.isenabled()
