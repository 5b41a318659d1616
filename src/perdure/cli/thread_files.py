"""``perdure threads files``: the files that an agent keeps in the state of its thread."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from perdure.cli.app import (
    AsJson,
    Db,
    Keys,
    Tenant,
    ThreadId,
    handle_in,
    legible,
    open_database,
    out,
    print_json,
    printable,
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
    db: Db = None,
    tenant: Tenant = "",
    keys: Keys = None,
    as_json: AsJson = False,
) -> None:
    """List the files that an agent keeps in its state, as deep agents do, or print the text of one."""
    from perdure.langgraph.reading.thread_files import load_file, load_files

    listed: list[ThreadFile] = []
    parts: list[str] = []
    after, start = "", 0
    with open_database(db, tenant, keys) as database:
        handle = handle_in(database)
        partition = handle.partition(thread_id)
        if path is None:
            database.show(thread_id, checkpoint, namespace)
        # All of one checkpoint, whatever is stored meanwhile.
        at = checkpoint
        while path is None:
            page = handle.run(
                load_files(partition, handle.digest, namespace=namespace, checkpoint_id=at, after=after)
            )
            listed += page.files
            if page.cursor is None:
                break
            at, after = page.checkpoint_id, page.cursor
        while path is not None:
            found = handle.run(
                load_file(partition, handle.digest, path, namespace=namespace, checkpoint_id=at, start=start)
            )
            if not found.file.is_text:
                raise BadSetting(f"{path!r} is not text; a program has it in the state, under `files`")
            at = found.checkpoint_id
            parts.append(found.text)
            start += len(found.text)
            if start >= found.length:
                break
    if path is None:
        _list(listed, as_json=as_json)
    elif as_json:
        print_json({"thread_id": thread_id, "path": path, "text": "".join(parts)})
    else:
        sys.stdout.write(legible("".join(parts), keep="\n\t") + "\n")


def _list(found: list[ThreadFile], *, as_json: bool) -> None:
    if as_json:
        for each in found:
            print_json(each._asdict())
        return
    if not found:
        out.print("the state of this thread has no files")
        return
    table = Table("path", "bytes", "changed", box=None, pad_edge=False)
    for each in found:
        table.add_row(
            escape(printable(each.path)), f"{each.size:,}", escape(printable((each.modified_at or "")[:19]))
        )
    out.print(table)
