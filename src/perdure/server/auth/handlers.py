"""Support for ``langgraph_sdk.Auth``: runs an ``auth.py`` that was written for LangGraph's server, unchanged.

The module selects the handler, passes its arguments and interprets its result; ``filters`` evaluates the
filters. Handlers are code of the application: an error in a handler ends the request and never allows it.
Only the error's type and location are logged, because its text may quote a token.

This module is stricter than LangGraph's server in some ways: a filter that cannot be understood is refused,
as are two ``Authorization`` headers, and an assertion that fails during authentication is a 401. FastAPI's
``Depends`` is not resolved; a handler that needs it is refused at start-up.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from http import HTTPStatus
from pathlib import PurePath
from typing import Any, cast, get_args
from uuid import UUID

from fastapi.params import Depends
from langgraph_sdk import Auth
from langgraph_sdk.auth.types import AuthContext, Authenticator, BaseUser, Handler
from starlette.authentication import AuthenticationError
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request

from perdure.errors import BadSetting
from perdure.model.users import name_user
from perdure.runtime.contained_exits import contain_exits
from perdure.server.auth.authorized_values import check_changed_arguments
from perdure.server.auth.filters import BadFilter, Filter, parse_conditions
from perdure.server.auth.identity import Refusal, User, check_names, tenant_of
from perdure.server.auth.json_data import json_data
from perdure.storage.own_threads import run_in_own_thread

_log = logging.getLogger("perdure.server")

_ACTIONS = {
    "assistants": ("create", "delete", "read", "search", "update"),
    "crons": ("create", "delete", "read", "search", "update"),
    "store": ("delete", "get", "list_namespaces", "put", "search"),
    "threads": ("create", "create_run", "delete", "read", "search", "update"),
}


class OnHandlers:
    """The ``on`` handlers of an ``Auth``, which authorise a user's actions.

    Only the most specific handler is called: for the resource and the action, for the resource, for the
    action, for everything. Without a handler the action is allowed, as on LangGraph's server. If an ``Auth``
    has handlers for some actions only, the actions without a handler are logged once, at start-up.
    """

    def __init__(self, auth: Auth) -> None:
        # Servers read these attributes: the SDK documents that changing them would be a breaking change.
        self._handlers = auth._handlers  # pyright: ignore[reportPrivateUsage]
        self._global = auth._global_handlers  # pyright: ignore[reportPrivateUsage]
        if lacking := self._find_unhandled():
            _log.warning(
                "auth has no handler for %s: any user may; add one, or deny the rest with a global @auth.on",
                ", ".join(lacking),
            )

    async def authorize(self, user: User, resource: str, action: str, value: dict[str, Any]) -> Filter | None:
        handler = self._choose_handler(resource, action)
        if handler is None:
            return None
        handler_name = f"the authorization handler for {resource}.{action}"
        context = AuthContext(
            permissions=list(user.permissions),
            user=cast(BaseUser, user),
            resource=cast(Any, resource),
            action=cast(Any, action),
        )
        before = dict(value)
        try:
            result: object = await _call(handler, {"ctx": context, "value": value})
        except AssertionError as error:
            raise Refusal(403, str(error) or "Forbidden") from error
        except BaseException as error:
            if _ends_request(error):
                raise
            raise _make_refusal(error, handler_name) from error
        if result is False:
            raise Refusal(403, "Forbidden")
        check_changed_arguments(resource, action, before, value)
        if result is None or result is True:
            return None
        if not isinstance(result, Mapping):
            raise _refuse_misuse(
                f"{handler_name} returned a {type(result).__name__}; return None, a bool or a filter"
            )
        try:
            return parse_conditions(result)
        except BadFilter as error:
            raise _refuse_misuse(f"{handler_name} returned a filter that cannot be used: {error}") from error

    def _choose_handler(self, resource: str, action: str) -> Handler | None:
        for place in ((resource, action), (resource, "*"), ("*", action), ("*", "*")):
            if found := self._handlers.get(place):
                return found[-1]
        if self._global:
            return self._global[-1]
        return None

    def _find_unhandled(self) -> list[str]:
        if not self._handlers:
            return []
        return [
            f"{resource}.{action}"
            for resource, actions in _ACTIONS.items()
            for action in actions
            if self._choose_handler(resource, action) is None
        ]


class Rules(OnHandlers):
    """The ``on`` handlers alone, for use with ``Jwt``, whose tokens authenticate the user.

    ``BadSetting`` for an ``Auth`` with an authenticate handler, which would never be called.
    """

    def __init__(self, auth: Auth) -> None:
        super().__init__(auth)
        if auth._authenticate_handler is not None:  # pyright: ignore[reportPrivateUsage]
            raise BadSetting(
                "auth has an @auth.authenticate handler, but tokens authenticate users here; remove one of "
                "the two"
            )


class Handlers(OnHandlers):
    """A complete ``Auth``: its authenticate handler identifies the user, its ``on`` handlers authorise
    actions.

    ``tenant_claims`` names the fields of the user that form the tenant, as in ``["identity"]`` or
    ``["org_id"]``: tenants are then separated in the storage itself, whatever a filter does. Without it all
    users share one tenant, as on LangGraph's server, and only the filters separate them.

    ``BadSetting`` for an ``Auth`` without an authenticate handler, which could not identify any user, and for
    one that asks for an argument that does not exist.
    """

    def __init__(self, auth: Auth, tenant_claims: Sequence[str] = ()) -> None:
        super().__init__(auth)
        authenticator = auth._authenticate_handler  # pyright: ignore[reportPrivateUsage]
        if authenticator is None:
            raise BadSetting(
                "auth has no @auth.authenticate handler, so no user can be authenticated; add one, or use "
                "tokens to authenticate and these rules to authorise"
            )
        self._authenticator: Authenticator = authenticator
        self._parameters = _list_parameters(authenticator)
        self._tenant_claims = check_names(tenant_claims, "tenant_claims")

    async def authenticate(self, request: HTTPConnection) -> User:
        arguments = {name: _ARGUMENTS[name](request) for name in self._parameters}
        try:
            returned: object = await _call(self._authenticator, arguments)
        except AssertionError as error:
            raise Refusal(401, "Unauthorized") from error
        except BaseException as error:
            if _ends_request(error):
                raise
            raise _make_refusal(error, "the authenticate handler") from error
        try:
            identity, permissions, user_fields = _read_user(returned)
        except Exception as error:
            reason = _describe_place(error)
            if isinstance(error, _NotAUser | TypeError):
                reason = str(error)
            raise _refuse_misuse(f"the authenticate handler did not return a valid user: {reason}") from error
        tenant = tenant_of({**user_fields, "identity": identity}, self._tenant_claims)
        return User(identity, tenant, permissions, user_fields)


class _NotAUser(Exception):
    """An authenticate handler returned something that is not a user; the message gives the reason."""


def read_single_header(request: HTTPConnection, header: str) -> str | None:
    """Return the only value of a header, or None if it is absent; refuse several, as a proxy and this server
    might use different ones."""
    values = [value for name, value in request.scope["headers"] if name.lower() == header.encode("latin-1")]
    if not values:
        return None
    if len(values) > 1:
        raise Refusal(400, f"there are {len(values)} {header} headers; send one")
    try:
        return str(values[0], "utf-8")
    except UnicodeDecodeError:
        raise Refusal(400, f"the {header} header is not text") from None


def _require_request(connection: HTTPConnection) -> Request:
    if not isinstance(connection, Request):
        raise Refusal(
            403, "the authenticate handler asks for `request`, which a WebSocket lacks; ask for `headers`"
        )
    return connection


def _list_scopes(connection: HTTPConnection) -> list[str]:
    return list(getattr(connection.scope.get("auth"), "scopes", ()))


_ARGUMENTS: dict[str, Callable[[HTTPConnection], Any]] = {
    "authorization": lambda connection: read_single_header(connection, "authorization"),
    "headers": lambda connection: dict(connection.scope["headers"]),
    "method": lambda connection: connection.scope.get("method", "GET"),
    "path": lambda connection: connection.scope["path"],
    "path_params": lambda connection: connection.path_params,
    "query_params": lambda connection: connection.query_params,
    "request": _require_request,
    "scope": lambda connection: connection.scope,
    "scopes": _list_scopes,
    "user": lambda connection: connection.scope.get("user"),
}
"""Arguments of an authenticate handler, by parameter name. Header names and values are bytes, names in lower
case, as in ASGI. There is no body: authentication does not depend on the request's content."""


