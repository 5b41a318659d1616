"""Commands of the event streaming protocol: start a run, resume from an interrupt, read a thread.

Errors are responses with a code, not an HTTP status. Only an unavailable database and a full queue have a
status, from which clients see that they may retry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, cast

from langgraph.types import PregelTask, StateSnapshot
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import Headers

from perdure.errors import NotFound, NotWaiting, PerdureError, QueueFull, Unavailable
from perdure.langgraph.reading.readable_states import aread_history
from perdure.model.runs.messages import ANSWERS, FAILED, OPEN, WAITING
from perdure.runtime import Standing
from perdure.runtime.agents.run_context import OF_LANGGRAPH
from perdure.runtime.options import StreamMode
from perdure.runtime.threads.rows import ThreadRow
from perdure.server import error_handlers, requests
from perdure.server import responses as shapes
from perdure.server.auth.identity import Refusal
from perdure.server.requests import NewRun, Ref
from perdure.server.resources import Caller
from perdure.server.runs.checkpoint_references import NoCheckpoint
from perdure.server.runs.run_creation import submit
from perdure.server.runs.run_terms import idempotency_key
from perdure.server.state_snapshots import config_of, graph_id_of, show_snapshot, snapshot
from perdure.server.streaming import streams
from perdure.server.thread_ids import require_same
from perdure.server.validation_faults import fault_text

_MODES: tuple[StreamMode, ...] = ("protocol",)
_FORBIDDEN = (401, 403)
_OF_RUN = ("assistant_id", "input", "command", "context", "metadata", "multitask_strategy")
"""Parameters that are fields of a new run."""
_STOPPING_S = 5.0

Params = dict[str, Any]


class _CommandError(Exception):
    """A command that is refused; ``code`` is the protocol's error code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Params(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Answer(_Params):
    interrupt_id: str
    namespace: requests.Names = Field(default_factory=list[str])
    response: Any = None


class _Answers(_Params):
    responses: list[_Answer] = Field(min_length=1, max_length=100)


class _AnswerParams(_Params):
    """Optional parts of an answer to an interrupt."""

    update: Any = None
    goto: Any = None
    config: requests.Config = Field(default_factory=dict)
    metadata: requests.Mapped = Field(default_factory=dict)


class _StartParams(_Params):
    """The part of the parameters of ``run.start`` that is validated first."""

    config: requests.Config = Field(default_factory=dict)


class _ReadParams(_Params):
    namespace: requests.Names = Field(default_factory=list[str])
    keys: requests.Names | None = None
    limit: requests.Page = 10
    before: str | None = None


async def execute(
    caller: Caller, headers: Headers, thread_id: str, method: str, params: Params
) -> dict[str, Any]:
    """Execute a command and return its response, without the command's number.

    Args:
        caller: the authenticated user of the request.
        headers: the headers of the request.
        thread_id: the thread that the command is for.
        method: the command's name.
        params: the command's parameters.

    Raises:
        Refusal: with a status of 429 or 500 and above; all others become responses.
        QueueFull: the thread's queue accepts no more messages.
        Unavailable: the database does not answer.
    """
    try:
        if method not in _COMMANDS:
            raise _CommandError("unknown_command", f"there is no command {method!r}")
        checked = requests.check_values(requests.check_depth(params))
        result = await _COMMANDS[method](caller, headers, thread_id, checked)
    except _CommandError as error:
        return _make_error(error.code, str(error))
    except ValidationError as error:
        return _make_error("invalid_argument", fault_text(error.errors()[0], before="params."))
    except NoCheckpoint as missing:
        return _make_error("no_such_checkpoint", missing.detail)
    except Refusal as refusal:
        if refusal.may_be_repeated:
            raise
        if refusal.status in _FORBIDDEN:
            return _make_error("permission_denied", refusal.detail)
        return _make_error("invalid_argument", refusal.detail)
    except NotWaiting as error:
        return _make_error("no_such_interrupt", str(error))
    except (QueueFull, Unavailable):
        raise
    except PerdureError as error:
        if error_handlers.status_of(error) >= 500:
            raise
        return _make_error("invalid_argument", error_handlers.make_public_message(error))
    except ValueError as error:
        return _make_error("invalid_argument", str(error))
    return {"type": "success", "result": result}


