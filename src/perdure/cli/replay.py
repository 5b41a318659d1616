"""Command ``perdure replay``: recorded threads against the graph as it is now, for CI."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from perdure.cli.app import (
    AsJson,
    DataPlace,
    format_count,
    json_text,
    keys_of,
    make_legible,
    out,
    print_json,
    quote_id,
    say,
    show_progress_bar,
    url_of,
    warn,
)
from perdure.errors import BadSetting

if TYPE_CHECKING:
    from perdure.database.blocking import SyncDatabase
    from perdure.replay.comparison import Difference
    from perdure.replay.run import ReplayOptions, ReplayReport
    from perdure.runtime.agents.agent import Agent

_WIDEST = 400


def replay(
    thread_ids: Annotated[list[str], typer.Argument(metavar="THREAD…", help="The threads' ids")],
    *,
    graph: Annotated[
        str,
        typer.Option(metavar="MODULE:GRAPH", help="The graph or Agent as it is now, e.g. ./agent.py:graph"),
    ],
    last: Annotated[
        int | None, typer.Option(min=1, help="Number of latest checkpoints to begin before; by default all")
    ] = None,
    to_the_end: Annotated[
        bool, typer.Option("--all", help="Show every step that differs, not only the first")
    ] = False,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="CHANNEL", help="A channel whose values are not compared")
    ] = None,
    live_tool: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Run this tool, without connections, instead of its recording"),
    ] = None,
    context: Annotated[
        str | None, typer.Option(metavar="JSON", help="The graph's context, a JSON object")
    ] = None,
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """Run recorded steps again with your changed code, and show where it does something else.

    Every step starts from its recorded state. Models and tools are answered from the recording, interrupts
    with the recorded answers; nothing outside is called: connections and processes are refused. The database
    is only read. Compared are the nodes that run, what is sent to models and tools, what nodes write, and the
    state after it. Ids of messages, UUIDs and times may differ.

      perdure replay thread-1 --graph ./agent.py:graph --db sqlite:///threads.db

    Threads of Agent(graph, record=True) have every call. In others the answers are taken from the messages
    that nodes wrote: a prompt that changed is not seen, and a call that left no message is reported.

    Exit code 0 when nothing differs, 1 when something does, or nothing could be compared. With --json, one
    object for each difference and one for each thread.
    """
    import asyncio

    from perdure.database.opening import open_for_reading
    from perdure.replay.run import ReplayOptions
    from perdure.runtime.agents.loading import find, load_agent

    options = ReplayOptions(
        last=last,
        to_the_end=to_the_end,
        ignore=frozenset(ignore or ()),
        live_tools=frozenset(live_tool or ()),
        context=_parse_context(context),
        whole_process=True,
    )
    agent = asyncio.run(load_agent(find(graph)))
    database = open_for_reading(url_of(place.db), tenant=place.tenant, encryption_key=keys_of(place.keys))
    differs = False
    try:
        for thread_id in thread_ids:
            report = asyncio.run(_replay(database, agent, thread_id, options, is_quiet=as_json))
            differs |= not report.is_same or not report.replayed
            (_print_json if as_json else _print)(report)
    finally:
        database.close()
    if differs:
        raise typer.Exit(1)


async def _replay(
    database: SyncDatabase, agent: Agent, thread_id: str, options: ReplayOptions, *, is_quiet: bool
) -> ReplayReport:
    from perdure.replay.run import replay as replay_thread

    with show_progress_bar("steps", is_hidden=is_quiet) as bar:
        task = bar.add_task(f"of {escape(quote_id(thread_id))}", total=None)

        def on_step(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        return await replay_thread(database, agent, thread_id, options=options, on_step=on_step)


def _parse_context(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadSetting(f"--context is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise BadSetting('--context has to be a JSON object, such as {"user": "ada"}')
    return found


def _print(report: ReplayReport) -> None:
    name = quote_id(report.thread_id)
    for each in report.differences:
        out.print(f"{escape(name)}: [bold]{escape(each.place)}[/]: {escape(each.detail)}", soft_wrap=True)
        _print_values(each)
    if report.differences:
        first = report.differences[0]
        say(f"{name}: differs at step {first.step}, checkpoint {first.checkpoint_id}")
    elif report.replayed:
        say(f"{name}: {format_count(report.replayed, 'step')} replayed, nothing differs")
    else:
        warn(f"{name}: no step could be replayed")
    for number, reason in report.skipped:
        warn(f"{name}: step {number} was not replayed: {reason}")
    if report.derived:
        warn(
            f"{name}: no calls are recorded for {report.derived} of the steps, so that changed prompts are "
            "not seen there; record them with Agent(graph, record=True)"
        )


def _print_values(found: Difference) -> None:
    if found.expected is None and found.found is None:
        return
    for sign, color, value in (("-", "red", found.expected), ("+", "green", found.found)):
        text = make_legible(json_text(value, ascii_only=False, sort_keys=True))
        if len(text) > _WIDEST:
            text = f"{text[:_WIDEST]}… ({len(text):,} characters)"
        out.print(f"  [{color}]{sign} {escape(text)}[/]", soft_wrap=True)


def _print_json(report: ReplayReport) -> None:
    for each in report.differences:
        print_json({"thread_id": report.thread_id, **each.as_json()})
    print_json(
        {
            "thread_id": report.thread_id,
            "same": report.is_same,
            "replayed": report.replayed,
            "skipped": [{"step": number, "reason": reason} for number, reason in report.skipped],
            "noise": report.noise,
            "derived": report.derived,
        }
    )
