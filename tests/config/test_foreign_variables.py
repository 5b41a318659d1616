"""Variables as other projects have them: they work as they are written, or the error says what is missing.

Covers perdure.config.sources, perdure.storage.url.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from perdure.config import worker
from perdure.config.checkpoint_lifespan import is_development, url_of
from perdure.config.store_database import store_of_environment
from perdure.errors import BadSetting, BadUrl
from perdure.server.config import Config, load
from perdure.storage.url import backend_of, find_plain_url
from tests.backends import EMPTY

URL = "postgresql://app@db/app"


def loaded(**environ: str) -> Config:
    return load(file=None, graphs=["./agent.py:graph"], environ={"DATABASE_URL": URL, **environ})


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "text", ["studio", "1", "true", "langgraph dev", "Yes", "2", "enabled", "./graph.py"]
)
def test_langgraph_dev_is_on_if_it_is_set(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert loaded(LANGGRAPH_DEV=text).development
    assert is_development({"LANGGRAPH_DEV": text})
    flags = {"file": None, "graphs": ["./agent.py:graph"], "db": URL}
    assert worker.load(**flags, environ={"LANGGRAPH_DEV": text}).development  # type: ignore[arg-type]
    monkeypatch.setenv("LANGGRAPH_DEV", text)
    monkeypatch.setenv("DATABASE_URL", URL)
    assert url_of() == URL, "it does not choose another database than the one that is named"


@pytest.mark.parametrize("text", ["", "0", "false", "no", "Off"])
def test_langgraph_dev_is_off_if_it_says_so(text: str) -> None:
    assert not loaded(LANGGRAPH_DEV=text).development
    assert not is_development({"LANGGRAPH_DEV": text})


def test_our_own_variable_says_yes_or_no_and_wins() -> None:
    assert not loaded(LANGGRAPH_DEV="studio", PERDURE_DEVELOPMENT="false").development
    with pytest.raises(BadSetting, match="PERDURE_DEVELOPMENT is 'studio'; it has to be true or false"):
        loaded(PERDURE_DEVELOPMENT="studio")


STORES = {
    "LANGGRAPH_STORE_REDIS_URL": "redis://langgraph-redis:6379",
    "LANGGRAPH_STORE_POSTGRES_DSN": "postgresql://langgraph:langgraph@langgraph-postgres:5432/langgraph",
    "LANGGRAPH_STORE_TTL_MINUTES": "10080",
    "ENABLE_FACT_EXTRACTION": "false",
    "FACT_EXTRACTION_MODEL": "",
}


@pytest.mark.parametrize(
    ("environ", "store"),
    [
        ({"LANGGRAPH_STORE_TYPE": "redis", **STORES}, "redis://langgraph-redis:6379"),
        ({"LANGGRAPH_STORE_TYPE": "postgres", **STORES}, STORES["LANGGRAPH_STORE_POSTGRES_DSN"]),
        ({"LANGGRAPH_STORE_TYPE": "memory", "LANGGRAPH_DEV": "studio", **STORES}, "memory://"),
        ({"LANGGRAPH_STORE_TYPE": "redis", "REDIS_URL": "redis://other:6379"}, "redis://other:6379"),
        (
            {"LANGGRAPH_STORE_TYPE": "redis", "LANGGRAPH_STORE_REDIS_URL": "", "REDIS_URL": "redis://o:6379"},
            "redis://o:6379",
        ),
        (
            {"LANGGRAPH_STORE_TYPE": "postgres", "POSTGRES_DSN": "postgresql+psycopg://a:b@c/d"},
            "postgresql://a:b@c/d",
        ),
        ({"LANGGRAPH_STORE_TYPE": "postgres", "POSTGRES_DSN": "host=c dbname=d"}, "postgresql://c/d"),
        ({"REDIS_URL": "redis://other:6379", "POSTGRES_DSN": "postgresql://a/b"}, None),
    ],
)
def test_the_variables_of_a_store_work_as_they_are_written(
    environ: dict[str, str], store: str | None
) -> None:
    config = loaded(**environ)
    assert config.store_url == store
    if "LANGGRAPH_STORE_TTL_MINUTES" in environ:
        assert config.store == {"default_ttl": 10080.0}
        assert config.agents.memory is None


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        (
            {"LANGGRAPH_STORE_TYPE": "memory", **STORES},
            "LANGGRAPH_STORE_TYPE is memory, which is lost at a restart",
        ),
        (STORES, "LANGGRAPH_STORE_REDIS_URL is set, but the store's type is not"),
        ({"LANGGRAPH_STORE_TYPE": "redis"}, "set LANGGRAPH_STORE_REDIS_URL or REDIS_URL"),
        ({"LANGGRAPH_STORE_TYPE": "mongo"}, "it has to be 'memory' or 'redis' or 'postgres'"),
        ({"ENABLE_FACT_EXTRACTION": "true", "FACT_EXTRACTION_MODEL": ""}, "no model is named"),
    ],
)
def test_what_cannot_work_says_why(environ: dict[str, str], said: str) -> None:
    with pytest.raises(BadSetting, match=said):
        loaded(**environ)


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ("postgresql+asyncpg://u:p@h/d?ssl=1", "postgresql://u:p@h/d?ssl=1"),
        ("sqlite+aiosqlite:///x.db", "sqlite:///x.db"),
        ("redis+cluster://h:1", "redis+cluster://h:1"),
        ("d1+binding://DB", "d1+binding://DB"),
        ("host=h port=5433 user=u password='a b@/' dbname=d", "postgresql://u:a%20b%40%2F@h:5433/d"),
        ("dbname=d sslmode=require host=h", "postgresql://h/d?sslmode=require"),
        ("host=/var/run/postgresql dbname=d", "postgresql://%2Fvar%2Frun%2Fpostgresql/d"),
        ("threads.db", "threads.db"),
        ("mysql://u:p@h/d", "mysql://u:p@h/d"),
    ],
)
def test_forms_of_other_libraries_are_understood(given: str, plain: str) -> None:
    assert find_plain_url(given) == plain


def test_no_error_shows_the_password_of_a_dsn() -> None:
    with pytest.raises(BadUrl) as caught:
        backend_of("host=h user=u password=s3cret dbname=d")
    assert "s3cret" not in str(caught.value)
    with pytest.raises(BadUrl) as caught:
        find_plain_url("host=h password='s3cret dbname=d")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("form", ["sqlalchemy", "libpq"])
def test_a_store_is_opened_in_the_database_of_a_dsn(form: str) -> None:
    with EMPTY["postgresql"]() as url:
        parts = urlsplit(url)
        name = parts.path.removeprefix("/")
        words = {"host": parts.hostname, "port": parts.port, "user": parts.username, "dbname": name}
        if parts.password:
            words["password"] = unquote(parts.password)
        dsn = " ".join(f"{word}='{value}'" for word, value in words.items() if value)
        if form == "sqlalchemy":
            dsn = url.replace("postgresql://", "postgresql+psycopg://", 1)
        elif parts.query:
            dsn += " " + parts.query.replace("&", " ")
        environ = {"LANGGRAPH_STORE_TYPE": "postgres", "POSTGRES_DSN": dsn, "LANGGRAPH_DEV": "studio"}
        with store_of_environment(environ) as store:
            store.put(("a",), "k", {"v": 1})
            found = store.get(("a",), "k")
            assert found is not None
            assert found.value == {"v": 1}
