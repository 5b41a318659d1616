"""Commands on threads: show, tag, prune. All of them work while the application runs."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from perdure.cli.app import (
    AsJson,
    DataPlace,
    Namespace,
    ThreadId,
    Yes,
    add_listing,
    check_new_id,
    collect_fields,
    format_known,
    json_text,
    make_legible,
    new_group,
    new_table,
    open_database,
    out,
    print_json,
    print_result,
    quote_id,
    require_consent,
    say,
    warn,
)
from perdure.cli.care import DryRun, prune_threads
from perdure.cli.data.diff import checkpoint_id, diff, find_message
from perdure.cli.questions import signal
from perdure.cli.queue import dead, inbox, outbox, retry, runs, stuck
from perdure.cli.thread_agents import print_agents, read_agents
from perdure.cli.thread_files import files
from perdure.cli.thread_listing import list_threads, top
from perdure.cli.thread_steps import print_way, read_way
from perdure.errors import Corrupt
from perdure.model.missing_thread import missing_thread
from perdure.model.records import Partition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.langgraph.reading.plain_reading import ChannelView

threads = new_group("threads", "Look at threads and their queues, tag and prune them.")
add_listing(threads, list_threads)
for command in (top, diff, files, inbox, runs, outbox, dead, retry, stuck, signal):
    threads.command()(command)


@threads.command()
def show(
    thread_id: ThreadId,
    *,
    checkpoint: Annotated[
        str | None, typer.Option(help="The checkpoint's id, tag or step; the latest without it")
    ] = None,
    namespace: Namespace = "",
    steps: Annotated[int, typer.Option(min=1, max=1000, help="The newest steps to show")] = 20,
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """Show a thread: its state, now or at a checkpoint, messages, to-dos and subagents, and its path through
    the nodes with the times of their tasks and the tokens of their models.

    At a checkpoint the path ends with the step that made it. The title, the waits and the tokens are those of
    the thread now. Costs are shown if the table "prices" of perdure.toml has the models.
    """
    with open_database(place) as database:
        if checkpoint is not None:
            checkpoint = checkpoint_id(database, thread_id, checkpoint, namespace)
        view = database.show(thread_id, checkpoint, namespace)
        way = read_way(database, thread_id, namespace, steps, checkpoint)
        agents = read_agents(database, thread_id, namespace, checkpoint)
    if as_json:
        entry = collect_fields(view)
        channels = [collect_fields(each) for each in view.channels]
        print_json({"thread_id": thread_id, **entry, "channels": channels, **way, **agents})
        return
    line = f"[bold]{escape(quote_id(thread_id))}[/]  "
    if way["title"] and checkpoint is not None:
        line += "title now: "
    out.print(f"{line}{escape(quote_id(way['title'] or ''))}".rstrip(), soft_wrap=True)
    say(f"checkpoint {view.checkpoint_id}")
    line = f"{view.created_at}  source {quote_id(view.source or '')}  step {view.step}"
    if view.tags:
        line += f"  tags {', '.join(map(quote_id, view.tags))}"
    say(line)
    table = new_table("channel", "bytes", "items")
    for channel in view.channels:
        table.add_row(escape(quote_id(channel.name)), f"{channel.size:,}", format_known(channel.length))
    out.print(table)
    say("The bytes are those of this checkpoint's values; checkpoints share what did not change.")
    for task, name, _ in view.pending:
        out.print(f"written by the next step: task {task} to {escape(quote_id(name))}")
    print_way(way, is_latest=checkpoint is None)
    print_agents(agents)
    for channel in view.channels:
        _print_messages(channel, way["authors"])


@threads.command()
def history(
    thread_id: ThreadId,
    *,
    place: DataPlace,
    limit: Annotated[int, typer.Option(min=1, help="The maximum number, newest first")] = 30,
    namespace: Namespace = "",
    as_json: AsJson = False,
) -> None:
    """List the checkpoints of a thread, newest first."""
    with open_database(place) as database:
        views = database.timeline(thread_id, namespace, limit)
    if as_json:
        for view in views:
            entry = collect_fields(view)
            del entry["channels"], entry["pending"]  # they are not read here
            print_json(entry)
        return
    table = new_table("checkpoint", "parent", "step", "source", "created", "updated", "tags")
    table.columns[0].no_wrap = True
    for view in views:
        table.add_row(
            view.checkpoint_id,
            (view.parent_id or "")[-12:],
            format_known(view.step),
            escape(quote_id(view.source or "")),
            view.created_at[:19],
            escape(", ".join(map(quote_id, view.updated or ()))),
            escape(", ".join(map(quote_id, view.tags))),
        )
    out.print(table)


@threads.command()
def digest(
    thread_ids: Annotated[
        list[str] | None, typer.Argument(help="The threads' ids; all of the tenant without")
    ] = None,
    *,
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """Print the digest of a thread's content: history, values, pending writes, tags and heads.

    It does not depend on the backend or the encryption key.
    """
    with open_database(place) as database:
        unreadable = 0
        for name in thread_ids or [thread.thread_id for thread in database.threads()]:
            try:
                found = database.digest(name)
            except Corrupt as error:
                unreadable += 1
                warn(f"{quote_id(name)} cannot be read: {error}")
                continue
            if not found.checkpoints and not found.writes:
                raise missing_thread(Partition(place.tenant, name))
            print_result(as_json, {"thread_id": name, "digest": found.hex}, f"{found.hex}  {quote_id(name)}")
    if unreadable:
        raise typer.Exit(1)


@threads.command()
def tag(
    thread_id: ThreadId,
    *,
    name: Annotated[str, typer.Argument(help="The tag's name")],
    checkpoint: Annotated[str | None, typer.Option(help="The checkpoint's id; the latest without it")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the tag")] = False,
    place: DataPlace,
) -> None:
    """Tag a checkpoint: no pruning removes it, and a fork can start from it later."""
    with open_database(place) as database:
        if remove:
            database.untag(thread_id, name)
            line = f"{quote_id(thread_id)}: the tag {quote_id(name)} is gone"
        else:
            if not name:
                raise typer.BadParameter("a tag needs a name that is not empty", param_hint="NAME")
            target = database.tag(thread_id, name, checkpoint)
            line = f"{quote_id(thread_id)}: {quote_id(name)} is checkpoint {target}"
    say(line)


@threads.command()
def fork(
    thread_id: ThreadId,
    *,
    checkpoint: Annotated[str, typer.Argument(help="A checkpoint's id or a tag to go on from")],
    into: Annotated[
        str | None,
        typer.Option(
            help="Copy the thread under this id and fork the copy", show_default=False, callback=check_new_id
        ),
    ] = None,
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """Go on from an earlier checkpoint: its copy becomes the latest one, and the next message builds on it.

    The checkpoints after it stay as a branch. With --into the thread itself is left as it is. Refused while a
    run of the thread is open. Typical: `perdure threads fork ada approved --into ada-again`.
    """
    with open_database(place) as database:
        source = checkpoint_id(database, thread_id, checkpoint, "")
        if into is not None:
            database.checkpointer().copy_thread(thread_id, into)
        target = into or thread_id
        try:
            forked = database.fork(target, source)
        except BaseException:
            if into is not None:
                # The copy stays: another process may have written to it by now.
                warn(
                    f"{quote_id(into)} is a copy that was not forked; go on with "
                    f"`perdure threads fork {shlex.quote(quote_id(into))} {source}`, or delete it"
                )
            raise
    line = f"{quote_id(target)}: goes on from {source} as {forked}"
    print_result(as_json, {"thread_id": target, "checkpoint_id": forked, "copy_of": source}, line)


@threads.command()
def prune(
    thread_ids: Annotated[list[str] | None, typer.Argument(help="The threads' ids")] = None,
    *,
    every_thread: Annotated[bool, typer.Option("--all", help="All threads of the tenant")] = False,
    keep_last: Annotated[
        int | None, typer.Option(min=1, help="The number of newest checkpoints to keep", show_default=False)
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(help="Remove only checkpoints older than this, e.g. 30d", show_default=False),
    ] = None,
    dry_run: DryRun = False,
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """Remove old checkpoints: those that are neither among the newest nor young enough.

    The latest one, tagged ones, and what they need stay. Safe beside live runs.
    """
    if bool(thread_ids) == every_thread:
        raise typer.BadParameter("name threads, or pass --all for every thread of the tenant")
    if keep_last is None and older_than is None:
        raise typer.BadParameter("which checkpoints? Pass --keep-last 50, --older-than 30d, or both")
    with open_database(place) as database:
        prune_threads(database, thread_ids, keep_last, older_than, dry_run=dry_run, as_json=as_json)


@threads.command()
def delete(
    thread_id: ThreadId,
    yes: Yes = False,
    *,
    place: DataPlace,
) -> None:
    """Remove a thread with everything in it, or the parts of one that was copied incompletely."""
    from perdure import admin

    with open_database(place) as database:
        if Partition(place.tenant, thread_id) not in admin.partitions(database, place.tenant):
            database.show(thread_id)
        require_consent(f"Remove the thread {quote_id(thread_id)} with everything in it?", yes)
        database.checkpointer().delete_thread(thread_id)
    say(f"{quote_id(thread_id)} is gone")


def _print_messages(channel: ChannelView, authors: Mapping[str, str]) -> None:
    """Print the messages of a channel, if it holds any, with the nodes that wrote them."""
    if not isinstance(channel.value, list):
        return
    for inner in filter(None, map(find_message, channel.value)):
        text = inner["content"]
        if not isinstance(text, str):
            text = json_text(text)
        line = typer.style(f"\n{quote_id(str(inner['type']))}", bold=True)
        if node := authors.get(str(inner.get("id"))):
            line += f" by {quote_id(node)}"
        typer.echo(line)
        if text:
            typer.echo(make_legible(text, keep="\n\t"))
        for call in inner.get("tool_calls") or ():
            arguments = make_legible(json_text(call.get("args"), ascii_only=False))
            name = quote_id(str(call.get("name")))
            typer.echo(f"calls {name} with {arguments}")
