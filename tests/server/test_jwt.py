"""Tokens that count, and the ways in which one does not."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import Any

import jwt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph_sdk import Auth

from perdure.errors import BadSetting
from perdure.server.auth.handlers import Rules
from perdure.server.auth.identity import Gate, Refusal
from perdure.server.auth.jwt import TOKEN_MAX, Jwt, JwtSettings
from tests.server import issuer
from tests.server.asking import bearer, refused, request, run
from tests.server.issuer import AUDIENCE, ISSUER, OTHER_SECRET, SECRET, ec_key, ed_key, rsa_key, token

Changes = dict[str, Any]


def shared(**changed: Any) -> Jwt:
    known: Changes = {"issuer": ISSUER, "audience": AUDIENCE, "algorithms": ["HS256"], "secret": SECRET}
    return Jwt(JwtSettings(**(known | changed)))


def paired(key: Any, *algorithms: str, **changed: Any) -> Jwt:
    pem = issuer.public_pem(key)
    known: Changes = {"issuer": ISSUER, "audience": AUDIENCE, "algorithms": algorithms, "public_key": pem}
    return Jwt(JwtSettings(**(known | changed)))


def signed(**changed: Any) -> str:
    return token(SECRET, "HS256", **changed)


def told(gate: Jwt, sent: str) -> str:
    """Why a token does not count. Whatever it is, the answer is a 401 that says how to ask and quotes
    nothing."""
    refusal = refused(gate.authenticate(bearer(sent)))
    assert refusal.status == 401
    assert refusal.headers == {"WWW-Authenticate": "Bearer"}
    assert not any(part in refusal.detail for part in sent.split(".") if part)
    return refusal.detail


def raw(header: Any, payload: Any, sign: Any) -> str:
    """A token that no library would make."""
    signing = b".".join(_encoded(json.dumps(part).encode()) for part in (header, payload))
    return (signing + b"." + _encoded(sign(signing))).decode()


def hs256(secret: str) -> Any:
    return lambda signing: hmac.new(secret.encode(), signing, hashlib.sha256).digest()


def _encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def test_a_good_token_says_who_asks_and_whose_threads_these_are() -> None:
    gate: Gate = shared(tenant_claims=["org_id", "sub"])
    sent = signed(org_id=7, name="Alice", scope="read write", permissions=["admin", "read"])
    user = run(gate.authenticate(bearer(sent)))
    assert (user.identity, user.tenant, user.display_name) == ("alice", "=7/alice", "Alice")
    assert user.permissions == ("admin", "read", "write")
    assert user["org_id"] == 7
    assert run(gate.authorize(user, "threads", "delete", {})) is None


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        (rsa_key("a"), "RS256"),
        (rsa_key("a"), "PS512"),
        (ec_key("a"), "ES256"),
        (ed_key("a"), "EdDSA"),
    ],
    ids=["RS256", "PS512", "ES256", "EdDSA"],
)
def test_a_key_pair(key: Any, algorithm: str) -> None:
    gate = paired(key, algorithm)
    assert run(gate.authenticate(bearer(token(key, algorithm)))).tenant == "alice"
    make = {"R": rsa_key, "P": rsa_key, "E": ec_key}[algorithm[0]] if algorithm != "EdDSA" else ed_key
    assert told(gate, token(make("other"), algorithm)) == "the token's signature is wrong"


# -------------------------------------------------------------- forged


def test_a_token_of_another_secret() -> None:
    assert told(shared(), token(OTHER_SECRET, "HS256")) == "the token's signature is wrong"


@pytest.mark.parametrize("name", ["none", "None", "NONE", "nOnE", "", None, ["HS256"], 0])
def test_a_token_that_nobody_signed(name: Any) -> None:
    for gate in (shared(), paired(rsa_key("a"), "RS256")):
        sent = raw({"alg": name, "typ": "JWT"}, issuer.claims(), lambda signing: b"")
        assert "algorithm is not accepted" in told(gate, sent) or "cannot be read" in told(gate, sent)


def test_a_token_without_its_signature() -> None:
    header, payload, _ = signed().split(".")
    for sent in (f"{header}.{payload}.", f"{header}.{payload}"):
        assert run_fails(shared(), sent)


def test_a_public_key_does_not_pass_for_a_secret() -> None:
    key = rsa_key("a")
    pem = issuer.public_pem(key)
    sent = raw({"alg": "HS256", "typ": "JWT"}, issuer.claims(), hs256(pem))
    assert (
        told(paired(key, "RS256"), sent) == "the token's algorithm is not accepted; this server takes RS256"
    )
    with issuer.publisher(issuer.published(key, "k1")) as said:
        sent = raw({"alg": "HS256", "kid": "k1"}, issuer.claims(), hs256(pem))
        assert "not accepted" in told(paired(key, "RS256", public_key=None, jwks_url=said.url), sent)
        assert said.asked == 0, "such a token is not a reason to ask for keys"


def test_an_algorithm_that_is_not_listed() -> None:
    key = rsa_key("a")
    assert "this server takes RS256" in told(paired(key, "RS256"), token(key, "RS512"))
    assert "this server takes HS384" in told(shared(algorithms=["HS384"], secret=SECRET * 2), signed())


def test_a_key_that_the_token_brings_along() -> None:
    key = rsa_key("attacker")
    headers = {"jwk": issuer.published(key, None), "jku": "http://127.0.0.1:9/", "x5u": "http://127.0.0.1:9/"}
    sent = jwt.encode(issuer.claims(), key, "RS256", headers)
    assert told(paired(rsa_key("a"), "RS256"), sent) == "the token's signature is wrong"


def test_a_tampered_payload() -> None:
    header, _, signature = signed().split(".")
    payload = _encoded(json.dumps(issuer.claims(sub="bob")).encode()).decode()
    assert told(shared(), f"{header}.{payload}.{signature}") == "the token's signature is wrong"


@settings(max_examples=60)
@given(st.data())
def test_no_changed_character_of_a_token_is_believed(data: st.DataObject) -> None:
    sent = SAMPLE
    at = data.draw(st.integers(0, len(sent) - 1))
    other = data.draw(st.sampled_from("AQgw09_-.x"))
    changed = sent[:at] + other + sent[at + 1 :]
    if _meaning(changed) != _meaning(sent):
        assert run_fails(shared(), changed)


def _meaning(sent: str) -> list[bytes] | str:
    """The bytes that a token's text stands for: of its last character some bits stand for none."""
    try:
        return [base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in sent.split(".")]
    except ValueError:
        return sent


