"""Commands that apply retention policies: from cron, or as a process of their own."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.app import (
    AsJson,
    DataPlace,
    format_count,
    handle_in,
    new_group,
    open_database,
    out,
    print_json,
    print_result,
    quote_id,
    say,
    warn,
)
from perdure.errors import BadSetting, Unavailable
from perdure.model.times import to_datetime

if TYPE_CHECKING:
    from perdure.config.retention import RetentionSettings
    from perdure.database.blocking import SyncDatabase
    from perdure.engine.retention.sweep import RetentionProgress, RetentionResult

care = new_group(
    "care", "Keep stored threads in order: apply retention policies, and show when that was done last."
)

KeepLast = Annotated[
    int | None, typer.Option(min=1, help="Keep so many newest checkpoints of a thread", show_default=False)
]
KeepFor = Annotated[
    str | None, typer.Option(help="Keep checkpoints younger than this, e.g. 30d", show_default=False)
]
Idle = Annotated[
    str | None,
    typer.Option(help="Remove threads without activity for this long, e.g. 90d", show_default=False),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", help="The only settings file to read; by default perdure.toml here"),
]
AllTenants = Annotated[bool, typer.Option("--all-tenants", help="The threads of all tenants")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Remove nothing; print what would be removed")]


@care.command("run")
def run_(
    once: Annotated[bool, typer.Option("--once", help="Sweep once and exit, e.g. from cron")] = False,
    *,
    dry_run: DryRun = False,
    keep_last: KeepLast = None,
    keep_for: KeepFor = None,
    idle: Idle = None,
    share: Annotated[
        float | None,
        typer.Option(help="The share of its time for which a sweep works; 0.05", min=0.0, max=1.0),
    ] = None,
    every: Annotated[str | None, typer.Option(help="The time between two sweeps; 1h")] = None,
    config: Config = None,
    all_tenants: AllTenants = False,
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """Sweep all threads: remove expired ones, and old checkpoints of the others.

    The policy is that of the flags, or without them of the table "retention" in perdure.toml and
    PERDURE_RETENTION_*. A thread for which that table names another policy keeps it.
    Messages that ended go as well if runtime.keep is set.
    Safe beside live runs, and to interrupt: the next sweep continues. One process sweeps a database at a
    time; another one exits with code 0 and changes nothing.
    """
    from perdure.config.retention import load

    place = place.with_key()
    flags = {"keep_last": keep_last, "keep_for": keep_for, "idle": idle, "share": share, "every": every}
    settings = load(file=config, flags=flags, environ=os.environ, has_key=place.keys is not None)
    if once or dry_run:
        if not _sweep_once(settings, place, all_tenants, dry_run, as_json):
            raise typer.Exit(1)
        return
    was_reached = False
    while True:
        try:
            _sweep_once(settings, place, all_tenants, dry_run, as_json)
        except Unavailable as error:
            # A database that was never reached is a mistake; one that was reached before will come back.
            if not was_reached:
                raise
            warn(f"{error}; the next sweep is tried in {settings.every:g} s")
        was_reached = True
        _wait(settings.every)


@care.command()
def status(
    *,
    place: DataPlace,
    all_tenants: AllTenants = False,
    as_json: AsJson = False,
) -> None:
    """Show the sweep that is under way, and when the last one ended."""
    from perdure.engine.retention import sweep

    with open_database(place) as database:
        state, _ = handle_in(database).run(sweep.read_progress(None if all_tenants else place.tenant))
    if as_json:
        print_json(asdict(state))
        return
    if state.finished_at is None:
        out.print("No sweep has ended here yet.")
    else:
        say(f"The last sweep ended at {_format_time(state.finished_at)}: {_describe_sweep(state.last)}")
    if not state.is_over:
        say(f"A sweep is under way since {_format_time(state.started_at)}: {_describe_sweep(state.swept)}")


def prune_threads(
    database: SyncDatabase,
    thread_ids: list[str] | None,
    keep_last: int | None,
    older_than: str | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Prune the named threads, or all of the database's tenant without names, and print what was removed.

    Args:
        database: the database.
        thread_ids: the threads' ids, or ``None``.
        keep_last: keep so many newest checkpoints.
        older_than: keep checkpoints younger than this duration.
        dry_run: remove nothing.
        as_json: print JSON objects.

    Raises:
        BadSetting: ``older_than`` is not a duration.
        Exit: another process sweeps the tenant's threads, or a thread could not be pruned.
    """
    from perdure.model.retention_policy import Retention, RetentionRules

    try:
        rules = RetentionRules(Retention(keep_last=keep_last, keep_for=older_than), only_default=True)
    except ValueError:
        raise BadSetting(f"--older-than is {older_than!r}; it has to be a duration, e.g. '30d'") from None
    from perdure.retention.sweeper import RetentionOptions

    options = RetentionOptions(dry_run=dry_run, share=1.0, rules=rules)
    if not thread_ids:
        swept = database.apply_retention(options)
        if swept is None:
            warn("Another process sweeps these threads; try again when it is done.")
            raise typer.Exit(1)
        _print(swept, dry_run, as_json)
        if swept.failed:
            raise typer.Exit(1)
        return
    for thread_id in thread_ids:
        swept = database.apply_retention_to(thread_id, options)
        stay = len(database.timeline(thread_id, limit=1_000_000))
        if dry_run:
            stay -= swept.checkpoints
        line = f"{quote_id(thread_id)}: {swept.checkpoints} checkpoints {_REMOVED[dry_run]}, {stay} stay"
        print_result(as_json, {"thread_id": thread_id, **asdict(swept), "dry_run": dry_run}, line)


