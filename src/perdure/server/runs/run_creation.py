"""Creation of runs: validation of the request, the thread, and the options of the invocation."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Required, TypedDict, Unpack, cast

from starlette.datastructures import Headers

from perdure.errors import Conflict, Contention, NotFound, Unavailable
from perdure.model.runs.messages import encode
from perdure.runtime import Options, StreamOptions, Ticket
from perdure.runtime.accepting import AlreadyCreated, Precondition
from perdure.runtime.agents.run_context import is_reserved
from perdure.runtime.agents.run_user import USER, choose_storable
from perdure.runtime.json_encoding import to_plain
from perdure.runtime.options import WEBHOOK, StreamMode
from perdure.runtime.threads.rows import ThreadRow
from perdure.runtime.threads.threads import THERE
from perdure.server.assistants import NONE_TO_RUN, Assistant
from perdure.server.auth.filters import Filter
from perdure.server.auth.identity import User, require_stamp
from perdure.server.auth.reserved_names import (
    list_verified_names,
    remove_claims,
    with_verified,
    without_claims,
)
from perdure.server.requests import NewRun
from perdure.server.resources import Caller
from perdure.server.responses import read_input
from perdure.server.runs.checkpoint_references import require_start, start_of
from perdure.server.runs.disconnects import note_request
from perdure.server.runs.run_arguments import AUTHORIZED, as_authorized, check_run
from perdure.server.runs.run_terms import RunTerms, idempotency_key, read_strategy
from perdure.server.runs.webhooks import TASK
from perdure.server.thread_graphs import has_run, keeps_apart, require_own, require_own_agent

_NOT_KWARGS = {
    "assistant_id",
    "thread_id",
    "context_id",
    "input",
    "command",
    "metadata",
    "multitask_strategy",
    "if_not_exists",
}
"""Fields of a new run's body that are not part of the run's ``kwargs``."""

_TERMS = ("multitask_strategy", "debounce_ms")
"""Names in a run's metadata that set how it is accepted, for clients that cannot set headers."""

_THREAD_NAMESPACE = uuid.NAMESPACE_OID
_TEMPORARY_MINUTES = 60.0
_ATTEMPTS = 20


class AcceptedRun(NamedTuple):
    """A run that is stored durably. If it ``is_temporary``, its thread is to be removed at its end;
    ``request`` is the number of the request if that is not the first for the run (``disconnects``)."""

    thread_id: str
    run_id: str
    is_new: bool = False
    is_temporary: bool = False
    request: int | None = None


class _Draft(NamedTuple):
    """Metadata of a thread that is created with its first run, and the filter that says who may see it."""

    metadata: Mapping[str, Any]
    conditions: Filter | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRun:
    """A run that is valid and permitted, but not stored yet. Its thread exists (``row``), or is created with
    it (``draft``), and is removed at its end if it ``is_temporary``."""

    thread_id: str
    new: NewRun
    assistant: Assistant
    options: Options
    terms: RunTerms
    row: ThreadRow | None
    draft: _Draft | None
    is_temporary: bool
    is_exclusive: bool
    may_answer: bool


class RunConditions(TypedDict, total=False):
    """Further arguments of ``check``, which describes them."""

    modes: Required[tuple[StreamMode, ...]]
    is_kept: Required[bool]
    interrupt_id: str | None
    protocol: Mapping[str, Any] | None
    is_exclusive: bool
    may_answer: bool


async def submit(
    caller: Caller, headers: Headers, thread_id: str | None, new: NewRun, **conditions: Unpack[RunConditions]
) -> AcceptedRun:
    """Check a run as ``check`` does, and accept it as ``accept`` does. If it is refused, none of it is
    stored."""
    return await accept(caller, await check(caller, headers, thread_id, new, **conditions))


