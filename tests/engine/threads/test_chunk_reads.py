"""A reader keeps all chunks of a long thread, and looks up those that are asked for."""

from __future__ import annotations

from typing import NoReturn

from perdure.engine.threads.chunk_reads import ChunkReader
from perdure.model.records import Partition
from perdure.model.values.chunks import Digester
from perdure.storage.memory import MemoryDriver
from perdure.storage.port import run


class LookedUp(dict[bytes, bytes]):
    """Chunks that nobody goes through: a thread of many steps is read by as many requests."""

    def keys(self) -> NoReturn:
        raise AssertionError("all chunks are gone through")


def test_what_is_kept_is_not_gone_through_for_each_request() -> None:
    reader = ChunkReader(Partition("", "t"), Digester())
    reader.hold(())
    reader.bodies = LookedUp({b"%d" % n: b"body" for n in range(3)})
    assert run(reader.find([b"1", b"2"]), MemoryDriver()) == {b"1": b"body", b"2": b"body"}
