"""Threads of langgraph-checkpoint-plainredis, made by its own saver, as they are after an import."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from langgraph_checkpoint_plainredis import RedisSaver

import perdure
from perdure.errors import BadUrl, Unavailable
from perdure.imports.plainredis import RedisSource
from tests.imports import parity, threads
from tests.servers import valkey


@pytest.fixture
def url() -> Iterator[str]:
    server = valkey.started()
    yield server.url
    server.stop()


def test_an_import_keeps_every_promise(url: str, tmp_path: Path) -> None:
    with perdure.connect_sync(f"sqlite:///{tmp_path}/new.db", migrate=True) as db:
        stock = RedisSaver(url=url, prefix="mine")
        parity.check(stock, lambda: RedisSource(f"{url}?prefix=mine"), db, forks=False)
        stock.close()


def test_without_the_package_what_was_read_is_compared(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = RedisSaver(url=url)
    made = threads.fill(stock, 2)
    monkeypatch.setattr("perdure.imports.plainredis.find_spec", lambda name: None)
    with perdure.connect_sync(f"sqlite:///{tmp_path}/new.db", migrate=True) as db:
        source = RedisSource(url)
        assert source.verifier == source.name
        assert {r.state for r in parity.imported(source, db)} == {"imported"}
        source.close()
        for thread in made:
            assert threads.raw(db.checkpointer(), thread) == threads.raw(stock, thread)
    stock.close()


def test_the_registry_is_read_once_and_again_when_it_has_grown(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = RedisSaver(url=url)
    threads.fill(stock, 6)
    source = RedisSource(url)
    reads = 0
    real = source._client.hvals  # the one command that returns all of it

    def hvals(name: str) -> object:
        nonlocal reads
        reads += 1
        return real(name)

    monkeypatch.setattr(source._client, "hvals", hvals)
    with perdure.connect_sync("memory://") as db:
        assert len(parity.imported(source, db)) == 6
        assert reads == 1
        threads.SHAPES["finished"].make(threads.talk(stock), "later")
        assert len(source.outline("later").checkpoints) > 3
        assert reads == 2
    source.close()
    stock.close()


def test_another_saver_s_keys_are_refused_by_name(url: str) -> None:
    with pytest.raises(BadUrl, match="no keys of langgraph-checkpoint-plainredis under the prefix 'lg'"):
        RedisSource(url)
    valkey_client = RedisSaver(url=url).client
    valkey_client.set("checkpoint:a:__empty__:1", "{}")
    with pytest.raises(BadUrl, match="RedisJSON and RediSearch"):
        RedisSource(url)
    valkey_client.close()
    with pytest.raises(Unavailable, match="cannot be read"):
        RedisSource("redis://127.0.0.1:1/0")