SAMPLE = signed()


def run_fails(gate: Jwt, sent: str) -> bool:
    refusal = refused(gate.authenticate(bearer(sent)))
    return refusal.status == 401


@pytest.mark.parametrize(
    "sent", ["x", "a.b.c", "...", "é.é.é", "[" * 9000, SAMPLE + "." + SAMPLE, "null.null.null"]
)
def test_what_is_no_token(sent: str) -> None:
    assert run_fails(shared(), sent)


def test_a_header_that_is_nested_without_end() -> None:
    sent = _encoded(b"[" * 8000).decode() + ".e30.e30"
    assert "cannot be read" in told(shared(), sent)


def test_a_critical_extension_that_is_not_known() -> None:
    sent = raw({"alg": "HS256", "crit": ["exp"], "exp": 1}, issuer.claims(), hs256(SECRET))
    assert "cannot be read" in told(shared(), sent)


# -------------------------------------------------------------- signed, but does not count


def now(delta: float) -> int:
    return int(time.time() + delta)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"exp": now(-3600)}, "the token has expired; ask for a new one"),
        ({"exp": None}, "the token has no exp claim"),
        ({"exp": "soon"}, "the token is malformed"),
        ({"exp": 1e400}, "the token is malformed"),
        ({"nbf": now(3600)}, "the token is not valid yet"),
        ({"iat": now(3600)}, "the token is not valid yet"),
        ({"aud": "another"}, "the token is for another audience"),
        ({"aud": ["another", AUDIENCE + "x"]}, "the token is for another audience"),
        ({"aud": None}, "the token has no aud claim"),
        ({"aud": {AUDIENCE: 1}}, "the token is for another audience"),
        ({"iss": "https://evil.example"}, "the token is of another issuer"),
        ({"iss": ISSUER + "/"}, "the token is of another issuer"),
        ({"iss": None}, "the token has no iss claim"),
        ({"iss": 1}, "the token is of another issuer"),
        ({"org_id": None}, "the token has no org_id claim"),
        ({"sub": None}, "the token's sub claim is missing or empty, or neither text nor a number"),
        ({"sub": ""}, "the token's sub claim is missing or empty, or neither text nor a number"),
        ({"sub": True}, "the token's sub claim is missing or empty, or neither text nor a number"),
        ({"sub": ["alice"]}, "the token's sub claim is missing or empty, or neither text nor a number"),
        ({"sub": "\ud800"}, "the token is malformed"),
    ],
)
def test_a_signed_token_that_does_not_count(changed: Changes, reason: str) -> None:
    payload = issuer.claims(**({"org_id": "acme"} | changed))
    sent = raw({"alg": "HS256", "typ": "JWT"}, payload, hs256(SECRET))
    assert told(shared(required=["org_id"]), sent) == reason


