"""Listing a thread's checkpoints page by page, newest first within each namespace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointMetadata, CheckpointTuple

from perdure.engine import history
from perdure.engine.values import MissingChunk
from perdure.langgraph.loads import leased
from perdure.langgraph.serde import Serde
from perdure.langgraph.translate import Address, read_metadata, read_page, to_tuple
from perdure.model.checkpoint import CheckpointRecord
from perdure.model.chunks import Digester
from perdure.model.program import Program


@dataclass(slots=True)
class Listing:
    """A walk over the checkpoints that a config, a filter and ``before`` select, at most ``remaining``."""

    at: Address
    filter: Mapping[str, Any] | None
    before: RunnableConfig | None
    remaining: int | None
    done: bool = False
    _namespaces: list[str] | None = None
    _started: bool = False
    _below: int | None = None
    _ancestors: frozenset[str] | None = field(default=None)

    def next_page(self, serde: Serde, digest: Digester) -> Program[list[CheckpointTuple]]:
        """The next matching checkpoints; ``done`` is set after the last."""
        if self._namespaces is None:
            named = self.at.namespace
            self._namespaces = (
                [named] if named is not None else list((yield from history.namespaces(self.at.partition)))
            )
        if not self._namespaces or (self.remaining is not None and self.remaining <= 0):
            self.done = True
            return []
        namespace = self._namespaces[0]
        if not self._started:
            self._started = True
            if not (yield from self._find_start(namespace)):
                return self._leave()
        if self.at.checkpoint_id is not None:
            record = yield from history.find(self.at.partition, namespace, self.at.checkpoint_id)
            records = [] if record is None or not self._is_below(record) else [record]
        else:
            records = yield from history.page(
                self.at.partition, namespace, below=self._below, limit=self._page_size()
            )
        if not records:
            return self._leave()
        self._below = records[-1].seq
        if self._ancestors is not None:
            records = yield from history.before_root(self.at.partition, records, self._ancestors)
        chosen = [
            r
            for r in records
            if not self.filter or _matches(read_metadata(serde, self.at.partition, r), self.filter)
        ]
        if self.remaining is not None:
            chosen = chosen[: self.remaining]
            self.remaining -= len(chosen)
        if self.at.checkpoint_id is not None:
            self._leave()
        return (yield from self._tuples(serde, digest, namespace, chosen))

    def _leave(self) -> list[CheckpointTuple]:
        """Go on to the next namespace."""
        rest = (self._namespaces or [])[1:]
        self._namespaces = rest
        self._started, self._below, self._ancestors = False, None, None
        self.done = not rest
        return []

    def _find_start(self, namespace: str) -> Program[bool]:
        """Find where ``before`` cuts this namespace; false when nothing of it is before."""
        conf: Mapping[str, Any] = (self.before or {}).get("configurable") or {}
        before = conf.get("checkpoint_id")
        if not before:
            return True
        same = yield from history.find(self.at.partition, namespace, before)
        if same is not None:
            self._below = same.seq
            return True
        self._ancestors = yield from history.root_ancestors(self.at.partition, before)
        return self._ancestors is not None and namespace != ""

    def _is_below(self, record: CheckpointRecord) -> bool:
        return self._below is None or record.seq < self._below

    def _page_size(self) -> int:
        if self.remaining is None or self.filter or self._ancestors is not None:
            return history.PAGE
        return min(self.remaining, history.PAGE)

    def _tuples(
        self, serde: Serde, digest: Digester, namespace: str, records: list[CheckpointRecord]
    ) -> Program[list[CheckpointTuple]]:
        partition = self.at.partition
        while records:
            pending = yield from history.writes_of(partition, namespace, [r.id for r in records])
            try:
                pages = yield from read_page(serde, digest, partition, records, pending)
            except MissingChunk:
                # Pruned while it was read: what is gone is left out. What is still there and does not
                # resolve is damage.
                there: list[CheckpointRecord] = []
                for record in records:
                    if (yield from history.find(partition, namespace, record.id)) is not None:
                        there.append(record)  # noqa: PERF401 - a comprehension cannot yield
                if len(there) == len(records):
                    raise
                records = there
                continue
            thread = leased(self.at.thread)
            return [
                to_tuple(serde, partition, record, values, thread)
                for record, values in zip(records, pages, strict=True)
            ]
        return []


def _matches(found: CheckpointMetadata, wanted: Mapping[str, Any]) -> bool:
    return all(found.get(key) == value for key, value in wanted.items())
