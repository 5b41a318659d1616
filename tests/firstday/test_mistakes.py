"""Mistakes of a first day: each is refused with the thing and the remedy, and changes nothing.

Covers perdure.database.unopened, perdure.model.arguments.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure.errors import BadArchive
from perdure.runtime import Agent, Runtime
from perdure.storage.archive import Archive

MEMORY = "memory://"
Body = Callable[[Runtime], Awaitable[object]]


def chat() -> StateGraph[Any, Any, Any, Any]:
    builder = StateGraph(MessagesState).add_node("answer", lambda state: {"messages": [("ai", "yes")]})
    return builder.add_edge(START, "answer")


def working(body: Body, graph: Any = None) -> None:
    async def main() -> None:
        async with (
            perdure.connect(MEMORY) as db,
            Runtime(db, graph or chat().compile(), observers=()) as runtime,
        ):
            await body(runtime)
            assert await runtime.messages("ada") == ()

    asyncio.run(main())


# Opening


def test_the_wrong_block_names_the_right_one() -> None:
    opening: Any = perdure.connect(MEMORY)
    with pytest.raises(TypeError, match=r"write `with perdure\.connect_sync\(url\) as db:`"), opening:
        pass

    async def main() -> None:
        sync: Any = perdure.connect_sync(MEMORY)
        with pytest.raises(TypeError, match=r"write `async with perdure\.connect\(url\) as db:`"):
            async with sync:
                pass
        with pytest.raises(AttributeError, match=r"not open.* or `db = await perdure\.connect\(url\)`"):
            opening.checkpointer()

    asyncio.run(main())


def test_an_event_loop_that_is_not_asyncios_is_named_at_once() -> None:
    with pytest.raises(RuntimeError, match=r"needs asyncio.*such as trio, use perdure\.connect_sync"):
        perdure.connect(MEMORY).__aenter__().send(None)


@pytest.mark.parametrize("url", [MEMORY, "sqlite:///closed.db"])
def test_a_graph_after_the_block_of_its_database_names_the_way_back(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with perdure.connect_sync(url, migrate=True) as db:
        graph = chat().compile(checkpointer=db.checkpointer())
    with pytest.raises(perdure.Unavailable, match=r"is closed; open it again with perdure\.connect"):
        graph.invoke({"messages": [HumanMessage("hi")]}, {"configurable": {"thread_id": "ada"}})


def test_an_unknown_strategy_and_an_empty_dedupe_key_are_refused() -> None:
    async def body(runtime: Runtime) -> None:
        with pytest.raises(ValueError, match=r"strategy is one of 'enqueue', .*, not 'queue'"):
            await runtime.accept("ada", "hi", strategy="queue")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"dedupe_key is empty; give the sender's key"):
            await runtime.accept("ada", "hi", dedupe_key="")
        with pytest.raises(TypeError, match="dedupe_key is text, not int"):
            await runtime.accept("ada", "hi", dedupe_key=5)  # type: ignore[arg-type]

    working(body)


def test_a_database_that_is_not_open_names_the_line_that_opens_it() -> None:
    opening: Any = perdure.connect(MEMORY)
    with pytest.raises(AttributeError, match=r"has no 'checkpointer': .*`async with perdure\.connect\(url\)"):
        opening.checkpointer()
    sync: Any = perdure.connect_sync(MEMORY)
    with pytest.raises(AttributeError, match=r"has no 'store': .*`with perdure\.connect_sync\(url\)"):
        sync.store()


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        (Path("threads.db"), "text, not Posix(Path|.*); for a SQLite file write f'sqlite:///{path}'"),
        (None, "text, not NoneType"),
        (":memory:", "write memory:// for a database that keeps nothing"),
        ("sqlite:threads.db", "write sqlite:///threads.db, or"),
        (
            "sqlite:///misspelt.db",
            "no file misspelt.db; check the path, or create it: run `perdure migrate --db sqlite",
        ),
    ],
)
def test_what_is_no_url_is_refused_with_its_form(url: Any, advice: str) -> None:
    with pytest.raises(perdure.BadUrl, match=advice), perdure.connect_sync(url):
        pass

    async def main() -> None:
        async with perdure.connect(url):
            pass

    with pytest.raises(perdure.BadUrl, match=advice):
        asyncio.run(main())


@pytest.mark.parametrize("tenant", [5, None])
def test_a_tenant_that_is_no_text_is_refused(tenant: Any, tmp_path: Path) -> None:
    """A missing tenant must not become that of all threads."""
    file = tmp_path / "threads.db"
    with (
        pytest.raises(TypeError, match="tenant is text, not"),
        perdure.connect_sync(f"sqlite:///{file}", migrate=True, tenant=tenant),
    ):
        pass
    assert not file.exists()

    async def main(runtime: Runtime) -> None:
        with pytest.raises(TypeError, match="tenant is text, not"):
            runtime.for_tenant(tenant)

    working(main)


def test_a_saver_and_a_store_of_a_tenant_that_is_no_text_are_refused() -> None:
    number: Any = 5
    with perdure.connect_sync(MEMORY) as db:
        for make in (db.checkpointer, db.store):
            with pytest.raises(TypeError, match="tenant is text, not int"):
                make(tenant=number)


# The runtime


@pytest.mark.parametrize("graph", [chat(), chat, None], ids=["builder", "function", "nothing"])
def test_a_graph_that_is_not_compiled_is_refused_at_once(graph: Any) -> None:
    with perdure.connect_sync(MEMORY) as db:
        for make in (Agent, lambda given: Runtime(db, given), lambda given: Runtime(db, {"chat": given})):
            with pytest.raises(TypeError, match=r"a compiled graph, not \w+; pass builder\.compile\(\)"):
                make(graph)


@pytest.mark.parametrize(
    ("message", "error", "advice"),
    [
        (None, TypeError, "a message is text, or a mapping with role and content, not NoneType"),
        (5, TypeError, "not int; nothing was stored"),
        ({"messages": []}, ValueError, r"keys \['messages'\].* to pass a graph's whole input, use submit"),
        ({"text": "hello"}, ValueError, r"this one has the keys \['text'\]\. Nothing was stored"),
    ],
)
def test_what_is_no_message_is_refused_before_it_is_stored(message: Any, error: Any, advice: str) -> None:
    async def main(runtime: Runtime) -> None:
        with pytest.raises(error, match=advice):
            await runtime.accept("ada", message)

    working(main)


def test_an_agent_with_a_conversion_of_its_own_takes_any_mapping() -> None:
    seen: list[Any] = []

    def to_input(messages: Any) -> Any:
        seen.append(dict(messages[0].payload["message"]))
        return {"messages": [("user", seen[-1]["text"])]}

    async def main() -> None:
        agent = Agent(chat().compile(), to_input=to_input)
        async with perdure.connect(MEMORY) as db, Runtime(db, agent) as runtime:
            run = await runtime.wait(await runtime.accept("ada", {"text": "hello"}), 60)
            assert run.state == "done"

    asyncio.run(main())
    assert seen == [{"text": "hello"}]


def test_a_message_of_langchain_is_taken() -> None:
    async def main() -> None:
        async with perdure.connect(MEMORY) as db, Runtime(db, chat().compile()) as runtime:
            message: Any = HumanMessage("hello")
            assert (await runtime.wait(await runtime.accept("ada", message), 60)).state == "done"
            state = await runtime.graph("agent").aget_state({"configurable": {"thread_id": "ada"}})
            assert [type(each).__name__ for each in state.values["messages"]] == ["HumanMessage", "AIMessage"]

    asyncio.run(main())


def test_a_thread_id_that_is_no_text_is_refused() -> None:
    async def main(runtime: Runtime) -> None:
        number: Any = 5
        with pytest.raises(TypeError, match="thread_id is text, not int"):
            await runtime.accept(number, "hello")

    working(main)


def test_a_runtime_that_is_not_open_does_not_wait_for_ever() -> None:
    async def main() -> None:
        async with perdure.connect(MEMORY) as db:
            runtime = Runtime(db, chat().compile())
            ticket = await runtime.accept("ada", "hello")
            with pytest.raises(RuntimeError, match=r"is not open.*write `async with Runtime"):
                await runtime.wait(ticket, 60)
            with pytest.raises(TimeoutError):
                await Runtime(db, chat().compile(), works=False).wait(ticket, 0.01)
            async with runtime:
                assert (await runtime.wait(ticket, 60)).state == "done"

    asyncio.run(main())


def test_the_id_of_a_run_is_no_ticket() -> None:
    async def main(runtime: Runtime) -> None:
        run_id: Any = "4711"
        for method in (runtime.wait, runtime.look, runtime.run_id):
            with pytest.raises(TypeError, match=r"not str; for the id of a run use find\(thread_id, run"):
                await method(run_id)

    working(main)


def test_a_query_without_an_index_names_both_kinds_of_index(caplog: pytest.LogCaptureFixture) -> None:
    with perdure.connect_sync(MEMORY) as db:
        store = db.store()
        assert store.search(("users",), query="tea") == store.search(("users",), query="milk") == []
    (warned,) = [record.message for record in caplog.records if record.name == "perdure.langgraph"]
    assert re.search(r"index=\{'text': True\}.*'dims' and 'embed'.*store\.index in perdure\.toml", warned)


def test_a_tag_on_a_thread_that_is_not_there_names_the_list_of_threads() -> None:
    with (
        perdure.connect_sync(MEMORY) as db,
        pytest.raises(perdure.NotFound, match="no checkpoint to tag; `perdure threads ls` lists"),
    ):
        db.tag("nobody", "approved")


def test_a_file_that_is_no_export_names_the_command_that_writes_one(tmp_path: Path) -> None:
    (tmp_path / "threads.db").write_bytes(b"SQLite format 3".ljust(512))
    with pytest.raises(BadArchive, match="as `perdure export --output` writes one"):
        Archive.read(tmp_path / "threads.db")
