"""Doubles of chat providers: HTTP servers that the providers' genuine client libraries talk to.

A double sends what people write to a webhook, as the provider does, until it is acknowledged, and takes the
bot's messages. On request it delays, duplicates and reorders deliveries, and limits, refuses, fails or loses
the answer to messages of the bot. They need aiohttp, which comes with the channels' extras.
"""

from perdure.testing.channels.provider import DeliveryFaults, ProviderDouble, ProviderFault, Shown
from perdure.testing.channels.telegram import TelegramDouble

__all__ = ["DeliveryFaults", "ProviderDouble", "ProviderFault", "Shown", "TelegramDouble"]
