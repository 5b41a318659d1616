"""Sessions of chats are removed with the user whose chat it was."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from langgraph.graph import START, MessagesState, StateGraph

from perdure.channels.addresses import ChatAddress, user_of
from perdure.channels.sessions import Sessions
from perdure.database.base import handle_of
from perdure.engine.retention.thread_removal import delete_thread
from perdure.model.ops import Check, FindThreads
from perdure.model.program import ask
from perdure.model.records import CHAT_SESSIONS, SERVER, Partition
from perdure.runtime import Options, Runtime
from perdure.runtime.operations.user_removal import RemovalTerms, UserData, remove_user
from perdure.runtime.operations.walk_by_activity import ThreadWalk
from tests.backends import BACKENDS
from tests.runtime.graphs import Storage, go, settings, stored

CHATS = {"private": ("4711", "", "4711"), "topic": ("4711", "7", "4711"), "channel": ("D1", "", "U1")}


@pytest.mark.parametrize("on", BACKENDS)
@pytest.mark.parametrize("kind", CHATS)
def test_the_sessions_of_a_chat_go_with_the_user_who_wrote_there_alone(on: str, kind: str) -> None:
    chat, topic, sender = CHATS[kind]
    user, graph = user_of("chat", chat, sender), StateGraph(MessagesState)
    graph.add_node("answer", lambda state: {}).add_edge(START, "answer")

    async def main(storage: Storage) -> None:
        database = storage.database()
        handle = handle_of(database)

        async def remove_thread(thread_id: str, checks: Sequence[Check]) -> bool:
            return await handle.arun(delete_thread(Partition("", thread_id), checks))

        async def list_chats() -> list[str]:
            program = ask(FindThreads("", space=SERVER, prefix=CHAT_SESSIONS))
            return [hit.partition.thread.removeprefix(CHAT_SESSIONS) for hit in await handle.arun(program)]

        async with Runtime(database, graph.compile(), settings=settings(), observers=()) as runtime:
            sessions = Sessions(runtime, "", "chat")
            others = {("47", ""), ("47111", ""), ("-100", "")}
            for place in {(chat, topic), *others}:
                assert await sessions.begin(*place, 5, 5)
            for name, writer in {(chat, user), ("-100", user_of("chat", "-100", "9"))}:
                thread = ChatAddress("chat", name, topic if name == chat else "", "5").thread_id
                options = Options(config={"configurable": {"user_id": writer}})
                await runtime.wait(await runtime.accept(thread, "hello", options=options), 30)
            for each in (user, user_of("chat", "-100", sender)):
                terms = RemovalTerms(UserData((), (), (), {}), remove_thread, remove_thread)
                async for _ in remove_user(ThreadWalk(handle, ""), each, terms):
                    pass
            kept = {ChatAddress("chat", *place).thread_id for place in others}
            assert set(await list_chats()) == kept, "one in which somebody else writes stays"

    with stored(on) as storage:
        go(main(storage))
