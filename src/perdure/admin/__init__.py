"""Operations on whole databases: list, compare, move, archive, check, and rotate keys.

>>> with perdure.connect_sync(OLD) as old, perdure.connect_sync(NEW, migrate=True) as new:
...     for partition in admin.partitions(old, tenant=None):
...         admin.move(old, partition, new)

These functions take a ``Database`` or a ``SyncDatabase`` and block until they are done; in a program with an
event loop, call them by ``asyncio.to_thread``.
"""

from perdure.admin.databases import (
    count_by_data_key,
    encryption_keys,
    examine,
    new_archive,
    open_archive,
    partitions,
    rotate_keys,
    tenants,
)
from perdure.admin.moving import digest_of, move
from perdure.engine.threads.thread_digest import Digest
from perdure.engine.transfer.transfer_terms import State, TransferResult
from perdure.model.records import Partition
from perdure.storage.stored_keys import DataKey, EncryptionKeys

__all__ = [
    "DataKey",
    "Digest",
    "EncryptionKeys",
    "Partition",
    "State",
    "TransferResult",
    "count_by_data_key",
    "digest_of",
    "encryption_keys",
    "examine",
    "move",
    "new_archive",
    "open_archive",
    "partitions",
    "rotate_keys",
    "tenants",
]
