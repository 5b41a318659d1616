"""Listing of a database's partitions and tenants."""

from __future__ import annotations

import perdure
from perdure import admin
from tests.database.test_database import talk


def test_tenants_are_counted_by_thread() -> None:
    with perdure.connect_sync("memory://", tenant="acme") as db:
        talk(db, "ada", "one")
        talk(db, "bob", "one")
        db.store(tenant="shelf").put(("a",), "k", {"n": 1})
        assert admin.tenants(db) == {"acme": 2, "shelf": 0}
        assert [p.thread for p in admin.partitions(db, "acme")] == ["ada", "bob"]
        assert len(admin.partitions(db, None)) == 3


def test_an_asynchronous_database_is_administered_from_a_thread() -> None:
    import asyncio

    async def main() -> dict[str, int]:
        async with perdure.connect("memory://") as db:
            talk(db, "ada", "one")
            return await asyncio.to_thread(admin.tenants, db)

    assert asyncio.run(main()) == {"": 1}
