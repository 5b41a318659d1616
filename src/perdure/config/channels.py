"""Chat channels of a configuration: the tables under ``channels``, each with what its provider needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.config.resolve import ResolvedConfig
from perdure.errors import BadSetting

REQUIRED: Mapping[str, tuple[str, ...]] = {
    "telegram": ("token", "secret"),
    "slack": ("token", "signing_secret"),
    "whatsapp": ("phone_id", "token", "app_secret", "verify_token"),
}
"""Settings without which a provider's table is incomplete."""

_OF_WEBHOOK = "secret"
"""Setting that Telegram needs for its webhook, and does not need if it polls."""


def find_chat_channels(configuration: ResolvedConfig) -> dict[str, dict[str, Any]]:
    """Return the given settings of chat channels by provider; providers without any are left out.

    Raises:
        BadSetting: A table lacks a setting that its provider needs, or serves no chat.
    """
    tables = {name: configuration.select_given(f"channels.{name}.") for name in REQUIRED}
    for name, table in tables.items():
        if not table.get("allowed", ("everybody",)):
            raise BadSetting(
                f"{configuration.name(f'channels.{name}.allowed')} names no chat; leave it out to serve "
                "everybody"
            )
        is_polled = table.get("polling", False)
        required = [each for each in REQUIRED[name] if not (is_polled and each == _OF_WEBHOOK)]
        missing = [each for each in required if each not in table]
        if missing and (table or f"channels.{name}" in configuration.empty_tables):
            advice = f"PERDURE_CHANNELS_{name.upper()}_{missing[0].upper()}"
            if missing == [_OF_WEBHOOK]:
                advice += ", or polling = true without a public address"
            raise BadSetting(
                f"channels.{name} needs {missing[0]}: write it under [channels.{name}], or set {advice}"
            )
    return {name: table for name, table in tables.items() if table}