def test_clocks_may_differ_by_the_leeway() -> None:
    late, early = signed(exp=now(-20)), signed(nbf=now(20), iat=now(20))
    for sent in (late, early):
        assert run(shared().authenticate(bearer(sent))).identity == "alice"
        assert run_fails(shared(leeway=5), sent)


def test_a_token_without_its_tenant_is_known_and_may_not() -> None:
    gate = shared(tenant_claims=["org_id", "sub"])
    for sent in (signed(), signed(org_id=""), signed(org_id=["acme"])):
        refusal = refused(gate.authenticate(bearer(sent)))
        assert (refusal.status, "org_id" in refusal.detail) == (403, True)


def test_the_tenant_is_of_the_token_alone() -> None:
    gate = shared(tenant_claims=["org_id"])
    asked = request(
        ("authorization", f"Bearer {signed(org_id='acme')}"),
        ("org_id", "victim"),
        ("x-tenant", "victim"),
        query="tenant=victim&org_id=victim",
        path_params={"tenant": "victim"},
    )
    assert run(gate.authenticate(asked)).tenant == "acme"


def test_several_audiences_and_issuers() -> None:
    gate = shared(issuer=[ISSUER, "https://b"], audience=["x", AUDIENCE], tenant_claims=["iss", "sub"])
    one = run(gate.authenticate(bearer(signed(aud=["other", AUDIENCE]))))
    two = run(gate.authenticate(bearer(signed(iss="https://b", aud="x"))))
    assert one.identity == two.identity
    assert one.tenant != two.tenant


# -------------------------------------------------------------- where the token stands


@pytest.mark.parametrize("value", [None, "", "Bearer", "Bearer ", "Basic YTpi", SAMPLE, f"Token {SAMPLE}"])
def test_without_a_bearer_token_nobody_is_known(value: str | None) -> None:
    asked = request() if value is None else request(("authorization", value))
    refusal = refused(shared().authenticate(asked))
    assert (refusal.status, refusal.headers) == (401, {"WWW-Authenticate": "Bearer"})
    assert "there is no token" in refusal.detail


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_may_be_in_any_case(scheme: str) -> None:
    assert run(shared().authenticate(request(("authorization", f"{scheme}  {SAMPLE} "))))


def test_another_header_may_hold_the_token() -> None:
    gate = shared(header="X-Auth-Token")
    for value in (SAMPLE, f"Bearer {SAMPLE}"):
        assert run(gate.authenticate(request(("x-auth-token", value)))).identity == "alice"
    assert "in the header x-auth-token" in refused(gate.authenticate(bearer(SAMPLE))).detail


def test_two_tokens_are_refused() -> None:
    asked = request(("authorization", f"Bearer {SAMPLE}"), ("authorization", "Bearer x"))
    assert refused(shared().authenticate(asked)).status == 400


