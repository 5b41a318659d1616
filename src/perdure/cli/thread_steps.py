"""Path of a thread through its nodes, with times, tokens and costs, for ``perdure threads show``."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from perdure.cli.app import (
    format_count,
    handle_in,
    make_legible,
    new_table,
    out,
    quote_id,
    read_local_prices,
)
from perdure.cli.runs import format_duration, format_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

    from perdure.database.blocking import SyncDatabase
    from perdure.runtime.operations.open_questions import AskedQuestion

_UNPRICED_MAX = 3


def read_way(
    database: SyncDatabase, thread_id: str, namespace: str, limit: int, checkpoint: str | None = None
) -> dict[str, Any]:
    """Return the newest steps of a thread, or those up to a checkpoint, oldest first, with their path through
    the nodes, the nodes that wrote its last messages, by the messages' ids, and the usage of models in the
    whole thread."""
    from perdure.engine.threads import history
    from perdure.langgraph.reading.thread_calls import load_all_calls
    from perdure.langgraph.reading.thread_messages import load_messages, load_title
    from perdure.langgraph.reading.thread_steps import load_steps, show_step, way_of
    from perdure.model.model_calls import total
    from perdure.runtime.operations import entries, open_questions
    from perdure.runtime.threads.rows import load_row
    from perdure.runtime.threads.user_and_title import find_title

    handle, prices = handle_in(database), read_local_prices()
    partition = handle.partition(thread_id)
    before = None
    if checkpoint is not None and (record := handle.run(history.find(partition, namespace, checkpoint))):
        before = record.seq + 1
    page = handle.run(load_steps(partition, handle.digest, namespace, before, limit))
    messages = handle.run(load_messages(partition, handle.digest, prices, namespace=namespace))
    asked: Sequence[AskedQuestion] = ()
    title = ""
    if row := handle.run(load_row(partition)):
        asked = handle.run(open_questions.load_questions(handle, partition.tenant, row, with_waits=True))
        title = find_title(row.metadata)
    return {
        **entries.wait_entries(asked),
        "title": title or handle.run(load_title(partition, handle.digest)),
        "authors": {each["id"]: each["node"] for each in messages.messages if each["id"] and each["node"]},
        "way": way_of(reversed(page.steps)),
        "steps": [show_step(step, prices) for step in reversed(page.steps)],
        "has_earlier_steps": page.cursor is not None,
        "usage": total(handle.run(load_all_calls(partition, handle.digest)), prices),
    }


def print_way(found: Mapping[str, Any], *, is_latest: bool = True) -> None:
    """Print what ``read_way`` returned. Without ``is_latest`` it is that of an earlier checkpoint, and what
    holds for the thread now is called so."""
    now = "" if is_latest else " now"
    steps = [step for step in found["steps"] if step["tasks"] or step["source"] != "loop"]
    if not steps:
        return
    if way := [*filter(None, map(_join_nodes, found["way"]))]:
        earlier = ["…"] * found["has_earlier_steps"]
        out.print(f"\n[bold]path[/] {escape(' → '.join([*earlier, *way]))}", soft_wrap=True)
    table = new_table("step", "node", "took", "tokens in", "out", "cost", "")
    notes = {"asked": "waits for an answer", "failed": "failed", "open": "not over"}
    if found["waits"] and not found["asks"]:
        notes["asked"] = "waits"
    for step in steps:
        _add_step(table, step, 0, notes)
    out.print(table)
    for wait in found["waits"]:
        line = f"[bold]waits{now}[/] {escape(make_legible(wait['text']))}"
        if wait["until"]:
            line += f"  until {format_time(wait['until'])}"
        out.print(line, soft_wrap=True)
    usage = found["usage"]
    if usage["calls"]:
        out.print(f"[bold]tokens{now}[/] {escape(describe_usage(usage))}", soft_wrap=True)


def _add_step(table: Table, step: Mapping[str, Any], depth: int, notes: Mapping[str, str]) -> None:
    if not step["tasks"]:
        if step["source"] != "loop" or step["nodes"]:
            name = _join_nodes(step["nodes"]) or quote_id(str(step["source"]))
            table.add_row(_format_number(step, depth), f"{'  ' * depth}{escape(name)}", "", "", "", "", "")
        return
    for task in step["tasks"]:
        number = _format_number(step, depth)
        _add_task(table, task, number, depth + bool(task["is_call"]), notes)


def _format_number(step: Mapping[str, Any], depth: int) -> str:
    """Return the number of a step, but not of one in a subgraph, which counts its own."""
    if depth or step["step"] is None:
        return ""
    return str(step["step"])


def _add_task(
    table: Table, task: Mapping[str, Any], number: str, depth: int, notes: Mapping[str, str]
) -> None:
    began, ended, usage = task["began_at"], task["ended_at"], task["usage"]
    took = tokens_in = tokens_out = ""
    if began is not None and ended is not None:
        took = format_duration(ended - began)
    if usage["calls"]:
        tokens_in, tokens_out = f"{usage['input']:,}", f"{usage['output']:,}"
    name = f"{'  ' * depth}{escape(quote_id(task['node'] or 'a task'))}"
    note = notes.get(task["state"], "")
    table.add_row(number, name, took, tokens_in, tokens_out, _describe_cost(usage), note)
    for step in task["steps"]:
        _add_step(table, step, depth + 1, notes)
    if task["is_cut"]:
        table.add_row("", f"{'  ' * (depth + 1)}… more with --namespace", "", "", "", "", "")


def _join_nodes(nodes: list[str]) -> str:
    """Return the nodes of one step: several of them in brackets, and equal ones with their number."""
    counts = {node: nodes.count(node) for node in nodes}
    shown = [f"{quote_id(node)} ×{count}" if count > 1 else quote_id(node) for node, count in counts.items()]
    if len(shown) == 1:
        return shown[0]
    if shown:
        return f"({', '.join(shown)})"
    return ""


def describe_usage(usage: Mapping[str, Any]) -> str:
    """Return the tokens, the calls and the cost of calls of models, and the models without a price."""
    line = f"{usage['input']:,} in, {usage['output']:,} out, in {format_count(usage['calls'], 'call')}"
    details = [
        f"{usage[key]:,} {words}"
        for key, words in (("cache_read", "from a cache"), ("reasoning", "of reasoning"))
        if usage[key]
    ]
    if details:
        line += f" ({', '.join(details)})"
    if usage["cost"] is not None:
        line += f"; cost {_describe_cost(usage)}"
    if usage["unpriced"]:
        line += f"; no price for {', '.join(map(quote_id, usage['unpriced'][:_UNPRICED_MAX]))}"
        if len(usage["unpriced"]) > _UNPRICED_MAX:
            line += ", …"
    return line


def _describe_cost(usage: Mapping[str, Any]) -> str:
    if usage["cost"] is None:
        return ""
    return money(usage["cost"], usage["currency"])


def money(cost: float, currency: str) -> str:
    """Return a cost as people write it, 0.000084 and not 8.4e-05, with its currency if that is known."""
    return f"{Decimal(f'{cost:.4g}'):,f} {quote_id(currency)}".rstrip()


def read_currency() -> str:
    """Return the currency of the prices that are set here, empty if there are none: workers with other prices
    may have counted the costs."""
    prices = read_local_prices()
    return prices.currency if prices.models else ""
