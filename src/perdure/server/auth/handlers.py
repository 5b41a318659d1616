"""Runs a program's own ``langgraph_sdk.Auth``: an ``auth.py`` that was written for LangGraph's server,
unchanged.

The module decides which handler is asked, what it is given and what its answer means; what a filter means is
``filters``'s affair. A handler of its user is foreign code: an error in it ends the request, never lets it
pass, and is logged by its type and place, because its text may quote a token.

What differs from LangGraph's server, each time on the safe side: a filter that cannot be understood is
refused, two ``Authorization`` headers are, and an assertion that fails while somebody is authenticated is a
401. FastAPI's ``Depends`` is not resolved; a handler that wants it is refused at the start.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
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
from perdure.server.auth.data import json_data
from perdure.server.auth.filters import BadFilter, Filter, checked
from perdure.server.auth.identity import Refusal, User, checked_names, tenant_of

_log = logging.getLogger("perdure.server")

_ACTIONS = {
    "assistants": ("create", "delete", "read", "search", "update"),
    "crons": ("create", "delete", "read", "search", "update"),
    "store": ("delete", "get", "list_namespaces", "put", "search"),
    "threads": ("create", "create_run", "delete", "read", "search", "update"),
}


class OnHandlers:
    """The ``on`` handlers of an ``Auth``: what a user may do.

    The most specific handler alone is asked: for the resource and the action, for the resource, for the
    action, for everything. Where none is registered a user may, as on LangGraph's server; when an ``Auth``
    has handlers for some actions only, those it lacks are logged once, at the start.
    """

    def __init__(self, auth: Auth) -> None:
        # Named for servers: the SDK calls a change to them a breaking one.
        self._handlers = auth._handlers  # pyright: ignore[reportPrivateUsage]
        self._global = auth._global_handlers  # pyright: ignore[reportPrivateUsage]
        if lacking := self._lacking():
            _log.warning(
                "auth has no handler for %s: any user may; add one, or deny the rest with a global @auth.on",
                ", ".join(lacking),
            )

    async def authorize(self, user: User, resource: str, action: str, value: dict[str, Any]) -> Filter | None:
        handler = self._handler(resource, action)
        if handler is None:
            return None
        asked = f"the authorization handler for {resource}.{action}"
        context = AuthContext(
            permissions=list(user.permissions),
            user=cast(BaseUser, user),
            resource=cast(Any, resource),
            action=cast(Any, action),
        )
        try:
            said: object = await _call(handler, {"ctx": context, "value": value})
        except AssertionError as error:
            raise Refusal(403, str(error) or "Forbidden") from error
        except Exception as error:
            raise _refusal(error, asked) from error
        if said is None or said is True:
            return None
        if said is False:
            raise Refusal(403, "Forbidden")
        if not isinstance(said, Mapping):
            raise _misused(f"{asked} returned a {type(said).__name__}; return None, a bool or a filter")
        try:
            return checked(said)
        except BadFilter as error:
            raise _misused(f"{asked} returned a filter that cannot be used: {error}") from error

    def _handler(self, resource: str, action: str) -> Handler | None:
        for place in ((resource, action), (resource, "*"), ("*", action), ("*", "*")):
            if found := self._handlers.get(place):
                return found[-1]
        return self._global[-1] if self._global else None

    def _lacking(self) -> list[str]:
        if not self._handlers:
            return []
        return [
            f"{resource}.{action}"
            for resource, actions in _ACTIONS.items()
            for action in actions
            if self._handler(resource, action) is None
        ]


class Rules(OnHandlers):
    """The ``on`` handlers alone, for ``Jwt``, whose tokens say who asks. ``BadSetting`` for an ``Auth`` with
    an authenticate handler: it would never be asked."""

    def __init__(self, auth: Auth) -> None:
        super().__init__(auth)
        if auth._authenticate_handler is not None:  # pyright: ignore[reportPrivateUsage]
            raise BadSetting(
                "auth has an @auth.authenticate handler, and tokens are to say who asks; drop the one or the "
                "other"
            )


class Handlers(OnHandlers):
    """A whole ``Auth``: its authenticate handler says who asks, its ``on`` handlers what they may do.

    ``tenant_claims`` names what of the user makes the tenant, as in ``["identity"]`` or ``["org_id"]``: then
    tenants are apart in the storage itself, whatever a filter says. Without it everybody is of one tenant, as
    on LangGraph's server, and the filters alone keep users apart.

    ``BadSetting`` for an ``Auth`` without an authenticate handler, for nobody would be known then, and for
    one that asks for what it cannot be given.
    """

    def __init__(self, auth: Auth, tenant_claims: Sequence[str] = ()) -> None:
        super().__init__(auth)
        authenticator = auth._authenticate_handler  # pyright: ignore[reportPrivateUsage]
        if authenticator is None:
            raise BadSetting(
                "auth has no @auth.authenticate handler, so nobody would be known; add one, or let tokens "
                "say who asks and these rules what they may"
            )
        self._authenticator: Authenticator = authenticator
        self._asked = _asked(authenticator)
        self._tenant_claims = checked_names(tenant_claims, "tenant_claims")

    async def authenticate(self, request: HTTPConnection) -> User:
        given = {name: _GIVEN[name](request) for name in self._asked}
        try:
            said: object = await _call(self._authenticator, given)
        except AssertionError as error:
            raise Refusal(401, "Unauthorized") from error
        except Exception as error:
            raise _refusal(error, "the authenticate handler") from error
        try:
            identity, permissions, known = _read(said)
        except Exception as error:
            reason = str(error) if isinstance(error, _Unusable | TypeError) else _place(error)
            raise _misused(f"the authenticate handler returned no user that can be used: {reason}") from error
        tenant = tenant_of({**known, "identity": identity}, self._tenant_claims)
        return User(identity, tenant, permissions, known)


class _Unusable(Exception):
    """What an authenticate handler returned is no user; the message says why."""


def only(request: HTTPConnection, header: str) -> str | None:
    """A header's one value, None when it is not there. Two of them are refused: a proxy and this server might
    each believe another one."""
    values = [value for name, value in request.scope["headers"] if name.lower() == header.encode("latin-1")]
    if not values:
        return None
    if len(values) > 1:
        raise Refusal(400, f"there are {len(values)} {header} headers; send one")
    try:
        return str(values[0], "utf-8")
    except UnicodeDecodeError:
        raise Refusal(400, f"the {header} header is not text") from None


def _request(connection: HTTPConnection) -> Request:
    if not isinstance(connection, Request):
        raise Refusal(
            403, "the authenticate handler asks for `request`, which a WebSocket lacks; ask for `headers`"
        )
    return connection


def _scopes(connection: HTTPConnection) -> list[str]:
    credentials = connection.scope.get("auth")
    return list(credentials.scopes) if credentials else []


_GIVEN: dict[str, Callable[[HTTPConnection], Any]] = {
    "authorization": lambda connection: only(connection, "authorization"),
    "headers": lambda connection: dict(connection.scope["headers"]),
    "method": lambda connection: connection.scope.get("method", "GET"),
    "path": lambda connection: connection.scope["path"],
    "path_params": lambda connection: connection.path_params,
    "query_params": lambda connection: connection.query_params,
    "request": _request,
    "scope": lambda connection: connection.scope,
    "scopes": _scopes,
    "user": lambda connection: connection.scope.get("user"),
}
"""What an authenticate handler may ask for by the name of a parameter. Header names and values are bytes,
names in lower case, as in ASGI. There is no body: who asks does not depend on what they ask for."""


def _asked(authenticator: Callable[..., Any]) -> list[str]:
    """The parameters to give a handler; ``BadSetting`` when it needs others."""
    asked: list[str] = []
    for name, parameter in inspect.signature(authenticator).parameters.items():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        hints = (parameter.default, *get_args(parameter.annotation))
        if any(isinstance(hint, Depends) for hint in hints):
            raise BadSetting(
                f"the authenticate handler's {name!r} is FastAPI's Depends; call it in the handler"
            )
        if name in _GIVEN and parameter.kind is not parameter.POSITIONAL_ONLY:
            asked.append(name)
        elif parameter.default is parameter.empty:
            raise BadSetting(
                f"the authenticate handler needs {name!r}, which it cannot be given; it may ask by name for "
                f"{', '.join(_GIVEN)}"
            )
    return asked


async def _call(handler: Callable[..., Any], given: Mapping[str, Any]) -> object:
    """What a handler says; one that is not async is run off the event loop."""
    if inspect.iscoroutinefunction(handler):
        return await handler(**given)
    said: object = await asyncio.to_thread(partial(handler, **given))
    return await said if inspect.isawaitable(said) else said


def _refusal(error: Exception, who: str) -> Refusal:
    """What an error of a handler means: a refusal in its own words, or a fault that says nothing."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, Auth.exceptions.HTTPException | HTTPException):
        detail: object = getattr(error, "detail", None)
        told = detail if isinstance(detail, str) and detail else HTTPStatus(error.status_code).phrase
        return Refusal(error.status_code, told, error.headers)
    if isinstance(error, AuthenticationError):
        return Refusal(403, str(error) or "Forbidden")
    _log.error("%s failed: %s", who, _place(error))
    return Refusal(500, f"{who} failed; the server's log has the place")