def _wait(seconds: float) -> None:
    until = time.monotonic() + seconds
    while (remaining := until - time.monotonic()) > 0:
        # Sleep in parts, as a longer sleep than the system's clock can count is an error.
        time.sleep(min(remaining, 86400.0))


def _sweep_once(
    settings: RetentionSettings,
    place: DataPlace,
    all_tenants: bool,
    dry_run: bool,
    as_json: bool,
) -> bool:
    """Sweep, and print the result; return False if a thread could not be swept."""
    from perdure.retention.sweeper import RetentionOptions, report_nothing

    with open_database(place) as database:
        options = RetentionOptions(
            all_tenants=all_tenants,
            dry_run=dry_run,
            share=1.0 if dry_run else settings.share,
            on_step=report_nothing if as_json else _make_progress_printer(),
            rules=settings.rules,
            keep=settings.keep,
        )
        swept = database.apply_retention(options)
    if swept is None:
        warn("Another process sweeps this database; nothing was done here.")
        return True
    _print(swept, dry_run, as_json)
    return not swept.failed


def _print(swept: RetentionResult, dry_run: bool, as_json: bool) -> None:
    print_result(as_json, {**asdict(swept), "dry_run": dry_run}, _describe_sweep(swept, dry_run))


def _make_progress_printer() -> Any:
    """Return a function that prints the progress of a sweep at most every two seconds."""
    last = time.monotonic()

    def show(state: RetentionProgress) -> None:
        nonlocal last
        if time.monotonic() - last >= 2 and not state.is_over:
            last = time.monotonic()
            warn(f"… {_describe_sweep(state.swept)}")

    return show


_REMOVED = {True: "would be removed", False: "removed"}
"""Words for removed objects, by whether the run was a dry one."""


def _describe_sweep(swept: RetentionResult, dry_run: bool = False) -> str:
    what = _REMOVED[dry_run]
    text = (
        f"{format_count(swept.threads, 'thread')} looked at; "
        f"{format_count(swept.expired, 'expired thread')} and "
        f"{format_count(swept.checkpoints, 'checkpoint')} {what}, {format_count(swept.bytes, 'byte')}"
    )
    if swept.items:
        text += f"; {format_count(swept.items, 'expired item')} {what}"
    if swept.unfinished:
        text += f"; {format_count(swept.unfinished, 'killed import or write')} {what}"
    if swept.failed:
        return f"{text}; {format_count(swept.failed, 'thread')} could not be swept"
    return text


def _format_time(at: int) -> str:
    return to_datetime(at).isoformat(timespec="seconds")
