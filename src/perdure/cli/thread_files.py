"""``perdure threads files``: the files that an agent keeps in the state of its thread."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.app import (
    AsJson,
    DataPlace,
    Namespace,
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
    from perdure.database.blocking import SyncDatabase
    from perdure.model.records import Partition


def files(
    thread_id: ThreadId,
    path: Annotated[
        str | None, typer.Argument(help="The file whose text is printed; all are listed without")
    ] = None,
    *,
    checkpoint: Annotated[str | None, typer.Option(help="The checkpoint's id; the latest without it")] = None,
    namespace: Namespace = "",
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """List the files that an agent keeps in its state, as deep agents do, or print the text of one."""
    with open_database(place) as database:
        partition = handle_in(database).partition(thread_id)
        if path is None:
            database.show(thread_id, checkpoint, namespace)
            listed = _list_files(database, partition, namespace, checkpoint)
            table = new_table("path", "bytes", "changed")
            print_table(listed, as_json, table, _make_row, "the state of this thread has no files")
            return
        text = _read_file(database, partition, namespace, checkpoint, path)
    if as_json:
        print_json({"thread_id": thread_id, "path": path, "text": text})
    else:
        sys.stdout.write(make_legible(text, keep="\n\t") + "\n")


# Both read all of one checkpoint, even if others are stored meanwhile.


def _list_files(
    database: SyncDatabase, partition: Partition, namespace: str, checkpoint: str | None
) -> list[dict[str, Any]]:
    from perdure.langgraph.reading.thread_files import load_files

    handle = handle_in(database)
    listed: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        page = handle.run(
            load_files(partition, handle.digest, namespace=namespace, checkpoint_id=checkpoint, after=after)
        )
        listed += (each._asdict() for each in page.files)
        checkpoint, after = page.checkpoint_id, page.cursor
    return listed


def _read_file(
    database: SyncDatabase, partition: Partition, namespace: str, checkpoint: str | None, path: str
) -> str:
    from perdure.langgraph.reading.thread_files import load_file

    handle = handle_in(database)
    read = partial(load_file, partition, handle.digest, path, namespace=namespace)
    text = ""
    while True:
        part = handle.run(read(checkpoint_id=checkpoint, start=len(text)))
        if not part.file.is_text:
            raise BadSetting(f"{path!r} is not text; a program has it in the state, under `files`")
        checkpoint, text = part.checkpoint_id, text + part.text
        if len(text) >= part.length:
            return text


def _make_row(file: dict[str, Any]) -> tuple[str, str, str]:
    return quote_id(file["path"]), f"{file['size']:,}", quote_id((file["modified_at"] or "")[:19])
