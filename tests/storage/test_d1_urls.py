"""Opening D1: one clear sentence for everything that can be wrong, and the API token nowhere to be seen."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import perdure
from perdure.errors import BadUrl, MigrationRequired, PerdureError, Unavailable
from perdure.storage.d1 import driver as backend
from perdure.storage.d1.url import ENDPOINT, TOKEN_ENV, D1Url
from perdure.storage.url import open_driver
from perdure.testing.conformance import rows
from tests.servers import d1
from tests.servers.d1_proxy import Fault, Instead, Lose, Request, proxy


@pytest.fixture
def url() -> Iterator[str]:
    with d1.empty() as url:
        yield url


def sentence(url: str) -> str:
    """What opening says, in one line and without the token."""
    with pytest.raises(PerdureError) as raised:
        open_driver(url)
    said = str(raised.value)
    assert "\n" not in said
    assert d1.started().token not in "".join(traceback.format_exception(raised.value))
    return said


BAD = {
    "d1://": "a D1 URL is d1://ACCOUNT_ID/DATABASE_ID",
    "d1://account": "a D1 URL is",
    "d1://account/": "a D1 URL is",
    "d1://account/a/b": "a D1 URL is",
    "d1://account/../secrets": "a D1 URL is",
    "d1://account/database#x": "a D1 URL is",
    "d1://user:hunter2@account/database": "no user and no password",
    "d1://account/database?token=hunter2": "unknown parameter 'token'",
    "d1://account/database?endpoint=http://example.org/v4": "has to be https://",
    "d1://account/database?endpoint=ftp://example.org": "endpoint has to be an https:// address",
    "d1://account/database?endpoint=https://a:hunter2@example.org": "endpoint has to be an https:// address",
    "d1://account/database?endpoint=https://[::1": "endpoint has to be an https:// address",
    "d1://account/database?token_env=not-a-name": "name of an environment variable",
}


@pytest.mark.parametrize("url", BAD)
def test_a_url_that_cannot_be_used_says_why(url: str) -> None:
    with pytest.raises(BadUrl) as raised:
        backend.open_driver(url)
    assert BAD[url] in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_a_url_names_cloudflare_unless_it_says_otherwise() -> None:
    target = D1Url.of("d1://Account/data-base")
    assert (target.account, target.database) == ("Account", "data-base")
    assert (target.endpoint, target.token_env) == (ENDPOINT, TOKEN_ENV)
    assert target.endpoint.startswith("https://")


def test_the_token_has_to_be_there_and_to_be_one(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(d1.TOKEN_ENV)
    assert f"${d1.TOKEN_ENV} is not set" in sentence(url)
    for odd in ("hunter 2", "hunter\n2", "hunter\x002".replace("\0", "\x01"), "hünter2"):
        monkeypatch.setenv(d1.TOKEN_ENV, odd)
        said = sentence(url)
        assert "does not hold an API token" in said
        assert "2" not in said.partition("$")[2]


def test_a_token_with_a_line_end_works(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(d1.TOKEN_ENV, d1.started().token + "\n")
    backend.migrate(url)
    backend.open_driver(url).close()


def test_a_wrong_token_says_which_permission_is_missing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(d1.TOKEN_ENV, "wrong")
    said = sentence(url)
    assert f"did not accept the API token in ${d1.TOKEN_ENV}" in said
    assert "Account / D1 / Edit" in said
    assert "wrong" not in said


def test_a_wrong_account_or_database_is_told_apart(url: str) -> None:
    assert "check the account id" in sentence(url.replace(d1.ACCOUNT, "f" * 32))
    assert "has no such D1 database" in sentence(url.replace("-4000-", "-4001-"))


def test_an_unreachable_host_is_given_up_soon(url: str) -> None:
    del url
    target = f"d1://{d1.ACCOUNT}/database?token_env={d1.TOKEN_ENV}&endpoint=http://127.0.0.1:9/client/v4"
    said = sentence(target)
    assert "does not answer: no connection" in said
    assert "check the network" in said


def test_the_extra_that_is_missing_is_named(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['httpx'] = None\n"
        "from perdure.errors import MissingExtra\n"
        "from perdure.storage.url import open_driver\n"
        "try: open_driver('d1://account/database')\n"
        "except MissingExtra as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert 'pip install "perdure[d1]"' in done.stdout, done.stderr


def test_the_token_is_in_no_log_no_error_and_no_picture_of_the_driver(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    token = d1.started().token
    with caplog.at_level(logging.DEBUG), proxy(d1.started().origin) as between:
        through = d1.started().url(D1Url.of(url).database, between.endpoint)
        with closing(open_driver(through, migrate=True)) as driver:
            assert isinstance(driver, backend.D1Driver)
            rows.store_ops(driver, rows.tag("t"))
            driver._sleep = lambda _: None
            errors: list[Exception] = []
            faults: list[Fault] = [Lose(), *(Instead(status) for status in (500, 401, 403, 404, 413))]
            for fault in faults:

                def give(_: Request, fault: Fault = fault) -> Fault:
                    return fault

                between.fault = give
                with pytest.raises(PerdureError) as raised:
                    rows.commit(driver, rows.tag("t"))
                errors.append(raised.value)
            seen = [repr(driver), repr(driver._transport), repr(vars(driver._transport)), caplog.text]
            seen += ["".join(traceback.format_exception(error)) for error in errors]
            seen += [repr(pickle.dumps(str(error))) for error in errors]
    assert "127.0.0.1" in caplog.text, "the client did not log at all, so this proves nothing"
    assert not [text for text in seen if token in text]
    assert os.environ[d1.TOKEN_ENV] == token


# The schema


def test_an_unmigrated_database_is_refused_with_the_command(url: str) -> None:
    assert backend.schema_version(url) == 0
    said = sentence(url)
    assert "has no Perdure schema; run `perdure migrate --db d1://" in said
    assert len(backend.plan_migration(url)) > 15
    assert backend.schema_version(url) == 0
    assert backend.migrate(url) == 0
    assert backend.schema_version(url) == backend.SCHEMA_VERSION
    assert backend.plan_migration(url) == []
    assert backend.migrate(url) == backend.SCHEMA_VERSION


def test_a_newer_database_is_refused(url: str) -> None:
    backend.migrate(url)
    with D1Url.of(url).session() as transport:
        transport.batch([("UPDATE perdure_schema SET version = version + 1", ())])
    for call in (backend.open_driver, backend.migrate, backend.plan_migration):
        with pytest.raises(MigrationRequired, match="upgrade perdure"):
            call(url)


def test_of_many_that_migrate_at_once_every_one_finds_it_done(url: str) -> None:
    from perdure.testing.conformance.concurrency import at_once

    found = at_once(16, lambda _: backend.migrate(url))
    assert set(found) <= {0, backend.SCHEMA_VERSION}
    assert found.count(0) == 1
    with closing(open_driver(url)) as driver:
        rows.store_ops(driver, rows.tag("t"))


def test_a_migration_whose_answer_was_lost_is_found_done(url: str) -> None:
    with proxy(d1.started().origin) as between:
        through = d1.started().url(D1Url.of(url).database, between.endpoint)
        between.fault = lambda request: Lose() if "CREATE TABLE" in request[0][0] else None
        backend.migrate(through)
    assert backend.schema_version(url) == backend.SCHEMA_VERSION


def test_a_step_is_carried_out_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from perdure.storage.d1 import schema
    from perdure.storage.sql import migrations
    from perdure.testing.conformance.concurrency import at_once

    backend.migrate(url)
    now = backend.SCHEMA_VERSION
    steps = {**migrations.STEPS, now + 1: ("CREATE TABLE perdure_once (n INTEGER)",)}
    monkeypatch.setattr(migrations, "STEPS", steps)
    monkeypatch.setattr(migrations, "SCHEMA_VERSION", now + 1)
    monkeypatch.setattr(schema, "SCHEMA_VERSION", now + 1)
    # The version, the step, and the catalogue's name before and after it.
    assert len(backend.plan_migration(url)) == 4
    found = at_once(8, lambda _: backend.migrate(url))
    assert found.count(now) == 1
    assert backend.schema_version(url) == now + 1


def test_an_agent_works_on_it_through_its_url_alone(url: str) -> None:
    with pytest.raises(MigrationRequired), perdure.connect_sync(url):
        pass
    with perdure.connect_sync(url, migrate=True) as db:
        assert list(db.threads()) == []


def test_a_closed_driver_is_unavailable(url: str) -> None:
    driver = open_driver(url, migrate=True)
    driver.close()
    driver.close()
    with pytest.raises(Unavailable, match="is closed"):
        rows.commit(driver, rows.tag("t"))
