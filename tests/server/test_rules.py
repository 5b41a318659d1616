"""The ``on`` handlers of an ``Auth``: which one is asked, and what its answer means."""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID

import pytest
from langgraph_sdk import Auth

from perdure.errors import BadSetting
from perdure.server.auth.handlers import Handlers, Rules
from tests.server.asking import refused, run
from tests.server.auths import ALICE, ruling


def test_the_most_specific_handler_alone_is_asked() -> None:
    auth = Auth()
    asked: list[str] = []

    def rule(name: str) -> Any:
        async def handler(ctx: Any, value: Any) -> None:
            asked.append(name)

        return handler

    auth.on(rule("all"))
    auth.on.threads(rule("threads"))
    auth.on.threads.create(rule("threads.create"))
    auth.on(actions="search")(rule("search"))
    auth.on.store.put(rule("store.put"))
    rules = Rules(auth)
    for resource, action, name in (
        ("threads", "create", "threads.create"),
        ("threads", "read", "threads"),
        ("threads", "search", "threads"),
        ("assistants", "search", "search"),
        ("store", "put", "store.put"),
        ("store", "get", "all"),
        ("crons", "create", "all"),
    ):
        asked.clear()
        run(rules.authorize(ALICE, resource, action, {}))
        assert asked == [name]


def test_a_handler_sees_who_asks_for_what() -> None:
    auth = Auth()
    seen: list[Auth.types.AuthContext] = []

    @auth.on.threads.create_run
    async def rule(ctx: Auth.types.AuthContext, value: Auth.types.RunsCreate) -> bool:
        seen.append(ctx)
        value["kwargs"]["input"] = "changed"
        return "read" in ctx.permissions and ctx.user["org"] == "acme"

    value = {"kwargs": {"input": "asked"}}
    assert run(Rules(auth).authorize(ALICE, "threads", "create_run", value)) is None
    assert value == {"kwargs": {"input": "changed"}}
    assert (seen[0].user, seen[0].resource, seen[0].action) == (ALICE, "threads", "create_run")
    assert isinstance(seen[0].user, Auth.types.BaseUser)


def test_a_store_is_narrowed_in_place() -> None:
    auth = Auth()

    @auth.on.store
    async def own(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> None:
        namespace = tuple(value["namespace"]) if value.get("namespace") else ()
        if not namespace or namespace[0] != ctx.user.identity:
            value["namespace"] = (ctx.user.identity, *namespace)

    value: dict[str, Any] = {"namespace": ("bob", "notes"), "key": "k"}
    assert run(Rules(auth).authorize(ALICE, "store", "get", value)) is None
    assert value["namespace"] == ("alice", "bob", "notes")


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (None, None),
        (True, None),
        ({}, None),
        ({"owner": "alice"}, {"owner": "alice"}),
        ({"$or": [{"owner": UUID(int=1)}]}, {"$or": [{"owner": str(UUID(int=1))}]}),
    ],
)
def test_what_a_handler_allows(said: Any, meant: Any) -> None:
    assert run(ruling(said).authorize(ALICE, "threads", "read", {})) == meant


def test_false_is_forbidden() -> None:
    assert refused(ruling(False).authorize(ALICE, "threads", "read", {})).status == 403


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (0, "returned a int"),
        (1, "returned a int"),
        ("", "returned a str"),
        ([], "returned a list"),
        ([{"owner": "alice"}], "returned a list"),
        ({"owner": {"$regex": ".*"}}, "'$regex' is not an operator"),
        ({"$nor": [{"owner": "alice"}]}, "$nor is not an operator"),
    ],
)
def test_what_a_handler_cannot_mean_lets_nobody_through(said: Any, reason: str) -> None:
    refusal = refused(ruling(said).authorize(ALICE, "threads", "read", {}))
    assert refusal.status == 500
    assert "the authorization handler for threads.read" in refusal.detail
    assert reason in refusal.detail


async def known() -> str:
    return "u1"


def test_without_a_handler_a_user_may(caplog: pytest.LogCaptureFixture) -> None:
    auth = Auth()
    auth.authenticate(known)
    assert run(Handlers(auth).authorize(ALICE, "threads", "delete", {})) is None
    assert not caplog.records, "an auth that has no rules at all wants none"


def test_rules_with_gaps_are_said_to_have_them(caplog: pytest.LogCaptureFixture) -> None:
    auth = Auth()

    async def rule(ctx: Any, value: Any) -> None: ...

    auth.on.threads(rule)
    auth.on.store(rule)
    auth.on(actions=["create", "read", "update", "delete"])(rule)
    with caplog.at_level(logging.WARNING):
        Rules(auth)
    (record,) = caplog.records
    assert "no handler for assistants.search, crons.search:" in record.getMessage()
    caplog.clear()
    auth.on(rule)
    Rules(auth)
    assert not caplog.records


def test_the_sdk_knows_no_action_that_we_do_not() -> None:
    """A gap that nobody is told of would be open to everybody."""
    auth = Auth()
    actions = {
        f"{name}.{part.action}"
        for name in ("assistants", "crons", "store", "threads")
        for part in vars(getattr(auth.on, name)).values()
        if hasattr(part, "action")
    }

    async def rule(ctx: Any, value: Any) -> None: ...

    auth.on(resources="nothing")(rule)
    assert set(Rules(auth)._find_unhandled()) == actions


def test_without_an_authenticate_handler_nobody_is_known() -> None:
    auth = Auth()
    with pytest.raises(BadSetting, match=r"no @auth.authenticate handler, so no user can be authenticated"):
        Handlers(auth)
    auth.authenticate(known)
    with pytest.raises(BadSetting, match="remove one of the two"):
        Rules(auth)
