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
    Namespace,
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
    namespace: Namespace = "",
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """Show what changed in a thread's state between two checkpoints.

    Without ids: what the latest step changed. Lists are compared item by item, so that of a conversation the
    messages are shown that were added, removed or replaced. With --json, one object for each changed channel.
    """
    with open_database(place) as database:
        if after is not None:
            after = checkpoint_id(database, thread_id, after, namespace)
        new = database.show(thread_id, after, namespace)
        old_id = new.parent_id
        if before is not None:
            old_id = checkpoint_id(database, thread_id, before, namespace)
        first: dict[str, Any] = {}
        if old_id is not None:
            first = {c.name: c.value for c in database.show(thread_id, old_id, namespace).channels}
    changes = list(_find_changes(first, {c.name: c.value for c in new.channels}))
    if as_json:
        for change in changes:
            print_json({"thread_id": thread_id, "before": old_id, "after": new.checkpoint_id, **change})
        return
    say(f"{quote_id(thread_id)}  {old_id or 'nothing'} → {new.checkpoint_id}")
    if not changes:
        out.print("No channel differs.")
    for change in changes:
        out.print(f"\n[bold]{escape(quote_id(change['channel']))}[/] {change['change']}", soft_wrap=True)
        for part, mark, color in (("removed", "-", "red"), ("added", "+", "green")):
            for item in change[part]:
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


def find_message(item: Any) -> dict[str, Any] | None:
    """Return the fields of an item that is a message, ``None`` for any other item."""
    if isinstance(item, dict):
        fields = item.get("value")
        if isinstance(fields, dict) and "content" in fields and "type" in fields:
            return fields
    return None


def _format_item(item: Any) -> str:
    """Return an item on one line: a message as its type and text, anything else as JSON."""
    message = find_message(item)
    if message is None:
        line = _format_json(item)
    else:
        text = message["content"]
        if not isinstance(text, str):
            text = _format_json(text)
        calls = "".join(f" [calls {call.get('name')}]" for call in message.get("tool_calls") or ())
        line = f"{message['type']}: {text}{calls}"
    line = make_legible(line)
    if len(line) <= _WIDEST:
        return line
    return f"{line[:_WIDEST]}… ({len(line):,} characters)"
