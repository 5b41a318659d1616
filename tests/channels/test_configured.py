"""Channels of a configuration: mounted by a server without code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.channels.configured import configure_channels
from perdure.errors import BadSetting
from perdure.server.config import load
from perdure.server.hosting.process import application
from perdure.server.hosting.startup import open_state
from perdure.testing.channels import TelegramDouble
from perdure.testing.channels.telegram import SECRET, TOKEN
from tests.channels.serving import on_port
from tests.runtime.graphs import go

GRAPH = """
from tests.channels.serving import echo

graph = echo()
"""
TELEGRAM = {"token": TOKEN, "secret": SECRET}


def test_a_server_answers_a_chat_by_its_configuration_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "chat_agent.py").write_text(GRAPH)

    async def main() -> None:
        async with TelegramDouble() as double:
            (tmp_path / "perdure.toml").write_text(
                'development = true\n[graphs]\nagent = "./chat_agent.py:graph"\n'
                f'[channels.telegram]\napi_url = "{double.url}"\ndebounce = 0\n'
            )
            names = ("PERDURE_CHANNELS_TELEGRAM_TOKEN", "PERDURE_CHANNELS_TELEGRAM_SECRET")
            config = load(file=None, environ=dict(zip(names, (TOKEN, SECRET), strict=True)))
            async with open_state(config) as host, application(config, host) as app, on_port(app) as url:
                double.webhook = f"{url}/channels/telegram"
                await double.say(1, "hello")
                await double.until_shown(1)
                assert double.texts(1) == ["hello"]

    go(main())


def test_each_provider_has_its_own_settings() -> None:
    table = {"token": "xoxb-1", "signing_secret": "s", "in_doubt": "hold", "groups": "all"}
    phone = {"phone_id": "1", "token": "t", "app_secret": "s", "verify_token": "v"}
    tables = {"telegram": TELEGRAM, "slack": table, "whatsapp": phone}
    telegram, slack, whatsapp = configure_channels(tables, ["one"])
    assert (telegram.name, slack.name, whatsapp.name) == ("telegram", "slack", "whatsapp")
    assert slack.options.groups == "all"
    assert slack.channels["slack"].in_doubt == "hold"


def test_a_graph_is_named_if_there_are_several() -> None:
    (bot,) = configure_channels({"telegram": TELEGRAM}, ["one"])
    assert bot.options.graph is None
    (bot,) = configure_channels({"telegram": {**TELEGRAM, "graph": "two", "debounce": 1.0}}, ["one", "two"])
    assert (bot.options.graph, bot.options.debounce) == ("two", 1.0)


@pytest.mark.parametrize(
    ("table", "graphs", "named"),
    [
        (TELEGRAM, ["one", "two"], "channels.telegram.graph has to name one of the graphs one, two"),
        ({**TELEGRAM, "graph": "other"}, ["one"], "not 'other'"),
        ({**TELEGRAM, "secret": "short"}, ["one"], "channels.telegram: the secret"),
        ({**TELEGRAM, "token": "short"}, ["one"], "channels.telegram: the token"),
    ],
)
def test_what_cannot_work_is_named_without_the_secret(
    table: dict[str, Any], graphs: list[str], named: str
) -> None:
    with pytest.raises(BadSetting, match=named) as refused:
        configure_channels({"telegram": table}, graphs)
    assert "short" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "extra", "absent"),
    [
        ("TelegramBot", "telegram", "starlette.requests"),
        ("TelegramBot", "telegram", "aiogram"),
        ("SlackApp", "slack", "slack_sdk.errors"),
        ("WhatsAppPhone", "whatsapp", "pywa.errors"),
    ],
)
def test_a_channel_without_its_extra_names_the_command(name: str, extra: str, absent: str) -> None:
    code = (
        f"import sys; sys.modules[{absent!r}] = None\n"
        "from perdure.channels.configured import configure_channels\n"
        "from perdure.errors import MissingExtra\n"
        "try:\n"
        f"    configure_channels({{{extra!r}: {{'token': 't', 'phone_id': 'p'}}}}, ['agent'])\n"
        "except MissingExtra as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == f"perdure.channels.{name} needs an extra: pip install 'perdure[{extra}]'\n"


def test_a_bot_is_either_polled_or_called_by_its_webhook() -> None:
    with pytest.raises(BadSetting, match=r"channels\.telegram: polling is on and a secret is set.*Leave out"):
        configure_channels({"telegram": {**TELEGRAM, "polling": True}}, ["one"])
    for one in ({**TELEGRAM, "polling": False}, {"token": TOKEN, "polling": True, "secret": ""}):
        configure_channels({"telegram": one}, ["one"])
