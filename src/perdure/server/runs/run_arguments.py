"""Arguments of a new run: checks of a client's arguments, and of their changes by an authorization
handler."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from perdure.server.auth.identity import Refusal, User
from perdure.server.auth.reserved_names import remove_claims, with_verified, without_claims
from perdure.server.requests import NewRun
from perdure.server.resources import Caller
from perdure.server.runs.outbound_policy import Unreachable

AUTHORIZED = {"input", "command", "config", "context", "interrupt_before", "interrupt_after", "webhook"}
"""Arguments of a run that an authorization handler may change, as ``kwargs``."""


def check_run(caller: Caller, new: NewRun, *, is_stateless: bool) -> NewRun:
    """Return a run that may be accepted, without its client's statements about an authenticated user.

    Args:
        caller: the authenticated user of the request.
        new: the run.
        is_stateless: the run has a thread of its own.

    Raises:
        Refusal: its parts do not go together, or its webhook may not be called.
    """
    if new.config.get("configurable") and new.context:
        raise Refusal(400, "config.configurable and context exclude each other; send one of them")
    _check_parts(new, is_stateless=is_stateless)
    _check_webhook(caller, new.webhook)
    if caller.user.identity:
        return _remove_claims_about_user(caller.user, new)
    return new


def as_authorized(caller: Caller, new: NewRun, kwargs: Any, *, is_stateless: bool) -> NewRun:
    """Return a run with its arguments as the authorization handler left them; if it changed any, they are
    checked again."""
    try:
        changed = {name: kwargs[name] for name in AUTHORIZED if kwargs[name] != _read_argument(new, name)}
        if not changed:
            return new
        given = {name: getattr(new, name) for name in new.model_fields_set}
        authorized = NewRun.model_validate({**given, **changed})
    except (KeyError, TypeError, ValidationError) as error:
        raise Refusal(
            500, "the authorization handler left kwargs that cannot be used for a run; their types must stay"
        ) from error
    _check_parts(authorized, is_stateless=is_stateless)
    _check_webhook(caller, authorized.webhook)
    return authorized


def _read_argument(new: NewRun, name: str) -> Any:
    value = getattr(new, name)
    if isinstance(value, BaseModel):
        return value.model_dump()
    return value


def _check_parts(new: NewRun, *, is_stateless: bool) -> None:
    is_answer = new.command is not None and new.command.is_answer
    if is_stateless and is_answer:
        raise Refusal(400, "a command that resumes needs a thread; send it to /threads/{thread_id}/runs")
    if new.after_seconds and is_answer:
        raise Refusal(422, "an answer is given now; after_seconds does not go with a command that resumes")
    if new.after_seconds and new.multitask_strategy not in (None, "enqueue"):
        raise Refusal(422, "a run that comes later is enqueued; leave multitask_strategy out")
    configured = new.config.get("configurable") or {}
    if configured.get("checkpoint_ns") or (new.checkpoint is not None and new.checkpoint.checkpoint_ns):
        raise Refusal(422, "a run starts from a checkpoint of the thread, not of a subgraph")


def _check_webhook(caller: Caller, url: str | None) -> None:
    if not url:
        return
    if caller.host.webhooks is None:
        raise Refusal(422, "webhooks are disabled on this server; follow the run, or join it")
    if url.startswith("/"):
        # Any process on the database may send the notice, also workers, which have no routes.
        raise Refusal(
            422,
            "the webhook's URL may not be called: it is a path, and the process that sends the notice need "
            "not have your application; send all of it, e.g. https://HOST/path, and name a HOST that is not "
            "public in http.webhook_hosts",
        )
    try:
        caller.host.webhooks.check_url(url)
    except Unreachable as error:
        raise Refusal(422, f"the webhook's URL may not be called: {error}") from error


def _remove_claims_about_user(user: User, new: NewRun) -> NewRun:
    """Return a run without its client's statements about the user, who is authenticated."""
    return new.model_copy(
        update={
            "config": remove_claims(user, new.config),
            "context": with_verified(user, new.context),
            "metadata": without_claims(user, new.metadata),
        }
    )
