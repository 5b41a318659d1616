"""What a worker is told: a server's sources, what it takes from them, and what is no matter of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perdure.config.resolve import DEVELOPMENT_URL, GraphPlace, make_runtime_settings
from perdure.config.worker import HostPort, WorkerConfig, load
from perdure.errors import BadSetting, GraphLoadError
from perdure.runtime import Price, Prices, Settings
from perdure.server.config import load as load_server

URL = "postgresql://ada:s3cret@host/threads"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def own(text: str, folder: str = ".") -> Path:
    Path(folder).mkdir(exist_ok=True)
    path = Path(folder) / "perdure.toml"
    path.write_text(text)
    return path


def told(*graphs: str, environ: dict[str, str] | None = None, **flags: Any) -> WorkerConfig:
    return load(file=flags.pop("file", None), graphs=graphs, environ=environ or {}, **flags)


def usable(environ: dict[str, str] | None = None, **flags: Any) -> WorkerConfig:
    return told("app:graph", environ={"DATABASE_URL": URL, **(environ or {})}, **flags)


def refused(environ: dict[str, str] | None = None, **flags: Any) -> str:
    with pytest.raises(BadSetting) as caught:
        usable(environ, **flags)
    assert "s3cret" not in str(caught.value)
    return str(caught.value)


def test_a_graph_and_a_database_are_enough() -> None:
    config = usable()
    assert (config.graphs, config.database_url) == ({"agent": GraphPlace("app:graph")}, URL)
    assert (config.settings, config.store, config.channels) == (make_runtime_settings({}), None, None)
    assert (config.webhook_hosts, config.metrics, config.development) == ((), None, False)
    assert (config.env, config.root) == ({}, Path.cwd())
    assert (config.sources, config.ignored) == (("DATABASE_URL",), ())
    assert "s3cret" not in repr(config)


def test_it_reads_what_a_server_reads() -> None:
    Path("langgraph.json").write_text(
        json.dumps(
            {"graphs": {"a": "./a.py:graph"}, "store": {"ttl": {"default_ttl": 5}}, "dependencies": []}
        )
    )
    Path(".env").write_text("DATABASE_URL=sqlite:///t.db\nPERDURE_RUNTIME_DEBOUNCE=2\nKEY=k\n")
    prices = "[prices.models]\nm = {input=1, output=2}\n"
    own('env = ".env"\n[runtime]\nlease = 9\n[http]\nwebhook_hosts = ["hooks.internal"]\n' + prices)
    mine, servers = told(), load_server(file=None, environ={})
    for name in ("database_url", "graphs", "store", "development", "env", "root", "sources", "ignored"):
        assert getattr(mine, name) == getattr(servers, name), name
    assert mine.settings == make_runtime_settings(servers.runtime)
    assert mine.settings.prices == servers.http.prices == Prices({"m": Price(1.0, 2.0)})
    assert mine.settings == Settings(lease=9.0, debounce=2.0, shared_threads=True, prices=servers.http.prices)
    assert mine.webhook_hosts == servers.http.webhook_hosts == ("hooks.internal",)
    assert mine.env["KEY"] == "k"


def test_flags_win_over_variables_over_the_file() -> None:
    own(f'database_url = "{URL}"\n[graphs]\na = "a:graph"\n[runtime]\nlease = 3\npoll = 3\nattempts = 3\n')
    environ = {"PERDURE_RUNTIME_LEASE": "2", "PERDURE_RUNTIME_POLL": "2", "PERDURE_METRICS_PORT": "2"}
    config = told(environ=environ, runtime={"lease": 1.0, "deadline": None}, metrics_port=1)
    assert config.settings == Settings(lease=1.0, poll=2.0, attempts=3, shared_threads=True)
    assert config.metrics == HostPort("127.0.0.1", 1)
    assert (config.database_url, list(config.graphs)) == (URL, ["a"])
    instead = told("b=b:graph", environ=environ, db="sqlite:///t.db")
    assert (instead.database_url, list(instead.graphs)) == ("sqlite:///t.db", ["b"])
    assert instead.metrics == HostPort("127.0.0.1", 2)


def test_places_start_where_they_were_written() -> None:
    file = own('[graphs]\na = "./a.py:graph"\n', "there")
    config = told(file=file, db=URL, channels="./mine.py:channels")
    assert config.root == Path("there").absolute()
    assert config.graphs["a"].place == "./a.py:graph"
    assert config.channels == f"{Path.cwd()}/mine.py:channels"
    assert told(file=file, db=URL, channels="app:channels").channels == "app:channels"
    assert usable(channels="./mine.py:channels").channels == "./mine.py:channels"


@pytest.mark.parametrize(
    "text",
    [
        '[auth]\npath = "./nowhere.py:auth"\n',
        '[auth.jwt]\nsecret = "short"\n',
        '[auth.jwt]\nissuer = "i"\naudience = "a"\npublic_key = "none.pem"\n',
        '[http.cors]\nallow_origins = ["*"]\nallow_credentials = true\n',
    ],
)
def test_what_only_a_server_uses_does_not_stop_it(text: str) -> None:
    own(text)
    assert list(usable().graphs) == ["agent"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[runtme]\nlease = 1\n", "perdure.toml has runtme, which is not a setting"),
        ("[http]\nport = 'x'\n", "http.port in perdure.toml is 'x'; it has to be a whole number"),
        ("[auth.jwt]\nsecret = 7\n", "auth.jwt.secret in perdure.toml cannot be used; it has to be text"),
        ("[runtime]\nlease = 0\n", "runtime.lease in perdure.toml: lease is 0.0 s; it has to be more than 0"),
        ("[http]\nwebhook_hosts = ['a b']\n", "it has to be a list of hosts and networks"),
        (
            "[checkpointer.ttl]\nstrategy = 'delete'\n",
            "checkpointer.ttl.strategy in perdure.toml is set for old threads, but the age",
        ),
        ("[metrics]\nport = 70000\n", "metrics.port in perdure.toml is 70000; it has to be a whole number"),
        (
            "[metrics]\nhost = '::1'\n",
            "metrics.host in perdure.toml is the host for metrics, but no",
        ),
    ],
)
def test_a_setting_that_cannot_work_stops_it(text: str, said: str) -> None:
    own(text)
    assert said in refused()


def test_a_flag_that_cannot_work_is_called_by_its_name() -> None:
    assert refused(runtime={"lease": 0.0}) == "--lease: lease is 0.0 s; it has to be more than 0"
    assert refused(runtime={"per_tenant": 0}).startswith("--per-tenant: per_tenant is 0; it has to be at")
    assert refused(runtime={"on_failure": "x"}).startswith("--on-failure is 'x'; it has to be 'rollback'")
    assert refused(metrics_port=-1).startswith("--metrics-port is -1; it has to be a whole number from 0")
    assert refused(metrics_host="0.0.0.0").startswith("--metrics-host is the host for metrics")  # noqa: S104 - no port
    assert refused(metrics_host=" ", metrics_port=0) == "--metrics-host is ' '; it has to be text"


def test_without_graphs_or_a_database_it_stops() -> None:
    with pytest.raises(BadSetting, match=r"which graph\? .*perdure worker app:graph, or list graphs in perd"):
        told(db=URL)
    with pytest.raises(BadSetting, match=r"which database\? Pass --db .* PERDURE_DB or DATABASE_URL"):
        told("app:graph")
    with pytest.raises(GraphLoadError, match="two graphs are called 'agent'"):
        told("a:graph", "b:graph", db=URL)


def test_development_is_a_server_s() -> None:
    config = told("app:graph", environ={"LANGGRAPH_DEV": "true"})
    assert (config.database_url, config.development) == (DEVELOPMENT_URL, True)


def test_webhooks_may_be_off() -> None:
    assert usable({"PERDURE_HTTP_DISABLE_WEBHOOKS": "true"}).webhook_hosts is None


def test_encryption_by_code_of_its_own_is_not_passed_over() -> None:
    Path("langgraph.json").write_text('{"encryption": {"path": "./enc.py:encryption"}}')
    assert "would store everything unencrypted; pass --keys" in refused()
    Path("key").write_bytes(bytes(32))
    assert usable(keys="key").ignored == ("encryption in langgraph.json",)
    assert usable({"PERDURE_KEYS": "key"}).keys is not None
