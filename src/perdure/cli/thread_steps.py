"""The way of a thread by its nodes, with times, tokens and costs, for ``perdure threads show``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from perdure.cli.app import handle_in, legible, out, prices_here, printable
from perdure.cli.runs import when

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.database.blocking import SyncDatabase
    from perdure.model.model_calls import ModelCall, Prices

_SECOND, _MINUTE, _HOUR = 1_000_000, 60_000_000, 3_600_000_000
_UNPRICED_MAX = 3


def read_way(database: SyncDatabase, thread_id: str, namespace: str, limit: int) -> dict[str, Any]:
    """Return the newest steps of a thread, oldest first, the way that they are, and what the models of the
    whole thread counted."""
    from perdure.langgraph.reading.thread_messages import load_title
    from perdure.langgraph.reading.thread_steps import load_steps, show_step, way_of
    from perdure.runtime.operations import entries, open_questions
    from perdure.runtime.threads.rows import look

    handle, prices = handle_in(database), prices_here()
    partition = handle.partition(thread_id)
    page = handle.run(load_steps(partition, handle.digest, namespace, limit=limit))
    row = handle.run(look(partition))
    open_now = open_questions.of_thread(handle, partition.tenant, row, with_waits=True) if row else None
    return {
        **entries.wait_entries(() if open_now is None else handle.run(open_now)),
        "title": handle.run(load_title(partition, handle.digest)),
        "way": way_of(reversed(page.steps)),
        "steps": [show_step(step, prices) for step in reversed(page.steps)],
        "has_earlier_steps": page.cursor is not None,
        "usage": _usage(database, thread_id, prices),
    }


def _usage(database: SyncDatabase, thread_id: str, prices: Prices) -> dict[str, Any]:
    from perdure.langgraph.reading.thread_steps import load_calls
    from perdure.model.model_calls import distinct, total

    handle = handle_in(database)
    partition = handle.partition(thread_id)
    calls: list[ModelCall] = []
    after: tuple[str | int, ...] | None = None
    while True:
        part = handle.run(load_calls(partition, handle.digest, after))
        calls += part.calls
        after = part.cursor
        if after is None:
            return total(distinct(calls), prices)


def print_way(found: Mapping[str, Any]) -> None:
    """Print what ``read_way`` returned."""
    steps = [step for step in found["steps"] if step["tasks"] or step["source"] != "loop"]
    if not steps:
        return
    way = " → ".join(_together(nodes) for nodes in found["way"])
    if way:
        out.print(
            f"\n[bold]way[/] {'… → ' if found['has_earlier_steps'] else ''}{escape(way)}", soft_wrap=True
        )
    table = Table("step", "took", "tokens in", "out", "cost", "", box=None, pad_edge=False)
    notes = {"asked": "waits for an answer", "failed": "failed", "open": "not over"}
    if found["waits"] and not found["asks"]:
        notes["asked"] = "waits"
    for step in steps:
        _add_step(table, step, 0, notes)
    out.print(table)
    for wait in found["waits"]:
        until = f"  until {when(wait['until'])}" if wait["until"] else ""
        out.print(f"[bold]waits[/] {escape(legible(wait['text']))}{until}", soft_wrap=True)
    usage = found["usage"]
    if usage["calls"]:
        out.print(f"[bold]tokens[/] {escape(_counts(usage))}", soft_wrap=True)


def _add_step(table: Table, step: Mapping[str, Any], depth: int, notes: Mapping[str, str]) -> None:
    if not step["tasks"]:
        if step["source"] != "loop" or step["nodes"]:
            name = _together(step["nodes"]) or printable(str(step["source"]))
            table.add_row(f"{'  ' * depth}{escape(name)}", "", "", "", "", "")
        return
    for task in step["tasks"]:
        _add_task(table, task, depth + bool(task["is_call"]), notes)


def _add_task(table: Table, task: Mapping[str, Any], depth: int, notes: Mapping[str, str]) -> None:
    began, ended, usage = task["began_at"], task["ended_at"], task["usage"]
    took = "" if began is None or ended is None else span(ended - began)
    name = printable(task["node"] or "a task")
    table.add_row(
        f"{'  ' * depth}{escape(name)}",
        took,
        f"{usage['input']:,}" if usage["calls"] else "",
        f"{usage['output']:,}" if usage["calls"] else "",
        _money(usage),
        notes.get(task["state"], ""),
    )
    for step in task["steps"]:
        _add_step(table, step, depth + 1, notes)
    if task["is_cut"]:
        table.add_row(f"{'  ' * (depth + 1)}… more with --namespace", "", "", "", "", "")


def _together(nodes: list[str]) -> str:
    """Return the nodes of one step: several of them in brackets, and equal ones with their number."""
    counts = {node: nodes.count(node) for node in nodes}
    shown = [
        f"{printable(node)} ×{count}" if count > 1 else printable(node) for node, count in counts.items()
    ]
    return shown[0] if len(shown) == 1 else f"({', '.join(shown)})" if shown else ""


def _counts(usage: Mapping[str, Any]) -> str:
    calls = usage["calls"]
    line = f"{usage['input']:,} in, {usage['output']:,} out, in {calls:,} {'call' if calls == 1 else 'calls'}"
    details = [
        f"{usage[key]:,} {words}"
        for key, words in (("cache_read", "from a cache"), ("reasoning", "of reasoning"))
        if usage[key]
    ]
    line += f" ({', '.join(details)})" if details else ""
    if usage["cost"] is not None:
        line += f"; cost {_money(usage)}"
    if usage["unpriced"]:
        shown = ", ".join(map(printable, usage["unpriced"][:_UNPRICED_MAX]))
        line += f"; no price for {shown}{', …' if len(usage['unpriced']) > _UNPRICED_MAX else ''}"
    return line


def _money(usage: Mapping[str, Any]) -> str:
    return "" if usage["cost"] is None else f"{usage['cost']:.4g} {printable(usage['currency'])}"


def span(micros: int) -> str:
    """Return a duration as people read it."""
    if micros < _SECOND:
        return f"{micros / 1000:.3g} ms" if micros < 10_000 else f"{micros // 1000} ms"
    if micros < _MINUTE:
        return f"{micros / _SECOND:.1f} s"
    if micros < _HOUR:
        return f"{micros // _MINUTE} min {micros % _MINUTE // _SECOND} s"
    return f"{micros // _HOUR} h {micros % _HOUR // _MINUTE} min"
