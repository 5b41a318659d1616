"""The users of a thread are those of all of its runs, and few of its checkpoints are read for them."""

from __future__ import annotations

from typing import Any

from langgraph.graph import START, MessagesState, StateGraph

from perdure.database.base import handle_of
from perdure.engine.threads import history
from perdure.model.records import Partition
from perdure.runtime.operations.thread_search import ThreadQuery, search
from perdure.runtime.operations.walk_by_activity import ThreadWalk
from perdure.runtime.threads.user_and_title import read_users
from tests.runtime.graphs import Storage, go


def test_one_checkpoint_of_each_run_is_read(near: Storage) -> None:
    async def main() -> None:
        database = near.database()
        builder = StateGraph(MessagesState)
        before = START
        for name in "abcdefgh":
            builder.add_node(name, lambda state: {}).add_edge(before, name)
            before = name
        graph: Any = builder.compile(checkpointer=database.checkpointer())
        for number, user in enumerate(("ada", "bob", "ada")):
            config: Any = {"configurable": {"thread_id": "t", "user_id": user}}
            config["metadata"] = {"run_id": f"run-{number}"}
            await graph.ainvoke({"messages": [("user", user)]}, config)
        handle = handle_of(database)
        partition = Partition("", "t")
        names = await handle.arun(history.list_newest_of_runs(partition, ""))
        assert len(names) == 3 * len(("input", "loop"))
        assert await handle.arun(read_users(partition)) == {"ada", "bob"}
        walk = ThreadWalk(handle, "")
        for user, found in (("ada", True), ("bob", True), ("eve", False)):
            matches = [each async for each in search(walk, ThreadQuery(user=user)) if each.row is not None]
            assert [each.users for each in matches] == [{"ada", "bob"}] * found

    go(main())
