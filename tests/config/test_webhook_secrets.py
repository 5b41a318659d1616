"""Secrets of webhooks: their form, and that a wrong one is not shown."""

from __future__ import annotations

import base64

import pytest

from perdure.config.webhook_secrets import key_of


def text(length: int) -> str:
    return "whsec_" + base64.b64encode(bytes(range(length))).decode()


def test_a_secret_is_the_key_in_base64() -> None:
    assert key_of(text(24)) == bytes(range(24))
    assert key_of(text(64)) == bytes(range(64))


@pytest.mark.parametrize(
    "secret",
    ["", "hunter2hunter2hunter2hunter2", text(23), text(65), text(32)[6:], text(32) + "!", "whsec_ä"],
)
def test_another_text_is_refused_and_not_shown(secret: str) -> None:
    with pytest.raises(ValueError, match="24 to 64 random bytes in base64") as refused:
        key_of(secret)
    assert not secret or secret not in str(refused.value)
    assert refused.value.__cause__ is None
