"""``perdure threads files``: the files that an agent keeps in the state of its thread."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.app import (
    AsJson,
    DataPlace,
    ThreadId,
    handle_in,
    make_legible,
    new_table,
    open_database,
    print_json,
    print_table,
    quote_id,
)
from perdure.errors import BadSetting

if TYPE_CHECKING:
    from perdure.langgraph.reading.thread_files import ThreadFile


def files(
    thread_id: ThreadId,
    path: Annotated[
        str | None, typer.Argument(help="The file whose text is printed; all are listed without")
    ] = None,
    *,
    checkpoint: Annotated[str | None, typer.Option(help="The checkpoint's id; the latest without it")] = None,
    namespace: Annotated[str, typer.Option(help="A subgraph's namespace; empty for the graph itself")] = "",
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """List the files that an agent keeps in its state, as deep agents do, or print the text of one."""
    from perdure.langgraph.reading.thread_files import load_file, load_files

    listed: list[ThreadFile] = []
    parts: list[str] = []
    after, start = "", 0
    with open_database(place) as database:
        handle = handle_in(database)
        partition = handle.partition(thread_id)
        if path is None:
            database.show(thread_id, checkpoint, namespace)
        # Read all of one checkpoint, even if others are stored meanwhile.
        read_checkpoint = checkpoint
        while path is None:
            page = handle.run(
                load_files(
                    partition, handle.digest, namespace=namespace, checkpoint_id=read_checkpoint, after=after
                )
            )
            listed += page.files
            if page.cursor is None:
                break
            read_checkpoint, after = page.checkpoint_id, page.cursor
        while path is not None:
            found = handle.run(
                load_file(
                    partition,
                    handle.digest,
                    path,
                    namespace=namespace,
                    checkpoint_id=read_checkpoint,
                    start=start,
                )
            )
            if not found.file.is_text:
                raise BadSetting(f"{path!r} is not text; a program has it in the state, under `files`")
            read_checkpoint = found.checkpoint_id
            parts.append(found.text)
            start += len(found.text)
            if start >= found.length:
                break
    if path is None:
        entries = [each._asdict() for each in listed]
        table = new_table("path", "bytes", "changed")
        print_table(entries, as_json, table, _make_row, "the state of this thread has no files")
    elif as_json:
        print_json({"thread_id": thread_id, "path": path, "text": "".join(parts)})
    else:
        sys.stdout.write(make_legible("".join(parts), keep="\n\t") + "\n")


def _make_row(file: dict[str, Any]) -> tuple[str, str, str]:
    return quote_id(file["path"]), f"{file['size']:,}", quote_id((file["modified_at"] or "")[:19])
