"""The conversation of a thread as people read it: messages with author, node and time, tool calls, reasoning.

It is the list of messages in the state of the latest checkpoint. No message object is built: messages are
read as plain data, so no type of the application is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from perdure.engine.threads import chunk_reads
from perdure.engine.threads.history import find
from perdure.engine.threads.undisturbed import read_undisturbed
from perdure.errors import BadSetting
from perdure.langgraph.reading.delta_values import (
    is_message,
    load_deltas,
    plain_of,
    read_message_fields,
    unwrap_snapshot,
)
from perdure.langgraph.reading.step_authors import WrittenMessage
from perdure.langgraph.reading.thread_steps import load_steps
from perdure.model.model_calls import Prices, calls_in, show_call
from perdure.model.ops import Fetch, Get
from perdure.model.program import Program, ask
from perdure.model.records import HEAD, Partition
from perdure.model.values.chunks import Digester
from perdure.model.values.tree import EncodedList
from perdure.schema.changes import BRANCH

MESSAGES = 40
"""Messages of one page."""
_TEXT_MAX = 64 * 1024
"""Characters of one text that are returned."""
_PAGE_MAX = 1024 * 1024
"""Characters of the other parts and arguments that one page returns."""
_TITLE_MAX = 80
_STEP_PAGES = 3
"""Pages of steps in which one page of messages looks for times."""
_USUAL = "messages"
_REASONING = ("thinking", "reasoning", "redacted_thinking")
_TOOL_CALLS = ("tool_calls", "invalid_tool_calls")
_DIGITS_MAX = 18


class MessagesPage(NamedTuple):
    """Messages, oldest first. ``cursor`` asks for the page before them, and is ``None`` on the first page of
    the conversation.

    Attributes:
        channel: The channel of the state that has them, ``None`` if there is none.
        start: The number of messages before the first one.
        total: The number of all messages.
        title: The beginning of the first message, ``""`` if that is not text.
    """

    channel: str | None
    messages: list[dict[str, Any]]
    start: int
    total: int
    title: str
    cursor: str | None


def load_messages(
    partition: Partition,
    digest: Digester,
    prices: Prices,
    cursor: str = "",
    limit: int = MESSAGES,
    namespace: str = "",
) -> Program[MessagesPage]:
    """Return a page of the conversation. The first page has the last messages, the next one those before
    them.

    Args:
        partition: The thread.
        digest: Names the chunks.
        prices: The prices of models.
        cursor: The cursor that the page before returned, empty for the first page.
        limit: Maximum number of messages to return.
        namespace: The namespace of the graph or subgraph whose conversation it is.

    Raises:
        BadSetting: The cursor is not one that a page returned.
    """
    position = _parse_cursor(cursor)

    def read() -> Program[MessagesPage]:
        return (yield from _load(partition, digest, prices, position, limit, namespace))

    return (yield from read_undisturbed(partition, read))


def _load(
    partition: Partition, digest: Digester, prices: Prices, position: _Position, limit: int, namespace: str
) -> Program[MessagesPage]:
    before, below, skip = position
    channel, tree = yield from find_conversation(partition, digest, namespace)
    if tree is None:
        return MessagesPage(None, [], 0, 0, "", None)
    count = len(tree.items)
    end = count if before is None else min(before, count)
    start = max(0, end - limit)
    messages = [read_message_fields(plain_of(item)) for item in tree.items[start:end]]
    first = read_message_fields(plain_of(tree.items[0])) if count else {}
    written, origin_of_id = list[_Written](), dict[str, _Origin]()
    pages: list[tuple[int, int | None]] = []
    origins: dict[str, _Origin] = {}
    used = skip
    for _ in range(_STEP_PAGES):
        pages.append((len(written), below))
        page = yield from load_steps(partition, digest, namespace, before=below)
        for time, node, some in page.written:
            origin = _Origin(time, node)
            origin_of_id.update({each.id: origin for each in some if each.id is not None})
            # A task that wrote the whole conversation again is not the author of its messages.
            is_whole = some[0].id is not None and some[0].id == first.get("id")
            if len(some) == 1 or not is_whole:
                written += [_Written(each, origin) for each in reversed(some)]
        origins, used = _find_origins(messages, written, origin_of_id, skip)
        if page.cursor is None or len(origins) >= len(messages):
            break
        below = page.cursor
    page_start, below = next(each for each in reversed(pages) if each[0] <= used)
    return MessagesPage(
        channel,
        _limit_size([_show_message(each, origins, prices) for each in messages]),
        start,
        count,
        _make_title(first),
        f"{start}:{below or ''}:{used - page_start}" if start else None,
    )


class _Origin(NamedTuple):
    """When a message was first written, and the node that did it."""

    at: int
    node: str | None


class _Written(NamedTuple):
    message: WrittenMessage
    origin: _Origin


def _find_origins(
    messages: Sequence[Mapping[str, Any]],
    written: Sequence[_Written],
    origin_of_id: Mapping[str, _Origin],
    skip: int,
) -> tuple[dict[str, _Origin], int]:
    """Return when and where messages were first written, by id, and how many entries of ``written``
    belong to them and to later messages.

    A message that had no id when it was written is recognised by its content and its order from the end, as
    what a task writes is appended.

    Args:
        messages: The messages, in order.
        written: The messages that tasks wrote, newest first.
        origin_of_id: The origin of each message that was written with an id.
        skip: How many entries of ``written`` belong to later messages.
    """
    out: dict[str, _Origin] = {}
    used = skip
    for message in reversed(messages):
        name = message.get("id")
        if not isinstance(name, str):
            continue
        for number in range(used, len(written)):
            each, origin = written[number]
            is_equal = (each.kind, each.content) == (message.get("type"), message.get("content"))
            if each.id == name or (each.id is None and is_equal):
                out[name], used = origin, number + 1
                break
        if name in origin_of_id:
            out[name] = min(origin_of_id[name], out.get(name, origin_of_id[name]), key=lambda each: each.at)
    return out, used


def load_title(partition: Partition, digest: Digester, namespace: str = "") -> Program[str]:
    """Return the beginning of the first message of a thread, or of a subgraph in it, ``""`` if that is not
    text."""
    _, tree = yield from find_conversation(partition, digest, namespace)
    if tree is None or not tree.items:
        return ""
    return _make_title(read_message_fields(plain_of(tree.items[0])))


def find_conversation(
    partition: Partition, digest: Digester, namespace: str = ""
) -> Program[tuple[str | None, EncodedList | None]]:
    """Return the channel of the latest state that has the conversation, and the stored list; ``None`` for
    both if there is none. Raise ``Corrupt`` if a part of the list is missing, as it may have been removed
    meanwhile."""
    (heads,) = yield from ask(Fetch(partition, (Get(HEAD, (namespace,)),)))
    record = None
    if heads:
        record = yield from find(partition, namespace, heads[0].fields["checkpoint_id"])
    if record is None:
        return None, None
    own = {name: ref for name, ref in record.refs.items() if not name.startswith((BRANCH, "join:", "__"))}
    usual = {name: ref for name, ref in own.items() if name == _USUAL}
    for refs in (usual, own):
        trees, _ = yield from chunk_reads.resolve(partition, refs, digest)
        deltas = yield from load_deltas(partition, record, digest, [_USUAL] if refs is usual else None)
        for name, found in {**trees, **deltas}.items():
            tree = unwrap_snapshot(found)
            if (
                isinstance(tree, EncodedList)
                and tree.items
                and is_message(read_message_fields(plain_of(tree.items[-1])))
            ):
                return name, tree
    return None, None


def _show_message(
    message: Mapping[str, Any], origins: Mapping[str, _Origin], prices: Prices
) -> dict[str, Any]:
    role = message.get("type", message.get("role"))
    name = message.get("id")
    content = message.get("content")
    texts, reasoning, parts = _split_content(content)
    about = message.get("additional_kwargs")
    if isinstance(about, dict) and isinstance(about.get("reasoning_content"), str):
        reasoning.append(about["reasoning_content"])
    calls = calls_in(dict(message))
    origin = origins.get(name) if isinstance(name, str) else None
    return {
        "id": name if isinstance(name, str) else None,
        "role": role if isinstance(role, str) else "other",
        "name": message.get("name"),
        "at": None if origin is None else origin.at,
        "node": None if origin is None else origin.node,
        "text": _shorten("\n".join(texts)),
        "reasoning": _shorten("\n".join(reasoning)),
        "parts": parts,
        "tool_calls": [
            _show_tool_call(call) for key in _TOOL_CALLS for call in _select_dicts(message.get(key))
        ],
        "tool_call_id": message.get("tool_call_id"),
        "status": message.get("status"),
        "usage": show_call(calls[0], prices) if calls else None,
    }


def _select_dicts(value: object) -> list[dict[str, Any]]:
    """Return the dicts in a list, nothing for another value."""
    if isinstance(value, list):
        items = cast("list[object]", value)
    else:
        items = []
    return [cast("dict[str, Any]", each) for each in items if isinstance(each, dict)]


def _show_tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the name, id and arguments of a tool call, which has them in ``function`` in OpenAI's form."""
    function = call.get("function")
    inner = cast("dict[str, Any]", function) if isinstance(function, dict) else call
    return {
        "name": inner.get("name"),
        "id": call.get("id"),
        "args": inner.get("arguments") if inner is function else call.get("args"),
    }


