"""Actions on threads: each has its permission, goes through the runtime, and is recorded in the audit log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from perdure.errors import BadSetting, NotAllowed, NotFound, PerdureError, RunInProgress, TooLarge
from perdure.inspector import audit_log, timeline
from perdure.inspector.access import Access, InterruptAnswer, RunStart, not_granted
from perdure.langgraph.reading import plain_reading
from perdure.langgraph.reading.readable_states import aread_state, aupdate_state
from perdure.model.records import Partition
from perdure.runtime.failures.unfit_updates import unfitness
from perdure.runtime.json_encoding import plain
from perdure.runtime.tenant import TenantRuntime
from perdure.runtime.threads.rows import ThreadRow

Given = Mapping[str, Any]
DETAIL_MAX = 1000
"""Maximum length of an id or a name that an action is given, in characters."""
_REPLY_END = 2**63


@dataclass(frozen=True, slots=True)
class Deed:
    """One action to carry out: the thread with its row, the runtime, and what the request gave."""

    access: Access
    runtime: TenantRuntime
    row: ThreadRow
    given: Given

    @property
    def thread_id(self) -> str:
        return self.row.thread_id


EXPORT_MAX = 64 * 1024 * 1024
"""Maximum size of the values in an export, in bytes: it is made in memory."""


async def _tag(deed: Deed) -> dict[str, Any]:
    checkpoint, namespace = _text(deed.given, "checkpoint", ""), _text(deed.given, "namespace", "")
    name = _text(deed.given, "name")
    found = await deed.runtime.threads.set_tag(deed.thread_id, name, checkpoint or None, namespace)
    return {"checkpoint_id": found}


async def _untag(deed: Deed) -> dict[str, Any]:
    await deed.runtime.threads.remove_tag(deed.thread_id, _text(deed.given, "name"))
    return {}


async def _edit(deed: Deed) -> dict[str, Any]:
    """Write values at a checkpoint as if a node had returned them; at a past one this makes a fork."""
    values, node = deed.given.get("values"), _text(deed.given, "as_node", "") or None
    if not isinstance(values, dict) or not values:
        raise BadSetting('values has to be a JSON object with channels, such as {"messages": […]}')
    if deed.row.status == "busy" or await deed.runtime.list_postponed(deed.thread_id, limit=1):
        raise RunInProgress(f"thread {deed.thread_id!r} has work under way or scheduled; wait, or cancel it")
    config = await _config(deed)
    async with deed.access.graph(_graph(deed), deed.thread_id) as graph:
        if node is not None and node not in graph.nodes:
            raise BadSetting(f"the graph has no node {node!r}; it has {sorted(graph.nodes)}")
        try:
            after = await aupdate_state(graph, config, values, as_node=node)
        except PerdureError:
            raise
        except Exception as error:
            raise BadSetting(f"the values do not fit the graph: {unfitness(error)}") from error
        now = await aread_state(graph, {"configurable": {"thread_id": deed.thread_id}})
    run_id = None if deed.row.run is None else deed.row.run.id
    await deed.runtime.threads.note_edit(deed.thread_id, run_id, goes_on=bool(now.next))
    return {"checkpoint_id": after.get("configurable", {}).get("checkpoint_id")}


async def _run(deed: Deed) -> dict[str, Any]:
    """Run the graph on from a checkpoint; from a past one this makes a fork."""
    config = await _config(deed)
    checkpoint: str | None = config["configurable"].get("checkpoint_id")
    return {"run_id": await deed.access.start(deed.thread_id, RunStart(_graph(deed), checkpoint))}


async def _answer(deed: Deed) -> dict[str, Any]:
    if "value" not in deed.given:
        raise BadSetting("the value of the answer is missing")
    answer = InterruptAnswer(deed.given["value"], _text(deed.given, "interrupt_id", "") or None)
    return {"run_id": await deed.access.start(deed.thread_id, RunStart(_graph(deed), answer=answer))}


async def _cancel(deed: Deed) -> dict[str, Any]:
    rollback = deed.given.get("rollback", False)
    if not isinstance(rollback, bool):
        raise BadSetting("rollback has to be true or false")
    run_id = _text(deed.given, "run_id")
    if not await deed.runtime.cancel(deed.thread_id, run_id, rollback=rollback):
        raise NotFound(f"thread {deed.thread_id!r} has no run {run_id!r} that waits or is open")
    return {}


async def _retry(deed: Deed) -> dict[str, Any]:
    number = deed.given.get("reply")
    if not isinstance(number, int) or isinstance(number, bool):
        raise BadSetting("reply has to be the number of a reply")
    again = await deed.runtime.retry_reply(deed.thread_id, number)
    return {"number": again.seq}


async def _rerun(deed: Deed) -> dict[str, Any]:
    """Run a failed run again from its last stored step."""
    ticket = await deed.runtime.retry(deed.thread_id, _text(deed.given, "run_id"))
    return {"run_id": ticket.id, "was_repeated": ticket.is_duplicate}


async def _discard(deed: Deed) -> dict[str, Any]:
    """Remove the records of a failed run; what it stored in the thread stays."""
    run_id = _text(deed.given, "run_id")
    standing = await deed.runtime.find(deed.thread_id, run_id)
    if standing is None or standing.run is None or standing.run.state != "failed":
        raise NotFound(f"thread {deed.thread_id!r} has no failed run {run_id!r}")
    await deed.runtime.remove_run(deed.thread_id, standing.run)
    return {}


async def _delete(deed: Deed) -> dict[str, Any]:
    if deed.given.get("confirm") != deed.thread_id:
        raise BadSetting("confirm has to be the thread's id: a deleted thread cannot be brought back")
    await deed.runtime.threads.remove(deed.thread_id)
    return {}


async def _export(deed: Deed) -> dict[str, Any]:
    handle = deed.access.handle
    at = Partition(deed.access.tenant, deed.thread_id)
    try:
        found: dict[str, Any] = plain(await handle.arun(plain_reading.export(at, handle.digest, EXPORT_MAX)))
    except TooLarge as error:
        # Of the download, not of a value that is to be stored.
        raise BadSetting(str(error)) from None
    return found


@dataclass(frozen=True, slots=True)
class Action:
    """An action with its permission, the names that its audit entry keeps, and the right to the thread that
    it needs on a server besides that of its permission."""

    permission: str
    do: Callable[[Deed], Awaitable[dict[str, Any]]]
    kept: tuple[str, ...] = ()
    right: str = ""


ACTIONS: Mapping[str, Action] = {
    "tag": Action("tag", _tag, ("name", "checkpoint", "namespace")),
    "untag": Action("tag", _untag, ("name",)),
    "edit": Action("edit", _edit, ("checkpoint", "namespace", "as_node")),
    "run": Action("run", _run, ("checkpoint", "graph")),
    "answer": Action("answer", _answer, ("interrupt_id",)),
    "cancel": Action("cancel", _cancel, ("run_id", "rollback")),
    "retry": Action("retry", _retry, ("reply",)),
    "rerun": Action("retry", _rerun, ("run_id",), "create_run"),
    "discard": Action("retry", _discard, ("run_id",), "delete"),
    "delete": Action("delete", _delete),
    "export": Action("export", _export),
}
"""Actions by name."""


async def act(access: Access, name: str, given: Given) -> dict[str, Any]:
    """Carry out an action and return its result.

    Args:
        access: The rights of the one who acts.
        name: The action's name.
        given: ``id`` of the thread, and the action's own values.

    Raises:
        NotFound: There is no such action, thread, run or checkpoint.
        NotAllowed: The permission was not granted.
        BadSetting: A value is missing or cannot be used.
        RunInProgress: A run is open.
    """
    if name not in ACTIONS:
        raise NotFound(f"the inspector has no action {name!r}")
    action = ACTIONS[name]
    row = await access.act(action.permission, _text(given, "id"), action.right)
    runtime = access.runtime
    if runtime is None:
        raise NotAllowed("nothing can be changed here: the database is open for reading only")
    details = _details(action, given)
    async with audit_log.record_action(access, name, row.thread_id, details) as more:
        result = await action.do(Deed(access, runtime, row, given))
        more.update({key: value for key, value in result.items() if key in ("checkpoint_id", "run_id")})
    return result


async def require_any(access: Access, permission: str) -> None:
    """Raise ``NotAllowed`` unless a permission may be granted for some thread; each action on one is checked
    again."""
    if access.runtime is None:
        raise NotAllowed("nothing can be changed here: the database is open for reading only")
    if permission not in await access.permissions():
        raise NotAllowed(not_granted(permission))


def _details(action: Action, given: Given) -> dict[str, Any]:
    """Return the values that the audit entry of an action keeps. ``BadSetting`` if one cannot be what it is
    named after, before anything is recorded."""
    found: dict[str, Any] = {}
    for name in action.kept:
        value = given.get(name)
        if name == "rollback":
            is_valid, expected = isinstance(value, bool), "true or false"
        elif name == "reply":
            is_valid = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _REPLY_END
            expected = "the number of a reply"
        else:
            is_valid = isinstance(value, str) and len(value) <= DETAIL_MAX
            expected = f"text of at most {DETAIL_MAX} characters"
        if value is not None and not is_valid:
            raise BadSetting(f"{name} has to be {expected}")
        if value:
            found[name] = value
    return found


def _text(given: Given, name: str, default: str | None = None) -> str:
    value = given.get(name, default)
    if not isinstance(value, str) or (default is None and not value):
        raise BadSetting(f"{name} has to be text")
    return value


def _graph(deed: Deed) -> str | None:
    return (
        _text(deed.given, "graph", "")
        or deed.row.graph_id
        or (None if deed.row.run is None else deed.row.run.graph)
    )


async def _config(deed: Deed) -> Any:
    """Return the config of the checkpoint that a request names, of the latest if it names none."""
    checkpoint, namespace = _text(deed.given, "checkpoint", ""), _text(deed.given, "namespace", "")
    configurable: dict[str, Any] = {"thread_id": deed.thread_id, "checkpoint_ns": namespace}
    if checkpoint:
        if not await deed.runtime.threads.has_checkpoint(deed.thread_id, namespace, checkpoint):
            raise NotFound(f"thread {deed.thread_id!r} has no checkpoint {checkpoint!r}")
        # Naming the latest checkpoint would be taken for a fork.
        if await _head(deed, namespace) != checkpoint:
            configurable["checkpoint_id"] = checkpoint
    return {"configurable": configurable}


async def _head(deed: Deed, namespace: str) -> str | None:
    about = await timeline.thread(deed.access, {"id": deed.thread_id})
    found: str | None = about["heads"].get(namespace)
    return found
