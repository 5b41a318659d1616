"""Creation of runs: validation of the request, the thread, and the options of the invocation."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

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
from perdure.server.requests import NewRun, Ref
from perdure.server.resources import Caller
from perdure.server.responses import read_input
from perdure.server.runs.checkpoint_references import require_start, start_of
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Invocation:
    """Parts of a run's invocation: the request, its assistant, and what this server adds."""

    thread_id: str
    new: NewRun
    assistant: Assistant
    metadata: Mapping[str, Any]
    stream: StreamOptions | None
    start: Ref | None
    headers: Mapping[str, str]
    protocol: Mapping[str, Any] | None = None
    is_exclusive: bool = False
    may_answer: bool = False


class AcceptedRun(NamedTuple):
    """A run that is stored durably. If it ``is_temporary``, its thread is to be removed at its end."""

    thread_id: str
    run_id: str
    ticket: Ticket | None
    is_new: bool
    is_temporary: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """Metadata of a thread that is created with its first run, and the filter that says who may see it."""

    metadata: Mapping[str, Any]
    conditions: Filter | None
    is_temporary: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRun:
    """A run that is valid and permitted, but not stored yet. Its thread exists (``row``), or is created with
    it (``draft``). A run that ``is_alone`` has a thread of its own."""

    invocation: _Invocation
    options: Options
    terms: RunTerms
    row: ThreadRow | None
    draft: _Draft | None
    is_alone: bool


async def submit(
    caller: Caller,
    headers: Headers,
    thread_id: str | None,
    new: NewRun,
    *,
    modes: tuple[StreamMode, ...],
    is_kept: bool,
    subgraphs: bool | None = None,
    interrupt_id: str | None = None,
    protocol: Mapping[str, Any] | None = None,
    is_exclusive: bool = False,
    may_answer: bool = False,
) -> AcceptedRun:
    """Check a run as ``check`` does, whose arguments these are, and accept it as ``accept`` does. If it is
    refused, none of it is stored."""
    checked = await check(
        caller,
        headers,
        thread_id,
        new,
        modes=modes,
        is_kept=is_kept,
        subgraphs=subgraphs,
        interrupt_id=interrupt_id,
        protocol=protocol,
        is_exclusive=is_exclusive,
        may_answer=may_answer,
    )
    return await accept(caller, checked)