def test_a_token_has_a_limit() -> None:
    assert "more than" in refused(shared().authenticate(bearer("x" * (TOKEN_MAX + 1)))).detail


# -------------------------------------------------------------- settings

WEAK = issuer.public_pem(rsa_key("weak", 1024))
PRIVATE = issuer.private_pem(rsa_key("a"))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"secret": ""}, "secret has 0 bytes"),
        ({"secret": SECRET[:31]}, "secret has 31 bytes; these algorithms need 32"),
        ({"algorithms": ["HS256", "HS512"]}, "need 64"),
        ({"secret": "ab" * 20}, "repeats itself"),
        ({"secret": issuer.public_pem(rsa_key("a"))}, "is a key of a key pair"),
        ({"secret": None}, "exactly one of"),
        ({"jwks_url": "https://id.example/keys"}, "exactly one of"),
        ({"algorithms": []}, "algorithms has to be a list"),
        ({"algorithms": "HS256"}, "algorithms has to be a list"),
        ({"algorithms": ["none"]}, "'none', which does not go with a secret"),
        ({"algorithms": ["HS256", "RS256"]}, "'RS256', which does not go with a secret"),
        ({"issuer": ""}, "issuer is not set"),
        ({"issuer": []}, "issuer is not set"),
        ({"audience": ""}, "audience is not set"),
        ({"audience": [AUDIENCE, ""]}, "audience is not set"),
        ({"issuer": [ISSUER, "https://b"]}, "several issuers"),
        ({"leeway": -1}, "leeway"),
        ({"leeway": 3600}, "leeway"),
        ({"leeway": float("nan")}, "leeway"),
        ({"tenant_claims": "sub"}, "tenant_claims has to be a list"),
        ({"tenant_claims": []}, "all users would see all threads"),
        ({"required": [""]}, "required has to be a list"),
        ({"identity_claim": ""}, "identity_claim"),
        ({"header": ""}, "header"),
        ({"jwks_timeout": 0}, "jwks_timeout"),
    ],
)
def test_a_setting_that_is_not_safe_is_refused_at_the_start(changed: Changes, reason: str) -> None:
    with pytest.raises(BadSetting, match=reason):
        shared(**changed)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"algorithms": ["HS256"]}, "'HS256', which does not go with a public key"),
        ({"algorithms": ["RS256", "none"]}, "'none'"),
        ({"algorithms": ["RS256", "ES256"]}, "not of the kind, or too weak, for ES256"),
        ({"public_key": WEAK}, "too weak, for RS256"),
        ({"public_key": PRIVATE}, "whose holder can sign"),
        ({"public_key": "ssh-rsa AAAA"}, "cannot be read"),
        ({"public_key": ""}, "cannot be read"),
    ],
)
def test_a_public_key_that_is_not_safe_is_refused_at_the_start(changed: Changes, reason: str) -> None:
    with pytest.raises(BadSetting, match=reason) as caught:
        paired(rsa_key("a"), "RS256", **changed)
    assert PRIVATE.splitlines()[1] not in str(caught.value)


def test_settings_do_not_show_their_secret() -> None:
    known = JwtSettings(issuer=ISSUER, audience=AUDIENCE, algorithms=["HS256"], secret=SECRET)
    assert SECRET not in repr(known)


# -------------------------------------------------------------- with rules


def test_rules_narrow_what_a_token_allows() -> None:
    auth = Auth()

    @auth.on
    async def own(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Any:
        if ctx.action == "delete":
            return "admin" in ctx.permissions
        return {"org": ctx.user["org_id"], "owner": ctx.user.identity}

    known = JwtSettings(
        issuer=ISSUER, audience=AUDIENCE, algorithms=["HS256"], secret=SECRET, tenant_claims=[]
    )
    gate = Jwt(known, Rules(auth))
    user = run(gate.authenticate(bearer(signed(org_id="acme"))))
    assert user.tenant == ""
    assert run(gate.authorize(user, "threads", "read", {})) == {"org": "acme", "owner": "alice"}
    with pytest.raises(Refusal) as caught:
        run(gate.authorize(user, "threads", "delete", {}))
    assert caught.value.status == 403
