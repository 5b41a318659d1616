"""A thread's size is that of its records, and each channel has its part of it."""

from __future__ import annotations

from typing import Any

import pytest

import perdure
from perdure.database.base import handle_of
from perdure.engine.complete_reads import read_all
from perdure.engine.threads.measure import Measure, measure
from perdure.model.ops import Range
from perdure.model.program import Program
from perdure.model.records import BLOB, CHECKPOINT, CHUNK, PACK, WRITE, Partition
from perdure.model.values.packs import read_pack
from perdure.model.write_records import read_writes
from tests import houses
from tests.houses import seen

LIVES = (houses.conversation, houses.questions, houses.subgraphs, houses.pruned, houses.odd_values)


def measured(db: perdure.SyncDatabase, thread: str) -> Measure:
    return handle_of(db).run(measure(Partition("", thread), handle_of(db).digest))


@pytest.mark.parametrize("live", LIVES, ids=lambda live: live.__name__)
def test_the_total_is_what_is_stored(live: Any) -> None:
    with perdure.connect_sync("memory://") as db:
        live(db.checkpointer(), "a", db)
        kinds = (CHECKPOINT, CHUNK, WRITE, BLOB, PACK)
        stored = handle_of(db).run(read_all(Partition("", "a"), *map(Range, kinds)))
        found = measured(db, "a")
        total = sum(len(record.body) for records in stored for record in records)
        # A task's writes that are stored by another thread after the chunks were packed store theirs again.
        packed = [name for pack in stored[4] for name in read_pack(pack, handle_of(db).digest).chunks]
        names = [*packed, *(record.key[0] for record in stored[1])]
        if len(names) == len(set(names)):
            assert found.total == total
        else:
            assert found.total < total
        assert found.checkpoints.count == len(stored[0]) == len(seen(db, "", "a")) or live is houses.subgraphs
        assert found.writes.count == len(read_writes(stored[2]))
        assert 0 < found.values.bytes < found.total
        assert max(part.bytes for part in found.channels.values()) <= found.values.bytes
        assert found.values.bytes <= sum(part.bytes for part in found.channels.values())


def test_a_large_channel_is_named_and_shared_history_counts_once() -> None:
    with perdure.connect_sync("memory://") as db:
        houses.conversation(db.checkpointer(), "a", db)
        found = measured(db, "a")
        assert max(found.channels, key=lambda name: found.channels[name].bytes) == "messages"
        assert 600_000 < found.channels["messages"].bytes < 3_000_000


def test_an_empty_thread_is_empty() -> None:
    with perdure.connect_sync("memory://") as db:
        assert measured(db, "none").total == 0


def test_a_thread_that_is_pruned_meanwhile_is_measured_anew() -> None:
    with perdure.connect_sync("memory://") as db:
        houses.conversation(db.checkpointer(), "a", db)

        def interrupted(times: int) -> Program[Measure]:
            """Prunes before chunks are fetched."""
            program = measure(Partition("", "a"), handle_of(db).digest)
            answer = None
            while True:
                try:
                    effect = program.send(answer)
                except StopIteration as end:
                    return end.value
                if times and any(
                    getattr(item, "kind", None) is CHUNK for item in getattr(effect, "items", ())
                ):
                    times -= 1
                    db.checkpointer().delete_thread("a")
                answer = yield effect

        assert handle_of(db).run(interrupted(1)).total == 0