async def check(
    caller: Caller,
    headers: Headers,
    thread_id: str | None,
    new: NewRun,
    *,
    modes: tuple[StreamMode, ...],
    is_kept: bool,
    interrupt_id: str | None = None,
    protocol: Mapping[str, Any] | None = None,
    is_exclusive: bool = False,
    may_answer: bool = False,
    part: int = 0,
) -> CheckedRun:
    """Return a run that may be accepted, and store nothing.

    Args:
        caller: the authenticated user of the request.
        headers: the headers of the request.
        thread_id: the run's thread, or None for a thread of its own.
        new: the run.
        modes: stream modes of the events that the run emits; if empty, it emits none.
        is_kept: keep the events, so that clients can resume a stream.
        interrupt_id: the interrupt that the command answers; if it is not pending, the command is refused.
        protocol: data of the A2A protocol; the receivers of its task are notified of the run's end.
        is_exclusive: refuse a thread on which another assistant has run (``OtherAgent``).
        may_answer: the request is an answer if the thread waits for one, and otherwise an input.
        part: place of the run among those of one request, which have one idempotency key.

    Raises:
        Refusal: the request is not valid, or the user may not do this.
        NotFound: the thread or the assistant does not exist for this user.
        Conflict: the thread belongs to another graph.
    """
    new = check_run(caller, new, is_stateless=thread_id is None)
    key = idempotency_key(headers, part)
    is_alone = thread_id is None
    if thread_id is None:
        # Idempotency keys are scoped per user.
        thread_id = str(
            uuid.uuid5(_THREAD_NAMESPACE, f"{caller.user.identity}\n{key}") if key else uuid.uuid4()
        )
    strategy = read_strategy(headers, new) or "enqueue"
    value: dict[str, Any] = {
        "thread_id": thread_id,
        "assistant_id": new.assistant_id,
        "run_id": None,
        "metadata": dict(new.metadata),
        "status": "pending",
        "prevent_insert_if_inflight": strategy == "reject",
        "multitask_strategy": strategy,
        "if_not_exists": new.if_not_exists or "reject",
        "after_seconds": new.after_seconds or 0,
        "kwargs": new.model_dump(include=AUTHORIZED),
    }
    conditions = await caller.may("threads", "create_run", value)
    new = as_authorized(caller, new, value["kwargs"], is_stateless=is_alone)
    start = start_of(new, thread_id)
    terms = RunTerms.of(headers, new, key, start, interrupt_id)
    is_temporary = is_alone and new.on_completion != "keep"
    assistant = await caller.find_assistant_to_run(new.assistant_id)
    row = None
    # A new id needs no look-up: the commit that creates the thread fails if there is one.
    if not is_alone or key is not None:
        row = await caller.threads.find(thread_id)
    if row is not None:
        if not caller.sees(conditions, row.metadata):
            # The same error as for a thread that does not exist, to not reveal another user's.
            raise NotFound(NONE_TO_RUN)
        _require_owner(caller, row, assistant, is_exclusive=is_exclusive)
    elif not is_alone:
        if new.if_not_exists != "create":
            raise NotFound(NONE_TO_RUN)
        if protocol is None:
            caller.refuse_to_create(thread_id)
    if start is not None:
        await require_start(caller, thread_id, start, terms.key)
    metadata: Mapping[str, Any] = value["metadata"]
    readable = caller.host.headers.of(headers)
    arguments = _make_arguments(caller.user, new, assistant, thread_id, metadata, readable)
    if start is not None:
        arguments["checkpoint_id"] = start.checkpoint_id
    if modes:
        subgraphs = bool(new.stream_subgraphs)
        # Inputs have to have the same options to be joined, and kept events can be followed from anywhere.
        by = "" if is_kept else caller.host.runtime.name
        arguments["stream"] = StreamOptions(modes=modes, subgraphs=subgraphs, kept=is_kept, by=by)
    if protocol is not None:
        arguments["about"]["protocol"] = dict(protocol)
        if caller.host.webhooks is not None:
            arguments |= {"webhook": TASK, "notice_if_closed": True}
    options = Options(**arguments)
    draft = None
    if row is None:
        draft = await _make_draft(caller, new, assistant, thread_id, metadata)
    return CheckedRun(
        thread_id=thread_id,
        new=new,
        assistant=assistant,
        options=options,
        terms=terms,
        row=row,
        draft=draft,
        is_temporary=is_temporary,
        is_exclusive=is_exclusive,
        may_answer=may_answer,
    )


