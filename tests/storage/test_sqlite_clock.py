"""The time of a file goes on evenly although its host's clock is set."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from perdure.model.ops import Now
from perdure.storage.port import Driver
from perdure.storage.sqlite import driver, host_clock

HOUR_US = 3600 * 1_000_000
MINUTE_US = 60 * 1_000_000

Jump = Callable[[int], None]


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    driver.migrate(url)
    return url


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Jump:
    """Sets the host's clock, by so many microseconds."""
    real = time.time_ns

    def jump(by: int) -> None:
        monkeypatch.setattr(time, "time_ns", lambda: real() + by * 1000)

    return jump


def now(of: Driver) -> int:
    return of.perform(Now())


def is_near(one: int, other: int) -> bool:
    """Whether less than the time that a test takes is between them."""
    return abs(one - other) < MINUTE_US


@pytest.mark.parametrize("by", [HOUR_US, -HOUR_US])
def test_the_time_goes_on_when_the_hosts_clock_is_set(url: str, host: Jump, by: int) -> None:
    with closing(driver.open_driver(url)) as before:
        began = now(before)
        assert is_near(began, time.time_ns() // 1000)
        host(by)
        assert 0 <= now(before) - began < MINUTE_US
        # Who opens the file after that shares it.
        with closing(driver.open_driver(url)) as after:
            assert 0 <= now(after) - began < MINUTE_US


def test_a_host_that_was_started_again_decides_anew(
    url: str, host: Jump, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(driver.open_driver(url)) as opened:
        began = now(opened)
    host(HOUR_US)
    boot = tmp_path / "boot_id"
    boot.write_text("another start\n")
    monkeypatch.setattr(host_clock, "_BOOT_ID", boot)
    with closing(driver.open_driver(url)) as opened:
        assert is_near(now(opened), began + HOUR_US)


@pytest.mark.parametrize("content", [None, b"", b"\xff"])
def test_a_host_that_does_not_name_its_start_is_gone_by_as_it_is(
    url: str, host: Jump, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "boot_id").write_bytes(content)
    monkeypatch.setattr(host_clock, "_BOOT_ID", tmp_path / "boot_id")
    with closing(driver.open_driver(url)) as opened:
        began = now(opened)
        host(HOUR_US)
        assert is_near(now(opened), began + HOUR_US)


def test_processes_that_open_a_file_at_once_agree(url: str, host: Jump) -> None:
    hours = iter(range(-8, 8))

    def opened(_: int) -> int:
        host(next(hours) * HOUR_US)
        with closing(driver.open_driver(url)) as one:
            return now(one)

    with ThreadPoolExecutor(16) as pool:
        times = list(pool.map(opened, range(16)))
    assert max(times) - min(times) < MINUTE_US


def test_a_row_that_is_no_offset_is_written_anew(url: str) -> None:
    with closing(driver.connect(driver.file_of(url))) as connection:
        with closing(driver.open_driver(url)):
            pass
        connection.execute("UPDATE perdure_clock SET ahead = 'soon'")
    with closing(driver.open_driver(url)) as opened:
        assert is_near(now(opened), time.time_ns() // 1000)