def _list_parameters(authenticator: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters to pass to a handler; raise ``BadSetting`` if it needs others."""
    names: list[str] = []
    for name, parameter in inspect.signature(authenticator).parameters.items():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        hints = (parameter.default, *get_args(parameter.annotation))
        if any(isinstance(hint, Depends) for hint in hints):
            raise BadSetting(
                f"the authenticate handler's {name!r} is FastAPI's Depends; call it in the handler"
            )
        if name in _ARGUMENTS and parameter.kind is not parameter.POSITIONAL_ONLY:
            names.append(name)
        elif parameter.default is parameter.empty:
            raise BadSetting(
                f"the authenticate handler needs {name!r}, which is not available; its parameters may be "
                f"{', '.join(_ARGUMENTS)}"
            )
    return names


async def _call(handler: Callable[..., Any], arguments: Mapping[str, Any]) -> object:
    """Call a handler and return its result; a handler that is not async runs in an OS thread. An exit that it
    asks for is an error like any other."""
    with contain_exits():
        if inspect.iscoroutinefunction(handler):
            return await handler(**arguments)
        result: object = await run_in_own_thread(partial(handler, **arguments))
        if inspect.isawaitable(result):
            return await result
        return result


def _ends_request(error: BaseException) -> bool:
    """Return True if an exception ends the request, or the process, and is not the handler's own."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, GeneratorExit | SystemExit | KeyboardInterrupt)


def _make_refusal(error: BaseException, who: str) -> Refusal:
    """Return the refusal for an error of a handler: with its text if it is meant for clients, else a 500."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, Auth.exceptions.HTTPException | HTTPException):
        return _read_http_error(error, who)
    if isinstance(error, AuthenticationError):
        return Refusal(403, str(error) or "Forbidden")
    _log.error("%s failed: %s", who, _describe_place(error))
    return Refusal(500, f"{who} failed; the server's log has the location")


def _read_http_error(error: Auth.exceptions.HTTPException | HTTPException, who: str) -> Refusal:
    """Return the refusal for an error with a status, or a 500 if no response can have its status or its
    headers."""
    status: object = error.status_code
    if not isinstance(status, int) or status not in _STATUSES:
        return _refuse_misuse(
            f"{who} raised an HTTPException whose status no refusal has; use one from 400 to 599"
        )
    headers: object = error.headers or {}
    if not isinstance(headers, Mapping) or not all(
        isinstance(name, str)
        and isinstance(value, str)
        and _HEADER_NAME.fullmatch(name)
        and _HEADER_VALUE.fullmatch(value)
        for name, value in cast(Mapping[object, object], headers).items()
    ):
        return _refuse_misuse(
            f"{who} raised an HTTPException with headers that cannot be sent: a name is a token, and a value "
            "a text in Latin-1 without line breaks"
        )
    detail: object = getattr(error, "detail", None)
    if not isinstance(detail, str) or not detail:
        known = {each.value: each.phrase for each in HTTPStatus}
        detail = known.get(int(status), "Refused")
    return Refusal(int(status), detail, cast(Mapping[str, str], headers))


_STATUSES = frozenset(range(300, 600)) - {HTTPStatus.NOT_MODIFIED}
"""Statuses of a refusal: all errors, and those that send a browser elsewhere, whose responses have a body."""
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"(?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?")


def _refuse_misuse(reason: str) -> Refusal:
    _log.error("%s", reason)
    return Refusal(500, reason)


def _describe_place(error: BaseException) -> str:
    """Return an error's type and the place where it was raised."""
    text = type(error).__name__
    for frame in traceback.extract_tb(error.__traceback__)[-1:]:
        text += f" at {PurePath(frame.filename).name}:{frame.lineno}"
    return text


def _read_user(returned: object) -> tuple[str, tuple[str, ...], dict[str, Any]]:
    """Return the identity, the permissions and all fields of an authenticate handler's result, which is an
    identity, a mapping, an object, or a pair of permissions and one of these. Fields of an object that cannot
    be JSON are left out."""
    permissions: object = None
    if type(returned) is tuple and len(cast(tuple[object, ...], returned)) == 2:
        permissions, returned = cast(tuple[object, object], returned)
    if isinstance(returned, str | UUID):
        user_fields: dict[str, Any] = {"identity": returned}
    elif isinstance(returned, Mapping):
        user_fields = json_data(cast(object, returned), "user")
    elif hasattr(returned, "identity"):
        user_fields = _list_attributes(returned)
    else:
        raise _NotAUser(
            f"a {type(returned).__name__} has no identity; return text, or a dict with 'identity'"
        )
    identity = name_user(user_fields.get("identity"))
    if identity is None:
        raise _NotAUser("its identity is missing or empty, or neither text nor a number")
    if permissions is None:
        permissions = user_fields.get("permissions")
    return (
        identity,
        _read_permissions(permissions),
        json_data({**user_fields, "identity": identity}, "user"),
    )


def _list_attributes(user: object) -> dict[str, Any]:
    dump, as_dict = getattr(user, "model_dump", None), getattr(user, "dict", None)
    if callable(dump):
        attributes: dict[str, Any] = dict(cast(Mapping[str, Any], dump(mode="json")))
    elif callable(as_dict):
        attributes = dict(cast(Mapping[str, Any], as_dict()))
    elif is_dataclass(user):
        attributes = {part.name: getattr(user, part.name) for part in fields(user)}
    else:
        attributes = {name: part for name, part in getattr(user, "__dict__", {}).items() if name[:1] != "_"}
    for name in ("identity", "display_name", "is_authenticated", "permissions"):
        if hasattr(user, name):
            attributes[name] = getattr(user, name)
    return {name: part for name, part in attributes.items() if _is_json(part)}


def _is_json(value: object) -> bool:
    try:
        json_data(value, "user")
    except TypeError:
        return False
    return True


def _read_permissions(value: object) -> tuple[str, ...]:
    """Return permissions from a list or, as OAuth writes scopes, from one text separated by spaces."""
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(value.split())
    if isinstance(value, Iterable):
        listed = tuple(cast(Iterable[object], value))
        if all(isinstance(permission, str) for permission in listed):
            return cast(tuple[str, ...], listed)
    raise _NotAUser("its permissions are not a list of texts")
