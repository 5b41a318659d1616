"""What a server is told: where settings come from, what wins, and what is refused with which words.

Covers perdure.config.value_kinds.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest

from perdure.config.resolve import DEVELOPMENT_URL, GraphPlace, make_folder_of
from perdure.config.settings import EXPOSED, SETTINGS, Setting
from perdure.errors import BadSetting, GraphLoadError, PerdureError
from perdure.model.retention_policy import ThreadTtl
from perdure.runtime.settings import Settings
from perdure.server.auth.jwt import JwtSettings
from perdure.server.config import (
    Config,
    Cors,
    Http,
    RequestLimits,
    load,
)

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
URL = "postgresql://ada:s3cret@host/threads"
SECRET = "0123456789abcdefghijklmnopqrstuvwxyz"
TOKENS = f'issuer = "https://id.example"\naudience = "threads"\nsecret = "{SECRET}"\n'


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def own(text: str, folder: str = ".") -> Path:
    return written("perdure.toml", text, folder)


def langgraph(folder: str = ".", **held: Any) -> Path:
    return written("langgraph.json", json.dumps(held), folder)


def written(name: str, text: str, folder: str = ".") -> Path:
    Path(folder).mkdir(exist_ok=True)
    path = Path(folder) / name
    path.write_text(text)
    return path


def loaded(
    *graphs: str, file: Path | None = None, environ: dict[str, str] | None = None, **flags: Any
) -> Config:
    """A configuration; a graph and a database are named where the test does not care."""
    return load(file=file, graphs=graphs, environ=environ or {}, **flags)


def usable(environ: dict[str, str] | None = None, **flags: Any) -> Config:
    return loaded("app:graph", environ={"PERDURE_DB": "memory://", **(environ or {})}, **flags)


def refused(environ: dict[str, str] | None = None, **flags: Any) -> str:
    with pytest.raises(BadSetting) as caught:
        usable(environ, **flags)
    return str(caught.value)


def test_a_graph_and_a_database_are_enough() -> None:
    config = loaded("app:graph", "support=./desk/agents.py:graph", db="sqlite:///t.db")
    assert config.graphs == {
        "agent": GraphPlace("app:graph"),
        "support": GraphPlace("./desk/agents.py:graph"),
    }
    assert config.database_url == "sqlite:///t.db"
    assert (config.http, config.limits, config.runtime) == (Http(), RequestLimits(), {})
    assert (config.store, config.checkpointer, config.env) == (None, None, {})
    assert (config.auth.handlers, config.auth.jwt, config.auth.tenant_claims) == (None, None, ())
    assert (config.sources, config.ignored, config.development) == ((), (), False)
    assert config.root == Path.cwd()


def test_the_defaults_of_the_table_are_those_of_the_parts() -> None:
    """Whoever builds a part in a test gets what a server without settings has."""
    table = {key: setting.default for key, setting in SETTINGS.items()}
    parts: dict[str, Http | Cors | RequestLimits | ThreadTtl] = {
        "http": Http(),
        "http.cors": Cors(),
        "limits": RequestLimits(),
        "checkpointer.ttl": ThreadTtl(1.0),
    }
    for prefix, part in parts.items():
        for name, value in asdict(part).items():
            if f"{prefix}.{name}" != "checkpointer.ttl.default_ttl" and name not in ("cors", "prices"):
                assert table[f"{prefix}.{name}"] == value, name
    for field in fields(JwtSettings):
        if field.name not in ("issuer", "audience", "algorithms", "tenant_claims"):
            assert table[f"auth.jwt.{field.name}"] == field.default, field.name
    assert {key.removeprefix("runtime.") for key in table if key.startswith("runtime.")} == {
        field.name for field in fields(Settings) if field.name != "prices"
    }


def test_flags_win_over_variables_over_our_file_over_langgraph_s() -> None:
    langgraph(graphs={"a": "a:graph"}, http={"mount_prefix": "/four", "disable_store": True})
    own('[http]\nhost = "3.0.0.0"\nport = 3\nmount_prefix = "/three"\n[graphs]\nb = "b:graph"\n')
    environ = {"PERDURE_HTTP_HOST": "2.0.0.0", "PERDURE_HTTP_PORT": "2", "PERDURE_DB": "memory://"}
    http = loaded(environ=environ, port=1).http
    assert (http.port, http.host, http.mount_prefix, http.disable_store) == (1, "2.0.0.0", "/three", True)
    assert list(loaded(environ=environ).graphs) == ["b"]
    assert list(loaded(environ={**environ, "PERDURE_GRAPHS": "c=c:graph,d=./d.py:graph"}).graphs) == [
        "c",
        "d",
    ]
    assert list(loaded("e=e:graph", environ={**environ, "PERDURE_GRAPHS": "c=c:graph"}).graphs) == ["e"]


def test_of_two_variables_perdure_s_own_wins_and_an_empty_one_counts_as_not_set() -> None:
    both = {"DATABASE_URL": "sqlite:///other.db", "PERDURE_DB": "sqlite:///own.db"}
    assert loaded("app:graph", environ=both).database_url == "sqlite:///own.db"
    both["PERDURE_DB"] = ""
    assert loaded("app:graph", environ=both).database_url == "sqlite:///other.db"
    assert loaded("app:graph", environ=both, db="sqlite:///flag.db").database_url == "sqlite:///flag.db"


def test_what_was_used_is_told_by_name_and_never_by_value() -> None:
    langgraph(env={"API_KEY": "s3cret"})
    own(f"[auth.jwt]\n{TOKENS}")
    environ = {"DATABASE_URL": URL, "PERDURE_HTTP_HOST": "127.0.0.1", "PERDURE_TENANT": "x", "HOME": "/"}
    config = loaded("app:graph", environ=environ, host="127.0.0.2")
    assert config.sources == ("perdure.toml", "langgraph.json", "DATABASE_URL")
    assert config.ignored == ()
    assert "s3cret" not in repr(config)
    assert SECRET not in repr(config)
    assert config.database_url == URL


def test_a_file_that_is_named_is_the_only_one_and_the_project_is_its_folder() -> None:
    langgraph(http={"disable_store": True})
    config = usable(
        file=langgraph("there", graphs={"a": "./src/a.py:graph"}, auth={"path": "./auth.py:auth"})
    )
    assert not config.http.disable_store
    assert config.root == Path("there").absolute()
    assert config.auth.handlers == "./auth.py:auth"
    assert config.sources == ("there/langgraph.json", "PERDURE_DB")


def test_paths_start_where_they_were_written() -> None:
    file = own('[graphs]\na = "./a.py:graph"\n', "there")
    assert loaded(file=file, db="memory://").graphs["a"].place == "./a.py:graph"
    config = usable({"PERDURE_HTTP_APP": "web/app.py:app", "PERDURE_AUTH_PATH": "auth:auth"}, file=file)
    assert config.http.app == f"{Path.cwd()}/web/app.py:app"
    assert config.auth.handlers == "auth:auth"
    assert (
        loaded("./a.py:graph", file=file, db="memory://").graphs["agent"].place == f"{Path.cwd()}/a.py:graph"
    )


def test_without_a_database_it_stops_unless_in_development() -> None:
    with pytest.raises(
        BadSetting, match=r"which database\? Pass --db .* PERDURE_DB or DATABASE_URL, or write"
    ):
        loaded("app:graph")
    assert loaded("app:graph", development=True).database_url == DEVELOPMENT_URL
    assert loaded("app:graph", environ={"LANGGRAPH_DEV": "1"}).database_url == DEVELOPMENT_URL
    assert (
        loaded("app:graph", environ={"LANGGRAPH_DEV": "1", "PERDURE_DB": "memory://"}).database_url
        == "memory://"
    )
    with pytest.raises(BadSetting, match="which database"):
        loaded("app:graph", environ={"LANGGRAPH_DEV": "1"}, development=False)


def test_development_s_database_is_kept_in_a_folder_that_git_leaves_alone() -> None:
    make_folder_of(usable().database_url)
    assert not Path(".perdure").exists()
    for _ in range(2):
        make_folder_of(loaded("app:graph", development=True).database_url)
    assert Path(".perdure/.gitignore").read_text() == "*\n"


def test_a_folder_of_the_development_database_that_cannot_be_written_is_told() -> None:
    Path(".perdure").touch()
    with pytest.raises(BadSetting, match=r"/\.perdure of the development database cannot be written: .*--db"):
        make_folder_of(DEVELOPMENT_URL)


def test_without_a_graph_it_stops() -> None:
    with pytest.raises(BadSetting, match=r"which graph\? .*perdure serve \./agent\.py:graph"):
        loaded(db="memory://")
    with pytest.raises(GraphLoadError, match="two graphs are called 'agent'"):
        loaded("a:graph", "b:graph", db="memory://")


@pytest.mark.parametrize(
    ("origin", "development", "is_let"),
    [
        ("http://localhost:3000", True, True),
        ("https://127.0.0.1", True, True),
        ("http://localhost.evil.example", True, False),
        ("http://localhost:3000", False, False),
    ],
)
def test_only_in_development_pages_of_this_machine_are_let_in(
    origin: str, development: bool, is_let: bool
) -> None:
    pattern = usable(development=development).http.cors.allow_origin_regex
    assert bool(pattern and re.fullmatch(pattern, origin)) is is_let


def test_origins_are_a_list_and_what_the_sdk_reads_is_always_exposed() -> None:
    environ = {"PERDURE_HTTP_CORS_ALLOW_ORIGINS": "https://a.example, https://b.example:8443"}
    environ["PERDURE_HTTP_CORS_EXPOSE_HEADERS"] = "X-Mine,Location"
    cors = usable(environ).http.cors
    assert cors.allow_origins == ("https://a.example", "https://b.example:8443")
    assert cors.expose_headers == (*EXPOSED, "X-Mine")


# LangGraph's file


def test_a_langgraph_json_is_read_for_what_it_means_here() -> None:
    langgraph(
        dependencies=["."],
        python_version="3.11",
        dockerfile_lines=["RUN true"],
        graphs={"a": "./src/a.py:graph", "b": {"path": "pack.b:make", "description": "Does b"}},
        env={"API_KEY": "k", "HOME": "other"},
        auth={"path": "src/auth.py:auth", "disable_studio_auth": True},
        http={
            "app": "./web.py:app",
            "cors": {"allow_origins": ["*"]},
            "disable_mcp": True,
            "disable_meta": True,
        },
        store={
            "ttl": {"default_ttl": 60, "refresh_on_read": False, "omit_expired": True},
        },
        checkpointer={"ttl": {"strategy": "keep_latest", "default_ttl": 10, "sweep_interval_minutes": 2}},
        webhooks=None,
        limits={"body_bytes": 1},
        novelty=1,
    )
    config = loaded(environ={"DATABASE_URL": URL, "HOME": "/"})
    assert config.graphs == {"a": GraphPlace("./src/a.py:graph"), "b": GraphPlace("pack.b:make", "Does b")}
    assert config.env == {"API_KEY": "k"}
    assert config.auth.handlers == "src/auth.py:auth"
    assert (config.http.app, config.http.disable_meta) == ("./web.py:app", True)
    assert config.http.cors.allow_origins == ("*",)
    assert config.store == {"default_ttl": 60.0, "refresh_on_read": False}
    assert config.checkpointer == ThreadTtl(10.0, "keep_latest", 2.0, 1000)
    assert config.limits == RequestLimits()
    assert config.ignored == (
        "limits.body_bytes in langgraph.json",
        "novelty in langgraph.json",
    )


def test_a_misspelt_key_is_ignored_with_a_hint() -> None:
    langgraph(dependancies=["."], http={"ap": "web:app"})
    assert usable().ignored == (
        "dependancies in langgraph.json; did you mean dependencies?",
        "http.ap in langgraph.json; did you mean http.app?",
    )


def test_encryption_by_code_of_its_own_is_not_passed_over() -> None:
    langgraph(encryption={"path": "./enc.py:encryption"})
    assert "would store everything unencrypted; pass --keys" in refused()
    Path("key").write_bytes(bytes(32))
    assert usable(keys="key").ignored == ("encryption in langgraph.json",)
    assert usable({"PERDURE_KEYS": "key"}).keys is not None


# Variables of a .env file


def test_the_env_file_gives_what_is_not_set_and_counts_as_environment() -> None:
    written(
        ".env", "# local\nDATABASE_URL=sqlite:///env.db\nexport A='a b'\nB=${A}!\nSET=file\nEMPTY\n", "there"
    )
    file = own('env = ".env"\ndatabase_url = "memory://"\n', "there")
    config = loaded("app:graph", file=file, environ={"SET": "outside"})
    assert config.env == {"DATABASE_URL": "sqlite:///env.db", "A": "a b", "B": "a b!"}
    assert config.database_url == "sqlite:///env.db"
    assert config.sources == ("there/perdure.toml", "DATABASE_URL")
    assert "SET" not in config.env


def test_an_env_file_that_is_not_there_is_told() -> None:
    langgraph(env=".env")
    config = usable()
    assert config.env == {}
    assert config.ignored == (f"env in langgraph.json: there is no file {Path.cwd() / '.env'}",)


def test_a_line_of_an_env_file_that_is_no_variable_is_named_without_its_text() -> None:
    written(".env", "A=1\n\n\ns3cret of mine\n")
    own('env = ".env"')
    assert refused() == (
        f"{Path.cwd() / '.env'}, line 4: it is not a variable; write NAME=value, a value with "
        "blanks in quotes"
    )


# What is refused


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[htpp]\nport = 1\n", "perdure.toml has htpp, which is not a setting; did you mean http"),
        ("[http]\nprot = 1\n", "perdure.toml has http.prot, which is not a setting; did you mean http.port?"),
        ("[http]\nallow_origins = []\n", "did you mean http.cors.allow_origins?"),
        ("[limits]\nzzzzzz = 1\n", "there is limits.body_bytes, limits.requests_per_minute, limits.streams"),
        ("port = 1\n", "perdure.toml has port, which is not a setting; did you mean http.port?"),
        (
            "zzzzzz = 1\n",
            "zzzzzz, which is not a setting; there is database_url, keys, graphs, assistants",
        ),
        (
            "[assistants.agent]\nrecursion_limit = 0\n",
            "agent: recursion_limit of a config is a whole number from 1 on",
        ),
        ("http = 3\n", "http in perdure.toml is 3; write it as a table, [http]"),
        (
            "[http]\nport = 'x'\n",
            "http.port in perdure.toml is 'x'; it has to be a whole number from 0 to 65535",
        ),
        (
            "[http]\nport = 65536\n",
            "http.port in perdure.toml is 65536; it has to be a whole number from 0 to",
        ),
        ("[http]\nport = true\n", "http.port in perdure.toml is true; it has to be a whole number"),
        (
            "[http]\ndisable_store = 1\n",
            "http.disable_store in perdure.toml is 1; it has to be true or false",
        ),
        ("[http]\nmount_prefix = '/a/'\n", "it has to be a path without a slash at its end, e.g. '/api'"),
        ("[http]\nmount_prefix = 'a'\n", "it has to be a path without a slash at its end, e.g. '/api'"),
        ("[http]\nhost = ''\n", "http.host in perdure.toml is ''; it has to be text"),
        (
            "[http]\napp = 'web'\n",
            "http.app in perdure.toml is 'web'; it has to be a place, e.g. './agent.py:graph'",
        ),
        (
            "[http.cors]\nallow_origins = ['https://a.example/']\n",
            "has to be a list of origins without a path",
        ),
        ("[http.cors]\nallow_origins = ['a.example']\n", "has to be a list of origins without a path"),
        ("[http.cors]\nallow_origin_regex = '('\n", "it is not a regular expression: "),
        (
            "[http.cors]\nallow_origins = ['*']\nallow_credentials = true\n",
            "could act for a signed-in user",
        ),
        (
            "[limits]\nbody_bytes = 0\n",
            "limits.body_bytes in perdure.toml is 0; it has to be a whole number of at least 1",
        ),
        ("[limits]\nstreams = 1.5\n", "limits.streams in perdure.toml is 1.5; it has to be a whole number"),
        ("[runtime]\nlease = 0\n", "runtime.lease in perdure.toml: lease is 0.0 s; it has to be more than 0"),
        ("[runtime]\nlease = nan\n", "runtime.lease in perdure.toml is nan; it has to be a number"),
        (
            "[runtime]\non_failure = 'x'\n",
            "runtime.on_failure in perdure.toml is 'x'; it has to be 'rollback' or",
        ),
        (
            "[store.ttl]\ndefault_ttl = 0\n",
            "store.ttl.default_ttl in perdure.toml is 0; it has to be a number greater",
        ),
        ("[checkpointer.ttl]\nstrategy = 'x'\n", "it has to be 'delete' or 'keep_latest'"),
        (
            "[checkpointer.ttl]\nstrategy = 'delete'\n",
            "the age at which it applies is not; set checkpointer.ttl.default_ttl, in min",
        ),
        ("env = 3\n", "env in perdure.toml cannot be used; it has to be the path of a .env file, or a table"),
        ("[env]\nDEBUG = true\n", "env in perdure.toml cannot be used; it has to be the path of a .env file"),
        ("graphs = {}\n", "graphs in perdure.toml is an empty table; it has to be a table of names"),
        (
            "[graphs]\na = 'agent'\n",
            "graphs in perdure.toml: a is 'agent'; it has to be a place, e.g. './agent.py:graph'",
        ),
        ("[graphs]\na = { path = 'a:b', about = 'x' }\n", "a has 'about'; a graph has path and description"),
        ("[graphs]\na = { path = 'a:b', description = 1 }\n", "the description of a has to be text"),
        ("[http\n", "perdure.toml cannot be read: Expected ']' at the end of a table declaration (at line 1"),
    ],
)
def test_a_setting_that_cannot_work_is_named_with_the_mend(text: str, said: str) -> None:
    own(text)
    environ = {} if "graphs" in text else {"PERDURE_GRAPHS": "app:graph"}
    with pytest.raises(BadSetting) as caught:
        load(file=None, db="memory://", environ=environ)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "PERDURE_HTTP_PORT",
            "tcp://10.0.0.1:80",
            "is 'tcp://10.0.0.1:80'; it has to be a whole number from 0",
        ),
        ("PERDURE_LIMITS_STREAMS", "many", "is 'many'; it has to be a whole number of at least 1"),
        ("PERDURE_RUNTIME_LEASE", "long", "is 'long'; it has to be a number"),
        ("PERDURE_RUNTIME_LEASE", "-1", ": lease is -1.0 s; it has to be more than 0"),
        ("PERDURE_DEVELOPMENT", "maybe", "is 'maybe'; it has to be true or false"),
        ("PERDURE_HTTP_DISABLE_RUNS", "2", "is '2'; it has to be true or false"),
    ],
)
def test_a_variable_that_cannot_be_read_is_called_by_its_name(name: str, text: str, said: str) -> None:
    message = refused({name: text})
    assert message.startswith(name)
    assert said in message


def test_a_flag_that_cannot_work_is_called_by_its_name() -> None:
    assert refused(port=70000) == "--port is 70000; it has to be a whole number from 0 to 65535"


def test_a_variable_that_is_no_setting_is_told() -> None:
    config = usable({"PERDURE_LIMITS_BODY_BYTE": "1", "PERDURE_TENANT": "k", "OTHER": "x"})
    assert config.ignored == (
        "PERDURE_LIMITS_BODY_BYTE in the environment; did you mean PERDURE_LIMITS_BODY_BYTES?",
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("langgraph.json", '{"graphs": {"agent": "./agent.py:graph"}}'),
        ("perdure.toml", '[graphs]\nagent = "./agent.py:graph"\n'),
    ],
)
def test_a_file_may_begin_with_a_byte_order_mark(name: str, text: str) -> None:
    written(name, f"\ufeff{text}")
    assert list(loaded(db="memory://").graphs) == ["agent"]


def test_a_file_that_cannot_be_read_is_told_with_the_line() -> None:
    written("langgraph.json", '{\n  "graphs": {,}\n}')
    assert refused().startswith("langgraph.json, line 2: ")
    written("langgraph.json", "[]")
    assert refused().startswith("langgraph.json holds no object")
    Path("langgraph.json").write_bytes(b'{\n"a": "\xff"}')
    assert refused() == "langgraph.json, line 2: it is not UTF-8 text; save it as UTF-8"
    assert (
        refused(file=Path("none.toml"))
        == "none.toml cannot be read: No such file or directory; check the path"
    )


# Tokens


def test_tokens_are_checked_with_settings_that_the_gate_takes() -> None:
    own(f"[auth]\ntenant_claims = ['org']\n[auth.jwt]\n{TOKENS}leeway = 5\n")
    auth = usable().auth
    assert auth.tenant_claims == ("org",)
    assert auth.jwt is not None
    settings = JwtSettings(**auth.jwt)
    assert (settings.secret, settings.leeway, settings.algorithms) == (SECRET, 5.0, ("HS256",))
    assert (settings.issuer, settings.tenant_claims) == (("https://id.example",), ("org",))


def test_with_tokens_and_nothing_else_said_every_user_is_a_tenant() -> None:
    own(f"[auth.jwt]\n{TOKENS}")
    assert usable().auth.tenant_claims == ("sub",)
    Path("perdure.toml").unlink()
    assert usable({"PERDURE_AUTH_PATH": "auth:auth"}).auth.tenant_claims == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("leeway = 5", "auth.jwt: set exactly one of secret"),
        (
            'secret = "s3cret"',
            "auth.jwt.secret in perdure.toml: secret has 6 bytes; these algorithms need 32",
        ),
        ('secret = ""', "auth.jwt.secret in perdure.toml cannot be used; it has to be text"),
        ("secret = 5318008", "auth.jwt.secret in perdure.toml cannot be used; it has to be text"),
        (
            f'secret = "{SECRET}"\nalgorithms = ["none"]',
            "auth.jwt.algorithms in perdure.toml: algorithms has 'none'",
        ),
        (f'secret = "{SECRET}"\nalgorithms = ["RS256"]', "'RS256', which does not go with a secret"),
        (
            f'secret = "{SECRET}"\njwks_url = "https://a.example"',
            "set exactly one of secret, public_key and jwks_url",
        ),
        (
            'jwks_url = "http://a.example/keys"',
            "auth.jwt.jwks_url in perdure.toml is 'http://a.example/keys'; it has",
        ),
        (
            'public_key = "none.pem"',
            "neither a key in PEM form nor the path of a file with one; check the path",
        ),
        (
            'jwks_url = "https://a.example"\nleeway = 301',
            "auth.jwt.leeway in perdure.toml: leeway is 301.0 s",
        ),
    ],
)
def test_tokens_that_would_not_be_safe_are_refused(text: str, said: str) -> None:
    own(f'[auth.jwt]\nissuer = "https://id.example"\naudience = "threads"\n{text}\n')
    message = refused()
    assert said in message
    assert SECRET not in message
    assert "s3cret" not in message
    assert "5318008" not in message


def test_tokens_of_anybody_are_refused() -> None:
    assert refused({"PERDURE_AUTH_JWT_SECRET": SECRET}).startswith("auth.jwt.issuer: issuer is not set")


def test_a_public_key_is_text_or_a_file_beside_the_configuration() -> None:
    pem = "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"
    written("key.pem", pem, "there")
    file = own('[auth.jwt]\nissuer = "i"\naudience = "a"\npublic_key = "key.pem"\n', "there")
    jwt = usable(file=file).auth.jwt
    assert jwt is not None
    assert (jwt["public_key"], jwt["algorithms"]) == (pem, ("RS256",))
    jwt = usable({"PERDURE_AUTH_JWT_PUBLIC_KEY": pem.replace("\n", "\\n")}, file=file).auth.jwt
    assert jwt is not None
    assert jwt["public_key"] == pem


def test_a_secret_in_the_url_is_in_no_message() -> None:
    for wrong in ("[http]\nport = 'x'\n", "[checkpointer.ttl]\nstrategy = 'delete'\n"):
        own(f'database_url = "{URL}"\n{wrong}')
        with pytest.raises(PerdureError) as caught:
            loaded("app:graph")
        assert "s3cret" not in str(caught.value)


# The documentation


def documented() -> dict[str, list[str]]:
    rows = [line.strip("|").split("|") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in row] for row in rows]
    return {row[0].strip("`"): row[1:] for row in cells if len(row) == 5}


def shown(setting: Setting) -> str:
    default = setting.default
    if setting.derived or default is None or default == ():
        return setting.derived or "none"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, tuple):
        return ", ".join(f"`{each}`" for each in default)
    return f"`{default:.15g}`" if isinstance(default, int | float) else f"`{default}`"


def test_the_documentation_lists_the_settings_that_exist() -> None:
    told = documented()
    assert list(told) == list(SETTINGS)
    for key, setting in SETTINGS.items():
        variables, flag, default, meaning = told[key]
        assert variables == (", ".join(f"`{name}`" for name in setting.variables) or "–"), key
        assert flag == (f"`{setting.flag}`" if setting.flag else "–"), key
        assert default == shown(setting), key
        assert meaning, key


def test_the_example_of_the_documentation_works() -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    own(example)
    config = loaded()
    assert config.graphs["support"] == GraphPlace("desk.agents:support", "Answers customers")
    assert (config.http.port, config.runtime, config.ignored[1:]) == (8000, {"concurrency": 64}, ())


def test_no_two_settings_share_a_variable() -> None:
    names = [name for setting in SETTINGS.values() for name in setting.variables]
    assert len(names) == len(set(names))


def test_the_chat_page_is_there_in_development_or_when_it_is_asked_for() -> None:
    assert [usable(development=is_development).http.page for is_development in (True, False)] == [True, False]
    assert [usable(development=True, page=page).http.page for page in (True, False)] == [True, False]
    assert usable({"PERDURE_HTTP_PAGE": "yes"}).http.page
