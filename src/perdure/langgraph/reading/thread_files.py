"""Files that an agent keeps in its state, as deepagents' ``StateBackend`` does: a dict of them by path.

They are read as plain data. A file has its ``content`` as text, as a list of lines, or in base64.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from perdure.engine.threads import chunk_reads
from perdure.engine.threads.history import find
from perdure.engine.threads.undisturbed import read_undisturbed
from perdure.errors import NotFound
from perdure.langgraph.reading.delta_values import load_deltas, unwrap_snapshot
from perdure.langgraph.reading.plain_serde import PlainSerde
from perdure.model.checkpoint import CheckpointRecord
from perdure.model.ops import Fetch, Get
from perdure.model.program import Program, ask
from perdure.model.records import HEAD, Partition
from perdure.model.values.chunks import Digester
from perdure.model.values.joined_values import pack_tree
from perdure.model.values.tree import EncodedDict, Tree

CHANNEL = "files"
FILES = 200
"""Files of one page."""
TEXT = 128 * 1024
"""Maximum number of characters of a file in one answer."""
_PATH_MAX = 1024
_serde = PlainSerde()


class ThreadFile(NamedTuple):
    """A file: its size in bytes, and its times as the agent stored them."""

    path: str
    size: int
    is_text: bool
    created_at: str | None
    modified_at: str | None


class FilesPage(NamedTuple):
    """Files in the order of their paths. If ``cursor`` is not ``None``, further files are on the next page.

    Attributes:
        checkpoint_id: The checkpoint whose state has them, ``None`` if there is none.
        total: The number of all files.
    """

    checkpoint_id: str | None
    files: list[ThreadFile]
    total: int
    cursor: str | None


class FileText(NamedTuple):
    """A part of a file's text: from the character ``start`` on, of ``length`` characters. It is empty if the
    file is not text."""

    checkpoint_id: str
    file: ThreadFile
    text: str
    start: int
    length: int


def load_files(
    partition: Partition,
    digest: Digester,
    *,
    namespace: str = "",
    checkpoint_id: str | None = None,
    after: str = "",
    limit: int = FILES,
) -> Program[FilesPage]:
    """Return a page of the files in the state of a thread.

    Args:
        partition: The thread.
        digest: Names the chunks.
        namespace: The namespace of a subgraph, the graph's own by default.
        checkpoint_id: The checkpoint, the latest by default.
        after: The cursor of the page before.
        limit: Maximum number of files to return.

    Raises:
        NotFound: There is no such checkpoint.
    """

    def read() -> Program[FilesPage]:
        record, trees = yield from _read(partition, digest, namespace, checkpoint_id)
        paths = [path for path in sorted(trees) if path > after]
        shown: list[ThreadFile] = []
        for path in paths[:limit]:
            fields = _read_fields(trees[path])
            shown.append(_describe(path, fields, _read_content(fields)))
        cursor = paths[limit - 1] if len(paths) > limit else None
        return FilesPage(None if record is None else record.id, shown, len(trees), cursor)

    return (yield from read_undisturbed(partition, read))


def load_file(
    partition: Partition,
    digest: Digester,
    path: str,
    *,
    namespace: str = "",
    checkpoint_id: str | None = None,
    start: int = 0,
) -> Program[FileText]:
    """Return a part of a file, of at most ``TEXT`` characters; the arguments are those of ``load_files``.

    Args:
        partition: The thread.
        digest: Names the chunks.
        path: The file's path.
        namespace: See ``load_files``.
        checkpoint_id: See ``load_files``.
        start: The first character.

    Raises:
        NotFound: There is no such checkpoint or file.
    """

    def read() -> Program[FileText]:
        record, trees = yield from _read(partition, digest, namespace, checkpoint_id)
        if record is None or path not in trees:
            raise NotFound(f"thread {partition.thread!r} has no file {path[:_PATH_MAX]!r}")
        fields = _read_fields(trees[path])
        content = _read_content(fields)
        text = content if isinstance(content, str) else ""
        part = text[start : start + TEXT]
        return FileText(record.id, _describe(path, fields, content), part, start, len(text))

    return (yield from read_undisturbed(partition, read))


def find_state(
    partition: Partition, namespace: str, checkpoint_id: str | None
) -> Program[CheckpointRecord | None]:
    """Return the checkpoint of an id, or the latest one of a namespace if the id is ``None``. The result is
    ``None`` if the thread has no checkpoint yet.

    Raises:
        NotFound: There is no such checkpoint or namespace.
    """
    wanted = checkpoint_id
    if wanted is None:
        (heads,) = yield from ask(Fetch(partition, (Get(HEAD, (namespace,)),)))
        wanted = heads[0].fields["checkpoint_id"] if heads else None
    if wanted is None:
        record = None
    else:
        record = yield from find(partition, namespace, wanted)
    if record is None and (checkpoint_id is not None or namespace):
        raise NotFound(
            f"thread {partition.thread!r} has no checkpoint {checkpoint_id or 'yet'} "
            f"in namespace {namespace!r}"
        )
    return record


def _read(
    partition: Partition, digest: Digester, namespace: str, checkpoint_id: str | None
) -> Program[tuple[CheckpointRecord | None, dict[str, Tree]]]:
    """Return a checkpoint, and its files by path."""
    record = yield from find_state(partition, namespace, checkpoint_id)
    if record is None:
        return None, {}
    ref = record.refs.get(CHANNEL)
    trees, _ = yield from chunk_reads.resolve(partition, {} if ref is None else {CHANNEL: ref}, digest)
    trees |= yield from load_deltas(partition, record, digest, [CHANNEL])
    found = unwrap_snapshot(trees[CHANNEL]) if CHANNEL in trees else None
    items = found.items if isinstance(found, EncodedDict) else []
    named = ((_serde.unpack(key), value) for key, value in items)
    return record, {
        path: value for path, value in named if isinstance(path, str) and "content" in _read_fields(value)
    }


def _read_fields(tree: Tree) -> Mapping[str, Any]:
    value: object = _serde.unpack(pack_tree(tree))
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    return {}


def _read_content(fields: Mapping[str, Any]) -> str | bytes:
    """Return the text of a file, or its bytes if it is not text."""
    content = fields.get("content")
    if isinstance(content, list):
        return "\n".join(str(line) for line in cast("list[object]", content))
    text = content if isinstance(content, str) else ""
    if fields.get("encoding") != "base64":
        return text
    try:
        return binascii.a2b_base64(text)
    except binascii.Error:
        return text


def _describe(path: str, fields: Mapping[str, Any], content: str | bytes) -> ThreadFile:
    is_text = isinstance(content, str)
    if isinstance(content, str):
        size = len(content.encode("utf-8", "surrogatepass"))
    else:
        size = len(content)
    created, modified = fields.get("created_at"), fields.get("modified_at")
    return ThreadFile(
        path,
        size,
        is_text,
        created if isinstance(created, str) else None,
        modified if isinstance(modified, str) else None,
    )