def _make_error(code: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": code, "message": message}


# Runs


async def _run_start(caller: Caller, headers: Headers, thread_id: str, params: Params) -> dict[str, Any]:
    if not isinstance(params.get("assistant_id"), str):
        raise _CommandError("invalid_argument", "params.assistant_id names no assistant")
    fork, fork_namespace = params.get("forkFrom") or params.get("fork_from"), None
    if isinstance(fork, Mapping):
        require_same(thread_id, fork.get("thread_id") or fork.get("threadId"))
        fork_namespace = fork.get("checkpoint_ns") or fork.get("checkpointNs")
        fork = fork.get("checkpoint_id") or fork.get("checkpointId")
    strategy = params.get("multitaskStrategy") or params.get("multitask_strategy")
    config = _StartParams.model_validate(params).config
    resolved = {**params, "config": config, "multitask_strategy": strategy, "checkpoint_id": fork}
    resolved["checkpoint_ns"] = fork_namespace
    is_input = _find_start(resolved) is None and resolved.get("input") is not None
    if is_input and await _is_waiting(caller, thread_id):
        # Clients send the same input whether or not the thread waits for an answer.
        resolved |= {"input": None, "command": {"resume": resolved["input"]}}
    return {"run_id": await _submit_run(caller, headers, thread_id, resolved)}


def _find_start(params: Params) -> Any:
    """Return the checkpoint to start from; clients may name it among the configurable values."""
    configurable = (params.get("config") or {}).get("configurable") or {}
    return params.get("checkpoint_id") or configurable.get("checkpoint_id")


async def _is_waiting(caller: Caller, thread_id: str) -> bool:
    """Return True if a thread waits for an answer. If a run has raised an interrupt and is about to stop, its
    end is awaited first."""
    row = await caller.threads.find(thread_id)
    if row is None or row.run is None or graph_id_of(caller, row) is None:
        return False
    if row.run.state == OPEN:
        asked = {interrupt.id for interrupt in (await snapshot(caller, row)).interrupts}
        (standing,) = await caller.runtime.messages(thread_id, limit=1)
        if asked - set(standing.message.options.get(ANSWERS, ())):
            await _wait_until_stopped(caller, row, row.run.id)
    return await caller.runtime.question(thread_id) is not None


async def _submit_run(caller: Caller, headers: Headers, thread_id: str, params: Params) -> str:
    fields = {name: params.get(name) for name in _OF_RUN}
    if namespace := params.get("checkpoint_ns"):
        fields["checkpoint"] = {"checkpoint_ns": namespace}
    new = NewRun.model_validate(
        {
            **fields,
            "config": _remove_langgraph_values(dict(params.get("config") or {})),
            "checkpoint_id": _find_start(params),
            "if_not_exists": "create",
            "stream_resumable": True,
            "stream_subgraphs": True,
        }
    )
    accepted = await submit(caller, headers, thread_id, new, modes=_MODES, is_kept=True, may_answer=True)
    return accepted.run_id


def _remove_langgraph_values(config: Params) -> Params:
    """Return a config without the values that LangGraph keeps in it, as clients send the config of a state
    back."""
    configurable = {
        name: value for name, value in (config.get("configurable") or {}).items() if name not in OF_LANGGRAPH
    }
    rest = {name: value for name, value in config.items() if name != "configurable"}
    if configurable:
        return {**rest, "configurable": configurable}
    return rest


async def _answer_interrupts(
    caller: Caller, headers: Headers, thread_id: str, params: Params
) -> dict[str, Any]:
    if "responses" in params:
        answers = _Answers.model_validate(params).responses
    else:
        answers = [_Answer.model_validate(params)]
    further = _AnswerParams.model_validate(params)
    row = await _find_row(caller, thread_id, "update", "no_such_interrupt")
    if row.run is not None and row.run.state == OPEN:
        # Clients receive an interrupt shortly before the run is stored as waiting for the answer.
        await _wait_until_stopped(caller, row, row.run.id)
        row = await _find_row(caller, row.thread_id, "update", "no_such_interrupt")
    question, key = await caller.runtime.question(thread_id), idempotency_key(headers, 0)
    for answer in answers:
        is_asked = question is not None and question.knows(answer.interrupt_id)
        # The same answer that comes again finds its run, and no question.
        if not is_asked and (key is None or not await caller.threads.was_accepted(thread_id, key)):
            raise _CommandError(
                "no_such_interrupt", f"thread {thread_id!r} waits for no answer to {answer.interrupt_id!r}"
            )
    names = [answer.interrupt_id for answer in answers]
    if (twice := next((name for name in names if names.count(name) > 1), None)) is not None:
        raise _CommandError(
            "invalid_argument", f"params.responses has two answers to the interrupt {twice!r}; send one"
        )
    await _require_asked_in(caller, row, answers)
    resume: Any = {answer.interrupt_id: answer.response for answer in answers}
    interrupt_id = None
    if len(answers) == 1:
        interrupt_id, resume = resume.popitem()
    new = NewRun.model_validate(
        {
            "assistant_id": await _choose_assistant(caller, row),
            "command": {"resume": resume, "update": further.update, "goto": further.goto},
            "config": _remove_langgraph_values(further.config),
            "metadata": further.metadata,
            "stream_resumable": True,
            "stream_subgraphs": True,
        }
    )
    accepted = await submit(
        caller, headers, thread_id, new, modes=_MODES, is_kept=True, interrupt_id=interrupt_id
    )
    return {"run_id": accepted.run_id}


async def _require_asked_in(caller: Caller, row: ThreadRow, answers: list[_Answer]) -> None:
    """Raise an error if an answer names a namespace that is not below the node whose interrupt it answers.
    What is deeper is not compared: a graph that a node calls itself may have stored nothing there."""
    if not any(answer.namespace for answer in answers):
        return
    tasks = (await show_snapshot(caller, row)).tasks
    for answer in answers:
        nodes = {task.name for task in tasks if any(i.id == answer.interrupt_id for i in task.interrupts)}
        if answer.namespace and nodes and _find_node(answer.namespace) not in nodes:
            raise _make_namespace_error(row, answer.namespace)


def _find_node(namespace: list[str]) -> str:
    """Return the name of the node below which a namespace is."""
    return namespace[0].partition(":")[0]


def _make_namespace_error(row: ThreadRow, namespace: list[str]) -> _CommandError:
    return _CommandError("no_such_namespace", f"thread {row.thread_id!r} has no namespace {namespace!r}")


async def _require_namespace(caller: Caller, row: ThreadRow, namespace: list[str]) -> None:
    """Raise an error if a namespace, in which nothing is stored, is not below a node of the thread's graph.
    Below a node something may be stored yet."""
    graph_id = graph_id_of(caller, row)
    if not namespace or graph_id is None:
        return
    async with caller.open_graph(graph_id, "threads.read", row.thread_id) as graph:
        if _find_node(namespace) not in graph.nodes:
            raise _make_namespace_error(row, namespace)


async def _choose_assistant(caller: Caller, row: ThreadRow) -> str | None:
    """Return the assistant with which a thread goes on, as these commands name none: the one in its metadata,
    or the default one of the thread's graph if that one was deleted, is not the user's to run, or has another
    graph."""
    graph_id, named = graph_id_of(caller, row), row.metadata.get("assistant_id")
    if not isinstance(named, str):
        return graph_id
    try:
        found = await caller.find_assistant_to_run(named)
    except NotFound:
        return graph_id
    except Refusal as refusal:
        if refusal.may_be_repeated:
            raise
        return graph_id
    if graph_id in (None, found.graph_id):
        return found.assistant_id
    return graph_id


async def _wait_until_stopped(caller: Caller, row: ThreadRow, run_id: str) -> None:
    after = await caller.runtime.latest_event(row.thread_id)
    with suppress(TimeoutError):
        async with asyncio.timeout(_STOPPING_S):
            async for item in streams.follow(caller, row.thread_id, run_id, after):
                if isinstance(item, Standing):
                    break


async def _find_row(caller: Caller, thread_id: str, to: str, code: str) -> ThreadRow:
    try:
        return await caller.authorize_thread(thread_id, to)
    except NotFound as error:
        raise _CommandError(code, str(error)) from None


# Reading


async def _get_tree(caller: Caller, headers: Headers, thread_id: str, params: Params) -> dict[str, Any]:
    row = await _find_row(caller, thread_id, "read", "invalid_argument")
    run_id = params.get("run_id")
    if run_id is not None:
        found = await caller.runtime.find(thread_id, requests.read_run_id(str(run_id)))
        if found is None or not shapes.run_status(found):
            raise _CommandError("no_such_run", f"thread {thread_id!r} has no run {run_id!r}")
    state = await snapshot(caller, row, subgraphs=True)
    status = "completed"
    if row.run is not None:
        status = {OPEN: "running", FAILED: "failed", WAITING: "interrupted"}.get(row.run.state, "completed")
    if row.status == "busy":
        status = "running"
    root = {"namespace": [], "status": status, "graph_name": graph_id_of(caller, row) or ""}
    return {"tree": {**root, "children": _describe_children(state, status)}}


def _describe_children(state: StateSnapshot, status: str) -> list[dict[str, Any]]:
    return [
        _describe_child(task, task.state, status)
        for task in state.tasks
        if isinstance(task.state, StateSnapshot)
    ]


def _describe_child(task: PregelTask, below: StateSnapshot, status: str) -> dict[str, Any]:
    namespace = str(below.config.get("configurable", {}).get("checkpoint_ns", "")).split("|")
    if task.interrupts:
        status = "interrupted"
    elif task.error:
        status = "failed"
    return {
        "namespace": namespace,
        "status": status,
        "graph_name": task.name,
        "children": _describe_children(below, status),
    }


async def _get_state(caller: Caller, headers: Headers, thread_id: str, params: Params) -> dict[str, Any]:
    asked = _ReadParams.model_validate(params)
    row = await _find_row(caller, thread_id, "read", "invalid_argument")
    state = await _read_state(caller, row, asked.namespace)
    values: Any = state.values
    if asked.keys is not None and isinstance(values, Mapping):
        values = {name: values[name] for name in asked.keys if name in values}
    here = state.config.get("configurable", {})
    result: dict[str, Any] = {"values": values}
    if state.created_at is not None:
        result["checkpoint"] = {"id": here.get("checkpoint_id"), "ns": here.get("checkpoint_ns", "")}
    return result


async def _read_state(
    caller: Caller, row: ThreadRow, namespace: list[str], checkpoint_id: str | None = None
) -> StateSnapshot:
    ref = Ref(checkpoint_ns="|".join(namespace), checkpoint_id=checkpoint_id)
    try:
        state = await snapshot(caller, row, config_of(row.thread_id, ref))
    except NotFound as error:
        raise _CommandError("no_such_namespace", str(error)) from None
    if checkpoint_id is not None and state.created_at is None:
        raise NoCheckpoint(row.thread_id, checkpoint_id)
    if state.created_at is None:
        await _require_namespace(caller, row, namespace)
    return state


async def _list_checkpoints(
    caller: Caller, headers: Headers, thread_id: str, params: Params
) -> dict[str, Any]:
    asked = _ReadParams.model_validate(params)
    row = await _find_row(caller, thread_id, "read", "invalid_argument")
    graph_id = graph_id_of(caller, row)
    if graph_id is None or not row.has_state:
        return {"checkpoints": []}
    async with caller.open_graph(graph_id, "threads.read", thread_id) as graph:
        found = aread_history(
            graph,
            config_of(thread_id, Ref(checkpoint_ns="|".join(asked.namespace))),
            before=None if asked.before is None else config_of(thread_id, None, asked.before),
            limit=asked.limit,
        )
        shown = [_describe_checkpoint(state) async for state in found]
    if not shown:
        await _require_namespace(caller, row, asked.namespace)
    return {"checkpoints": shown}


def _describe_checkpoint(state: StateSnapshot) -> dict[str, Any]:
    metadata = cast(Mapping[str, Any], state.metadata or {})
    return {
        "id": state.config.get("configurable", {}).get("checkpoint_id"),
        "timestamp": state.created_at,
        "step": metadata.get("step"),
        "metadata": metadata,
    }


async def _start_fork(caller: Caller, headers: Headers, thread_id: str, params: Params) -> dict[str, Any]:
    checkpoint_id = params.get("checkpoint_id")
    if not isinstance(checkpoint_id, str) or not checkpoint_id:
        raise _CommandError("invalid_argument", "params.checkpoint_id names no checkpoint")
    row = await _find_row(caller, thread_id, "read", "no_such_checkpoint")
    await _read_state(caller, row, [], checkpoint_id)
    resolved = {**params, "assistant_id": await _choose_assistant(caller, row)}
    return {"run_id": await _submit_run(caller, headers, thread_id, resolved), "thread_id": thread_id}


_COMMANDS: dict[str, Callable[[Caller, Headers, str, Params], Awaitable[dict[str, Any]]]] = {
    "run.start": _run_start,
    "input.respond": _answer_interrupts,
    "agent.getTree": _get_tree,
    "state.get": _get_state,
    "state.listCheckpoints": _list_checkpoints,
    "state.fork": _start_fork,
}
