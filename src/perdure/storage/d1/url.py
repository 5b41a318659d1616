"""Reads D1 URLs and takes the API token from the environment; a URL never holds it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qsl, urlsplit

from perdure.errors import BadUrl
from perdure.storage.d1.rest import ANSWER_SECONDS, CONNECT_SECONDS, RestTransport, is_local
from perdure.storage.outage import PATIENCE_S, Outage, patience_of
from perdure.storage.url import redact

ENDPOINT = "https://api.cloudflare.com/client/v4"
TOKEN_ENV = "CLOUDFLARE_API_TOKEN"  # noqa: S105 - the name of a variable

_ID = re.compile(r"[A-Za-z0-9_-]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FORM = "d1://ACCOUNT_ID/DATABASE_ID"


def _split(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class D1Url:
    """A database, the endpoint it is behind, the variable that holds the token, and the seconds to wait for a
    service that refuses connections or does not respond."""

    name: str
    account: str
    database: str
    endpoint: str
    token_env: str
    patience: float = PATIENCE_S

    @classmethod
    def of(cls, url: str) -> D1Url:
        """Read a URL; raise ``BadUrl`` if it is not a D1 URL."""
        name = redact(url)
        parts = urlsplit(url)
        if "@" in parts.netloc:
            raise BadUrl(
                f"{_FORM}: a D1 URL takes no user and no password; put the API token into ${TOKEN_ENV}, or "
                "name another variable with ?token_env="
            )
        account, database = parts.netloc, parts.path.removeprefix("/")
        if not _ID.fullmatch(account) or not _ID.fullmatch(database) or parts.fragment:
            raise BadUrl(f"{name}: a D1 URL is {_FORM}; `wrangler d1 list` shows the database's id")
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        if unknown := sorted(given.keys() - {"endpoint", "token_env", "patience"}):
            raise BadUrl(
                f"{name}: unknown parameter {unknown[0]!r}; a D1 URL takes endpoint, token_env and patience"
            )
        endpoint = given.get("endpoint", ENDPOINT).rstrip("/")
        endpoint_parts = _split(endpoint)
        if (
            endpoint_parts is None
            or endpoint_parts.scheme not in ("http", "https")
            or not endpoint_parts.hostname
            or "@" in endpoint_parts.netloc
        ):
            raise BadUrl(f"{name}: endpoint has to be an https:// address, e.g. {ENDPOINT}")
        if endpoint_parts.scheme == "http" and not is_local(endpoint):
            raise BadUrl(f"{name}: endpoint has to be https://, for the API token travels with every request")
        token_env = given.get("token_env", TOKEN_ENV)
        if not _NAME.fullmatch(token_env):
            raise BadUrl(f"{name}: token_env has to be the name of an environment variable, e.g. {TOKEN_ENV}")
        patience = patience_of(name, given.get("patience"))
        return cls(name, account, database, endpoint, token_env, patience)

    def connect(self, answering_s: float | None = None) -> RestTransport:
        """Return a transport to the database; nothing is sent yet. ``BadUrl`` is raised without a token. An
        answer is waited for ``answering_s`` seconds, by default for as long as the patience allows."""
        silence_s = Outage(self.patience).silence_s
        token = os.environ.get(self.token_env, "").strip()
        if not token:
            raise BadUrl(
                f"{self.name}: ${self.token_env} is not set; set it to an API token with the permission "
                "Account / D1 / Edit"
            )
        if not token.isascii() or not token.isprintable() or " " in token:
            raise BadUrl(f"{self.name}: ${self.token_env} does not hold an API token; copy it there again")
        return RestTransport(
            self.endpoint,
            self.account,
            self.database,
            token,
            name=self.name,
            env=self.token_env,
            connecting_s=min(CONNECT_SECONDS, silence_s),
            answering_s=answering_s or silence_s,
        )

    @contextmanager
    def session(self) -> Iterator[RestTransport]:
        """Yield a transport for a migration or for reading the schema, and close it afterwards."""
        transport = self.connect(ANSWER_SECONDS)
        try:
            yield transport
        finally:
            transport.close()