def _limit_size(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages of a page, limited in size: a part other than text, or the arguments of a call, is
    replaced by a note of its size if it is too large, or if later messages have left no room for it."""
    left = _PAGE_MAX
    for message in reversed(messages):
        calls = [call for call in message["tool_calls"] if isinstance(call["args"], str | dict | list)]
        places = [(message["parts"], number) for number in range(len(message["parts"]))]
        for holder, key in (*places, *((call, "args") for call in calls)):
            size = _measure(holder[key])
            if size > min(_TEXT_MAX, left):
                value = holder[key]
                if isinstance(value, dict):
                    kind = cast("dict[str, object]", value).get("type")
                else:
                    kind = None
                note = {"too_large": f"{size:,} characters"}
                if isinstance(kind, str):
                    holder[key] = {"type": kind[:_TITLE_MAX], **note}
                else:
                    holder[key] = note
            else:
                left -= size
    return messages


def _measure(value: object) -> int:
    """Return about the length of a value as text."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, list):
        return 2 + sum(map(_measure, cast("list[object]", value)))
    if isinstance(value, dict):
        return 2 + sum(
            _measure(key) + _measure(item) for key, item in cast("dict[object, object]", value).items()
        )
    return 8


def _split_content(content: object) -> tuple[list[str], list[str], list[Any]]:
    """Return a message's texts, its reasoning, and its other parts."""
    if isinstance(content, str):
        return [content], [], []
    if not isinstance(content, list):
        return [], [], [] if content is None else [content]
    texts: list[str] = []
    reasoning: list[str] = []
    others: list[Any] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(part, str):
            texts.append(part)
        elif kind == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind in _REASONING:
            reasoning.append(_read_thought(part))
        elif kind not in ("tool_use", "tool_call", "function_call"):
            others.append(part)
    return texts, [each for each in reasoning if each], others


def _read_thought(part: Mapping[str, Any]) -> str:
    for key in ("thinking", "reasoning", "text"):
        if isinstance(part.get(key), str):
            return str(part[key])
    summary = part.get("summary")
    if isinstance(summary, list):
        texts = [each.get("text") for each in summary if isinstance(each, dict)]
    else:
        texts = []
    return "\n".join(text for text in texts if isinstance(text, str))


def _shorten(text: str) -> str:
    if len(text) <= _TEXT_MAX:
        return text
    return f"{text[:_TEXT_MAX]}… ({len(text):,} characters)"


def _make_title(message: Mapping[str, Any]) -> str:
    texts, _, _ = _split_content(message.get("content"))
    words = " ".join(" ".join(texts)[: 4 * _TITLE_MAX].split())
    if len(words) <= _TITLE_MAX:
        return words
    return f"{words[: _TITLE_MAX - 1].rstrip()}…"


class _Position(NamedTuple):
    """Where a page ends and its messages are dated: it ends before the message number ``before``; times are
    searched in the steps before ``below``, whose first ``skip`` messages belong to later pages."""

    before: int | None = None
    below: int | None = None
    skip: int = 0


def _parse_cursor(cursor: str) -> _Position:
    if not cursor:
        return _Position()
    parts = cursor.split(":")
    numbers = [text for text in parts if text]
    is_cursor = len(parts) == 3 and parts[0] and parts[2]
    if not is_cursor or any(not (n.isascii() and n.isdigit() and len(n) <= _DIGITS_MAX) for n in numbers):
        raise BadSetting(f"the cursor has to come from an earlier page, not {cursor[:40]!r}")
    return _Position(int(parts[0]), int(parts[1]) if parts[1] else None, int(parts[2]))
