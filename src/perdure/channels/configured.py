"""Chat channels from a configuration's tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from perdure.channels.options import ChatOptions
from perdure.errors import BadSetting

if TYPE_CHECKING:
    from perdure.channels.chat_channel import ChatChannel

_SHARED = frozenset(field.name for field in fields(ChatOptions))


def configure_channels(tables: Mapping[str, Mapping[str, Any]], graphs: Collection[str]) -> list[ChatChannel]:
    """Return the chat channels of a configuration.

    Args:
        tables: The settings of each provider by its name.
        graphs: The names of the graphs that are served.

    Raises:
        BadSetting: A setting cannot be used.
        MissingExtra: The extra of a provider is not installed.
    """
    return [_configure(name, table, graphs) for name, table in tables.items()]


def _configure(name: str, table: Mapping[str, Any], graphs: Collection[str]) -> ChatChannel:
    shared = {key: value for key, value in table.items() if key in _SHARED}
    own = {key: value for key, value in table.items() if key not in _SHARED}
    graph = shared.get("graph")
    if graph not in graphs and (graph is not None or len(graphs) != 1):
        raise BadSetting(
            f"channels.{name}.graph has to name one of the graphs {', '.join(sorted(graphs))}"
            + ("" if graph is None else f", not {graph!r}")
        )
    try:
        return _make_channel(name, own, ChatOptions(**shared))
    except ValueError as error:
        raise BadSetting(f"channels.{name}: {error}") from error


def _make_channel(name: str, own: dict[str, Any], options: ChatOptions) -> ChatChannel:
    if name == "telegram":
        from perdure.channels import TelegramBot

        return TelegramBot(own.pop("token"), options=options, **own)
    if name == "slack":
        from perdure.channels import SlackApp

        return SlackApp(own.pop("token"), options=options, **own)
    if name == "whatsapp":
        from perdure.channels import WhatsAppPhone

        return WhatsAppPhone(own.pop("phone_id"), options=options, **own)
    raise BadSetting(f"channels.{name} is not a known provider")
