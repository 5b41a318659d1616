"""Replay of a thread by one graph, or by two side by side, some of its steps in each request.

Nothing is written to the thread, and no model, tool or connection is called.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from perdure.errors import BadSetting, NotFound
from perdure.inspector import audit_log, diff
from perdure.inspector.access import Access
from perdure.inspector.states import shorten_values, truncate
from perdure.storage.own_threads import run_in_own_thread

if TYPE_CHECKING:
    from perdure.replay.comparison import Difference
    from perdure.replay.run import Replayer, ReplayOptions, StepResult

GRAPHS_MOST = 2
"""Maximum number of graphs that replay a thread side by side."""

_SECONDS = 0.4


async def part(access: Access, given: Mapping[str, Any]) -> dict[str, Any]:
    """Replay steps of a thread for a moment, up to the next one that differs.

    Args:
        access: The viewer's rights.
        given: ``id`` of the thread; ``graphs``, the names of one graph or of two; ``cursor``, where the last
            part ended; ``last``, how many checkpoints before the latest to begin; ``ignore``, channels whose
            values are not compared; ``context``, the graph's context.

    Returns:
        ``steps``, each with the results of the graphs in their order; the number of steps ``done`` and in
        ``total``; the ``cursor`` to go on from, ``None`` at the end.

    Raises:
        NotFound: There is no such thread or graph.
        NotAllowed: The permission to replay was not granted.
        BadSetting: A value cannot be used, or the thread's history was changed since the last part.
    """
    from perdure.replay.run import replayer_of

    thread_id, cursor = given.get("id"), given.get("cursor")
    if not isinstance(thread_id, str) or not thread_id:
        raise BadSetting("id has to be the id of a thread")
    if not (cursor is None or isinstance(cursor, str)):
        raise BadSetting("cursor has to be that of the last part")
    names, options = _read_names(given), _read_options(given)
    row = await access.authorize("replay", thread_id)
    graph_names = access.replay_graphs.names
    if unknown := [name for name in names if name not in graph_names]:
        raise NotFound(f"there is no graph {unknown[0]!r}; there are {sorted(graph_names)}")
    async with AsyncExitStack() as stack:
        if cursor is None and access.runtime is not None:
            details = {"graphs": ", ".join(names)}
            recording = audit_log.record_action(access, "replay", row.thread_id, details)
            await stack.enter_async_context(recording)
        opening = access.open_to_replay(names, row.thread_id)
        database, agents = await stack.enter_async_context(opening)
        replayers = [
            await replayer_of(database, agent, row.thread_id, options=options, tenant=access.tenant)
            for agent in agents
        ]
        return await _replay(replayers, cursor)


async def _replay(replayers: Sequence[Replayer], cursor: str | None) -> dict[str, Any]:
    chain = replayers[0].chain
    places = {record.id: place for place, (record, _) in enumerate(chain)}
    done = 0 if cursor is None else places.get(cursor)
    if done is None:
        raise BadSetting("the history of the thread was changed during the replay; begin again")
    until = time.monotonic() + _SECONDS
    steps: list[dict[str, Any]] = []
    differs = False
    while done < len(chain) and not differs and (not steps or time.monotonic() < until):
        results = [await each.replay_step(chain[done]) for each in replayers]
        steps.append(await run_in_own_thread(_describe, results))
        differs = any(each.differs for each in results)
        done += 1
    next_cursor = next((record.id for record, _ in chain[done:]), None)
    return {"steps": steps, "done": done, "total": len(chain), "cursor": next_cursor}


def _describe(results: Sequence[StepResult]) -> dict[str, Any]:
    first = results[0]
    differences = [
        [_show_difference(one) for one in each.comparison.sort_differences()] if each.comparison else []
        for each in results
    ]
    return {
        "step": first.number,
        "checkpoint_id": first.checkpoint_id,
        "nodes": list(first.nodes),
        "skipped": first.skipped,
        "is_derived": any(each.is_derived for each in results),
        "differences": differences,
        "is_alike": all(each == differences[0] for each in differences),
    }


def _show_difference(found: Difference) -> dict[str, Any]:
    """Return a difference as JSON data, with the changes from the recorded value to the replay's."""
    name = found.channel or found.kind
    before, after = ({} if value is None else {name: value} for value in (found.expected, found.found))
    return {
        "kind": found.kind,
        "place": found.place,
        "detail": found.detail,
        "changes": {
            name: shorten_values(truncate(each)) for name, each in diff.changes(before, after).items()
        },
    }


def _read_names(given: Mapping[str, Any]) -> list[str]:
    names = given.get("graphs")
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise BadSetting("graphs has to be a list of names of graphs")
    if not 1 <= len(names) <= GRAPHS_MOST or len(set(names)) < len(names):
        raise BadSetting("graphs has to be a list with the name of one graph, or of two to compare")
    return names


def _read_options(given: Mapping[str, Any]) -> ReplayOptions:
    from perdure.replay.run import ReplayOptions

    last, ignore, context = given.get("last"), given.get("ignore") or [], given.get("context")
    if last is not None and (not isinstance(last, int) or isinstance(last, bool)):
        raise BadSetting("last has to be a number of checkpoints")
    if not isinstance(ignore, list) or not all(isinstance(each, str) for each in ignore):
        raise BadSetting("ignore has to be a list of channels")
    if context is not None and not isinstance(context, dict):
        raise BadSetting('context has to be a JSON object, such as {"user": "ada"}')
    return ReplayOptions(last=last, ignore=frozenset(ignore), context=context)
