"""The to-dos and subagents of a thread, for ``perdure threads show``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from perdure.cli.app import handle_in, out, quote_id, say
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
    table = Table("name", "state", "since", "step", "asked for", "namespace", box=None, pad_edge=False)
    for each in found["subagents"]:
        nodes = ", ".join(map(quote_id, each["nodes"]))
        step = "" if each["step"] is None else str(each["step"])
        micros = each["began_at"]
        # A time that is ahead of this machine's clock is not shown.
        if micros is None:
            passed = 0
        else:
            passed = time.time_ns() // 1000 - micros
        table.add_row(
            escape(quote_id(each["name"])),
            _STATES.get(each["state"], each["state"]),
            f"{format_duration(passed)} ago" if passed > 0 else "",
            escape(f"{step} {nodes}".strip()),
            escape(quote_id(each["task"])),
            escape(quote_id(each["namespace"])),
        )
    out.print(table)
