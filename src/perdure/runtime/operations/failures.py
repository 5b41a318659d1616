"""Errors of failed runs as they are shown, and the groups of those that are alike.

Where the texts of exceptions are not shown, they take no part in groups and searches either: a search would
reveal what is hidden.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from perdure.model.runs.messages import NODE, TRACEBACK, VERSION
from perdure.runtime.failures.failure_location import shows_texts, write_text_for_clients

_NAMED = r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}"
_VARYING = (
    (re.compile(rf"\b{_NAMED}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"\b0x[0-9a-f]+\b", re.IGNORECASE), "<address>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?"), "<time>"),
    (re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64}){1,4}"), "<address>"),
    (re.compile(r"\d+(?:[.,]\d+)*"), "<n>"),
)
"""Parts of messages that differ from run to run, with the placeholders for them in a group."""

_EXAMINED_MAX = 1000
_GROUP_MAX = 200


class RunFailure(NamedTuple):
    """Error of a run, as it may be shown.

    Attributes:
        kind: the name of its type.
        message: its text.
        traceback: its traceback, if one is stored and may be shown.
        version: the version of the graph, if it was noted.
        node: the node that raised it, if that is known.
    """

    kind: str
    message: str
    traceback: str | None = None
    version: str | None = None
    node: str | None = None

    @property
    def alike(self) -> str:
        """The text without what differs from run to run."""
        return normalise_message(self.message)

    @property
    def group(self) -> str:
        """Name of the group of errors like this one."""
        return sha256(f"{self.kind}\n{self.alike}".encode("utf-8", "replace")).hexdigest()[:12]

    def has(self, text: str) -> bool:
        """Return True if the type or the text contains a text, in either case."""
        wanted = text.casefold()
        return wanted in self.kind.casefold() or wanted in self.message.casefold()


class FailureGroup(NamedTuple):
    """Failed runs with errors that are alike. Times are microseconds since 1970.

    Attributes:
        group: the name of the group.
        kind: the name of the errors' type.
        message: their text, with placeholders for the parts that differ.
        runs: the number of runs.
        first_at: the time of the oldest.
        last_at: the time of the newest.
        example: the thread and the run of the newest.
        versions: the number of runs by version of the graph, where one was noted.
        nodes: the nodes that raised the errors.
    """

    group: str
    kind: str
    message: str
    runs: int
    first_at: int
    last_at: int
    example: tuple[str, str]
    versions: Mapping[str, int]
    nodes: tuple[str, ...]


def failure_of(note: Mapping[str, Any]) -> RunFailure | None:
    """Return the error in the note of a run as it may be shown, ``None`` if it has none."""
    text, kind = note.get("error"), str(note.get("kind", ""))
    if not isinstance(text, str):
        return None
    if not kind:
        # An attempt of an older release: the type is at the beginning of the text.
        kind = "Error"
        before, separator, _ = text.partition(": ")
        if separator and before.isidentifier():
            kind = before
    shown = write_text_for_clients(kind, text.removeprefix(f"{kind}: "))
    texts = {name: value for name, value in note.items() if isinstance(value, str)}
    if not shows_texts.get():
        texts.pop(TRACEBACK, None)
    return RunFailure(kind, shown, texts.get(TRACEBACK), texts.get(VERSION), texts.get(NODE))


def normalise_message(message: str) -> str:
    """Return a message on one line with placeholders for ids, numbers, times and addresses, cut to 200
    characters."""
    text = message[:_EXAMINED_MAX]
    for pattern, name in _VARYING:
        text = pattern.sub(name, text)
    return " ".join(text.split())[:_GROUP_MAX]


def group_failures(found: Iterable[tuple[str, str, int, RunFailure]]) -> list[FailureGroup]:
    """Return groups of failures, the largest first; each failure comes with its thread, run and time."""
    groups: dict[str, FailureGroup] = {}
    for thread_id, run_id, at, failure in found:
        name, example = failure.group, (thread_id, run_id)
        nodes = () if failure.node is None else (failure.node,)
        one = groups.get(name)
        of_version = Counter([failure.version] if failure.version is not None else [])
        if one is None:
            groups[name] = FailureGroup(
                name, failure.kind, failure.alike, 1, at, at, example, of_version, nodes
            )
        else:
            of_version.update(one.versions)
            groups[name] = one._replace(
                versions=of_version,
                runs=one.runs + 1,
                first_at=min(one.first_at, at),
                last_at=max(one.last_at, at),
                example=example if at > one.last_at else one.example,
                nodes=tuple(sorted({*one.nodes, *nodes})),
            )
    return sorted(groups.values(), key=lambda each: (-each.runs, -each.last_at))
