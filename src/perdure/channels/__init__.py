"""Chat channels: messages of Telegram, Slack and WhatsApp become turns of threads, and replies go back.

Each provider is an extra: ``perdure[telegram]``, ``perdure[slack]``, ``perdure[whatsapp]``. The classes are
imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from perdure.channels.addresses import ChatAddress
from perdure.channels.options import ChatOptions
from perdure.errors import MissingExtra

if TYPE_CHECKING:
    from perdure.channels.slack import SlackApp
    from perdure.channels.telegram import TelegramBot
    from perdure.channels.whatsapp import WhatsAppPhone

__all__ = ["ChatAddress", "ChatOptions", "SlackApp", "TelegramBot", "WhatsAppPhone"]

_OF = {"SlackApp": "slack", "TelegramBot": "telegram", "WhatsAppPhone": "whatsapp"}
"""Module of each class, and the extra that it needs."""


def __getattr__(name: str) -> Any:
    if name not in _OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    extra = _OF[name]
    try:
        return getattr(import_module(f"{__name__}.{extra}"), name)
    except ImportError as missing:
        raise MissingExtra(
            f"perdure.channels.{name} needs an extra: pip install 'perdure[{extra}]'"
        ) from missing
