"""Telegram's client takes seconds to import: once a process, and in no test's time."""

from importlib import import_module

import pytest


@pytest.fixture(scope="session", autouse=True)
def _telegram_s_client() -> None:
    import_module("perdure.channels.telegram")
