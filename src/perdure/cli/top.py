"""Command that shows the load: runs a minute, queue, errors, latencies, tokens, live on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.cells import set_cell_size
from rich.markup import escape

from perdure.cli.app import (
    AsJson,
    DataPlace,
    format_count,
    handle_in,
    new_table,
    open_database,
    out,
    print_json,
    print_table,
    quote_id,
    run_coroutine,
    say,
    show_progress_bar,
    warn,
)
from perdure.cli.runs import Since, format_age, format_duration, format_time, open_walk, parse_since
from perdure.cli.thread_steps import money, read_currency

if TYPE_CHECKING:
    from perdure.runtime.operations.node_times import NodeTimes
    from perdure.runtime.operations.walk_by_activity import ThreadWalk


class CountedTime(StrEnum):
    """A time up to now whose numbers are kept."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


_SPANS = {CountedTime.HOUR: "last hour", CountedTime.DAY: "last 24 hours", CountedTime.MONTH: "last 30 days"}
_BARS = " ▁▂▃▄▅▆▇█"
_EVERY_S = 2.0
_PART_S = 1.0
_LONG_US = 60_000_000
_WHY_WAITING = "`perdure threads stuck` says why threads wait for long, and what can be done."


def top(
    *,
    once: Annotated[bool, typer.Option("--once", help="Show it once, also on a terminal")] = False,
    last: Annotated[
        CountedTime | None,
        typer.Option(
            help="The time of the tables of graphs, users, models and errors: hour, day (24 hours) or month "
            "(30 days)",
            show_default="hour",
        ),
    ] = None,
    nodes: Annotated[
        bool, typer.Option("--nodes", help="Show the times of nodes, by reading the steps of threads")
    ] = False,
    since: Since = None,
    growth: Annotated[
        bool, typer.Option("--growth", help="Show how the database and its threads grew, day by day")
    ] = False,
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """Show how it is going: runs a minute, what waits, errors, latencies, tokens and cost.

    Each table names its time, the last hour or that of --last. Models come by their costs, the dearest first,
    users by their tokens; users are counted for up to 24 hours. --json has the numbers of all times.

    On a terminal it is refreshed every two seconds until Ctrl-C; otherwise, and with --json, once. Workers
    store their counts every ten seconds. Latencies are from the acceptance of a message, to its run's end and
    to the first token of a model.

    With --nodes it shows how often each node ran and how long it took, the slowest first, in the last day or
    since the time that --since names. Every thread that changed since then is read. A task that ended with a
    question counts once the question is answered.

    With --growth it shows the size of the database and the number of the tenant's threads, on those of the
    last 92 days on which runs ended, and now. D1 and Redis do not tell the size, nor DynamoDB and Redis the
    number.
    """
    from perdure.runtime.operations.growth import read as read_growth
    from perdure.runtime.operations.overview import read

    if nodes and growth:
        raise typer.BadParameter("--nodes and --growth show different things; leave one out")
    if last is not None and (nodes or growth):
        raise typer.BadParameter("--last is for the other numbers; --nodes takes --since")
    if since is not None and not nodes:
        raise typer.BadParameter("--since is for --nodes; the other numbers take --last hour, day or month")
    if nodes:
        _show_nodes(since or "1d", place, as_json)
        return
    with open_database(place) as database:
        handle = handle_in(database)
        if growth:
            _show_growth(run_coroutine(read_growth(handle, place.tenant))["samples"], as_json)
            return
        found = run_coroutine(read(handle, place.tenant))
        if as_json:
            print_json(found)
            return
        show = partial(_format_overview, last or CountedTime.HOUR, read_currency())
        if once or not sys.stdout.isatty():
            out.print(show(found), soft_wrap=True)
            return
        from rich.live import Live

        with Live(show(found), console=out, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(_EVERY_S)
                live.update(show(run_coroutine(read(handle, place.tenant))), refresh=True)


def _show_growth(samples: list[dict[str, Any]], as_json: bool) -> None:
    before: dict[str, Any] = {}

    def row(sample: dict[str, Any]) -> Iterator[str]:
        nonlocal before
        yield format_time(sample["at"])
        for name in ("bytes", "threads"):
            size, earlier = sample[name], before.get(name)
            yield "not known" if size is None else f"{size:,}"
            yield "" if size is None or earlier is None else f"{size - earlier:+,}"
        before = sample

    table = new_table("time", numbers=("bytes of the database", "growth", "threads", "growth"))
    print_table(samples, as_json, table, row, "Nothing is known yet.")


def _show_nodes(since: str, place: DataPlace, as_json: bool) -> None:
    with open_walk(place) as opened:
        times, examined, unreadable = run_coroutine(
            _read_nodes(opened.walk, parse_since(since, opened.now) or 0, is_hidden=as_json)
        )
    if unreadable:
        warn(f"{format_count(unreadable, 'thread')} cannot be read: run perdure fsck")

    def row(each: dict[str, Any]) -> Iterator[str]:
        yield quote_id(each["graph"] or "")
        yield quote_id(each["node"].replace("|", " > "))
        yield from (f"{each['count']:,}", f"{each['failed']:,}")
        yield from (format_duration(each[name]) for name in ("p50", "p95", "longest"))

    entries = [{name: value for name, value in each.items() if name != "classes"} for each in times.entries()]
    table = new_table("graph", "node", numbers=("runs", "failed", "half within", "95% within", "longest"))
    print_table(entries, as_json, table, row, f"No node ran: {format_count(examined, 'thread')} examined.")
    if entries and not as_json:
        say(f"{format_count(examined, 'thread')} examined.")


async def _read_nodes(walk: ThreadWalk, since: int, *, is_hidden: bool) -> tuple[NodeTimes, int, int]:
    """Return the times of nodes in all threads, and how many threads were examined and how many of them could
    not be read."""
    from perdure.runtime.operations.node_times import NodeTimes, read_part

    times, examined, unreadable, cursor = NodeTimes(), 0, 0, ""
    with show_progress_bar("threads", is_hidden=is_hidden) as bar:
        task = bar.add_task("Reading steps", total=None)
        while True:
            part = await read_part(walk, since, cursor, _PART_S)
            times.merge(part.times)
            examined, unreadable = examined + part.examined, unreadable + part.unreadable
            bar.update(task, completed=examined)
            if part.cursor is None:
                return times, examined, unreadable
            cursor = part.cursor


def _format_overview(last: CountedTime, currency: str, found: dict[str, Any]) -> str:
    queue, threads, hour, day = found["queue"], found["threads"], found["hour"], found["day"]
    shown, span = found[last], _SPANS[last]
    describe_usage = partial(_describe_usage, currency)
    full_minute = found["minutes"][-2:][0]
    oldest, waited = "", 0
    if queue["oldest"] is not None:
        waited = found["now"] - queue["oldest"]
        oldest = f", the oldest for {format_age(waited)}"
    known = [f"{threads[name]} {name}" for name in ("failed", "interrupted") if threads[name] is not None]
    if threads["asleep"]:
        known.append(f"of which {threads['asleep']} wait for a time or a signal")
    lines = [
        f"[bold]{full_minute['runs']}[/] runs in the last full minute  {hour['runs']} in the last hour, "
        f"{hour['failed']} failed  {day['runs']} in the last 24 hours, {day['failed']} failed",
        f"waiting {queue['due']}{oldest}  under way {queue['under_way']}  replies {queue['replies']}  "
        f"scheduled {queue['scheduled']}  {'  '.join(known)}".rstrip(),
    ]
    if waited > _LONG_US:
        lines.append(_WHY_WAITING)
    lines += [
        f"hour  {_draw_sparkline(found['minutes'])}",
        f"day   {_draw_sparkline(found['hours'])}",
        f"latency in the {span}  to the end {_format_latency(shown['end'])}  "
        f"to the first token {_format_latency(shown['first'])}",
        "models in the "
        + "  in the ".join(f"{words}  {describe_usage(found[each])}" for each, words in _SPANS.items()),
        "",
    ]
    for title, counts, names, entries, describe in (
        (f"graph, {span}", ("runs", "failed"), ("graph",), shown["graphs"], _describe_graph),
        (f"user, {span}", ("runs", "failed"), ("user",), shown["users"], _describe_calls),
        (
            "version, last 24 hours",
            ("runs", "failed"),
            ("graph", "version"),
            day["versions"],
            lambda _, each: f"  since about {format_age(found['now'] - each['since'])} ago",
        ),
        (f"model, {span}", ("calls",), ("model",), shown["models"], _describe_calls),
        (f"error, {span}", ("runs",), ("kind",), shown["errors"], lambda *_: ""),
    ):
        if entries:
            lines.append(f"[bold]{title:<30}{''.join(f'{count:>8}' for count in counts)}[/]")
            for each in entries[:10]:
                name = " ".join(_format_name(each[part]) for part in names)
                numbers = "".join(f"{each[count]:>8}" for count in counts)
                lines.append(f"{_column(name)}{numbers}{describe(currency, each)}")
            lines.append("")
    if not found["is_whole"]:
        lines.append("There is more than was counted: counts end at 1,000.")
    return "\n".join(lines).rstrip()


def _format_name(name: str | None) -> str:
    if name is None:
        return "all others"
    return quote_id(name)


def _describe_graph(currency: str, each: dict[str, Any]) -> str:
    times = f"  end {_format_latency(each['end'])}  first token {_format_latency(each['first'])}"
    return f"{times}{_describe_calls(currency, each)}"


def _describe_calls(currency: str, each: dict[str, Any]) -> str:
    if each["calls"]:
        return f"  {_describe_usage(currency, each)}"
    return ""


def _describe_usage(currency: str, found: dict[str, Any]) -> str:
    """Return the tokens of calls of models, and their cost where it is known."""
    shown = f"{found['input_tokens']:,} tokens in, {found['output_tokens']:,} out"
    if found["cost"] is None:
        return shown
    return f"{shown}, cost {money(found['cost'], currency)}"


def _column(name: str) -> str:
    """Return a name padded or cut to the width of a column on the terminal."""
    return escape(set_cell_size(name, 29)) + " "


def _draw_sparkline(slots: list[dict[str, Any]]) -> str:
    most = max((slot["runs"] for slot in slots), default=0)
    height = len(_BARS) - 1
    bars = "".join(_BARS[-(-slot["runs"] * height // (most or 1))] for slot in slots)
    return f"[green]{bars}[/]  at most {most}"


def _format_latency(found: dict[str, float | None] | None) -> str:
    if found is None:
        return "–"
    p50, p95 = (("over an hour" if each is None else f"{each:g} s") for each in (found["p50"], found["p95"]))
    return f"{p50} (95%: {p95})"