def require_storable(run: CheckedRun) -> None:
    """Raise the error that ``accept`` would raise if the input of a run cannot be stored."""
    encode([run.new.input, _dump_command(run.new)], "message")


def _dump_command(new: NewRun) -> dict[str, Any] | None:
    if new.command is None:
        return None
    return new.command.dump_sent()


async def accept(caller: Caller, run: CheckedRun) -> AcceptedRun:
    """Store a run durably.

    Raises:
        Conflict: the idempotency key was used for a different run, or the state of the thread does not permit
            the run.
        QueueFull: too many runs wait on the thread.
    """
    if run.draft is not None:
        ticket = await _submit_first(caller, run, run.draft)
    else:
        ticket = await _submit_next(caller, run, cast(ThreadRow, run.row))
    run_id = ticket.id
    # An input that steers an open run keeps its own id, as its call does not end that run.
    if run.terms.coalesce or (ticket.is_duplicate and run.terms.strategy != "steer"):
        run_id = await caller.runtime.run_id(ticket)
    request = None
    if run.new.on_disconnect == "cancel" and (ticket.is_duplicate or run_id != ticket.id):
        request = await note_request(caller, run.thread_id, run_id)
    # A thread holds the idempotency key of its run, by which a client that lost the response gets the same
    # run again: such a thread stays until its time to live expires.
    is_temporary = run.is_temporary and run.terms.key is None
    return AcceptedRun(run.thread_id, run_id, not ticket.is_duplicate, is_temporary, request)


async def _make_draft(
    caller: Caller, new: NewRun, assistant: Assistant, thread_id: str, run_metadata: Mapping[str, Any]
) -> _Draft:
    """Return the thread that is to be created with its first run. It has the metadata of the run."""
    stated = {**(new.config.get("metadata") or {}), **run_metadata}
    metadata = {name: each for name, each in stated.items() if name not in _TERMS}
    value: dict[str, Any] = {
        "thread_id": thread_id,
        "metadata": {**with_verified(caller.user, metadata), **_make_stamp(assistant)},
        "if_exists": "do_nothing",
    }
    conditions = await caller.may("threads", "create", value)
    require_stamp(conditions, value["metadata"])
    return _Draft(value["metadata"], conditions)


async def _submit_first(caller: Caller, run: CheckedRun, first: _Draft) -> Ticket:
    """Accept a run together with its thread, in one commit. A thread that is removed after its run
    (``is_temporary``) has a time to live as well: if this server ends first, another one removes it."""
    thread_id, conditions = run.thread_id, first.conditions
    ttl = {"ttl": _TEMPORARY_MINUTES} if run.is_temporary else None
    draft = await caller.threads.draft(thread_id, first.metadata, ttl)
    try:
        ticket = await _submit(caller, run, draft.precondition)
    except Unavailable:
        # The run may have been stored: the draft stays.
        raise
    except Exception as error:
        await caller.threads.discard(draft)
        if not isinstance(error, AlreadyCreated):
            raise
        # Another request created the thread meanwhile; the user has to be permitted to use it.
        return await _submit_next(caller, run, await caller.find_visible_thread(thread_id, conditions))
    if ticket.is_duplicate:
        await caller.find_visible_thread(thread_id, conditions)
        await _refuse_other_run(caller, ticket, run)
    # The index is a hint; the client need not wait for it.
    caller.host.run_in_background(caller.threads.index_draft(draft))
    return ticket


