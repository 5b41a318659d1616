"""Comparison of two checkpoints of a thread: which channels changed, and by which items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from perdure.cli.app import (
    AsJson,
    DataPlace,
    ThreadId,
    handle_in,
    json_text,
    make_legible,
    open_database,
    out,
    print_json,
    quote_id,
    say,
)

if TYPE_CHECKING:
    from perdure.database.blocking import SyncDatabase

_WIDEST = 2000


def diff(
    thread_id: ThreadId,
    *,
    before: Annotated[
        str | None,
        typer.Argument(help="A checkpoint's id, tag or step; by default the parent of the other one"),
    ] = None,
    after: Annotated[
        str | None, typer.Argument(help="A checkpoint's id, tag or step; by default the latest")
    ] = None,
    namespace: Annotated[str, typer.Option(help="A subgraph's namespace; empty for the graph itself")] = "",
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """Show what changed in a thread's state between two checkpoints.

    Without ids: what the latest step changed. Lists are compared item by item, so that of a conversation the
    messages are shown that were added, removed or replaced. With --json, one object for each changed channel.
    """
    with open_database(place) as database:
        newest = None
        if after is not None:
            newest = checkpoint_id(database, thread_id, after, namespace)
        new = database.show(thread_id, newest, namespace)
        if before is None:
            old_id = new.parent_id
        else:
            old_id = checkpoint_id(database, thread_id, before, namespace)
        old = None
        if old_id is not None:
            old = database.show(thread_id, old_id, namespace)
    if old is None:
        first = {}
    else:
        first = {c.name: c.value for c in old.channels}
    second = {c.name: c.value for c in new.channels}
    changes = list(_find_changes(first, second))
    if as_json:
        for change in changes:
            print_json({"thread_id": thread_id, "before": old_id, "after": new.checkpoint_id, **change})
        return
    line = f"{quote_id(thread_id)}  {old_id or 'nothing'} → {new.checkpoint_id}"
    say(line)
    if not changes:
        out.print("No channel differs.")
    for change in changes:
        out.print(f"\n[bold]{escape(quote_id(change['channel']))}[/] {change['change']}", soft_wrap=True)
        for sign, color in (("removed", "red"), ("added", "green")):
            for item in change[sign]:
                mark = "-" if sign == "removed" else "+"
                out.print(f"[{color}]{mark} {escape(_format_item(item))}[/]", soft_wrap=True)


def checkpoint_id(database: SyncDatabase, thread_id: str, name: str, namespace: str) -> str:
    """Return the id of a checkpoint named by its id, a tag or its step; raise ``NotFound`` without one."""
    from perdure.langgraph.reading.plain_reading import find_named

    handle = handle_in(database)
    return handle.run(find_named(handle.partition(thread_id), namespace, name))


def _find_changes(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for name in sorted({*first, *second}):
        if name not in second:
            yield {"channel": name, "change": "removed", "removed": _list_items(first[name]), "added": []}
        elif name not in first:
            yield {"channel": name, "change": "added", "removed": [], "added": _list_items(second[name])}
        elif _format_json(first[name]) != _format_json(second[name]):
            removed, added = _list_items(first[name]), _list_items(second[name])
            if isinstance(first[name], list) and isinstance(second[name], list):
                removed, added = _diff_lists(removed, added)
            yield {"channel": name, "change": "changed", "removed": removed, "added": added}


def _list_items(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return [value]


def _diff_lists(first: list[Any], second: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return the items that only the first list has, and those that only the second has, in order."""
    matcher = SequenceMatcher(
        None, [_format_json(i) for i in first], [_format_json(i) for i in second], autojunk=False
    )
    removed: list[Any] = []
    added: list[Any] = []
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag != "equal":
            removed += first[a:b]
            added += second[c:d]
    return removed, added


def _format_json(value: Any) -> str:
    return json_text(value, sort_keys=True, ascii_only=False)


def _format_item(item: Any) -> str:
    """Return an item on one line: a message as its type and text, anything else as JSON."""
    inner = item.get("value") if isinstance(item, dict) else None
    if isinstance(inner, dict) and "content" in inner and "type" in inner:
        content = inner["content"]
        if isinstance(content, str):
            text = content
        else:
            text = _format_json(content)
        calls = "".join(f" [calls {call.get('name')}]" for call in inner.get("tool_calls") or ())
        line = f"{inner['type']}: {text}{calls}"
    else:
        line = _format_json(item)
    line = make_legible(line)
    if len(line) <= _WIDEST:
        return line
    return f"{line[:_WIDEST]}… ({len(line):,} characters)"
