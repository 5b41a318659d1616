"""A run's checkpoints are removed from every thread, however many there are."""

import pytest

from perdure.engine import retention
from perdure.storage.memory import MemoryDriver
from perdure.testing.conformance import Backend
from perdure.testing.conformance.backend import at


def test_a_run_of_more_checkpoints_than_a_page_is_removed_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_PAGE", 4)
    backend = Backend(MemoryDriver())
    saver = backend.saver()
    for thread in ("t1", "t2", "t3"):
        for n in range(6):
            place = at(f"c{n - 1}" if n else None, thread=thread)
            run_id = "run" if n else "other"
            checkpoint = {"v": 4, "id": f"c{n}", "ts": "", "channel_values": {}, "channel_versions": {}}
            saver.put(place, {**checkpoint, "versions_seen": {}}, {"run_id": run_id}, {})
    saver.delete_for_runs(["run"])
    for thread in ("t1", "t2", "t3"):
        assert [c.checkpoint["id"] for c in saver.list(at(thread=thread))] == ["c0"]
        found = backend.saver().get_tuple(at(thread=thread))
        assert found is not None
        assert found.checkpoint["id"] == "c0"
