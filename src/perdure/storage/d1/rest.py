"""Runs a batch of statements through Cloudflare's REST API: one request, one transaction.

An answer is classified here: carried out, refused, or lost, when the outcome is unknown. Retries are decided
by the caller. The API token is kept in one header of the client only.
"""

from __future__ import annotations

import json
import re
import ssl
import time
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any, Protocol, cast

import httpx

from perdure.errors import BadUrl, Unavailable, Unserialisable
from perdure.storage.d1.columns import Rows, Statement

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 40.0
"""Seconds to wait for an answer to a migration; D1 itself ends a statement after 30 seconds."""


class Transport(Protocol):
    """Runs batches. Calls may come from many OS threads at once."""

    def batch(self, statements: Sequence[Statement]) -> list[Rows]:
        """Run the statements in order in one transaction and return each one's rows.

        Raises:
            Rejected: The database refused a statement, and carried out none.
            AnswerLost: The outcome is unknown, or the service asked for a later retry.
            PerdureError: A retry cannot succeed.
        """
        ...

    def close(self) -> None: ...


class Rejected(Exception):
    """The database refused a statement; nothing of the batch was carried out."""


class AnswerLost(Exception):
    """There was no answer, or it does not show the outcome. ``sent`` is True if the batch may have been
    carried out, ``after`` the seconds for which the service asked to wait, ``is_away`` True if there was no
    connection, or nothing was heard on it."""

    def __init__(self, reason: str, *, sent: bool = True, after: float = 0.0, is_away: bool = False) -> None:
        super().__init__(reason)
        self.sent = sent
        self.after = after
        self.is_away = is_away


PASSING = re.compile(
    r"overloaded|connection lost|internal error|storage operation exceeded|to be reset|code was updated"
    r"|cannot resolve d1 db|starting up|timed? ?out|too many requests|rate limit",
    re.IGNORECASE,
)
"""Messages of D1 about itself rather than about a statement."""

_UNAUTHORISED = {401, 403}
_NOT_FOUND = 404
_TOO_LARGE = 413
_TOO_MANY_REQUESTS = 429


class RestTransport:
    """A database of an account, behind an endpoint. ``name`` is used in messages."""

    def __init__(
        self,
        endpoint: str,
        account: str,
        database: str,
        token: str,
        *,
        name: str,
        env: str,
        connecting_s: float = CONNECT_SECONDS,
        answering_s: float = ANSWER_SECONDS,
    ) -> None:
        self._answering_s = answering_s
        self._name = name
        self._env = env
        self._url = f"{endpoint}/accounts/{account}/d1/database/{database}/raw"
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
            timeout=httpx.Timeout(answering_s, connect=connecting_s),
            limits=httpx.Limits(max_connections=16, keepalive_expiry=55),
            verify=_load_certificates(),
            # The environment's proxy is for remote hosts, not for this machine.
            trust_env=not is_local(endpoint),
        )

    def batch(self, statements: Sequence[Statement]) -> list[Rows]:
        try:
            body = json.dumps(
                {"batch": [{"sql": text, "params": given} for text, given in statements]},
                ensure_ascii=False,
                separators=(",", ":"),
            ).encode()
        except UnicodeEncodeError as error:
            raise Unserialisable(
                "a name or id has text that is not well-formed Unicode (a lone surrogate); D1 cannot hold it"
            ) from error
        try:
            response = self._client.post(self._url, content=body)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError) as error:
            raise AnswerLost(f"no connection ({_describe_error(error)})", sent=False, is_away=True) from error
        except httpx.TimeoutException as error:
            raise AnswerLost(f"no answer within {self._answering_s:g} s", is_away=True) from error
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise AnswerLost(f"the connection broke ({_describe_error(error)})") from error
        return self._read(response, len(statements))

    def close(self) -> None:
        self._client.close()

    def _read(self, response: httpx.Response, count: int) -> list[Rows]:
        status = response.status_code
        answer = _parse_json(response)
        message = _join_messages(answer)
        if response.is_success and not message and answer.get("success") is True:
            return _read_rows(answer.get("result"), count)
        if status == _TOO_MANY_REQUESTS:
            raise AnswerLost("too many requests", sent=False, after=_read_retry_after(response))
        if status in _UNAUTHORISED:
            raise Unavailable(
                f"{self._name}: Cloudflare did not accept the API token in ${self._env} for this account; "
                "create one with the permission Account / D1 / Edit, set it there and check the account id"
            )
        if status == _NOT_FOUND:
            raise BadUrl(
                f"{self._name}: the account has no such D1 database; check both ids (`wrangler d1 list` "
                "shows them), or create one with `wrangler d1 create`"
            )
        if status == _TOO_LARGE:
            raise Rejected("too big: the request is larger than Cloudflare takes")
        if "SQLITE_" in message or (400 <= status < 500 and message and not PASSING.search(message)):
            raise Rejected(message)
        raise AnswerLost(
            f"status {status}: {message or 'an answer that is not from D1'}",
            after=_read_retry_after(response),
        )


@cache
def _load_certificates() -> ssl.SSLContext:
    """Return the trusted certificates; reading them takes longer than a request, so it is done once."""
    return httpx.create_ssl_context()


def is_local(endpoint: str) -> bool:
    """Return True if an endpoint is on this machine."""
    return httpx.URL(endpoint).host in ("127.0.0.1", "::1", "localhost")


def _describe_error(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:200]


def _parse_json(response: httpx.Response) -> Mapping[str, Any]:
    try:
        answer = response.json()
    except ValueError:
        return {}
    if isinstance(answer, dict):
        return cast("Mapping[str, Any]", answer)
    return {}


def _join_messages(answer: Mapping[str, Any]) -> str:
    errors = answer.get("errors")
    if not isinstance(errors, list):
        return ""
    messages = [str(e.get("message", "")) for e in errors if isinstance(e, dict)]
    return "; ".join(messages)[:300]


def _read_rows(result: Any, count: int) -> list[Rows]:
    out: list[Rows] = []
    parts: list[Any] = result if isinstance(result, list) else []
    for part in parts:
        rows: Any = None
        if isinstance(part, dict):
            rows = (part.get("results") or {}).get("rows")
        if not isinstance(rows, list) or part.get("success") is not True:
            raise AnswerLost("an incomplete answer")
        out.append(cast(Rows, rows))
    if len(out) != count:
        raise AnswerLost(f"an answer to {len(out)} statements of {count}")
    return out


def _read_retry_after(response: httpx.Response) -> float:
    """Return the seconds of a ``Retry-After`` header, which may be a date."""
    value = response.headers.get("Retry-After", "")
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return 0.0
