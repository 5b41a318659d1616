"""Command that shows how it is going: runs a minute, queue, errors, latencies, tokens, live on a terminal."""

from __future__ import annotations

import sys
import time
from decimal import Decimal
from typing import Annotated, Any

import typer
from rich.cells import set_cell_size
from rich.markup import escape

from perdure.cli.app import (
    AsJson,
    Db,
    Keys,
    Tenant,
    handle_in,
    open_database,
    out,
    print_json,
    printable,
    run_coroutine,
)
from perdure.cli.runs import age

_BARS = "▁▂▃▄▅▆▇█"
_EVERY_S = 2.0


def top(
    *,
    once: Annotated[bool, typer.Option("--once", help="Show it once, also on a terminal")] = False,
    db: Db = None,
    tenant: Tenant = "",
    keys: Keys = None,
    as_json: AsJson = False,
) -> None:
    """Show how it is going: runs a minute, what waits, errors, latencies, tokens and cost.

    On a terminal it is shown anew every two seconds until Ctrl-C; otherwise, and with --json, once. Workers
    store their counts every ten seconds. Latencies are from the acceptance of a message, to its run's end and
    to the first token of a model.
    """
    from perdure.runtime.operations.overview import read

    with open_database(db, tenant, keys) as database:
        handle = handle_in(database)
        found = run_coroutine(read(handle, tenant))
        if as_json:
            print_json(found)
            return
        if once or not sys.stdout.isatty():
            out.print(_show(found), soft_wrap=True)
            return
        from rich.live import Live

        with Live(_show(found), console=out, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(_EVERY_S)
                live.update(_show(run_coroutine(read(handle, tenant))), refresh=True)


def _show(found: dict[str, Any]) -> str:
    queue, threads, hour, day = found["queue"], found["threads"], found["hour"], found["day"]
    full = found["minutes"][-2] if len(found["minutes"]) > 1 else found["minutes"][-1]
    oldest = "" if queue["oldest"] is None else f", the oldest for {age(found['now'] - queue['oldest'])}"
    known = [f"{threads[name]} {name}" for name in ("failed", "interrupted") if threads[name] is not None]
    if threads["asleep"]:
        known.append(f"of which {threads['asleep']} wait for a time or a signal")
    lines = [
        f"[bold]{full['runs']}[/] runs in the last full minute  {hour['runs']} in the last hour, "
        f"{hour['failed']} failed  {day['runs']} in the last day, {day['failed']} failed",
        f"waiting {queue['due']}{oldest}  under way {queue['under_way']}  replies {queue['replies']}  "
        f"scheduled {queue['scheduled']}  {'  '.join(known)}".rstrip(),
        f"hour  {_sparkline(found['minutes'])}",
        f"day   {_sparkline(found['hours'])}",
        f"latency in the last hour  to the end {_latency(hour['end'])}  "
        f"to the first token {_latency(hour['first'])}",
        f"models in the last hour  {_usage(hour)}  in the last day  {_usage(day)}  in the last 30 days  "
        f"{_usage(found['month'])}",
        "",
    ]
    for title, entries, name in (("graph", hour["graphs"], "graph"), ("user", hour["users"], "user")):
        if entries:
            lines.append(f"[bold]{title:<30}{'runs':>8}{'failed':>8}[/]")
            for each in entries[:10]:
                shown = printable(each[name]) if each[name] is not None else "all others"
                line = f"{_column(shown)}{each['runs']:>8}{each['failed']:>8}"
                if name == "graph":
                    line += f"  end {_latency(each['end'])}  first token {_latency(each['first'])}"
                lines.append(line + (f"  {_usage(each)}" if each["calls"] else ""))
            lines.append("")
    if hour["models"]:
        lines.append(f"[bold]{'model':<30}{'calls':>8}[/]")
        for each in hour["models"][:10]:
            shown = printable(each["model"]) if each["model"] is not None else "all others"
            lines.append(f"{_column(shown)}{each['calls']:>8}  {_usage(each)}")
        lines.append("")
    if hour["errors"]:
        lines.append(f"[bold]{'error':<30}{'runs':>8}[/]")
        for each in hour["errors"][:10]:
            shown = printable(each["kind"]) if each["kind"] is not None else "all others"
            lines.append(f"{_column(shown)}{each['runs']:>8}")
    if not found["is_whole"]:
        lines.append("There is more than was counted: counts end at 1,000.")
    return "\n".join(lines).rstrip()


def _usage(found: dict[str, Any]) -> str:
    """Return the tokens of calls of models, and their cost where it is known."""
    shown = f"{found['input_tokens']:,} tokens in, {found['output_tokens']:,} out"
    # As a person would write it: 0.000084, not 8.4e-05.
    cost = found["cost"]
    return shown if cost is None else f"{shown}, cost {Decimal(f'{cost:.4g}'):,f}"


def _column(name: str) -> str:
    """Return a name that takes the width of a column on the terminal."""
    return escape(set_cell_size(name, 29)) + " "


def _sparkline(slots: list[dict[str, Any]]) -> str:
    most = max((slot["runs"] for slot in slots), default=0)
    bars = "".join(
        " " if not slot["runs"] else _BARS[-(-slot["runs"] * len(_BARS) // most) - 1] for slot in slots
    )
    return f"[green]{bars}[/]  at most {most}"


def _latency(found: dict[str, float | None] | None) -> str:
    if found is None:
        return "–"
    p50, p95 = (("over an hour" if each is None else f"{each:g} s") for each in (found["p50"], found["p95"]))
    return f"{p50} (95%: {p95})"
