"""The public names and their signatures are those of ``tests/surface.txt``."""

from __future__ import annotations

from tools import write_surface


def test_the_surface_is_as_recorded() -> None:
    recorded = write_surface.TARGET.read_text(encoding="utf-8").splitlines()
    assert write_surface.surface().splitlines() == recorded, "if it is meant: python -m tools.write_surface"


def test_signatures_are_part_of_it() -> None:
    lines = write_surface.surface().splitlines()
    assert "    async tags(self, thread_id: str) -> dict[str, str]" in lines
    assert "    tags(self, thread_id: str) -> dict[str, str]" in lines
    assert "partitions(database: Database | SyncDatabase, tenant: str | None) -> list[Partition]" in lines
    assert {"# perdure", "# perdure.admin", "# perdure.errors", "# perdure.runtime"} <= set(lines)