def _misused(reason: str) -> Refusal:
    _log.error("%s", reason)
    return Refusal(500, reason)


def _place(error: Exception) -> str:
    """An error's type and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f" at {PurePath(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{at}"


def _read(said: object) -> tuple[str, tuple[str, ...], dict[str, Any]]:
    """Identity, permissions and every field of what an authenticate handler returned: an identity, a mapping,
    an object, or a pair of permissions and one of these. Of an object what has no form in JSON stays
    behind."""
    permissions: object = None
    if type(said) is tuple and len(cast(tuple[object, ...], said)) == 2:
        permissions, said = cast(tuple[object, object], said)
    if isinstance(said, str | UUID):
        known: dict[str, Any] = {"identity": said}
    elif isinstance(said, Mapping):
        known = json_data(cast(object, said), "user")
    elif hasattr(said, "identity"):
        known = _attributes(said)
    else:
        raise _Unusable(f"a {type(said).__name__} has no identity; return text, or a dict with 'identity'")
    identity = known.get("identity")
    if isinstance(identity, bool) or not isinstance(identity, str | int | UUID) or identity == "":
        raise _Unusable("its identity is missing or empty, or neither text nor a number")
    permissions = known.get("permissions") if permissions is None else permissions
    return str(identity), _permissions(permissions), json_data({**known, "identity": str(identity)}, "user")


def _attributes(user: object) -> dict[str, Any]:
    dump, as_dict = getattr(user, "model_dump", None), getattr(user, "dict", None)
    if callable(dump):
        known: dict[str, Any] = dict(cast(Mapping[str, Any], dump(mode="json")))
    elif callable(as_dict):
        known = dict(cast(Mapping[str, Any], as_dict()))
    elif is_dataclass(user):
        known = {part.name: getattr(user, part.name) for part in fields(user)}
    else:
        known = {name: part for name, part in getattr(user, "__dict__", {}).items() if name[:1] != "_"}
    for name in ("identity", "display_name", "is_authenticated", "permissions"):
        if hasattr(user, name):
            known[name] = getattr(user, name)
    return {name: part for name, part in known.items() if _has_form(part)}


def _has_form(value: object) -> bool:
    try:
        json_data(value, "user")
    except TypeError:
        return False
    return True


def _permissions(said: object) -> tuple[str, ...]:
    """Permissions as a list, or in one text, parted by spaces, as OAuth writes scopes."""
    if said is None:
        return ()
    if isinstance(said, str):
        return tuple(said.split())
    if isinstance(said, Iterable):
        listed = tuple(cast(Iterable[object], said))
        if all(isinstance(one, str) for one in listed):
            return cast(tuple[str, ...], listed)
    raise _Unusable("its permissions are no list of texts")
