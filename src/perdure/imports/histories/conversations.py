"""Conversations as neutral JSON, both ways: the messages of a thread, and threads made of messages.

A file is one JSON array of messages, or has a line for each thread: ``{"thread_id": …, "messages": […]}``. A
thread has one line. When a conversation has grown, the next import continues it where the last one ended.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from perdure.database.base import handle_of
from perdure.engine.threads import checkpoint_loading, chunk_reads
from perdure.errors import BadUrl, NotAllowed, NotFound, Unserialisable
from perdure.history.neutral_messages import NeutralMessage, to_langchain, to_neutral
from perdure.imports.payloads import SERDE
from perdure.imports.source import (
    CheckpointEntry,
    Outline,
    Source,
    SourceCheckpoint,
    SourceWrite,
    WriteSlot,
)
from perdure.langgraph.values.serde import Serde
from perdure.model.missing_thread import missing_thread
from perdure.model.records import Partition
from perdure.model.values.joined_values import join_tree

if TYPE_CHECKING:
    from perdure.database.blocking import SyncDatabase

CHANNEL = "messages"
_LISTED = Serde("listed")


def read_history(
    database: SyncDatabase, thread: str, *, tenant: str = "", channel: str = CHANNEL
) -> list[NeutralMessage]:
    """Return the messages of a thread's latest state in neutral form.

    Args:
        database: The database.
        thread: The thread's id.
        tenant: Its tenant.
        channel: The channel of the messages.

    Raises:
        NotFound: There is no such thread, or it has no such channel.
        NotAllowed: The channel is a DeltaChannel, or holds something other than messages.
        Unserialisable: A message has no neutral form.
    """
    handle, partition = handle_of(database), Partition(tenant, thread)
    record = handle.run(checkpoint_loading.load(partition, "", None)).checkpoint
    if record is None:
        raise missing_thread(partition)
    ref = record.refs.get(channel)
    if ref is None:
        if channel in record.deltas:
            raise NotAllowed(
                f"thread {thread!r}: {channel!r} is a DeltaChannel, whose reducer only your program has; "
                "call graph.get_state and perdure.history.to_neutral there"
            )
        raise NotFound(f"thread {thread!r} has no channel {channel!r}; it has {', '.join(record.refs)}")
    trees, _ = handle.run(chunk_reads.resolve(partition, {channel: ref}, handle.digest))
    messages = _LISTED.value(*join_tree(trees[channel]))
    if not isinstance(messages, list):
        raise NotAllowed(f"thread {thread!r}: {channel!r} holds no list of messages")
    return to_neutral(messages)


class _Conversation:
    """A conversation: its messages, packed as a saver stores them, and the position of each by the id of its
    checkpoint."""

    def __init__(self, thread: str, channel: str, messages: list[NeutralMessage]) -> None:
        self.thread = thread
        self.packed: list[Any] = SERDE.value(*_LISTED.payload(to_langchain(messages)))
        self.positions: dict[str, int] = {}
        digest = blake2b(f"perdure.history {channel}".encode(), digest_size=16)
        for position, message in enumerate(messages):
            digest.update(json.dumps(message, sort_keys=True).encode() + b"\n")
            self.positions[str(UUID(bytes=digest.digest(), version=5))] = position


class HistorySource(Source):
    """Conversations in a file of neutral JSON. Each becomes a thread with a checkpoint after every message.
    The checkpoints' ids are derived from the messages: a conversation always gets the same ids, and when it
    has grown, the same ids and further ones.

    Args:
        path: The file.
        channel: The channel that gets the messages.

    Raises:
        BadUrl: The file does not exist, has another form, or has a thread twice.
    """

    def __init__(self, path: Path, channel: str = CHANNEL) -> None:
        self.name = str(path)
        self._path, self._channel = path, channel
        if not path.is_file():
            raise BadUrl(f"{path} is not a file; pass a file of neutral JSON")
        with path.open("rb") as file:
            self._is_array = file.read(64).removeprefix(BOM_UTF8).lstrip()[:1] == b"["
        self._offsets: dict[str, int] = {}
        lines: dict[str, int] = {}
        for line, thread, offset in self._scan():
            if thread in lines:
                raise BadUrl(
                    f"{self.name}, line {line}: thread {thread!r} is on line {lines[thread]} already; join "
                    "the messages of the two lines, or give one of them another thread_id"
                )
            lines[thread], self._offsets[thread] = line, offset
        self._loaded: _Conversation | None = None

    def _scan(self) -> Iterator[tuple[int, str, int]]:
        """Yield the number, the thread and the byte offset of every line of the file."""
        if self._is_array:
            yield 1, self._path.stem, 0
            return
        with self._path.open("rb") as file:
            offset = 0
            for number, line in enumerate(file, 1):
                if line.strip():
                    found = self._parse(line, f"line {number}")
                    thread = None
                    if isinstance(found, dict):
                        thread = found.get("thread_id")
                    if not isinstance(thread, str) or not thread:
                        raise BadUrl(
                            f"{self.name}, line {number}: not an object with thread_id and messages; a file "
                            "has one array of messages, or such an object a line"
                        )
                    yield number, thread, offset
                offset += len(line)

    def _parse(self, text: bytes, where: str) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            raise BadUrl(f"{self.name}, {where}: not JSON") from None
        except RecursionError:
            raise BadUrl(f"{self.name}, {where}: nested too deeply") from None

    def threads(self) -> Iterator[str]:
        """Return the ids of the conversations in the order of the file."""
        return iter(self._offsets)

    def _load_conversation(self, thread: str) -> _Conversation:
        if self._loaded is None or self._loaded.thread != thread:
            with self._path.open("rb") as file:
                file.seek(self._offsets[thread])
                text = file.read() if self._is_array else file.readline()
            messages = self._parse(text, "a conversation")
            if not self._is_array:
                messages = messages.get("messages")
            if not isinstance(messages, list):
                raise Unserialisable("a conversation is a list of messages")
            self._loaded = _Conversation(thread, self._channel, to_neutral(messages))
        return self._loaded

    def outline(self, thread: str) -> Outline:
        """Return a checkpoint for each message of a conversation."""
        if thread not in self._offsets:
            return Outline()
        names = list(self._load_conversation(thread).positions)
        parents = [None, *names[:-1]]
        return Outline([CheckpointEntry("", *pair) for pair in zip(names, parents, strict=True)])

    def checkpoints(self, thread: str, wanted: Sequence[CheckpointEntry]) -> Iterator[SourceCheckpoint]:
        """Yield checkpoints in the given order."""
        conversation = self._load_conversation(thread)
        written = datetime.fromtimestamp(self._path.stat().st_mtime, UTC).isoformat()
        for entry in wanted:
            step = conversation.positions[entry.id]
            checkpoint: dict[str, Any] = {
                "v": 4,
                "ts": written,
                "id": entry.id,
                "channel_values": {self._channel: conversation.packed[: step + 1]},
                "channel_versions": {self._channel: step + 1},
                "versions_seen": {},
                "updated_channels": [self._channel],
            }
            yield SourceCheckpoint(entry, checkpoint, {"source": "update", "step": step, "parents": {}})

    def writes(self, thread: str, wanted: Sequence[WriteSlot]) -> Iterator[SourceWrite]:
        """Return nothing: a conversation has no pending writes."""
        return iter(())

    def slots_of(self, thread: str, entry: CheckpointEntry) -> Sequence[WriteSlot]:
        """Return nothing: a conversation has no pending writes."""
        return ()

    def latest(self, thread: str, namespace: str, outline: Outline) -> str:
        """Return the last message's checkpoint."""
        return outline.checkpoints[-1].id

    def close(self) -> None:
        """Do nothing: the file is open only while it is read."""
