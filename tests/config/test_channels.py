"""Tables of chat channels."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.config import worker
from perdure.errors import BadSetting
from perdure.server import config as server

SECRET = "0123456789abcdef"


def load(text: str, environ: dict[str, str] | None = None) -> server.Config:
    Path("perdure.toml").write_text(text)
    return server.load(file=None, graphs=["app:graph"], db="memory://", environ=environ or {})


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_without_a_table_there_is_no_channel() -> None:
    assert load("").chats == {}


def test_a_table_and_variables_are_one_channel_for_servers_and_workers() -> None:
    text = '[channels.telegram]\ndebounce = 1.5\nallowed = ["7"]\n'
    variables = {"PERDURE_CHANNELS_TELEGRAM_TOKEN": "1:x", "PERDURE_CHANNELS_TELEGRAM_SECRET": SECRET}
    expected = {"telegram": {"token": "1:x", "secret": SECRET, "debounce": 1.5, "allowed": ("7",)}}
    assert load(text, variables).chats == expected
    assert SECRET not in repr(load(text, variables))
    chats = worker.load(file=None, graphs=["app:graph"], db="memory://", environ=variables)
    assert chats.chats == expected
    assert SECRET not in repr(chats)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[channels.telegram]\ntoken = "1:x"', "PERDURE_CHANNELS_TELEGRAM_SECRET"),
        ("[channels.telegram]\ndebounce = 1", "channels.telegram needs token"),
        ('[channels.telegram]\ngroups = "some"', "channels.telegram.groups"),
        ("[channels.telegram]\ndebounce = -1", "channels.telegram.debounce"),
        ('[channels.slack]\ntoken = "xoxb-1"', "PERDURE_CHANNELS_SLACK_SIGNING_SECRET"),
        ('[channels.slack]\nin_doubt = "guess"', "channels.slack.in_doubt"),
        ('[channels.whatsapp]\nphone_id = "1"', "PERDURE_CHANNELS_WHATSAPP_TOKEN"),
        ("[channels.pigeon]\nx = 1", "channels"),
        ("[channels.telegram]", "channels.telegram needs token"),
        ("[channels.telegram]\nallowed = []", "channels.telegram.allowed in .* names no chat"),
    ],
)
def test_what_cannot_work_is_named(text: str, named: str) -> None:
    with pytest.raises(BadSetting, match=named):
        load(text)


def test_empty_variables_do_not_take_a_channel_or_its_list_away() -> None:
    names = ("TOKEN", "SECRET")
    given = {f"PERDURE_CHANNELS_TELEGRAM_{name}": "" for name in names}
    with pytest.raises(BadSetting, match=r"channels\.telegram needs token"):
        load("[channels.telegram]", given)
    given = {"PERDURE_CHANNELS_TELEGRAM_TOKEN": "1:x", "PERDURE_CHANNELS_TELEGRAM_SECRET": SECRET}
    assert load("[channels.telegram]", given).chats["telegram"]["token"] == "1:x"
    with pytest.raises(BadSetting, match="PERDURE_CHANNELS_TELEGRAM_ALLOWED names no chat"):
        load('[channels.telegram]\nallowed = ["7"]', {**given, "PERDURE_CHANNELS_TELEGRAM_ALLOWED": ","})