async def _submit_next(caller: Caller, run: CheckedRun, row: ThreadRow) -> Ticket:
    """Accept a run on a thread that exists."""
    if not row.has_document or row.graph_id is None:
        # An application may have created the thread without a server: make it known, because runs are
        # accepted only on known threads.
        await caller.threads.adopt(row)
    stamp = _make_stamp(run.assistant)
    is_owned = run.is_exclusive or keeps_apart(caller)
    is_own = has_run(row) and stamp.items() <= row.metadata.items()
    if stamp not in row.agents or (is_owned and not is_own):
        return await _submit_as_agent(caller, run, stamp)
    ticket = await _submit(caller, run, THERE)
    if ticket.is_duplicate:
        await _refuse_other_run(caller, ticket, run)
    if caller.threads.needs_touch(row):
        # The order of a listing is a hint; the client need not wait for it.
        caller.host.run_in_background(caller.threads.touch(run.thread_id))
    return ticket


async def _submit_as_agent(caller: Caller, run: CheckedRun, stamp: dict[str, str]) -> Ticket:
    """Accept a run on a thread that is known, in one commit with the names of its graph and its assistant:
    those of the first run own the thread, and the latest checkpoint decides which of the others do. Of two
    graphs that do this at the same time, one is refused where graphs are kept apart."""
    for _ in range(_ATTEMPTS):
        row = await caller.threads.get(run.thread_id)
        _require_owner(caller, row, run.assistant, is_exclusive=run.is_exclusive)
        is_first = not has_run(row) or row.graph_id is None
        precondition = await caller.threads.redraft(row, stamp, is_first=is_first)
        if precondition is None:
            continue
        try:
            ticket = await _submit(caller, run, precondition)
        except AlreadyCreated:
            continue
        if ticket.is_duplicate:
            await _refuse_other_run(caller, ticket, run)
        caller.host.run_in_background(caller.threads.reindex(run.thread_id))
        return ticket
    raise Contention(f"thread {run.thread_id!r}: {_ATTEMPTS} attempts lost to other writers; try again")


def _require_owner(caller: Caller, row: ThreadRow, assistant: Assistant, *, is_exclusive: bool) -> None:
    """Raise ``OtherGraph`` if an assistant may not run on a thread because of those that have run on it."""
    if is_exclusive:
        require_own_agent(row, assistant.assistant_id)
    require_own(caller, row, assistant.graph_id)


def _make_stamp(assistant: Assistant) -> dict[str, str]:
    """Return the metadata of a thread on which an assistant runs."""
    return {"graph_id": assistant.graph_id, "assistant_id": assistant.assistant_id}


def _make_arguments(
    user: User,
    new: NewRun,
    assistant: Assistant,
    thread_id: str,
    metadata: Mapping[str, Any],
    headers: Mapping[str, str],
) -> dict[str, Any]:
    """Return the arguments of a run's ``Options``: those of its request and its assistant, and what this
    server adds."""
    preset = remove_claims(user, assistant.config)
    config = {**preset, **new.config}
    preset_values, given_values = preset.get("configurable") or {}, new.config.get("configurable") or {}
    # The run's context takes precedence over values of the same name that the assistant configures.
    merged = {
        **{name: value for name, value in preset_values.items() if name not in new.context},
        **given_values,
    }
    read_headers = without_claims(user, headers)
    configurable = {
        **{n: v for n, v in {**merged, **read_headers}.items() if not is_reserved(n)},
        "thread_id": thread_id,
        "assistant_id": assistant.assistant_id,
        "graph_id": assistant.graph_id,
    }
    if user.identity:
        # Passed to the worker with the message, and never part of a response.
        configurable |= {
            USER: choose_storable(user.dict()),
            "langgraph_auth_user_id": user.identity,
            "langgraph_auth_permissions": list(user.permissions),
            **list_verified_names(user),
        }
    about = {**metadata, "assistant_id": assistant.assistant_id}
    config = {
        **config,
        "configurable": configurable,
        "metadata": {**(config.get("metadata") or {}), **about, "thread_id": thread_id},
    }
    context = {
        **_choose_context(assistant.context, preset_values),
        **_choose_context(new.context, given_values),
    } or None
    if context is not None and user.identity:
        context = with_verified(user, context)
    durability = new.durability
    if durability is None and new.checkpoint_during is not None:
        durability = "async" if new.checkpoint_during else "exit"
    # The client's further arguments, returned unchanged with the run.
    kwargs = new.model_dump(mode="json", exclude_none=True, exclude=_NOT_KWARGS)
    return {
        "config": config,
        "context": context,
        "interrupt_before": new.interrupt_before or None,
        "interrupt_after": new.interrupt_after or None,
        "durability": durability,
        "attempts": 1,
        "on_failure": "keep",
        "webhook": new.webhook or None,
        "about": {
            "assistant_id": assistant.assistant_id,
            "metadata": about,
            "kwargs": kwargs,
            "multitask_strategy": new.multitask_strategy or "enqueue",
        },
    }


