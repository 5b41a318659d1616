"""Every documented default, as a server has it that runs with settings for none but what needs one.

Covers perdure.config.resolve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import httpx
from langgraph.store.base import BaseStore, _ensure_refresh

import perdure
from perdure.config import worker
from perdure.config.settings import SETTINGS
from perdure.server.config import Config, load
from perdure.server.hosting.process import application
from perdure.server.hosting.startup import open_state
from perdure.server.resources import ServerState
from tests.server.acceptance.serving import run
from tests.server.ports import served

AGENT = """\
from langgraph.graph import START, MessagesState, StateGraph

graph = StateGraph(MessagesState).add_node("turn", lambda state: {}).add_edge(START, "turn").compile()
"""
FILE = """\
[graphs]
agent = "./defaults_agent.py:graph"
[auth.jwt]
issuer = "https://issuer.example"
audience = "here"
secret = "0123456789abcdef0123456789abcdef"
[store.ttl]
default_ttl = 5
[store.index]
embed = "perdure:offline"
[checkpointer.ttl]
default_ttl = 5
[conversation]
limit = 1000
[memory]
enabled = true
[channels.telegram]
token = "1:abcdefghijklmnopqrstuvwxyzabcdefghi"
secret = "a-secret-of-24-letters"
[channels.slack]
token = "xoxb-1"
signing_secret = "secret"
[channels.whatsapp]
phone_id = "1"
token = "token"
app_secret = "secret"
verify_token = "token"
[metrics]
port = 0
"""
"""What a setting needs of others to have an effect at all."""


@dataclass(frozen=True)
class Running:
    """A server, and its answers to an unknown client."""

    host: ServerState
    config: Config
    workers: worker.WorkerConfig
    answers: Mapping[str, httpx.Response]

    @property
    def jwt(self) -> Any:
        return self.host.gate._settings  # type: ignore[attr-defined]

    @property
    def agent(self) -> Any:
        return self.host.runtime.graphs["agent"]

    @property
    def store(self) -> Any:
        found = self.host.runtime.for_tenant("").store()
        assert isinstance(found, BaseStore)
        return found

    def chat(self, name: str) -> Any:
        return next(chat for chat in self.host.chats if chat.name == name)


def _is_missing(path: str) -> Callable[[Running], Any]:
    return lambda at: at.answers[path].status_code == 404


PATHS = {
    "assistants": "/assistants/agent",
    "threads": "/threads/t",
    "runs": "/threads/t/runs/00000000-0000-0000-0000-000000000000",
    "store": "/store/items?namespace=a&key=k",
    "meta": "/openapi.json",
    "a2a": "/.well-known/agent-card.json",
}
ALLOWED = "access-control-allow-"


def _of_chat(provider: str, path: str) -> Callable[[Running], Any]:
    return lambda at: attrgetter(path)(at.chat(provider))


def _rows() -> dict[str, Callable[[Running], Any]]:
    """What a running server does about a setting, by the setting's key."""
    names = [key.removeprefix("runtime.") for key in SETTINGS if key.startswith("runtime.")]
    rows: dict[str, Callable[[Running], Any]] = {
        f"runtime.{name}": attrgetter(f"host.runtime.settings.{name}") for name in names
    }
    for name in (
        "body_bytes",
        "requests_per_minute",
        "streams",
        "total_streams",
        "total_waiting_runs",
        "page_max",
        "recheck",
    ):
        rows[f"limits.{name}"] = attrgetter(f"host.limits.{name}")
    for name in ("leeway", "required", "identity_claim", "header", "jwks_timeout"):
        rows[f"auth.jwt.{name}"] = attrgetter(f"jwt.{name}")
    for name in ("nearest", "newest", "tokens", "debounce", "max_wait"):
        rows[f"memory.{name}"] = attrgetter(f"agent.memory.{name}")
    for name, path in PATHS.items():
        rows[f"http.disable_{name}"] = _is_missing(path)
    for provider in ("telegram", "slack", "whatsapp"):
        for name in ("tenant", "debounce", "max_wait", "groups", "edits", "allowed"):
            rows[f"channels.{provider}.{name}"] = _of_chat(provider, f"options.{name}")
        rows[f"channels.{provider}.in_doubt"] = _of_chat(provider, "_in_doubt")
    return rows | {
        "development": lambda at: (
            "/chat" in str(at.answers["/chat/"].url) and at.answers["/chat/"].is_success
        ),
        "http.host": lambda at: at.config.http.host,
        "prices.currency": lambda at: at.config.http.prices.currency,
        "channels.telegram.polling": _of_chat("telegram", "_polls"),
        "http.port": lambda at: at.config.http.port,
        "http.hosts": lambda at: at.config.http.hosts,
        "http.page": lambda at: at.answers["/chat/"].is_success,
        "http.inspector": lambda at: at.answers["/inspect/"].is_success,
        "http.disable_mcp": lambda at: at.answers["POST /mcp"].status_code == 404,
        "http.disable_webhooks": lambda at: at.host.webhooks is None,
        "http.webhook_hosts": lambda at: at.workers.webhook_hosts,
        "http.webhook_secrets": lambda at: at.workers.webhook_secrets,
        "http.signal_secrets": lambda at: at.host.signal_secrets,
        "http.a2a_needs_context": lambda at: at.config.http.a2a_needs_context,
        "http.a2a_shared_contexts": lambda at: at.config.http.a2a_shared_contexts,
        "http.enable_custom_route_auth": lambda at: at.config.http.enable_custom_route_auth,
        "http.middleware_order": lambda at: at.config.http.middleware_order,
        "http.cors.allow_origins": lambda at: tuple(
            filter(None, [at.answers["OPTIONS /threads"].headers.get(f"{ALLOWED}origin")])
        ),
        "http.cors.allow_methods": lambda at: at.config.http.cors.allow_methods,
        "http.cors.allow_headers": lambda at: at.config.http.cors.allow_headers,
        "http.cors.allow_credentials": lambda at: (
            f"{ALLOWED}credentials" in at.answers["OPTIONS /threads"].headers
        ),
        "http.cors.expose_headers": lambda at: at.config.http.cors.expose_headers,
        "http.cors.max_age": lambda at: int(at.answers["OPTIONS /threads"].headers["access-control-max-age"]),
        "conversation.keep": lambda at: at.agent.conversation.limit.keep,
        "conversation.key": lambda at: at.agent.conversation.key,
        "memory.enabled": lambda at: False,
        "memory.extract": lambda at: at.agent.memory.extract is not None,
        "store.index.fields": lambda at: tuple(at.store._index.fields),
        "store.index.text": lambda at: at.store._index.extractor is not None,
        "store.ttl.refresh_on_read": lambda at: _ensure_refresh(at.store.ttl_config, None),
        "checkpointer.ttl.strategy": lambda at: at.host.runtime.database.retention.usual_ttl.strategy,
        "checkpointer.ttl.sweep_interval_minutes": lambda at: (
            at.host.runtime.database.retention.usual_ttl.sweep_interval_minutes
        ),
        "checkpointer.ttl.sweep_limit": lambda at: at.host.runtime.database.retention.usual_ttl.sweep_limit,
        "retention.keep_tagged": lambda at: at.config.retention.rules.default.keep_tagged,
        "retention.share": lambda at: at.host.sweeps._options.share,
        "metrics.host": lambda at: at.workers.metrics.host,
    }


