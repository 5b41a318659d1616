"""Keys from a provider over HTTP: rotation, outages, and no flood on it."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from perdure.errors import BadSetting
from perdure.server.auth.identity import Refusal
from perdure.server.auth.jwks import ANSWER_MAX, FRESH_S, PAUSE_S, RETRY_S, STALE_S, KeySet
from perdure.server.auth.jwt import Jwt, JwtSettings
from tests.server.asking import bearer, refused, run
from tests.server.issuer import AUDIENCE, ISSUER, ec_key, published, publisher, rsa_key, token


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def status(keys: KeySet, kid: str | None, algorithm: str = "RS256") -> int:
    try:
        run(keys.load_key(algorithm, kid))
    except Refusal as refusal:
        return refusal.status
    return 200


def key_set(url: str, **more: Any) -> tuple[KeySet, Clock]:
    clock = Clock()
    return KeySet(url, clock=clock, **more), clock


def test_tokens_are_verified_with_published_keys_which_are_asked_for_once() -> None:
    with publisher(published(rsa_key("a"), "k1"), published(ec_key("a"), "k2")) as said:
        known = JwtSettings(
            issuer=ISSUER, audience=AUDIENCE, algorithms=["RS256", "ES256"], jwks_url=said.url
        )
        gate = Jwt(known)
        assert said.asked == 0
        for sent in (
            token(rsa_key("a"), "RS256", kid="k1"),
            token(ec_key("a"), "ES256", kid="k2"),
            token(rsa_key("a"), "RS256"),
        ):
            assert run(gate.authenticate(bearer(sent))).identity == "alice"
        assert said.asked == 1
        for sent, reason in (
            (token(rsa_key("other"), "RS256", kid="k1"), "the token's signature is wrong"),
            (token(rsa_key("a"), "RS256", kid="k9"), "the token is signed with a key that is not known here"),
            (token(rsa_key("a"), "RS256", kid="k2"), "the token is signed with a key that is not known here"),
        ):
            refusal = refused(gate.authenticate(bearer(sent)))
            assert (refusal.status, refusal.detail) == (401, reason)
            assert refusal.headers == {"WWW-Authenticate": "Bearer"}
        assert said.asked == 1


def test_a_new_key_is_found_and_a_withdrawn_one_is_forgotten() -> None:
    with publisher(published(rsa_key("a"), "k1")) as said:
        keys, clock = key_set(said.url)
        assert (status(keys, "k1"), status(keys, "k2")) == (200, 401)
        said.keys = [published(rsa_key("b"), "k2")]
        clock.now += PAUSE_S
        assert (status(keys, "k2"), said.asked) == (200, 2)
        assert status(keys, "k1") == 401
        said.keys = [published(rsa_key("a"), "k3")]
        clock.now += FRESH_S - 1
        assert status(keys, "k2") == 200
        clock.now += 1
        assert (status(keys, "k2"), said.asked) == (401, 3)


def test_unknown_ids_ask_once_a_minute_however_many_there_are() -> None:
    with publisher(published(rsa_key("a"), "k1")) as said:
        keys, clock = key_set(said.url)
        for minute in range(3):
            for n in range(50):
                assert status(keys, f"unknown-{minute}-{n}") == 401
                clock.now += PAUSE_S / 60
            assert said.asked == minute + 1
            clock.now += PAUSE_S / 6
        assert status(keys, "k1") == 200


def test_many_at_once_ask_once() -> None:
    with publisher(published(rsa_key("a"), "k1")) as said:
        said.pause = 0.1
        keys, _ = key_set(said.url)

        async def crowd() -> int:
            return len(await asyncio.gather(*(keys.load_key("RS256", "k1") for _ in range(20))))

        assert run(crowd()) == 20
        assert said.asked == 1


def test_who_has_a_key_does_not_wait_for_newer_ones() -> None:
    with publisher(published(rsa_key("a"), "k1")) as said:
        keys, clock = key_set(said.url)
        assert status(keys, "k1") == 200
        clock.now += FRESH_S
        said.may_answer.clear()

        async def two() -> bool:
            first = asyncio.create_task(keys.load_key("RS256", "k1"))
            while said.asked < 2:  # noqa: ASYNC110 - a server in another thread
                await asyncio.sleep(0.01)
            await keys.load_key("RS256", "k1")
            has_waited = first.done()
            said.may_answer.set()
            await first
            return has_waited

        assert not run(two())


def test_a_client_that_hangs_up_frees_the_way_for_no_flood() -> None:
    with publisher(published(rsa_key("a"), "k1")) as said:
        said.pause = 1.0
        keys, _ = key_set(said.url)

        async def hang_up() -> None:
            for _ in range(5):
                asked = asyncio.create_task(keys.load_key("RS256", "k1"))
                await asyncio.sleep(0.1)
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)

        run(hang_up())
        assert said.asked <= 1, "of a busy machine the first one may not have got as far"


def test_while_nobody_answers_it_is_503_and_soon_tried_again() -> None:
    with publisher(published(rsa_key("a"), "k1")) as said:
        said.status = 500
        keys, clock = key_set(said.url)
        refusal = refused(keys.load_key("RS256", "k1"))
        assert (refusal.status, refusal.headers) == (503, {"Retry-After": "10"})
        assert status(keys, "k1") == 503
        assert said.asked == 1
        said.status = 200
        clock.now += RETRY_S
        assert (status(keys, "k1"), said.asked) == (200, 2)


def test_known_keys_go_on_for_a_day_without_an_answer() -> None:
    with publisher(published(rsa_key("a"), "k1")) as said:
        keys, clock = key_set(said.url)
        assert status(keys, "k1") == 200
        said.status = 500
        clock.now += FRESH_S
        assert status(keys, "k1") == 200
        assert status(keys, "k2") == 503, "whether there is such a key nobody can tell"
        clock.now += STALE_S - FRESH_S - 1
        assert status(keys, "k1") == 200
        clock.now += RETRY_S
        assert status(keys, "k1") == 503


def test_a_host_that_is_not_there() -> None:
    with publisher() as said:
        url = said.url
    known = JwtSettings(issuer=ISSUER, audience=AUDIENCE, algorithms=["RS256"], jwks_url=url)
    sent = token(rsa_key("a"), "RS256", kid="k1")
    assert refused(Jwt(known).authenticate(bearer(sent))).status == 503


def test_a_host_that_does_not_answer_in_time_does_not_hold_the_loop_up() -> None:
    with publisher(published(rsa_key("a"), "k1")) as said:
        said.may_answer.clear()
        keys, _ = key_set(said.url, timeout=0.3)

        async def ticks() -> int:
            asked = asyncio.create_task(keys.load_key("RS256", "k1"))
            count = 0
            while not asked.done():
                await asyncio.sleep(0)
                count += 1
            with pytest.raises(Refusal, match="cannot be fetched"):
                await asked
            return count

        assert run(ticks()) >= 3
        said.may_answer.set()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b'{"keys": {}}',
        b'{"keys": []}',
        b'{"keys": [1, {"kty": "RSA"}]}',
        b"[" * 100_000,
        json.dumps({"keys": [published(rsa_key("b"), "k2")]}).encode() + b" " * ANSWER_MAX,
    ],
    ids=["empty", "html", "list", "dict", "none", "broken", "deep", "long"],
)
def test_an_answer_that_is_no_key_set_is_none_at_all(body: bytes) -> None:
    with publisher(published(rsa_key("a"), "k1")) as said:
        keys, clock = key_set(said.url)
        assert status(keys, "k1") == 200
        said.body = body
        clock.now += FRESH_S
        assert (status(keys, "k1"), status(keys, "k2"), said.asked) == (200, 503, 2)


def test_a_redirect_is_not_followed() -> None:
    with publisher(published(rsa_key("evil"), "k1")) as evil, publisher() as said:
        said.status, said.headers = 302, {"Location": evil.url}
        keys, _ = key_set(said.url)
        assert status(keys, "k1") == 503
        assert evil.asked == 0


SYMMETRIC = {"kty": "oct", "kid": "k1", "k": "MDEyMzQ1Njc4OWFiY2RlZi0wMTIzNDU2Nzg5QUJDREVG", "alg": "HS256"}


@pytest.mark.parametrize(
    "unfit",
    [
        SYMMETRIC,
        {**SYMMETRIC, "alg": "RS256"},
        published(rsa_key("a"), "k1", use="enc"),
        published(rsa_key("a"), "k1", use=None, key_ops=["encrypt"]),
        published(rsa_key("a"), "k1", alg="RS512"),
        published(rsa_key("a"), "k1", alg="HS256"),
        published(rsa_key("weak", 1024), "k1"),
        published(ec_key("a"), "k1"),
        {**published(rsa_key("a"), "k1"), "n": "AA"},
        {**published(rsa_key("a"), "k1"), "kid": 1},
        {**published(rsa_key("a"), "k1"), "key_ops": 7, "kty": "XX"},
    ],
)
def test_a_published_key_that_is_not_for_this(unfit: Any, caplog: pytest.LogCaptureFixture) -> None:
    with publisher(unfit, published(rsa_key("b"), "k2")) as said, caplog.at_level(logging.WARNING):
        keys, _ = key_set(said.url)
        assert (status(keys, "k1"), status(keys, "k2")) == (401, 200)
    assert "MDEy" not in caplog.text


def test_of_several_keys_a_token_has_to_name_one() -> None:
    with publisher(published(rsa_key("a"), None), published(rsa_key("b"), None)) as said:
        keys, _ = key_set(said.url)
        assert status(keys, None) == 401


def test_keys_come_over_https_or_from_this_machine() -> None:
    for url in (
        "https://id.example/keys",
        "http://127.0.0.1:1/k",
        "http://[::1]:1/k",
        "http://localhost:1/k",
    ):
        KeySet(url)
    for url in (
        "http://id.example/keys",
        "ftp://id.example",
        "file:///etc/keys",
        "id.example/keys",
        "http://",
        "",
    ):
        with pytest.raises(BadSetting, match="has to be an https:// URL"):
            KeySet(url)
    with pytest.raises(BadSetting, match="https://"):
        KeySet("http://127.0.0.1.evil.example/keys")
    with pytest.raises(BadSetting, match="jwks_url is not a URL"):
        KeySet("https://[::1/keys")
