"""Command that lists what will run and when: crons, postponed messages, repeated attempts, ends of waits."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from perdure.cli.app import AsJson, DataPlace, out, print_all, quote_id, run_coroutine, say
from perdure.cli.runs import check_span, format_age, format_time, open_walk

_KINDS = {
    "cron": "cron",
    "message": "message",
    "retry": "next attempt",
    "sleep": "sleep ends",
    "signal": "signal expires",
    "question": "question expires",
}
_WIDTH = max(map(len, _KINDS.values()))


def list_upcoming(
    *,
    within: Annotated[
        str, typer.Option(help="Only what runs within this time, e.g. 15m, 1h or 7d", callback=check_span)
    ] = "1d",
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="The maximum number, earliest first")
    ] = 100,
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """List what will run and when, the earliest first: crons, postponed messages, attempts that are repeated,
    and sleeping threads.

    A cron is listed once, with its next time and its schedule. The waits for a signal or an answer that have
    a deadline are listed with it: the graph goes on then. What is due already waits for a worker:
    `perdure threads stuck` says why.

    Typical: `perdure runs upcoming --within 1h`.
    """
    from perdure.model.retention_policy import parse_duration
    from perdure.runtime.operations.upcoming import find_upcoming

    with open_walk(place) as found:
        until = found.now + parse_duration(within)
        entries, is_whole = run_coroutine(find_upcoming(found.walk, found.now, until, limit, sees_crons=None))

    def show(entry: dict[str, Any]) -> None:
        wait = entry["at"] - found.now
        when = f"in {format_age(wait)}" if wait > 0 else "due"
        line = f"{format_time(entry['at'])}  {when:>8}  {_KINDS[entry['kind']]:<{_WIDTH}}"
        for key, word in (("graph", "graph "), ("what", ""), ("thread_id", "thread "), ("user", "of ")):
            if entry[key]:
                line += f"  {word}{quote_id(entry[key])}"
        if entry["id"] and entry["kind"] in ("cron", "message", "retry"):
            line += f"  {'cron' if entry['kind'] == 'cron' else 'run'} {quote_id(entry['id'])}"
        say(line)

    print_all(entries, as_json, show, f"Nothing runs by itself within {within}.")
    if not (as_json or is_whole):
        out.print("There is more; raise --limit, or shorten --within.")
