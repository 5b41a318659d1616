"""Who asks, what a user is, and whose threads these are.

A gate decides both for every request: who asks, from its headers, and whether that user may do what the
request asks for. ``Open`` lets everybody in as one user; ``handlers`` runs a program's own rules, ``jwt``
verifies tokens. The tenant, which is a part of every storage key, comes from what was verified alone, never
from what a client can choose: no header, parameter or body names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import quote

from starlette.requests import HTTPConnection

from perdure.errors import BadSetting
from perdure.runtime.users import dotted
from perdure.server.auth.filters import BadFilter, Filter, stamp_allowed

TENANT_MAX = 512
"""How many characters a tenant may have: it is a part of every key."""

_Fields = dict[str, Any]


class Refusal(Exception):
    """A request that is not carried out: its HTTP status, a text for the client, and headers of the
    answer."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers: dict[str, str] = dict(headers or {})


@dataclass(frozen=True, slots=True)
class User:
    """Who asks. ``tenant`` is the storage key's part: whose threads these are. ``fields`` is everything that
    the authenticator returned, as JSON data.

    Handlers see a user as LangGraph's: ``user.identity``, and a field as ``user["org"]``, ``user.org`` or
    ``user.get("org")``. It is no dict, so that no field can make it pass for a user of LangGraph's studio.
    """

    identity: str
    tenant: str
    permissions: tuple[str, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False, repr=False)

    @property
    def is_authenticated(self) -> bool:
        """What the authenticator said of it; without a word, true."""
        return bool(self.fields.get("is_authenticated", True))

    @property
    def display_name(self) -> str:
        name = self.fields.get("display_name")
        return name if isinstance(name, str) and name else self.identity

    def dict(self) -> _Fields:
        """The user as JSON data, for the graph's ``langgraph_auth_user``. The tenant is not in it."""
        return {
            **self.fields,
            "identity": self.identity,
            "is_authenticated": self.is_authenticated,
            "display_name": self.display_name,
            "permissions": list(self.permissions),
        }

    def get(self, key: str, default: Any = None, /) -> Any:
        return self.dict().get(key, default)

    def keys(self) -> Sequence[str]:
        return list(self.dict())

    def values(self) -> Sequence[Any]:
        return list(self.dict().values())

    def items(self) -> Sequence[tuple[str, Any]]:
        return list(self.dict().items())

    def __getitem__(self, key: str) -> Any:
        return self.dict()[key]

    def __contains__(self, key: object) -> bool:
        return key in self.dict()

    def __iter__(self) -> Iterator[str]:
        return iter(self.dict())

    def __len__(self) -> int:
        return len(self.dict())

    def __getattr__(self, name: str) -> Any:
        # Asked only for what the class lacks. While a copy is being made it lacks its own parts too.
        if name.startswith("__") or name in User.__slots__ or name not in self.fields:
            raise AttributeError(f"the user has no field {name!r}")
        return dotted(self.fields[name])


class Gate(Protocol):
    """Who may ask, and for what. Calls may run at the same time."""

    async def authenticate(self, request: HTTPConnection) -> User:
        """Who asks; ``Refusal`` when that cannot be told or is nobody who may."""
        ...

    async def authorize(self, user: User, resource: str, action: str, value: _Fields) -> Filter | None:
        """Which objects the user may see or change so; None is all of the tenant's. ``Refusal`` when the user
        may not at all. ``value`` is what the request asks for, and may be changed in place: an owner is
        stamped into ``value["metadata"]``, a store's ``value["namespace"]`` is narrowed."""
        ...


class Open:
    """No authentication: everybody is the same user, whose tenant is the one without a name unless it is
    given."""

    def __init__(self, tenant: str = "") -> None:
        self._everybody = User("", tenant, fields={"is_authenticated": False})

    async def authenticate(self, request: HTTPConnection) -> User:
        return self._everybody

    async def authorize(self, user: User, resource: str, action: str, value: _Fields) -> Filter | None:
        return None


def tenant_of(claims: Mapping[str, Any], names: Sequence[str]) -> str:
    """The tenant of verified claims, ``Refusal`` when one of them is missing or no text or whole number.

    Different claims never give the same tenant: text stands percent-encoded, a number behind ``=``, which
    text never has, and ``/`` parts them, so that ``["acme", 7]`` is ``acme/=7``. Without names it is "".
    """
    tenant = "/".join(_part(claims.get(name), name) for name in names)
    if len(tenant) > TENANT_MAX:
        raise Refusal(403, f"what tells whose threads these are ({_listed(names)}) is too long to be a key")
    return tenant


def checked_names(names: Sequence[object], setting: str) -> tuple[str, ...]:
    """The names of claims; ``BadSetting`` for one text instead of a list, and for an empty name."""
    given = () if isinstance(names, str) else tuple(name for name in names if isinstance(name, str) and name)
    if len(given) != len(names):
        raise BadSetting(f'{setting} has to be a list of names of claims, as in ["org_id", "sub"]')
    return given


def require_stamp(conditions: Filter | None, metadata: Mapping[str, Any] | None) -> None:
    """``Refusal`` unless an object may be written with this metadata: the handler that restricts what a user
    sees has to stamp what the user creates, and nobody may give an object away."""
    try:
        allowed = stamp_allowed(conditions, metadata)
    except BadFilter as error:
        raise Refusal(500, f"the authorization handler left what cannot be stored: {error}") from error
    if not allowed:
        raise Refusal(403, "the metadata of this object would hide it from its own user")


def _part(value: object, name: str) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"={value}"
    if not isinstance(value, str) or not value:
        raise Refusal(403, f"the user has no {name}, which tells whose threads these are")
    try:
        return quote(value, safe="@")
    except UnicodeEncodeError:
        raise Refusal(403, f"the user's {name} is not well-formed Unicode") from None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
