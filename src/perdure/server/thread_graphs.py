"""The graph to which a thread belongs where graphs are kept apart (``runtime.shared_threads`` is off).

A thread belongs to the graph of its runs and its state. The commit that accepts the first run stores the
graph's name in the thread's metadata; from then on nothing changes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.errors import OtherGraph
from perdure.runtime.threads.rows import ThreadRow
from perdure.server.resources import Caller


class OtherAgent(OtherGraph):
    """Raised when a run may use only threads of its own assistant, and the thread is another assistant's."""


def was_run_by_other_agent(row: ThreadRow, assistant_id: str) -> bool:
    """Return True if the last run of a thread was another assistant's."""
    return bool(row.metadata.get("assistant_id", assistant_id) != assistant_id)


def require_own_agent(row: ThreadRow, assistant_id: str) -> None:
    """Raise ``OtherAgent`` if another assistant has run on the thread."""
    if has_run(row) and was_run_by_other_agent(row, assistant_id):
        raise OtherAgent(f"Thread {row.thread_id!r} belongs to another agent; send the run to another thread")


def keeps_apart(caller: Caller) -> bool:
    """Return True if no graph may run on the threads of another."""
    return not caller.host.runtime.settings.shared_threads


def has_run(row: ThreadRow) -> bool:
    """Return True if a thread has a state or a run, so that it belongs to a graph."""
    return row.has_state or row.run is not None or row.status == "busy"


def owner_of(row: ThreadRow) -> str | None:
    """Return the graph in a thread's metadata, or else that of its last run; None if there is neither."""
    if row.graph_id is None and row.run is not None:
        return row.run.graph
    return row.graph_id


def require_own(caller: Caller, row: ThreadRow, graph_id: str) -> None:
    """Raise ``OtherGraph`` if another graph has run on the thread, unless graphs share threads."""
    owner = owner_of(row)
    if not keeps_apart(caller) or not has_run(row) or owner in (None, graph_id):
        return
    raise OtherGraph(
        f"Thread {row.thread_id!r} belongs to the graph {owner!r}, and the run is of "
        f"{graph_id!r}; send it to another thread, or set runtime.shared_threads on the server"
    )


def require_owner_kept(caller: Caller, row: ThreadRow, metadata: Mapping[str, Any]) -> None:
    """Raise ``OtherGraph`` if a change of metadata would move a thread from its graph to another graph."""
    if "graph_id" not in metadata or not keeps_apart(caller) or not has_run(row):
        return
    owner = owner_of(row)
    if metadata["graph_id"] != owner and (owner is not None or row.has_state):
        raise OtherGraph(
            f"Thread {row.thread_id!r} belongs to the graph {owner!r}: its metadata.graph_id cannot be "
            "changed; leave it out, or set runtime.shared_threads on the server"
        )