ELSEWHERE = {
    "dependencies": "no folder is made importable, which is not a value",
    "retention.every": "it is shortened by checkpointer.ttl here: test_sweeps_are_an_hour_apart",
}


async def _running(folder: Path) -> Running:
    (folder / "defaults_agent.py").write_text(AGENT)
    (folder / "perdure.toml").write_text(FILE)
    url = f"sqlite:///{folder / 'threads.db'}"
    async with perdure.connect(url, migrate=True):
        pass
    config = load(file=folder / "perdure.toml", db=url, environ={})
    workers = worker.load(file=folder / "perdure.toml", db=url, environ={})
    async with (
        open_state(config, works=False) as host,
        application(config, host) as app,
        served(app, host) as address,
        httpx.AsyncClient(base_url=address, follow_redirects=True) as http,
    ):
        answers = {path: await http.get(path) for path in (*PATHS.values(), "/chat/", "/inspect/")}
        answers["POST /mcp"] = await http.post("/mcp", json={})
        asked = {"Origin": "https://elsewhere.example", "Access-Control-Request-Method": "POST"}
        answers["OPTIONS /threads"] = await http.options("/threads", headers=asked)
        return Running(host, config, workers, answers)


@run
async def test_every_documented_default_is_what_a_running_server_has(
    tmp_path: Path, nothing_is_set: None
) -> None:
    rows = _rows()
    at = await _running(tmp_path)
    documented = {key: setting.default for key, setting in SETTINGS.items() if setting.default is not None}
    assert set(documented) - set(rows) - set(ELSEWHERE) == set(), "defaults that nobody looks at"
    found = {key: look(at) for key, look in rows.items() if key in documented}
    assert found == {key: documented[key] for key in found}
    assert [key for key in rows if key in SETTINGS and SETTINGS[key].default is None and rows[key](at)] == []


def test_a_worker_has_the_same_defaults(tmp_path: Path, nothing_is_set: None) -> None:
    (tmp_path / "perdure.toml").write_text('[graphs]\nagent = "./a.py:graph"\n')
    settings = worker.load(file=tmp_path / "perdure.toml", db="memory://", environ={}).settings
    for key, setting in SETTINGS.items():
        table, _, name = key.partition(".")
        if table == "runtime":
            assert getattr(settings, name) == setting.default, key


def test_sweeps_are_an_hour_apart(tmp_path: Path, nothing_is_set: None) -> None:
    (tmp_path / "perdure.toml").write_text('[graphs]\nagent = "./a.py:graph"\n')
    config = load(file=tmp_path / "perdure.toml", db="memory://", environ={})
    assert (config.retention.every, SETTINGS["retention.every"].default) == (3600, "1h")


@run
async def test_graphs_share_threads_unless_a_setting_says_otherwise(
    tmp_path: Path, nothing_is_set: None
) -> None:
    (tmp_path / "shared_agent.py").write_text(AGENT)
    body = {"input": {"messages": [("user", "hi")]}, "if_not_exists": "create"}
    for value, status in (
        ("", 200),
        ("[runtime]\nshared_threads = true\n", 200),
        ("[runtime]\nshared_threads = false\n", 409),
    ):
        graphs = '[graphs]\na = "./shared_agent.py:graph"\nb = "./shared_agent.py:graph"\n'
        (tmp_path / "perdure.toml").write_text(f"{graphs}{value}")
        config = load(file=tmp_path / "perdure.toml", db="memory://", environ={}, development=True)
        async with (
            open_state(config) as host,
            application(config, host) as app,
            served(app, host) as address,
            httpx.AsyncClient(base_url=address) as http,
        ):
            first = await http.post("/threads/t/runs/wait", json={**body, "assistant_id": "a"})
            assert first.status_code == 200, first.text
            second = await http.post("/threads/t/runs/wait", json={**body, "assistant_id": "b"})
            assert second.status_code == status, (value, second.text)