async def check(
    caller: Caller,
    headers: Headers,
    thread_id: str | None,
    new: NewRun,
    *,
    modes: tuple[StreamMode, ...],
    is_kept: bool,
    subgraphs: bool | None = None,
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
        subgraphs: emit events of subgraphs; by default as in ``new``.
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
    assistant = await caller.find_assistant_to_run(new.assistant_id)
    # A new id needs no look-up: the commit that creates the thread fails if there is one.
    if is_alone and terms.key is None:
        row = None
    else:
        row = await caller.threads.find(thread_id)
    if row is not None and not caller.sees(conditions, row.metadata):
        # The same error as for a thread that does not exist, to not reveal another user's.
        raise NotFound(NONE_TO_RUN)
    if row is None and not is_alone:
        if new.if_not_exists != "create":
            raise NotFound(NONE_TO_RUN)
        if protocol is None:
            caller.refuse_to_create(thread_id)
    if row is not None and is_exclusive:
        require_own_agent(row, assistant.assistant_id)
    if row is not None:
        require_own(caller, row, assistant.graph_id)
    if start is not None:
        await require_start(caller, thread_id, start, terms.key)
    stream: StreamOptions | None = None
    if modes:
        stream = StreamOptions(
            modes=modes,
            subgraphs=bool(new.stream_subgraphs) if subgraphs is None else subgraphs,
            kept=is_kept,
            by=caller.host.runtime.name,
        )
    invocation = _Invocation(
        thread_id=thread_id,
        new=new,
        assistant=assistant,
        metadata=value["metadata"],
        stream=stream,
        start=start,
        headers=caller.host.headers.of(headers),
        protocol=protocol,
        is_exclusive=is_exclusive,
        may_answer=may_answer,
    )
    options = _make_options(caller.user, invocation)
    if protocol is not None and caller.host.webhooks is not None:
        options = replace(options, webhook=TASK, notice_if_closed=True)
    draft = None
    if row is None:
        draft = await _make_draft(caller, invocation, is_temporary=is_alone and new.on_completion != "keep")
    return CheckedRun(
        invocation=invocation, options=options, terms=terms, row=row, draft=draft, is_alone=is_alone
    )


def require_storable(run: CheckedRun) -> None:
    """Raise the error that ``accept`` would raise if the input of a run cannot be stored."""
    new = run.invocation.new
    encode([new.input, None if new.command is None else new.command.dump_sent()], "message")


async def accept(caller: Caller, run: CheckedRun) -> AcceptedRun:
    """Store a run durably.

    Raises:
        Conflict: the idempotency key was used for a different run, or the state of the thread does not permit
            the run.
        QueueFull: too many runs wait on the thread.
    """
    terms, thread_id = run.terms, run.invocation.thread_id
    if run.draft is not None:
        ticket = await _submit_first(caller, run.invocation, run.options, terms, run.draft)
    else:
        ticket = await _submit_next(caller, run.invocation, run.options, terms, cast(ThreadRow, run.row))
    is_own_run = not terms.coalesce and not ticket.is_duplicate
    if is_own_run:
        run_id = ticket.id
    else:
        run_id = await caller.runtime.run_id(ticket)
    # A thread holds the idempotency key of its run, by which a client that lost the response gets the same
    # run again: such a thread stays until its time to live expires.
    is_temporary = run.is_alone and run.invocation.new.on_completion != "keep" and terms.key is None
    return AcceptedRun(thread_id, run_id, ticket, not ticket.is_duplicate, is_temporary)


async def _make_draft(caller: Caller, invocation: _Invocation, *, is_temporary: bool) -> _Draft:
    """Return the thread that is to be created with its first run. It has the metadata of the run."""
    stated = {**(invocation.new.config.get("metadata") or {}), **invocation.metadata}
    metadata = {name: each for name, each in stated.items() if name not in _TERMS}
    value: dict[str, Any] = {
        "thread_id": invocation.thread_id,
        "metadata": {**with_verified(caller.user, metadata), **_make_stamp(invocation.assistant)},
        "if_exists": "do_nothing",
    }
    conditions = await caller.may("threads", "create", value)
    require_stamp(conditions, value["metadata"])
    return _Draft(metadata=value["metadata"], conditions=conditions, is_temporary=is_temporary)


async def _submit_first(
    caller: Caller, invocation: _Invocation, options: Options, terms: RunTerms, first: _Draft
) -> Ticket:
    """Accept a run together with its thread, in one commit. A thread that is removed after its run
    (``is_temporary``) has a time to live as well: if this server ends first, another one removes it."""
    thread_id, conditions = invocation.thread_id, first.conditions
    ttl = {"ttl": _TEMPORARY_MINUTES} if first.is_temporary else None
    draft = await caller.threads.draft(thread_id, first.metadata, ttl)
    try:
        ticket = await _submit(caller, invocation, options, terms, draft.precondition)
    except Unavailable:
        # The run may have been stored: the draft stays.
        raise
    except Exception as error:
        await caller.threads.discard(draft)
        if not isinstance(error, AlreadyCreated):
            raise
        # Another request created the thread meanwhile; the user has to be permitted to use it.
        row = await caller.find_visible_thread(thread_id, conditions)
        return await _submit_next(caller, invocation, options, terms, row)
    if ticket.is_duplicate:
        await caller.find_visible_thread(thread_id, conditions)
        await _refuse_other_run(caller, ticket, invocation, options, terms)
    # The index is a hint; the client need not wait for it.
    caller.host.run_in_background(caller.threads.index_draft(draft))
    return ticket


async def _submit_next(
    caller: Caller, invocation: _Invocation, options: Options, terms: RunTerms, row: ThreadRow
) -> Ticket:
    """Accept a run on a thread that exists."""
    thread_id = invocation.thread_id
    if not row.has_document or row.graph_id is None:
        # An application may have created the thread without a server: make it known, because runs are
        # accepted only on known threads.
        await caller.threads.adopt(row)
    stamp = _make_stamp(invocation.assistant)
    is_owned = invocation.is_exclusive or keeps_apart(caller)
    is_own = has_run(row) and stamp.items() <= row.metadata.items()
    if stamp not in row.agents or (is_owned and not is_own):
        return await _submit_as_agent(caller, invocation, options, terms)
    ticket = await _submit(caller, invocation, options, terms, THERE)
    if ticket.is_duplicate:
        await _refuse_other_run(caller, ticket, invocation, options, terms)
    if caller.threads.needs_touch(row):
        # The order of a listing is a hint; the client need not wait for it.
        caller.host.run_in_background(caller.threads.touch(thread_id))
    return ticket


async def _submit_as_agent(
    caller: Caller, invocation: _Invocation, options: Options, terms: RunTerms
) -> Ticket:
    """Accept a run on a thread that is known, in one commit with the names of its graph and its assistant:
    those of the first run own the thread, and the latest checkpoint decides which of the others do. Of two
    graphs that do this at the same time, one is refused where graphs are kept apart."""
    thread_id, assistant = invocation.thread_id, invocation.assistant
    for _ in range(_ATTEMPTS):
        row = await caller.threads.get(thread_id)
        if invocation.is_exclusive:
            require_own_agent(row, assistant.assistant_id)
        require_own(caller, row, assistant.graph_id)
        stamp = _make_stamp(assistant)
        precondition = await caller.threads.redraft(
            row, stamp, is_first=not has_run(row) or row.graph_id is None
        )
        if precondition is None:
            continue
        try:
            ticket = await _submit(caller, invocation, options, terms, precondition)
        except AlreadyCreated:
            continue
        if ticket.is_duplicate:
            await _refuse_other_run(caller, ticket, invocation, options, terms)
        caller.host.run_in_background(caller.threads.reindex(thread_id))
        return ticket
    raise Contention(f"thread {thread_id!r}: {_ATTEMPTS} attempts lost to other writers; try again")


def _make_stamp(assistant: Assistant) -> dict[str, str]:
    """Return the metadata of a thread on which an assistant runs."""
    return {"graph_id": assistant.graph_id, "assistant_id": assistant.assistant_id}


def _make_options(user: User, invocation: _Invocation) -> Options:
    new, assistant, thread_id = invocation.new, invocation.assistant, invocation.thread_id
    preset = remove_claims(user, assistant.config)
    config = {**preset, **new.config}
    preset_values, given_values = preset.get("configurable") or {}, new.config.get("configurable") or {}
    # The run's context takes precedence over values of the same name that the assistant configures.
    merged = {
        **{name: value for name, value in preset_values.items() if name not in new.context},
        **given_values,
    }
    headers = without_claims(user, invocation.headers)
    configurable = {
        **{n: v for n, v in {**merged, **headers}.items() if not is_reserved(n)},
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
    about = {**invocation.metadata, "assistant_id": assistant.assistant_id}
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
    kwargs = new.model_dump(
        mode="json",
        exclude_none=True,
        exclude=_NOT_KWARGS,
    )
    return Options(
        config=config,
        context=context,
        checkpoint_id=None if invocation.start is None else invocation.start.checkpoint_id,
        interrupt_before=new.interrupt_before or None,
        interrupt_after=new.interrupt_after or None,
        durability=durability,
        stream=invocation.stream,
        attempts=1,
        on_failure="keep",
        webhook=new.webhook or None,
        about={
            "assistant_id": assistant.assistant_id,
            "metadata": about,
            "kwargs": kwargs,
            "multitask_strategy": new.multitask_strategy or "enqueue",
            **({} if invocation.protocol is None else {"protocol": dict(invocation.protocol)}),
        },
    )


def _choose_context(context: Mapping[str, Any], configurable: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a context, or if there is none the configurable values without reserved names. A graph that
    calls another one sends these along with its own configuration."""
    return context or {name: value for name, value in configurable.items() if not is_reserved(name)}


async def _submit(
    caller: Caller,
    invocation: _Invocation,
    options: Options,
    terms: RunTerms,
    precondition: Precondition,
) -> Ticket:
    new, thread_id = invocation.new, invocation.thread_id
    channel = "" if options.webhook is None else WEBHOOK
    command = None
    if new.command is not None:
        command = new.command.dump_sent()
    if new.command is not None and command is not None and _is_answer(invocation, terms):
        return await caller.runtime.answer(
            thread_id,
            new.command.resume,
            interrupt_id=terms.interrupt_id,
            graph=invocation.assistant.graph_id,
            command={name: held for name, held in command.items() if name != "resume"},
            dedupe_key=terms.key,
            channel=channel,
            options=options,
            precondition=precondition,
        )
    return await caller.runtime.submit(
        thread_id,
        new.input,
        dedupe_key=terms.key,
        graph=invocation.assistant.graph_id,
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


def _is_answer(invocation: _Invocation, terms: RunTerms) -> bool:
    """Return True if a run answers a question of its thread."""
    command = invocation.new.command
    return command is not None and (terms.interrupt_id is not None or command.is_answer)


async def _refuse_other_run(
    caller: Caller, ticket: Ticket, invocation: _Invocation, options: Options, terms: RunTerms
) -> None:
    """Raise ``Conflict`` if another run was accepted under the idempotency key of a run."""
    standing = await caller.runtime.find(ticket.thread_id, ticket.id)
    if standing is None:
        # The message was coalesced with others, and its run has the id of the first.
        standing = await caller.runtime.look(ticket)
    accepted, new = standing.message, invocation.new
    command = None
    if new.command is not None:
        command = new.command.dump_sent()
    sent = {"input": new.input if command is None else None, "command": command}
    stored = _without_interrupt(read_input(accepted.payload), terms)
    if invocation.may_answer:
        sent, stored = _as_answer(sent), _as_answer(stored)
    if (stored, _without_delay(accepted.options.get("about"))) != (
        sent,
        _without_delay(to_plain(options.about)),
    ):
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
