"""Processes of which one has not been given the new key yet."""

from __future__ import annotations

from pathlib import Path

import pytest

import perdure
from perdure.errors import DecryptionError
from tests.runtime.graphs import Talk, go, settings, working

OLD, NEW = bytes(range(32)), bytes(range(32, 64))


def test_what_the_new_key_sealed_is_left_to_those_that_have_it(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason='pip install "perdure[encryption]"')
    url = f"sqlite:///{tmp_path}/t.db"
    late, ready = Talk(), Talk()

    async def main() -> None:
        with (
            perdure.connect_sync(url, migrate=True, encryption_key=OLD) as before,
            perdure.connect_sync(url, encryption_key=[NEW, OLD]) as after,
        ):
            async with working(before, late.graph, settings=settings(poll=0.05)) as behind:
                async with working(after, ready.graph, works=False) as front:
                    ticket = await front.accept("ada", "hello")
                    with pytest.raises(DecryptionError):
                        await behind.wait(ticket, 30.0)
                assert late.calls == []
                async with working(after, ready.graph) as worker:
                    assert (await worker.wait(ticket, 60.0)).state == "done"
            assert late.calls == []
            assert [thread for thread, _ in ready.calls] == ["ada"]

    go(main())
