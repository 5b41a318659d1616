"""A user is LangGraph's user, and different claims are different tenants.

Covers perdure.runtime.agents.graphs, perdure.runtime.agents.run_user.
"""

from __future__ import annotations

import copy
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph_sdk.auth import is_studio_user
from langgraph_sdk.auth.types import BaseUser, MinimalUser

from perdure.errors import BadSetting
from perdure.server.auth.identity import (
    TENANT_MAX,
    Gate,
    OpenGate,
    Refusal,
    User,
    check_names,
    require_stamp,
    tenant_of,
)
from tests.server.asking import request, run

CLAIM = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8) | st.integers()
ALIKE = st.sampled_from(
    ["a", "b", "/", "a/b", "%2F", "%", "=", "=1", "1", 1, -1, "-1", "A", "ä", "a\u0308", "\x00"]
)
SOME = st.lists(CLAIM | ALIKE, min_size=1, max_size=3)


def tenant(values: list[Any]) -> str:
    names = [f"claim{n}" for n in range(len(values))]
    return tenant_of(dict(zip(names, values, strict=True)), names)


@given(SOME, SOME)
def test_different_claims_are_different_tenants(one: list[Any], two: list[Any]) -> None:
    assert (tenant(one) == tenant(two)) == (one == two)


@given(SOME)
def test_the_claims_can_be_read_off_a_tenant(values: list[Any]) -> None:
    """So no two lists of claims have one, however long they are."""
    parts = tenant(values).split("/")
    assert [int(part[1:]) if part.startswith("=") else unquote(part) for part in parts] == values


@given(SOME)
def test_a_tenant_is_never_the_one_without_a_name_and_fits_every_backend(values: list[Any]) -> None:
    made = tenant(values)
    assert made
    assert made.isascii()
    assert made.isprintable()
    assert " " not in made


def test_what_a_tenant_looks_like() -> None:
    assert tenant(["alice"]) == "alice"
    assert tenant(["alice@example.com"]) == "alice@example.com"
    assert tenant(["acme", 7]) == "acme/=7"
    assert tenant(["auth0|a/b"]) == "auth0%7Ca%2Fb"
    assert tenant_of({"sub": "alice"}, []) == ""


@pytest.mark.parametrize("value", [None, "", True, False, 1.0, [], ["a"], {"a": 1}])
def test_a_claim_that_names_nobody_is_refused(value: Any) -> None:
    for claims in ({"org": "acme", "sub": value}, {"org": value, "sub": "alice"}):
        with pytest.raises(Refusal, match="which is a part of the tenant") as caught:
            tenant_of(claims, ["org", "sub"])
        assert caught.value.status == 403


def test_a_missing_claim_is_refused_by_its_name() -> None:
    with pytest.raises(Refusal, match="the user has no org_id"):
        tenant_of({"sub": "alice"}, ["org_id", "sub"])


def test_a_claim_that_can_be_no_key_is_refused() -> None:
    with pytest.raises(Refusal, match="well-formed"):
        tenant(["\ud800"])
    assert len(tenant(["a" * TENANT_MAX])) == TENANT_MAX
    with pytest.raises(Refusal, match="too long"):
        tenant(["a" * (TENANT_MAX + 1)])


@pytest.mark.parametrize("names", ["sub", ["sub", ""], [1]])
def test_names_of_claims_are_a_list_of_texts(names: Any) -> None:
    with pytest.raises(BadSetting, match="tenant_claims has to be a list"):
        check_names(names, "tenant_claims")


ALICE = User(
    "alice", "acme", ("read",), {"org": {"id": 7, "tags": ["x"]}, "token": "s3cret", "identity": "bob"}
)


def test_a_user_is_langgraphs() -> None:
    assert isinstance(ALICE, BaseUser)
    assert isinstance(ALICE, MinimalUser)
    assert (ALICE.identity, ALICE.display_name, ALICE.is_authenticated) == ("alice", "alice", True)
    assert ALICE["identity"] == ALICE.get("identity") == "alice", "a field cannot change who it is"
    assert ALICE["org"] == {"id": 7, "tags": ["x"]}
    assert "org" in ALICE
    assert "absent" not in ALICE
    assert ALICE.get("absent", 1) == 1
    assert ALICE["permissions"] == ["read"]
    assert (
        set(ALICE)
        == set(ALICE.keys())
        == {
            "identity",
            "is_authenticated",
            "display_name",
            "permissions",
            "org",
            "token",
        }
    )
    assert dict(ALICE.items()) == ALICE.dict()
    assert len(ALICE) == len(ALICE.values()) == 6
    with pytest.raises(KeyError):
        ALICE["absent"]


def test_fields_are_attributes_too() -> None:
    assert ALICE.token == "s3cret"
    assert ALICE.org.id == 7
    assert ALICE.org["tags"] == ["x"]
    assert hasattr(ALICE, "org")
    assert not hasattr(ALICE, "absent")
    assert not hasattr(ALICE.org, "absent")


def test_what_the_authenticator_says_of_a_user_counts() -> None:
    guest = User("guest", "", fields={"is_authenticated": False, "display_name": "Guest"})
    assert not guest.is_authenticated
    assert guest.display_name == guest["display_name"] == "Guest"


def test_no_field_makes_a_studio_user() -> None:
    """Rules often let LangGraph's studio see everything."""
    assert not is_studio_user(User("x", "", fields={"kind": "StudioUser"}))


def test_a_user_can_be_copied_and_is_not_shown_with_its_secrets() -> None:
    assert copy.deepcopy(ALICE) == copy.copy(ALICE) == ALICE
    assert hash(ALICE) == hash(copy.copy(ALICE))
    assert "s3cret" not in repr(ALICE)
    assert "acme" not in str(ALICE.dict())


def test_without_authentication_everybody_is_one_user() -> None:
    gate: Gate = OpenGate()
    user = run(gate.authenticate(request(("x-tenant", "acme"), query="tenant=acme")))
    assert (user.identity, user.tenant, user.is_authenticated) == ("", "", False)
    value: dict[str, Any] = {"metadata": {}}
    assert run(gate.authorize(user, "threads", "create", value)) is None
    assert value == {"metadata": {}}


def test_nobody_gives_an_object_away() -> None:
    require_stamp(None, None)
    require_stamp({"owner": "u1"}, {"owner": "u1"})
    with pytest.raises(Refusal) as caught:
        require_stamp({"owner": "u1"}, {"owner": "u2"})
    assert caught.value.status == 403
    with pytest.raises(Refusal) as caught:
        require_stamp({"owner": "u1"}, {"owner": object()})
    assert caught.value.status == 500
