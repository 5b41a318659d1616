"""An agent's reply as content of a tool's result: its text, images, audio and files, in their order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from perdure.server.state_snapshots import list_messages

_FILES = frozenset({"image", "audio", "video", "file", "text-plain"})
_CONTENT: Mapping[str, type[ImageContent | AudioContent]] = {"image": ImageContent, "audio": AudioContent}


def reply_of(values: Any) -> list[ContentBlock]:
    """Return the content of the last message of an agent, nothing if its values do not end with one."""
    last = next(reversed(list_messages(values)), None)
    if not isinstance(last, dict) or last.get("type") != "ai":
        return []
    content = last.get("content")
    if isinstance(content, str):
        return [TextContent(text=content)]
    return list(_make_blocks([block for block in content or () if isinstance(block, dict)]))


def _make_blocks(content: list[dict[str, Any]]) -> Iterator[ContentBlock]:
    """Yield the parts that can be shown; successive parts of text are joined, as a model writes one text in
    parts."""
    text = ""
    for number, block in enumerate(content, 1):
        if block.get("type") == "text":
            text += str(block.get("text", ""))
            continue
        file = _make_file(block, number)
        if file is None:
            continue
        if text:
            yield TextContent(text=text)
            text = ""
        yield file
    if text:
        yield TextContent(text=text)


def _make_file(block: Mapping[str, Any], number: int) -> ContentBlock | None:
    """Return a block that is a file of some kind; None for reasoning, calls, and a file that is stored at the
    model's provider, which the client could not get."""
    kind = str(block.get("type"))
    if kind not in _FILES:
        return None
    given = {name: value for name, value in block.items() if isinstance(value, str) and value}
    media_type = given.get("mime_type")
    name = given.get("filename") or given.get("title") or f"{kind}-{number}"
    if "url" in given:
        return ResourceLink(name=name, uri=given["url"], mime_type=media_type)
    uri = f"attachment:{quote(name)}"
    if kind == "text-plain" and "text" in given:
        text = TextResourceContents(uri=uri, mime_type=media_type or "text/plain", text=given["text"])
        return EmbeddedResource(resource=text)
    data = given.get("base64") or given.get("data")
    if data is None:
        return None
    if kind in _CONTENT and media_type is not None:
        return _CONTENT[kind](data=data, mime_type=media_type)
    return EmbeddedResource(resource=BlobResourceContents(uri=uri, mime_type=media_type, blob=data))
