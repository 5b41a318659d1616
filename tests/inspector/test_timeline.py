"""A thread's branches, with the tags of their checkpoints."""

from __future__ import annotations

import asyncio

import perdure
from perdure.database.base import handle_of
from perdure.inspector import timeline
from perdure.inspector.access import LocalAccess
from tests.inspector import staging


def test_a_branch_has_every_tag_of_its_checkpoints() -> None:
    async def main() -> None:
        async with perdure.connect("memory://") as database:
            app = staging.graph().compile(checkpointer=database.checkpointer())
            config = staging.at("t")
            for values in ({"notes": ["a"]}, {"notes": ["b"]}):
                config = await app.aupdate_state(staging.at("t"), values, as_node="plan")
            newest = config["configurable"]["checkpoint_id"]
            (_, oldest) = [each.config async for each in app.aget_state_history(staging.at("t"))]
            first = oldest["configurable"]["checkpoint_id"]
            for name, at in (("one", newest), ("two", newest), ("first", first)):
                await database.tag("t", name, at)
            found = await timeline.branches(LocalAccess(handle_of(database), ""), {"id": "t"})
            assert [branch["tags"] for branch in found["branches"]] == [["first", "one", "two"]]

    asyncio.run(main())
