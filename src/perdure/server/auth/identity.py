"""Identity and tenant of a request's user.

A gate authenticates every request from its headers and authorises what it asks for. ``OpenGate`` admits
everyone as one user; ``handlers`` runs an application's own rules, ``jwt`` verifies tokens. The tenant is a
part of every storage key. It comes only from verified claims, never from a client's choice: no header,
parameter or body names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import quote

from starlette.requests import HTTPConnection

from perdure.errors import BadSetting
from perdure.runtime.agents.run_user import wrap_dotted
from perdure.server.auth.filters import BadFilter, Filter, may_write_metadata

TENANT_MAX = 512
"""Maximum length of a tenant in characters: it is a part of every key."""

_Fields = dict[str, Any]


class Refusal(Exception):
    """A request that is refused: its HTTP status, a text for the client, and headers of the response."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers: dict[str, str] = dict(headers or {})

    @property
    def may_be_repeated(self) -> bool:
        """True if the server or a limit is the cause, so that the same request may succeed later."""
        return self.status >= 500 or self.status == 429


@dataclass(frozen=True, slots=True)
class User(Mapping[str, Any]):
    """An authenticated user. ``tenant`` is the part of the storage key that owns the threads. ``fields`` is
    everything that the authenticator returned, as JSON data.

    Handlers see a user as LangGraph's: ``user.identity``, and a field as ``user["org"]``, ``user.org`` or
    ``user.get("org")``. A ``User`` is not a dict, so that no field can make it pass for a user of LangGraph's
    studio.
    """

    identity: str
    tenant: str
    permissions: tuple[str, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False, repr=False)

    @property
    def is_authenticated(self) -> bool:
        """The authenticator's value of this field, True by default."""
        return bool(self.fields.get("is_authenticated", True))

    @property
    def display_name(self) -> str:
        name = self.fields.get("display_name")
        if isinstance(name, str) and name:
            return name
        return self.identity

    def dict(self) -> _Fields:
        """Return the user as JSON data, for the graph's ``langgraph_auth_user``. It does not contain the
        tenant."""
        return {
            **self.fields,
            "identity": self.identity,
            "is_authenticated": self.is_authenticated,
            "display_name": self.display_name,
            "permissions": list(self.permissions),
        }

    def __getitem__(self, key: str) -> Any:
        return self.dict()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.dict())

    def __len__(self) -> int:
        return len(self.dict())

    def __getattr__(self, name: str) -> Any:
        # Called only for names that are not found otherwise; during a copy the slots are not set yet.
        if name.startswith("__") or name in User.__dataclass_fields__ or name not in self.fields:
            raise AttributeError(f"the user has no field {name!r}")
        return wrap_dotted(self.fields[name])


class Gate(Protocol):
    """Authentication and authorisation of requests. Calls may run concurrently."""

    async def authenticate(self, request: HTTPConnection) -> User:
        """Return the user of a request. ``Refusal`` if it cannot be determined or has no access."""
        ...

    async def authorize(self, user: User, resource: str, action: str, value: _Fields) -> Filter | None:
        """Authorise an action, and return the filter of the objects that it may touch.

        Args:
            user: the authenticated user.
            resource: "threads", "assistants", "store" or "crons".
            action: the action on the resource, such as "read".
            value: the request's arguments. May be changed in place: an owner is stamped into
                ``value["metadata"]``, a store's ``value["namespace"]`` is narrowed.

        Returns:
            The filter of the objects that the user may see or change with this action; None for all of the
            tenant's.

        Raises:
            Refusal: the user may not do this at all.
        """
        ...


class OpenGate:
    """A gate without authentication: every request has the same user, whose tenant is the nameless one unless
    one is given."""

    def __init__(self, tenant: str = "") -> None:
        self._everybody = User("", tenant, fields={"is_authenticated": False})

    async def authenticate(self, request: HTTPConnection) -> User:
        return self._everybody

    async def authorize(self, user: User, resource: str, action: str, value: _Fields) -> Filter | None:
        return None


def tenant_of(claims: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the tenant that verified claims name.

    Different claims never give the same tenant: text is percent-encoded, a number follows ``=``, which text
    never contains, and ``/`` separates them, so that ``["acme", 7]`` is ``acme/=7``. Without names it is "".

    Raises:
        Refusal: a claim is missing or neither text nor a whole number, or the tenant is longer than
            ``TENANT_MAX``.
    """
    tenant = "/".join(_encode_claim(claims.get(name), name) for name in names)
    if len(tenant) > TENANT_MAX:
        raise Refusal(403, f"the tenant made of {', '.join(names)} is too long to be a key")
    return tenant


def check_names(names: Sequence[object], setting: str) -> tuple[str, ...]:
    """Return the names of claims. ``BadSetting`` for one text instead of a list, and for an empty name."""
    given = tuple(name for name in names if isinstance(name, str) and name)
    if isinstance(names, str) or len(given) != len(names):
        raise BadSetting(f'{setting} has to be a list of names of claims, as in ["org_id", "sub"]')
    return given


def require_stamp(conditions: Filter | None, metadata: Mapping[str, Any] | None) -> None:
    """Raise ``Refusal`` unless an object may be written with this metadata: the handler that restricts a
    user's view has to stamp what the user creates, and no user may give an object away."""
    try:
        allowed = may_write_metadata(conditions, metadata)
    except BadFilter as error:
        text = f"the authorization handler left a value that cannot be stored: {error}"
        raise Refusal(500, text) from error
    if not allowed:
        raise Refusal(403, "the metadata of this object would hide it from its own user")


def _encode_claim(value: object, name: str) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"={value}"
    if not isinstance(value, str) or not value:
        raise Refusal(403, f"the user has no {name}, which is a part of the tenant")
    try:
        return quote(value, safe="@")
    except UnicodeEncodeError:
        raise Refusal(403, f"the user's {name} is not well-formed Unicode") from None
