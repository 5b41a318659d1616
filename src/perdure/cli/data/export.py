"""Export of threads to files: readable JSON, or an archive that can be imported without loss."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.app import (
    DataPlace,
    handle_in,
    json_text,
    keys_of,
    open_database,
    print_json,
    quote_id,
    say,
    warn,
)
from perdure.cli.data.copy import HandOver
from perdure.cli.data.export_to import TargetOptions, export_to
from perdure.cli.data.exported_threads import (
    choose_threads,
    list_threads,
    report_stateless,
    require_named,
)
from perdure.cli.data.langgraph_server import Authorization, Headers, ServerOptions
from perdure.cli.data.sessions import export_sessions
from perdure.errors import BadArchive, Conflict, NotAllowed, NotFound, PerdureError, Unavailable
from perdure.model.missing_thread import missing_thread
from perdure.model.records import THREADS, Partition

if TYPE_CHECKING:
    from perdure.database.blocking import SyncDatabase
    from perdure.engine.threads.thread_digest import Digest


class ExportForm(StrEnum):
    """The form of an export that is printed."""

    JSON = "json"
    HISTORY = "history"
    SESSIONS = "sessions"


def export(
    thread_ids: Annotated[
        list[str] | None, typer.Argument(help="The threads' ids, or those of sessions")
    ] = None,
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write a file that `perdure import --from archive` reads"),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every thread of the tenant; not for JSON on standard output")
    ] = False,
    clear: Annotated[
        bool, typer.Option("--clear", help="Write the file in the clear although the database is encrypted")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there")] = False,
    hand_over: HandOver = False,
    form: Annotated[
        ExportForm,
        typer.Option("--as", help="Form without --output: everything, the messages, or sessions"),
    ] = ExportForm.JSON,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="URL",
            help="A LangGraph server, http://…, or a saver of LangGraph's, sqlite:///FILE or postgresql://…",
        ),
    ] = None,
    graphs: Annotated[
        list[str] | None,
        typer.Option(
            "--graph",
            metavar="[NAME=]PLACE",
            help="Server: a graph of the threads, by its name there; may be repeated",
        ),
    ] = None,
    headers: Headers = None,
    authorization: Authorization = None,
    place: DataPlace,
) -> None:
    """Export a thread: readable JSON on standard output, or with --output a file to import elsewhere.

    With --all, a thread that is damaged, or has messages under way, is named and left out, and the exit code
    is 1. A thread without anything to export (without --output: without a state) is also named and left out;
    this does not change the exit code.

    The JSON is for reading; it cannot be imported, and it is never encrypted. The file of --output is
    complete and holds any number of threads. It is read back and compared by digest before it replaces a file
    of its name, and only its owner can read it. From an encrypted database it is encrypted with the same key,
    which the import needs; --clear writes it unencrypted.

    A thread that goes on by itself, at a deadline, after a sleep or with a signal, is refused. With
    --hand-over it goes on where the file is imported, and stops doing so here. Import such a file once.

    --to writes threads to another place, compares them there afterwards, and can be repeated. A saver of
    LangGraph's gets them whole: the same graph, compiled with it, goes on. A server gets the steps that led
    to each latest state, whose checkpoints have other ids there, and with --all the assistants, the items of
    the store and the crons; this needs the graph.

    --as history prints the messages of a thread's latest state as neutral JSON, `[{role, content, …}]`; for
    several threads, or --all, a line each. `perdure import --from history` reads both.

    --as sessions prints histories without checkpoints, `{session_id, messages}` on a line each, with the
    session's task budget, if it has one. `perdure import --from sessions` reads it, into any backend.
    """
    from perdure import admin
    from perdure.model.ops import Drop
    from perdure.model.program import ask

    place = place.with_key()
    if to is not None and (output is not None or form is not ExportForm.JSON):
        raise NotAllowed("--to names the place to export to; leave out --output and --as")
    server = ServerOptions(headers or [], authorization, graphs or [])
    server.require(is_used=to is not None)
    _refuse_options_of_files(form, output, clear=clear, hand_over=hand_over)
    with open_database(place) as database:
        if to is not None:
            export_to(to, database, place.tenant, TargetOptions(thread_ids or [], everything, server))
            return
        if output is None:
            _print_threads(database, place.tenant, thread_ids, everything, form)
            return
        if output.exists() and not force:
            raise NotAllowed(f"{output} exists; pass --force to write over it")
        names = list_threads(database, place.tenant)
        wanted = names if everything else require_named(thread_ids)
        for name in wanted:
            if name not in names:
                raise missing_thread(Partition(place.tenant, name))
        left_out: dict[str, PerdureError] = {}
        digests: list[tuple[str, Digest]] = []
        with admin.new_archive(output, encryption_key=None if clear else keys_of(place.keys)) as archive:
            for name in wanted:
                partition = Partition(place.tenant, name)
                try:
                    moved = admin.move(database, partition, archive, hand_over=hand_over)
                    digests.append((name, moved.digest))
                except PerdureError as error:
                    if not everything or isinstance(error, Unavailable):
                        raise
                    handle_in(archive).run(ask(Drop(partition)))
                    if isinstance(error, NotFound):
                        # The thread was deleted since it was listed, or never held more than its name.
                        warn(f"{quote_id(name)}: left out, as it is empty")
                    else:
                        left_out[name] = error
            if not digests:
                _warn_left_out(left_out)
                why = "no thread can be exported" if left_out else "there is no thread to export"
                raise NotFound(f"{why}; {output} was not written")
    for name, digest in digests:
        say(f"{digest.hex}  {quote_id(name)}, {digest.checkpoints} checkpoints")
    sealed = "in the clear" if clear or place.keys is None else "sealed with the database's key"
    subject = "thread is" if len(digests) == 1 else "threads are"
    warn(f"{len(digests)} {subject} in {output}, {sealed}")
    if left_out:
        _warn_left_out(left_out)
        raise typer.Exit(1)


def _refuse_options_of_files(form: ExportForm, output: Path | None, *, clear: bool, hand_over: bool) -> None:
    if hand_over and output is None:
        raise NotAllowed("--hand-over is for a file that is imported elsewhere; name it with --output")
    if form is not ExportForm.JSON and (output is not None or clear):
        raise NotAllowed(f"--as {form} is printed; redirect it to a file instead of --output")


def _print_threads(
    database: SyncDatabase, tenant: str, thread_ids: list[str] | None, everything: bool, form: ExportForm
) -> None:
    match form:
        case ExportForm.SESSIONS:
            export_sessions(database, thread_ids, everything)
        case ExportForm.HISTORY:
            _export_history(database, tenant, thread_ids, everything)
        case ExportForm.JSON:
            if everything or thread_ids is None or len(thread_ids) != 1:
                raise NotAllowed(
                    "JSON is written for one thread; name one, or pass --output FILE for several"
                )
            choose_threads(database, tenant, thread_ids, everything=False)
            data = database.export(thread_ids[0])
            typer.echo(json_text(data, indent=1))


def _warn_left_out(left_out: dict[str, PerdureError]) -> None:
    for name, why in left_out.items():
        warn(f"{quote_id(name)}: not exported: {why}")


def _export_history(
    database: SyncDatabase, tenant: str, thread_ids: list[str] | None, everything: bool
) -> None:
    from perdure.imports.histories.conversations import read_history

    names, stateless = choose_threads(database, tenant, thread_ids, everything=everything)
    if len(names) == 1 and not everything:
        typer.echo(json_text(read_history(database, names[0], tenant=tenant), indent=1))
        return
    left_out: dict[str, PerdureError] = {}
    for name in names:
        try:
            messages = read_history(database, name, tenant=tenant)
        except PerdureError as error:
            if not everything or isinstance(error, Unavailable):
                raise
            left_out[name] = error
            continue
        print_json({"thread_id": name, "messages": messages})
    report_stateless(stateless)
    if left_out:
        _warn_left_out(left_out)
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """Options of the import of an archive, as the command takes them."""

    threads: list[str] | None
    rename: str | None
    replace: bool
    dry_run: bool
    file_keys: str | None
    place: DataPlace


def import_archive(name: str, options: ArchiveOptions) -> None:
    """Import threads from an archive that `perdure export --output` wrote, into the tenant that is named.

    First the whole file is checked and compared with the database. A file that is truncated, modified,
    encrypted with another key or of another format is refused, and so is a thread whose id is taken by a
    different one (unless ``replace``); in these cases nothing is changed. In an encrypted database the
    threads are encrypted with its key, even if the file is not encrypted.
    """
    from perdure import admin
    from perdure.engine.transfer.transfer_terms import State

    file, dry_run, place = Path(name), options.dry_run, options.place.with_key()
    file_key = keys_of(options.file_keys) or keys_of(place.keys)
    with (
        open_database(place) as database,
        admin.open_archive(
            file, encryption_key=file_key, sealed_only=options.file_keys is not None
        ) as archive,
    ):
        moves = _plan_moves(archive, file, options.threads, options.rename, place.tenant)
        previews = [
            (into, admin.move(archive, each, database, into, replace=options.replace, dry_run=True))
            for each, into in moves
        ]
        taken = [into.thread for into, moved in previews if moved.found is State.DIFFERENT]
        if taken and not options.replace:
            raise Conflict(
                f"{', '.join(map(repr, taken))} is taken by a different thread; nothing was imported. Pass "
                "--replace, or --rename for another id"
            )
        for (each, into), (_, preview) in zip(moves, previews, strict=True):
            digest, text = preview.digest, "would be imported"
            if not dry_run:
                digest = admin.move(archive, each, database, into, replace=options.replace).digest
                text = "imported"
            if preview.found is State.SAME:
                text = "is there already"
            say(f"{digest.hex}  {quote_id(into.thread)}: {text}, {digest.checkpoints} checkpoints")


def _plan_moves(
    archive: SyncDatabase, file: Path, threads: list[str] | None, rename: str | None, tenant: str
) -> list[tuple[Partition, Partition]]:
    """Return the chosen threads of a file, each with its target."""
    from perdure import admin

    archived = [p for p in admin.partitions(archive, None) if p.space == THREADS]
    chosen = [p for p in archived if not threads or p.thread in threads]
    missing = [name for name in threads or [] if name not in {p.thread for p in chosen}]
    if missing or not chosen:
        names = ", ".join(repr(p.thread) for p in archived) or "none"
        raise NotFound(f"{file} does not hold the thread {(missing or ['?'])[0]!r}; it holds {names}")
    if len({p.thread for p in chosen}) < len(chosen):
        raise BadArchive(
            f"{file} holds threads of several tenants with the same id; export one tenant at a time"
        )
    if rename is not None and len(chosen) != 1:
        raise NotAllowed(f"--rename names one thread, {file} holds {len(chosen)}; pick one with --thread")
    return [(p, Partition(tenant, p.thread if rename is None else rename)) for p in chosen]
