"""The to-dos and subagents of a thread, for ``perdure threads show``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from perdure.cli.app import format_known, handle_in, new_table, out, quote_id, say
from perdure.cli.runs import format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.database.blocking import SyncDatabase

_STATES = {"asked": "waits for an answer", "open": "not over"}


def read_agents(
    database: SyncDatabase, thread_id: str, namespace: str, checkpoint: str | None
) -> dict[str, Any]:
    """Return the to-dos in a thread's state, and all of its subagents."""
    from perdure.langgraph.reading.thread_agents import load_subagents, load_todos

    handle = handle_in(database)
    partition = handle.partition(thread_id)
    todos = handle.run(load_todos(partition, handle.digest, namespace=namespace, checkpoint_id=checkpoint))
    subagents: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        page = handle.run(load_subagents(partition, handle.digest, after=after))
        subagents += (each._asdict() for each in page.subagents)
        after = page.cursor
    return {"todos": [each._asdict() for each in todos], "subagents": subagents}


def print_agents(found: Mapping[str, Any]) -> None:
    """Print what ``read_agents`` returned."""
    if found["todos"]:
        out.print("\n[bold]to-dos[/]")
        for todo in found["todos"]:
            words = quote_id(todo["status"].replace("_", " "))
            say(f"{words}: {quote_id(todo['content'])}")
    if not found["subagents"]:
        return
    out.print("\n[bold]subagents[/]")
    table = new_table("name", "state", "since", "step", "asked for", "namespace")
    for each in found["subagents"]:
        nodes = ", ".join(map(quote_id, each["nodes"]))
        since, now = "", time.time_ns() // 1000
        # A time that is ahead of this machine's clock is not shown.
        if each["began_at"] is not None and each["began_at"] < now:
            since = f"{format_duration(now - each['began_at'])} ago"
        table.add_row(
            escape(quote_id(each["name"])),
            _STATES.get(each["state"], each["state"]),
            since,
            escape(f"{format_known(each['step'])} {nodes}".strip()),
            escape(quote_id(each["task"])),
            escape(quote_id(each["namespace"])),
        )
    out.print(table)
