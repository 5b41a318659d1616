"""Types of the public API as a user's checker sees them; mypy checks this file, and nothing runs it."""

from collections.abc import AsyncIterator, Iterator
from typing import Any, assert_type

import perdure
from perdure import admin


async def awaited() -> None:
    async with perdure.connect("memory://") as db:
        assert_type(db, perdure.Database)
        assert_type(db.tenant, str)
        assert_type(db.checkpointer(allow="listed"), perdure.PerdureSaver)
        assert_type(db.store(), perdure.AsyncPerdureStore)
        assert_type(await db.store().sweep_ttl(), int)
        assert_type(db.threads(), AsyncIterator[perdure.Thread])
        assert_type(await db.tag("ada", "kept", checkpoint_id="c1"), str)
        assert_type(await db.tags("ada"), dict[str, str])
        assert_type(await db.fork("ada", "c1"), str)
        assert_type(await db.show("ada"), perdure.CheckpointView)
        assert_type(await db.timeline("ada", limit=3), list[perdure.CheckpointView])
        assert_type(await db.export("ada"), dict[str, Any])
        assert_type(await db.fsck(), list[perdure.Finding])
        assert_type(await db.repair("ada"), perdure.Repaired)
        assert_type(await db.find_stuck(older=1.0), perdure.Survey)
        assert_type(await db.digest("ada"), perdure.Digest)
        assert_type(await db.measure("ada"), perdure.Measure)
        assert_type(admin.tenants(db), dict[str, int])
        await db.fsck(1)  # type: ignore[arg-type]
        db.no_such_operation()  # type: ignore[attr-defined]


def blocking() -> None:
    with perdure.connect_sync("memory://", tenant="acme") as db:
        assert_type(db, perdure.SyncDatabase)
        assert_type(db.checkpointer(), perdure.PerdureSaver)
        assert_type(db.store(), perdure.PerdureStore)
        assert_type(db.store().sweep_ttl(), int)
        assert_type(db.threads(), Iterator[perdure.Thread])
        assert_type(db.tag("ada", "kept"), str)
        assert_type(db.fork("ada", "c1"), str)
        assert_type(db.show("ada", namespace="inner"), perdure.CheckpointView)
        assert_type(db.fsck("ada"), list[perdure.Finding])
        assert_type(db.measure("ada").channels, dict[str, perdure.ByteCount])
        assert_type(db.find_stuck().stuck, tuple[perdure.Stuck, ...])
        (partition, *_) = admin.partitions(db, tenant=None)
        assert_type(partition, admin.Partition)
        assert_type(admin.move(db, partition, db, dry_run=True), admin.TransferResult)
        db.tag("ada")  # type: ignore[call-arg]
