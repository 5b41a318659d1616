"""Settings that a server and a worker read alike."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from perdure.config.common import CommonConfig
from perdure.config.worker import load as load_worker
from perdure.errors import BadSetting
from perdure.server.config import load as load_server

FILE = """
database_url = "sqlite:///t.db"
env = ".env"
dependencies = ["lib"]

[graphs]
a = "./a.py:graph"

[channels.telegram]
token = "1:x"
polling = true
graph = "a"

[retention]
keep_last = 5

[store]
database_url = "sqlite:///store.db"
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lib").mkdir()
    (tmp_path / ".env").write_text("KEY=k\n")


def test_a_server_and_a_worker_agree() -> None:
    Path("perdure.toml").write_text(FILE)
    server, worker = load_server(file=None, environ={}), load_worker(file=None, environ={})
    for field in fields(CommonConfig):
        assert getattr(server, field.name) == getattr(worker, field.name), field.name


def test_each_names_its_own_command() -> None:
    with pytest.raises(BadSetting, match="perdure serve"):
        load_server(file=None, db="memory://", environ={})
    with pytest.raises(BadSetting, match="perdure worker"):
        load_worker(file=None, db="memory://", environ={})
