"""Check of an action's arguments after an authorization handler has changed them.

A handler changes arguments in place to narrow or to stamp them. The changed arguments decide who sees what,
so they are checked as strictly as a client's request, before anything is read: a value of another type is
refused, and so is a change that would have no effect. Names that a handler adds have no effect either, but
are permitted, as one handler for all actions stamps ``metadata`` wherever it is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from perdure.server.auth.identity import Refusal
from perdure.server.auth.json_data import json_data
from perdure.server.requests import Config, Offset, Page, Ttl

_STATUS = 422


def _to_json_data(value: Any) -> Any:
    """Return a mapping as JSON data, an empty one for None. ``ValueError`` for anything else."""
    if value is not None and not isinstance(value, Mapping):
        raise ValueError("it is a mapping")
    try:
        return json_data(value or {}, "it")
    except TypeError as error:
        raise ValueError(str(error)) from None


_Data = Annotated[dict[str, Any], BeforeValidator(_to_json_data)]
_Text = TypeAdapter[Any](str | None)

_KINDS: Mapping[str, TypeAdapter[Any]] = {
    "config": TypeAdapter(Config | None),
    "context": TypeAdapter(dict[str, Any] | None),
    "description": _Text,
    "if_exists": TypeAdapter(Literal["raise", "do_nothing"]),
    "kwargs": TypeAdapter(Any),
    "limit": TypeAdapter(Page),
    "metadata": TypeAdapter(_Data),
    "name": _Text,
    "offset": TypeAdapter(Offset),
    "payload": TypeAdapter(Any),
    "ttl": TypeAdapter(Ttl | None),
    "values": TypeAdapter(_Data),
}
"""Types of the arguments that a handler may change, by name. ``kwargs`` and ``payload`` are the arguments of
a run, and are checked with the run."""

_FURTHER: Mapping[tuple[str, str], Mapping[str, TypeAdapter[Any]]] = {
    ("assistants", "create"): {"assistant_id": _Text},
    ("assistants", "search"): {"graph_id": _Text},
    ("assistants", "update"): {"graph_id": _Text},
    ("crons", "search"): {"assistant_id": _Text, "thread_id": _Text},
    ("threads", "create"): {"thread_id": TypeAdapter(Annotated[str, Field(min_length=1)])},
    ("threads", "search"): {
        "status": TypeAdapter(Literal["idle", "busy", "interrupted", "error"] | None),
    },
}
"""Types of further arguments that a handler may change in one action, by resource and action."""


def check_changed_arguments(
    resource: str, action: str, before: Mapping[str, Any], value: dict[str, Any]
) -> None:
    """Replace the arguments in ``value`` by their checked values.

    Args:
        resource: the resource of the action.
        action: the action.
        before: the arguments as they were before the handler was called.
        value: the arguments as the handler left them.

    Raises:
        Refusal: an argument is missing, has another type, or was changed without any effect.
    """
    if resource == "store":
        # The store's routes check these arguments as they check a request's.
        return
    kinds = {**_KINDS, **_FURTHER.get((resource, action), {})}
    for name, original in before.items():
        if name not in value:
            raise make_change_refusal(resource, action, f"no {name!r}: it may change it, but not remove it")
        kind = kinds.get(name)
        if kind is not None:
            try:
                value[name] = kind.validate_python(value[name])
            except ValidationError as error:
                raise make_change_refusal(
                    resource, action, f"{name!r} with a fault: {fault_of(error)}"
                ) from None
        elif value[name] != original:
            changeable = sorted(before.keys() & kinds.keys())
            raise make_change_refusal(
                resource,
                action,
                f"another {name!r}, which has no effect; it may change "
                f"{', '.join(changeable) or 'nothing here'}, and refuse the request",
            )


def require_unnarrowed(value: Mapping[str, Any], *names: str) -> None:
    """Raise ``Refusal`` if a handler narrowed a search of threads by a condition that this view cannot
    apply."""
    for name in names:
        if value[name]:
            raise Refusal(
                403,
                f"the authorization handler narrows threads by {name!r}, which this view cannot apply; "
                "narrow them by metadata, or return a filter",
            )


def make_change_refusal(resource: str, action: str, what: str) -> Refusal:
    """Return the refusal of arguments that a handler changed."""
    return Refusal(_STATUS, f"the authorization handler for {resource}.{action} left {what}")


def fault_of(error: ValidationError) -> str:
    """Return the first fault that was found, without the value."""
    first = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    if place:
        return f"{place}: {first['msg']}"
    return first["msg"]