def _choose_context(context: Mapping[str, Any], configurable: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a context, or if there is none the configurable values without reserved names. A graph that
    calls another one sends these along with its own configuration."""
    return context or {name: value for name, value in configurable.items() if not is_reserved(name)}


async def _submit(caller: Caller, run: CheckedRun, precondition: Precondition) -> Ticket:
    new, terms, options = run.new, run.terms, run.options
    channel = "" if options.webhook is None else WEBHOOK
    command = _dump_command(new)
    if command is not None and (terms.interrupt_id is not None or "resume" in command):
        return await caller.runtime.answer(
            run.thread_id,
            command.pop("resume", None),
            interrupt_id=terms.interrupt_id,
            graph=run.assistant.graph_id,
            command=command,
            dedupe_key=terms.key,
            channel=channel,
            options=options,
            precondition=precondition,
        )
    return await caller.runtime.submit(
        run.thread_id,
        new.input,
        dedupe_key=terms.key,
        graph=run.assistant.graph_id,
        channel=channel,
        strategy=terms.strategy,
        command=command,
        coalesce=terms.coalesce,
        debounce=terms.debounce,
        delay=new.after_seconds or 0.0,
        cancel_pending=terms.strategy in ("interrupt", "rollback"),
        options=options,
        precondition=precondition,
    )


async def _refuse_other_run(caller: Caller, ticket: Ticket, run: CheckedRun) -> None:
    """Raise ``Conflict`` if another run was accepted under the idempotency key of a run."""
    standing = await caller.runtime.find(ticket.thread_id, ticket.id)
    if standing is None:
        # The message was coalesced with others, and its run has the id of the first.
        standing = await caller.runtime.look(ticket)
    command = _dump_command(run.new)
    sent = {"input": run.new.input if command is None else None, "command": command}
    stored = _without_interrupt(read_input(standing.message.payload), run.terms)
    if run.may_answer:
        sent, stored = _as_answer(sent), _as_answer(stored)
    about, stored_about = to_plain(run.options.about), standing.message.options.get("about")
    if stored != sent or _without_delay(stored_about) != _without_delay(about):
        raise Conflict("This Idempotency-Key was used for another run; send a new one, or the same run.")


def _without_interrupt(stored: dict[str, Any], terms: RunTerms) -> dict[str, Any]:
    """Return the stored input of a run as its request has it: that names the interrupt apart from the answer,
    which is stored under the interrupt's id."""
    command = stored["command"]
    if terms.interrupt_id is None or command is None or not isinstance(command.get("resume"), Mapping):
        return stored
    answers = tuple(command["resume"].values())
    if len(answers) != 1:
        return stored
    return {**stored, "command": {**command, "resume": answers[0]}}


def _as_answer(given: dict[str, Any]) -> dict[str, Any]:
    """Return the input of a run as an answer."""
    if given["command"] is not None:
        return given
    return {"input": None, "command": {"resume": given["input"]}}


def _without_delay(about: Any) -> Any:
    """Return the stored part of a request without its delay: a request that is repeated with another delay is
    for the same run."""
    if not isinstance(about, Mapping) or not isinstance(kwargs := about.get("kwargs"), Mapping):
        return about
    return {**about, "kwargs": {name: each for name, each in kwargs.items() if name != "after_seconds"}}
