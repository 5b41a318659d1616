"""Actions on threads: each has its permission, goes through the runtime, and is recorded in the audit log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from perdure.errors import BadSetting, NotAllowed, NotFound, PerdureError, RunInProgress, TooLarge
from perdure.inspector import audit_log, timeline
from perdure.inspector.access import Access, InterruptAnswer, RunStart, describe_refusal
from perdure.langgraph.reading import plain_reading
from perdure.langgraph.reading.readable_states import aread_state, aupdate_state
from perdure.model.records import Partition
from perdure.model.thread_agents import name_editor
from perdure.runtime.failures.unfit_updates import describe_unfitness
from perdure.runtime.json_encoding import to_plain
from perdure.runtime.tenant import TenantRuntime
from perdure.runtime.threads.rows import ThreadRow

Arguments = Mapping[str, Any]
DETAIL_MAX = 1000
"""Maximum length of an id or a name among the arguments of an action, in characters."""
_REPLY_END = 2**63


@dataclass(frozen=True, slots=True)
class ActionRequest:
    """A request for an action: its arguments, the row of its thread, and the runtime."""

    access: Access
    runtime: TenantRuntime
    row: ThreadRow
    arguments: Arguments

    @property
    def thread_id(self) -> str:
        return self.row.thread_id

    def read_text(self, name: str, default: str | None = None) -> str:
        """Return an argument that is text; raise ``BadSetting`` for any other, or if it is missing without a
        default."""
        return _read_text(self.arguments, name, default)


EXPORT_MAX = 64 * 1024 * 1024
"""Maximum size of the values in an export, in bytes: the export is built in memory."""


async def _tag(request: ActionRequest) -> dict[str, Any]:
    checkpoint, namespace = request.read_text("checkpoint", ""), request.read_text("namespace", "")
    set_tag = request.runtime.threads.set_tag
    tagged = await set_tag(request.thread_id, request.read_text("name"), checkpoint or None, namespace)
    return {"checkpoint_id": tagged}


async def _untag(request: ActionRequest) -> dict[str, Any]:
    await request.runtime.threads.remove_tag(request.thread_id, request.read_text("name"))
    return {}


async def _edit(request: ActionRequest) -> dict[str, Any]:
    """Write values at a checkpoint as if a node had returned them; at a past one this makes a fork."""
    values, node = request.arguments.get("values"), request.read_text("as_node", "") or None
    if not isinstance(values, dict) or not values:
        raise BadSetting('values has to be a JSON object with channels, such as {"messages": […]}')
    if request.row.status == "busy" or await request.runtime.list_postponed(request.thread_id, limit=1):
        raise RunInProgress(
            f"thread {request.thread_id!r} has work under way or scheduled; wait, or cancel it"
        )
    config = await _make_config(request)
    graph_id = _choose_graph(request)
    config["metadata"] = name_editor(request.row.metadata, graph_id)
    async with request.access.open_graph(graph_id, request.thread_id) as graph:
        if node is not None and node not in graph.nodes:
            raise BadSetting(f"the graph has no node {node!r}; it has {sorted(graph.nodes)}")
        try:
            edited = await aupdate_state(graph, config, values, as_node=node)
        except PerdureError:
            raise
        except Exception as error:
            raise BadSetting(f"the values do not fit the graph: {describe_unfitness(error)}") from error
        latest = await aread_state(graph, {"configurable": {"thread_id": request.thread_id}})
    run_id = None if request.row.run is None else request.row.run.id
    await request.runtime.threads.note_edit(request.thread_id, run_id, goes_on=bool(latest.next))
    return {"checkpoint_id": edited.get("configurable", {}).get("checkpoint_id")}


async def _run(request: ActionRequest) -> dict[str, Any]:
    """Continue the graph from a checkpoint; from a past one this makes a fork."""
    config = await _make_config(request)
    start = RunStart(_choose_graph(request), config["configurable"].get("checkpoint_id"))
    return {"run_id": await request.access.start(request.thread_id, start)}


async def _answer(request: ActionRequest) -> dict[str, Any]:
    if "value" not in request.arguments:
        raise BadSetting("the answer has no value; pass one, which may be null")
    answer = InterruptAnswer(request.arguments["value"], request.read_text("interrupt_id", "") or None)
    start = RunStart(_choose_graph(request), answer=answer)
    return {"run_id": await request.access.start(request.thread_id, start)}


async def _cancel(request: ActionRequest) -> dict[str, Any]:
    rollback = request.arguments.get("rollback", False)
    if not isinstance(rollback, bool):
        raise BadSetting("rollback has to be true or false")
    run_id = request.read_text("run_id")
    if not await request.runtime.cancel(request.thread_id, run_id, rollback=rollback):
        raise NotFound(f"thread {request.thread_id!r} has no waiting or open run {run_id!r}")
    return {}


async def _retry(request: ActionRequest) -> dict[str, Any]:
    number = request.arguments.get("reply")
    if not isinstance(number, int) or isinstance(number, bool):
        raise BadSetting("reply has to be a reply's number")
    again = await request.runtime.retry_reply(request.thread_id, number)
    return {"number": again.seq}


async def _rerun(request: ActionRequest) -> dict[str, Any]:
    """Run a failed run again from its last stored step."""
    ticket = await request.runtime.retry(request.thread_id, request.read_text("run_id"))
    return {"run_id": ticket.id, "was_repeated": ticket.is_duplicate}


async def _discard(request: ActionRequest) -> dict[str, Any]:
    """Remove the records of a failed run; what it stored in the thread stays."""
    run_id = request.read_text("run_id")
    standing = await request.runtime.find(request.thread_id, run_id)
    if standing is None or standing.run is None or standing.run.state != "failed":
        raise NotFound(f"thread {request.thread_id!r} has no failed run {run_id!r}")
    await request.runtime.remove_run(request.thread_id, standing.run)
    return {}


async def _delete(request: ActionRequest) -> dict[str, Any]:
    if request.arguments.get("confirm") != request.thread_id:
        raise BadSetting("confirm has to be the thread's id: a deleted thread cannot be brought back")
    await request.runtime.threads.remove(request.thread_id)
    return {}


async def _export(request: ActionRequest) -> dict[str, Any]:
    handle = request.access.handle
    partition = Partition(request.access.tenant, request.thread_id)
    try:
        exported: dict[str, Any] = to_plain(
            await handle.arun(plain_reading.export(partition, handle.digest, EXPORT_MAX))
        )
    except TooLarge as error:
        # Here the export is too large, not a value to store, so report a fault of the request.
        raise BadSetting(str(error)) from None
    return exported


Do = Callable[[ActionRequest], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Action:
    """An action with its permission, the names of the arguments that its audit entry records, and a
    further right to the thread, if any, that it needs on a server."""

    permission: str
    do: Do
    audited: tuple[str, ...] = ()
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


async def act(access: Access, name: str, arguments: Arguments, do: Do | None = None) -> dict[str, Any]:
    """Carry out an action and return its result.

    Args:
        access: The rights of the user who requests it.
        name: The action's name.
        arguments: The thread's ``id``, and the action's own arguments.
        do: Does it in place of the action's function.

    Raises:
        NotFound: There is no such action, thread, run or checkpoint.
        NotAllowed: The permission was not granted.
        BadSetting: A value is missing or cannot be used.
        RunInProgress: A run is open.
    """
    if name not in ACTIONS:
        raise NotFound(f"the inspector has no action {name!r}")
    action = ACTIONS[name]
    row = await access.authorize(action.permission, _read_text(arguments, "id"), action.right)
    runtime = access.runtime
    if runtime is None:
        raise NotAllowed("nothing can be changed here: the database is open for reading only")
    details = _choose_audited_arguments(action, arguments)
    async with audit_log.record_action(access, name, row.thread_id, details) as more:
        result = await (do or action.do)(ActionRequest(access, runtime, row, arguments))
        more.update({key: value for key, value in result.items() if key in ("checkpoint_id", "run_id")})
    return result


async def require_any(access: Access, permission: str) -> None:
    """Raise ``NotAllowed`` unless a permission may be granted for at least one thread. Each action checks
    the permission again for its own thread."""
    if access.runtime is None:
        raise NotAllowed("nothing can be changed here: the database is open for reading only")
    if permission not in await access.permissions():
        raise NotAllowed(describe_refusal(permission))


def _choose_audited_arguments(action: Action, arguments: Arguments) -> dict[str, Any]:
    """Return the arguments that the audit entry of an action records. Raise ``BadSetting`` for a value of the
    wrong type or length, before anything is recorded."""
    chosen: dict[str, Any] = {}
    for name in action.audited:
        value = arguments.get(name)
        if name == "rollback":
            is_valid, expected = isinstance(value, bool), "true or false"
        elif name == "reply":
            is_valid = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _REPLY_END
            expected = "a reply's number"
        else:
            is_valid = isinstance(value, str) and len(value) <= DETAIL_MAX
            expected = f"text of at most {DETAIL_MAX} characters"
        if value is not None and not is_valid:
            raise BadSetting(f"{name} has to be {expected}")
        if value:
            chosen[name] = value
    return chosen


def _read_text(arguments: Arguments, name: str, default: str | None = None) -> str:
    value = arguments.get(name, default)
    if not isinstance(value, str) or (default is None and not value):
        raise BadSetting(f"{name} has to be text")
    return value


def _choose_graph(request: ActionRequest) -> str | None:
    graph = request.read_text("graph", "") or request.row.graph_id
    if not graph and request.row.run is not None:
        return request.row.run.graph
    return graph


async def _make_config(request: ActionRequest) -> Any:
    """Return the config of the checkpoint that a request names, by default of the latest."""
    checkpoint, namespace = request.read_text("checkpoint", ""), request.read_text("namespace", "")
    configurable: dict[str, Any] = {"thread_id": request.thread_id, "checkpoint_ns": namespace}
    if checkpoint:
        if not await request.runtime.threads.has_checkpoint(request.thread_id, namespace, checkpoint):
            raise NotFound(f"thread {request.thread_id!r} has no checkpoint {checkpoint!r}")
        # LangGraph forks at any checkpoint that a config names, so the latest one must not be named.
        about = await timeline.thread(request.access, {"id": request.thread_id})
        if about["heads"].get(namespace) != checkpoint:
            configurable["checkpoint_id"] = checkpoint
    return {"configurable": configurable}
