"""Rotations beside live runs, of processes with the old key alone, with both, or with a file of keys."""

from __future__ import annotations

from pathlib import Path

import pytest
from langchain_core.runnables import RunnableConfig

import perdure
from perdure import admin
from perdure.errors import DecryptionError, KeyMissing
from perdure.keys import FileKeys
from tests.runtime.graphs import Heard, Talk, eventually, go, settings, working

pytest.importorskip("cryptography", reason='pip install "perdure[encryption]"')

OLD, NEW = bytes(range(32)), bytes(range(32, 64))


def test_what_the_new_key_sealed_is_left_to_those_that_have_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    late, ready = Talk(), Talk()

    async def main() -> None:
        with (
            perdure.connect_sync(url, migrate=True, encryption_key=OLD) as before,
            perdure.connect_sync(url, encryption_key=[NEW, OLD]) as after,
        ):
            admin.rotate_keys(after, data_key=True)
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


def test_a_state_that_the_new_key_sealed_costs_no_message_its_attempts(tmp_path: Path) -> None:
    """The message, and the run before it, are of the old data key; the state was changed by a process with
    the new one."""
    url = f"sqlite:///{tmp_path}/t.db"
    late, ready, heard = Talk(), Talk(), Heard()

    async def main() -> None:
        with (
            perdure.connect_sync(url, migrate=True, encryption_key=OLD) as before,
            perdure.connect_sync(url, encryption_key=[NEW, OLD]) as after,
        ):
            options = {"settings": settings(poll=0.05, attempts=2), "observers": [heard]}
            async with working(before, late.graph, **options) as behind:
                assert (await behind.wait(await behind.accept("ada", "one"), 60.0)).state == "done"
                admin.rotate_keys(after, data_key=True)
                async with working(after, ready.graph, works=False) as front:
                    at: RunnableConfig = {"configurable": {"thread_id": "ada"}}
                    await front.graph("agent").aupdate_state(at, {"heard": ["changed"]}, as_node="talk")
                ticket = await behind.accept("ada", "two")
                await eventually(lambda: heard.count("run.attempt_failed") > 4)
            async with working(after, ready.graph) as worker:
                assert (await worker.wait(ticket, 60.0)).state == "done"
            assert late.calls == [("ada", "one")]
            assert ready.calls == [("ada", "two")]

    go(main())


def test_keys_are_rotated_beside_live_runs_and_the_old_key_is_removed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    path = tmp_path / "keys"
    path.write_text(OLD.hex())
    talk, late = Talk(), Talk()

    async def main() -> None:
        with perdure.connect_sync(url, migrate=True, encryption_key=FileKeys(path)) as live:
            async with working(live, talk.graph, settings=settings(poll=0.05)) as worker:
                tickets = [await worker.accept(f"t{n}", "before") for n in range(5)]
                path.write_text(f"{NEW.hex()}\n{OLD.hex()}")
                with perdure.connect_sync(url, encryption_key=FileKeys(path)) as other:
                    admin.rotate_keys(other, data_key=True)
                    path.write_text(NEW.hex())
                    async with working(other, talk.graph, works=False) as front:
                        tickets += [await front.accept(f"t{n}", "after") for n in range(5)]
                for ticket in tickets:
                    assert (await worker.wait(ticket, 60.0)).state == "done"
        with perdure.connect_sync(url, encryption_key=NEW) as again:
            async with working(again, late.graph) as worker:
                for n in range(5):
                    ticket = await worker.accept(f"t{n}", "at last")
                    assert (await worker.wait(ticket, 60.0)).state == "done"
            for n in range(5):
                found = again.checkpointer().get_tuple({"configurable": {"thread_id": f"t{n}"}})
                assert found is not None
                assert found.checkpoint["channel_values"]["heard"] == ["before", "after", "at last"]
        with pytest.raises(KeyMissing, match="needs the key"):
            perdure.connect_sync(url, encryption_key=OLD).__enter__()

    go(main())
