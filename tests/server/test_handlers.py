"""A program's own ``Auth`` decides as it does on LangGraph's server, and an error in it lets nobody in.

Covers perdure.server.auth.json_data.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any
from uuid import UUID

import pytest
from fastapi import Depends
from fastapi import HTTPException as WebException
from langgraph_sdk import Auth
from pydantic import BaseModel
from starlette.authentication import AuthenticationError

from perdure.errors import BadSetting
from perdure.server.auth.filters import matches
from perdure.server.auth.handlers import Handlers
from perdure.server.auth.identity import Gate, Refusal, require_stamp
from tests.server.asking import bearer, refused, request, run, websocket
from tests.server.auths import ALICE, BOB, answering, asking, known_by_tokens, ruling


def test_an_auth_as_tutorials_have_it() -> None:
    gate: Gate = Handlers(known_by_tokens())
    alice = run(gate.authenticate(bearer("token-a")))
    assert (alice.identity, alice.display_name, alice.tenant) == ("alice", "Alice", "")
    value: dict[str, Any] = {"thread_id": "t1"}
    own = run(gate.authorize(alice, "threads", "create", value))
    assert value == {"thread_id": "t1", "metadata": {"owner": "alice"}}
    require_stamp(own, value["metadata"])
    theirs = run(gate.authorize(BOB, "threads", "read", {"thread_id": "t1"}))
    assert matches(own, value["metadata"])
    assert not matches(theirs, value["metadata"])


def test_who_is_not_known_is_told_so() -> None:
    gate = Handlers(known_by_tokens())
    for asked, detail in ((request(), "Unauthorized"), (bearer("token-x"), "Invalid token")):
        refusal = refused(gate.authenticate(asked))
        assert (refusal.status, refusal.detail) == (401, detail)


# -------------------------------------------------------------- what a handler is given


def test_a_handler_asks_by_the_names_of_its_parameters() -> None:
    given: dict[str, Any] = {}

    async def authenticate(  # noqa: PLR0917 - a handler may have them all
        request: Any,
        path: str,
        method: str,
        path_params: dict[str, str],
        query_params: Any,
        headers: dict[bytes, bytes],
        authorization: str | None,
        scope: Any,
        user: Any,
        scopes: list[str],
        more: int = 1,
        **rest: Any,
    ) -> str:
        given.update(locals())
        return "u"

    asked = request(
        ("Authorization", "Bearer ä"), ("X-API-Key", "k1"), method="POST", query="a=1", path_params={"t": "1"}
    )
    assert run(asking(authenticate).authenticate(asked)).identity == "u"
    assert given["request"] is asked
    assert given["scope"] is asked.scope
    assert (given["path"], given["method"], given["path_params"]) == ("/threads/t1", "POST", {"t": "1"})
    assert given["query_params"].get("a") == "1"
    assert given["headers"] == {b"authorization": "Bearer ä".encode(), b"x-api-key": b"k1"}
    assert given["authorization"] == "Bearer ä"
    assert (given["user"], given["scopes"], given["more"], given["rest"]) == (None, [], 1, {})


def test_a_handler_need_not_be_async_and_then_does_not_hold_the_loop_up() -> None:
    threads: list[int] = []

    def authenticate(headers: dict[bytes, bytes]) -> str:
        threads.append(threading.get_ident())
        return headers[b"x-user"].decode()

    class Caller:
        async def __call__(self, headers: dict[bytes, bytes], prefix: str = "") -> str:
            threads.append(threading.get_ident())
            return prefix + headers[b"x-user"].decode()

    asked = request(("x-user", "u1"))
    assert run(asking(authenticate).authenticate(asked)).identity == "u1"
    assert threads.pop() != threading.get_ident()
    assert run(asking(Caller()).authenticate(asked)).identity == "u1"
    assert threads.pop() == threading.get_ident()
    assert run(asking(partial(Caller(), prefix="p:")).authenticate(asked)).identity == "p:u1"


def test_over_a_websocket_a_handler_has_everything_but_the_request() -> None:
    async def by_headers(headers: dict[bytes, bytes], method: str) -> str:
        return f"{method} {headers[b'x-user'].decode()}"

    async def by_request(request: Any) -> str:
        raise AssertionError

    assert run(asking(by_headers).authenticate(websocket(("x-user", "u1")))).identity == "GET u1"
    refusal = refused(asking(by_request).authenticate(websocket()))
    assert refusal.status == 403
    assert "WebSocket" in refusal.detail


@pytest.mark.parametrize("second", ["Bearer token-b", "Bearer token-a"])
def test_two_authorizations_are_refused(second: str) -> None:
    """A proxy may have checked the other one."""
    asked = request(("authorization", "Bearer token-a"), ("Authorization", second))
    assert refused(Handlers(known_by_tokens()).authenticate(asked)).status == 400


def test_an_authorization_that_is_no_text_is_refused() -> None:
    asked = request(("authorization", b"Bearer \xff"))
    assert refused(Handlers(known_by_tokens()).authenticate(asked)).status == 400


def get_user() -> str:
    return "u"


async def wants_body(body: dict[str, Any]) -> str:
    raise AssertionError


async def wants_depends(user: str = Depends(get_user)) -> str:
    raise AssertionError


async def wants_by_place(path: str, /) -> str:
    raise AssertionError


async def wants_annotated(user: Any) -> str:
    raise AssertionError


wants_annotated.__annotations__["user"] = Annotated[str, Depends(get_user)]


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (wants_body, "needs 'body', which is not available; its parameters may be authorization, headers"),
        (wants_by_place, "needs 'path'"),
        (wants_depends, "'user' is FastAPI's Depends"),
        (wants_annotated, "'user' is FastAPI's Depends"),
    ],
)
def test_a_handler_that_cannot_be_given_what_it_needs_is_refused_at_the_start(
    handler: Any, reason: str
) -> None:
    with pytest.raises(BadSetting, match=reason):
        asking(handler)


# -------------------------------------------------------------- what it returns


@dataclass
class Person:
    identity: str = "u1"
    org: UUID = field(default_factory=lambda: UUID(int=7))
    permissions: list[str] = field(default_factory=lambda: ["read"])
    connection: object = field(default_factory=object)


class Row:
    def __init__(self) -> None:
        self.org = UUID(int=7)
        self._session = object()
        self.session = object()
        self.permissions = ("read",)

    @property
    def identity(self) -> str:
        return "u1"


class Model(BaseModel):
    identity: str = "u1"
    org: UUID = UUID(int=7)
    permissions: list[str] = ["read"]


class Legacy(Row):
    def dict(self) -> dict[str, Any]:
        return {"org": str(self.org)}


@pytest.mark.parametrize(
    "said",
    [
        {"identity": "u1", "org": UUID(int=7), "permissions": ["read"]},
        Person(),
        Row(),
        Model(),
        Legacy(),
        (["read"], {"identity": "u1", "org": str(UUID(int=7))}),
    ],
    ids=lambda said: type(said).__name__,
)
def test_a_user_may_be_a_dict_an_object_or_a_pair(said: Any) -> None:
    user = run(answering(said).authenticate(request()))
    assert (user.identity, user.permissions) == ("u1", ("read",))
    assert user["org"] == user.org == str(UUID(int=7))
    assert not {"connection", "session", "_session"} & set(user)


@pytest.mark.parametrize(
    ("said", "identity"), [("u1", "u1"), (UUID(int=7), str(UUID(int=7))), ({"identity": 5}, "5")]
)
def test_an_identity_is_text(said: Any, identity: str) -> None:
    user = run(answering(said).authenticate(request()))
    assert user.identity == user.fields["identity"] == identity
    assert user.is_authenticated


def test_fields_are_json_data() -> None:
    when = datetime(2026, 1, 2, tzinfo=UTC)
    said = {"identity": "u1", "is_authenticated": False, "seen": when, "profile": Model(), "tags": {"a"}}
    fields = run(answering(said).authenticate(request())).fields
    assert fields == {
        "identity": "u1",
        "is_authenticated": False,
        "seen": "2026-01-02T00:00:00+00:00",
        "profile": {"identity": "u1", "org": str(UUID(int=7)), "permissions": ["read"]},
        "tags": ["a"],
    }


@pytest.mark.parametrize(
    ("said", "permissions"), [("read write", ("read", "write")), (None, ()), ((), ()), (["a b"], ("a b",))]
)
def test_permissions(said: Any, permissions: tuple[str, ...]) -> None:
    user = run(answering({"identity": "u1", "permissions": said}).authenticate(request()))
    assert user.permissions == permissions


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (None, "a NoneType has no identity"),
        (True, "a bool has no identity"),
        ("", "identity is missing or empty"),
        ({"identity": ""}, "identity is missing or empty"),
        ({"identity": None}, "identity is missing or empty"),
        ({"identity": True}, "identity is missing or empty"),
        ({"user": "u1"}, "identity is missing or empty"),
        ({"identity": "u1", "client": object()}, "user.client is a object, which has no form in JSON"),
        ({"identity": "u1", "permissions": 5}, "permissions are not a list of texts"),
        ({"identity": "u1", "permissions": [1]}, "permissions are not a list of texts"),
        ({"identity": "\ud800"}, "well-formed Unicode"),
    ],
)
def test_what_is_no_user_is_the_servers_fault_and_lets_nobody_in(said: Any, reason: str) -> None:
    refusal = refused(answering(said).authenticate(request()))
    assert refusal.status == 500
    assert reason in refusal.detail


def test_the_tenant_is_of_what_the_handler_returned() -> None:
    auth = Auth()

    @auth.authenticate
    async def authenticate(headers: dict[bytes, bytes]) -> dict[str, Any]:
        return {"identity": "u1", "org_id": "acme"} if b"x-member" in headers else {"identity": "u2"}

    gate = Handlers(auth, ["org_id", "identity"])
    chosen = ("tenant", "victim"), ("org_id", "victim"), ("x-tenant", "victim")
    asked = request(("x-member", ""), *chosen, query="tenant=victim&org_id=victim")
    assert run(gate.authenticate(asked)).tenant == "acme/u1"
    refusal = refused(gate.authenticate(request(*chosen, query="org_id=victim")))
    assert (refusal.status, "org_id" in refusal.detail) == (403, True)
    with pytest.raises(BadSetting, match="tenant_claims"):
        Handlers(auth, "org_id")


# -------------------------------------------------------------- what it raises


@pytest.mark.parametrize(
    ("error", "status", "detail"),
    [
        (Auth.exceptions.HTTPException(), 401, "Unauthorized"),
        (Auth.exceptions.HTTPException(status_code=403, detail="not you"), 403, "not you"),
        (Auth.exceptions.HTTPException(status_code=429, detail="slowly"), 429, "slowly"),
        (Auth.exceptions.HTTPException(status_code=403, detail=""), 403, "Forbidden"),
        (WebException(418, "teapot"), 418, "teapot"),
        (WebException(422, {"a": "list"}), 422, "Unprocessable"),
        (AuthenticationError("no"), 403, "no"),
        (Refusal(402, "pay"), 402, "pay"),
    ],
)
def test_a_refusal_is_told_as_it_was_raised(error: Exception, status: int, detail: str) -> None:
    for work in (
        answering(error).authenticate(request()),
        ruling(error).authorize(ALICE, "threads", "read", {}),
    ):
        refusal = refused(work)
        assert refusal.status == status
        assert refusal.detail.startswith(detail)


def test_headers_of_a_refusal_are_sent() -> None:
    error = Auth.exceptions.HTTPException(headers={"WWW-Authenticate": "Bearer"})
    assert refused(answering(error).authenticate(request())).headers == {"WWW-Authenticate": "Bearer"}


def test_an_assertion_that_fails_is_a_refusal() -> None:
    refusal = refused(answering(AssertionError("no s3cret")).authenticate(request()))
    assert (refusal.status, refusal.detail) == (401, "Unauthorized"), "what was asserted may quote the token"
    refusal = refused(ruling(AssertionError("Not authorized")).authorize(ALICE, "store", "get", {}))
    assert (refusal.status, refusal.detail) == (403, "Not authorized")
    assert refused(ruling(AssertionError()).authorize(ALICE, "store", "get", {})).detail == "Forbidden"


def test_an_error_of_a_handler_lets_nobody_in_and_tells_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    error = KeyError("Bearer s3cret")
    for work in (
        answering(error).authenticate(bearer("s3cret")),
        ruling(error).authorize(ALICE, "threads", "read", {"input": "s3cret"}),
    ):
        refusal = refused(work)
        assert refusal.status == 500
        assert "s3cret" not in refusal.detail
    assert "KeyError at auths.py:" in caplog.text
    assert "s3cret" not in caplog.text


# -------------------------------------------------------------- what no response can have


class _Odd(BaseException):
    """An exception that ``except Exception`` does not catch."""


@pytest.mark.parametrize("error", [_Odd("x"), asyncio.CancelledError(), SystemExit(3)], ids=repr)
def test_every_exception_of_a_handler_is_a_refusal(error: BaseException) -> None:
    for asked in (
        answering(error).authenticate(request()),
        ruling(error).authorize(ALICE, "threads", "read", {}),
    ):
        refusal = refused(asked)
        assert (refusal.status, "failed; the server's log" in refusal.detail) == (500, True)


def test_a_request_that_is_given_up_is_no_error_of_the_handler() -> None:
    async def main() -> None:
        reached = asyncio.Event()

        async def wait() -> str:
            reached.set()
            await asyncio.sleep(60)
            return "u1"

        asked = asyncio.create_task(asking(wait).authenticate(request()))
        await reached.wait()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked

    run(main())


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (700, {}),
        (204, {}),
        (304, {}),
        (403, {"a": "b\r\nc: d"}),
        (403, {"a b": "c"}),
        (403, {"a": 1}),
        (403, {"a": "\u20ac"}),
    ],
)
def test_an_error_that_cannot_be_sent_is_a_500(status: int, headers: Any) -> None:
    for error in (
        Auth.exceptions.HTTPException(status_code=status, detail="no", headers=headers),
        WebException(status, "no", headers),
    ):
        assert refused(answering(error).authenticate(request())).status == 500


def test_an_error_keeps_a_status_without_a_name_and_its_headers() -> None:
    given = Auth.exceptions.HTTPException(status_code=499, detail="no", headers={"Retry-After": "5"})
    refusal = refused(answering(given).authenticate(request()))
    assert (refusal.status, refusal.detail, refusal.headers) == (499, "no", {"Retry-After": "5"})
