"""Tokens of clouds, made by the clouds' own libraries against a local service where they ask one."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from perdure.errors import BadUrl, MissingExtra, Unavailable
from perdure.storage.postgres.url import parse_url
from perdure.storage.redis.url import read
from perdure.storage.url import open_driver
from tests.servers import postgres

PG = "postgresql://app@db.example.com:5433/x?credentials="
REDIS = "rediss://app@cache.example.com:6379/0?credentials="


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-key")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    for name in ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)


def token(url: str) -> str:
    place = parse_url(url) if url.startswith("postgresql") else read(url)
    assert place.password is not None
    return place.password.current(20).value


def test_a_token_of_rds_is_the_one_that_botocore_makes(aws: None) -> None:
    import boto3

    # The default session keeps the credentials of whoever used it first.
    client: Any = boto3.Session().client("rds", region_name="eu-central-1")
    expected = made = ""
    for _ in range(5):  # both in the same second
        made, expected = token(f"{PG}aws-iam"), client.generate_db_auth_token("db.example.com", 5433, "app")
        if parse_qs(made)["X-Amz-Date"] == parse_qs(expected)["X-Amz-Date"]:
            break
    assert made.partition("?")[0] == expected.partition("?")[0] == "db.example.com:5433/"
    assert parse_qs(made.partition("?")[2]) == parse_qs(expected.partition("?")[2])


def test_a_token_of_elasticache_names_the_cache_and_the_user(aws: None) -> None:
    asked = parse_qs(token(f"{REDIS}aws-iam&cache=My-Group&region=us-east-1").partition("?")[2])
    assert asked["Action"] == ["connect"]
    assert asked["User"] == ["app"]
    assert "/us-east-1/elasticache/aws4_request" in asked["X-Amz-Credential"][0]
    assert asked["X-Amz-Expires"] == ["900"]
    assert token(f"{REDIS}aws-iam&cache=My-Group").startswith("my-group/?")
    serverless = parse_qs(token(f"{REDIS}aws-iam&cache=serverless:mine").partition("?")[2])
    assert serverless["ResourceType"] == ["ServerlessCache"]


def test_without_credentials_the_error_names_aws(aws: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    with pytest.raises(Unavailable, match=r"no password from aws-iam: .*see that the process has"):
        token(f"{PG}aws-iam")


@contextmanager
def service(answer: Callable[[str], dict[str, Any]]) -> Iterator[tuple[int, list[str]]]:
    """A service that answers GET and POST in JSON, and the paths that were asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = json.dumps(answer(self.path)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Metadata-Flavor", "Google")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Keep the test's output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port, asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_token_of_entra_is_asked_for_with_the_scope_of_the_database(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("azure.identity")

    def answer(path: str) -> dict[str, Any]:
        (resource,) = parse_qs(urlsplit(path).query)["resource"]
        return {
            "access_token": f"token for {resource}",
            "expires_on": str(int(time.time()) + 3600),
            "resource": resource,
            "token_type": "Bearer",
        }

    with service(answer) as (port, asked):
        # As on Azure's App Service: the identity that the platform manages.
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"http://127.0.0.1:{port}/msi/token")
        monkeypatch.setenv("IDENTITY_HEADER", "a header")
        assert token(f"{PG}azure") == "token for https://ossrdbms-aad.database.windows.net"
        assert token(f"{REDIS}azure") == "token for https://redis.azure.com"
        assert len(asked) == 2


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_token_of_google_is_asked_for_with_the_scope_of_the_database(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("google.auth")

    def answer(path: str) -> dict[str, Any]:
        parts = urlsplit(path)
        if parts.path.endswith("/token"):
            scopes = parse_qs(parts.query).get("scopes", [""])
            return {"access_token": f"token for {scopes[0]}", "expires_in": 3600, "token_type": "Bearer"}
        return {"email": "app@project", "scopes": [], "aliases": ["default"]}

    with service(answer) as (port, _):
        # As on Compute Engine: the metadata server.
        for name in ("GCE_METADATA_HOST", "GCE_METADATA_IP", "GCE_METADATA_ROOT"):
            monkeypatch.setenv(name, f"127.0.0.1:{port}")
        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
        monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "project")
        assert token(f"{PG}google") == "token for https://www.googleapis.com/auth/sqlservice.login"
        assert token(f"{REDIS}google") == "token for https://www.googleapis.com/auth/cloud-platform"


def test_a_function_that_the_url_names_is_the_provider(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "my_passwords.py").write_text(
        "def fetch() -> str:\n    return 'from the module'\nTEXT = 'x'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_passwords", raising=False)
    assert token(f"{PG}my_passwords:fetch") == "from the module"
    for named in ("my_passwords:absent", "absent_module:fetch"):
        with pytest.raises(BadUrl, match="cannot be imported"):
            parse_url(f"{PG}{named}")
    with pytest.raises(BadUrl, match="is not a function"):
        parse_url(f"{PG}my_passwords:TEXT")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (f"{PG}aws", "is not known; use aws-iam, azure, google, or module:function"),
        (f"{REDIS}aws-iam", "needs the name of the cache"),
        (f"{PG}azure&region=x", "region= is for AWS"),
        ("postgresql://db.example.com/x?credentials=azure", "needs the user's name"),
        ("postgresql://app@a,b/x?credentials=aws-iam", "needs one host"),
        ("postgresql://app:secret@a/x?credentials=azure", "the URL has a password"),
        ("redis://app@a/0?region=x", "region= is for AWS"),
    ],
)
def test_what_cannot_work_is_refused(aws: None, url: str, words: str) -> None:
    with pytest.raises(BadUrl, match=words.replace("?", r"\?")) as raised:
        open_driver(url)
    assert "secret" not in str(raised.value)


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, kind, extra in (
        ("azure.identity", "azure", "azure"),
        ("google.auth", "google", "google"),
        ("botocore.auth", "aws-iam", "dynamodb"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingExtra, match=rf"perdure\[{extra}\]"):
            parse_url(f"{PG}{kind}")


def test_a_command_signs_in_with_a_function_that_its_url_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = postgres.shared()
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS called")
        connection.execute("CREATE ROLE called LOGIN SUPERUSER PASSWORD 'from-a-file'")
    server.demand_password("called")
    (tmp_path / "passwords_of_file.py").write_text(
        "from pathlib import Path\n\n\n"
        f"def fetch() -> str:\n    return Path({str(tmp_path / 'token')!r}).read_text()\n"
    )
    (tmp_path / "token").write_text("from-a-file")
    monkeypatch.syspath_prepend(str(tmp_path))
    with postgres.empty(server) as url:
        called = url.replace("postgres@", "called@", 1) + "&credentials=passwords_of_file:fetch"
        with closing(open_driver(called, migrate=True)) as driver:
            assert driver.capabilities.has_listing
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("REASSIGN OWNED BY called TO postgres")
        connection.execute("DROP ROLE called")
