"""TLS to PostgreSQL: a right certificate is used, a wrong one is refused with what is wrong with it.

The server of the tests is built without TLS, so a pooler stands before it that takes nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from perdure.errors import Unavailable
from perdure.model.ops import Commit, Committed, Put
from perdure.model.records import GC, Partition
from perdure.storage.url import open_driver
from tests.servers import pgbouncer, postgres
from tests.servers.certificates import Authority, Issued


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("tests")


@pytest.fixture
def roots(authority: Authority, tmp_path: Path) -> dict[str, Path]:
    """Files of authorities: the one that signed, another, and one that is not there."""
    for name, content in (("right", authority.root), ("wrong", Authority("others").root)):
        (tmp_path / name).write_bytes(content)
    return {"right": tmp_path / "right", "wrong": tmp_path / "wrong", "missing": tmp_path / "missing"}


@contextmanager
def serving(certificate: Issued, **parameters: object) -> Iterator[str]:
    """The URL of a server with a certificate."""
    server = postgres.shared()
    with (
        pgbouncer.pooled(server, certificate) as bouncer,
        postgres.empty(server, notify="off", patience=1, **parameters) as url,
    ):
        yield url.replace(f":{server.port}/", f":{bouncer.port}/")


@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
def test_a_right_certificate_is_used(authority: Authority, roots: dict[str, Path], mode: str) -> None:
    with (
        serving(authority.issue(), sslmode=mode, sslrootcert=roots["right"]) as url,
        closing(open_driver(url, migrate=True)) as driver,
    ):
        assert driver.perform(Commit(Partition("", mode), (Put(GC, (), version=1),))) == Committed()


def test_a_client_that_does_not_encrypt_is_refused_by_such_a_server(authority: Authority) -> None:
    """Otherwise the tests beside this one would show nothing."""
    with serving(authority.issue(), sslmode="disable") as url, pytest.raises(Unavailable):
        open_driver(url, migrate=True).close()


@pytest.mark.parametrize(
    ("root", "advice"),
    [
        ("wrong", r"was not accepted \(.*verify failed.*sslrootcert"),
        ("missing", "does not exist.*sslrootcert"),
    ],
)
def test_a_wrong_authority_is_refused(
    authority: Authority, roots: dict[str, Path], root: str, advice: str
) -> None:
    with (
        serving(authority.issue(), sslmode="verify-full", sslrootcert=roots[root]) as url,
        pytest.raises(Unavailable, match=advice),
    ):
        open_driver(url, migrate=True).close()


def test_a_certificate_of_another_host_is_refused(authority: Authority, roots: dict[str, Path]) -> None:
    with (
        serving(authority.issue("127.0.0.2"), sslmode="verify-full", sslrootcert=roots["right"]) as url,
        pytest.raises(Unavailable, match=r"was not accepted \(.*does not match host name.*in the URL"),
    ):
        open_driver(url, migrate=True).close()


def test_a_certificate_that_has_expired_is_refused(authority: Authority, roots: dict[str, Path]) -> None:
    with (
        serving(authority.issue(ended=True), sslmode="verify-full", sslrootcert=roots["right"]) as url,
        pytest.raises(Unavailable, match=r"was not accepted \(.*verify failed"),
    ):
        open_driver(url, migrate=True).close()


def test_a_server_without_tls_is_refused_where_tls_is_demanded() -> None:
    with pytest.raises(Unavailable, match="does not offer TLS"):
        open_driver(postgres.shared().url(sslmode="require", patience=1), migrate=True).close()
