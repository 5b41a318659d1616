"""Notes in an encrypted store, and a provider of keys that fails, blocks or lies as a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import perdure
from perdure import admin
from perdure.model.ops import Fetch, Get
from perdure.model.records import ITEM, SEAL
from perdure.model.store_items import partition_of
from perdure.model.values.compression import SEALED
from perdure.storage.key_providers import LocalKeys
from perdure.storage.url import open_driver

OLD, NEW, OTHER = bytes(range(32)), bytes(range(32, 64)), bytes(range(64, 96))
PLACE = Get(SEAL, ("key",))


class Provider:
    """Keys in memory, whose calls are counted, and fail, block or lie as a test wants."""

    def __init__(self, *keys: bytes) -> None:
        self.inner = LocalKeys(keys)
        self.calls: list[str] = []
        self.before: Callable[[str], object] = lambda _: None
        self.answer: bytes | None = None

    async def wrap(self, plain: bytes) -> tuple[str, bytes]:
        self.calls.append("wrap")
        self.before("wrap")
        return await self.inner.wrap(plain)

    async def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        self.calls.append("unwrap")
        self.before("unwrap")
        return self.answer or await self.inner.unwrap(key_id, wrapped)


def id_of(key: bytes) -> str:
    return asyncio.run(LocalKeys([key]).wrap(bytes(32)))[0]


def say(db: perdure.SyncDatabase, name: str, value: str) -> None:
    db.store().put(("notes",), name, {"text": value})


def heard(db: perdure.SyncDatabase, name: str) -> str:
    found = db.store().get(("notes",), name)
    assert found is not None
    text: str = found.value["text"]
    return text


def data_key_of(url: str, name: str) -> str:
    """The id of the data key with which an item of the store was encrypted."""
    driver = open_driver(url)
    try:
        ((record,),) = driver.perform(Fetch(partition_of("", ("notes",)), (Get(ITEM, (name,)),)))
    finally:
        driver.close()
    return record.body[len(SEALED) :][:4].hex()


def key_file(folder: Path, *keys: bytes) -> Path:
    path = folder / "keys"
    path.write_text("\n".join(key.hex() for key in keys))
    return path


def keys_in(db: perdure.SyncDatabase) -> admin.EncryptionKeys:
    found = admin.encryption_keys(db)
    assert found is not None
    return found
