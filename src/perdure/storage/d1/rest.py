"""Cloudflare's REST API as a way to run a batch of statements: one request, one transaction.

It decides what an answer means: carried out, refused, or lost, which is when nobody can tell. Whether and how
often to ask again is its caller's affair. The API token stands in one header of the client and nowhere else.
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

from perdure.errors import BadUrl, PerdureError, Unavailable, Unserialisable
from perdure.storage.d1.batch import Rows, Statement

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 40.0
"""D1 ends a statement after 30 seconds by itself."""


class Transport(Protocol):
    """What runs batches. Calls may come from many threads at once."""

    def batch(self, statements: Sequence[Statement]) -> list[Rows]:
        """Run the statements in order in one transaction and return each one's rows.

        Raises ``Rejected`` when the database refused one of them, and then carried out none; ``AnswerLost``
        when the answer does not tell; and an error of Perdure's tree when asking again is no use.
        """
        ...

    def close(self) -> None: ...


class Rejected(Exception):
    """The database refused a statement; nothing of the batch was carried out."""


class AnswerLost(Exception):
    """No answer, or one that does not tell. ``sent`` says whether the batch may have been carried out,
    ``after`` how many seconds the service asked to be left alone."""

    def __init__(self, reason: str, *, sent: bool = True, after: float = 0.0) -> None:
        super().__init__(reason)
        self.sent = sent
        self.after = after


_PASSING = re.compile(
    r"overloaded|connection lost|internal error|storage operation exceeded|to be reset|code was updated"
    r"|cannot resolve d1 db|starting up|timed? ?out|too many requests|rate limit",
    re.IGNORECASE,
)
"""What D1 says about itself rather than about a statement."""

_UNAUTHORISED = {401, 403}
_NOT_FOUND = 404
_TOO_LARGE = 413
_TOO_MANY_REQUESTS = 429


class RestTransport:
    """A database of an account, behind an endpoint. ``name`` stands for it in messages."""

    def __init__(
        self, endpoint: str, account: str, database: str, token: str, *, name: str, env: str
    ) -> None:
        self._name = name
        self._env = env
        self._url = f"{endpoint}/accounts/{account}/d1/database/{database}/raw"
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
            timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=16, keepalive_expiry=55),
            verify=_certificates(),
            # A proxy of the environment is for the outside, not for this machine.
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
            raise AnswerLost(f"no connection ({_said(error)})", sent=False) from error
        except httpx.TimeoutException as error:
            raise AnswerLost(f"no answer within {ANSWER_SECONDS:.0f} s") from error
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise AnswerLost(f"the connection broke ({_said(error)})") from error
        return self._read(response, len(statements))

    def close(self) -> None:
        self._client.close()

    def _read(self, response: httpx.Response, count: int) -> list[Rows]:
        status = response.status_code
        answer = _json(response)
        said = _messages(answer)
        if response.is_success and not said and answer.get("success") is True:
            return _rows(answer.get("result"), count)
        if status == _TOO_MANY_REQUESTS:
            raise AnswerLost("too many requests", sent=False, after=_retry_after(response))
        if status in _UNAUTHORISED:
            raise self._unauthorised()
        if status == _NOT_FOUND:
            raise self._unknown()
        if status == _TOO_LARGE:
            raise Rejected("too big: the request is larger than Cloudflare takes")
        if "SQLITE_" in said or (400 <= status < 500 and said and not _PASSING.search(said)):
            raise Rejected(said)
        raise AnswerLost(
            f"status {status}: {said or 'an answer that is not from D1'}", after=_retry_after(response)
        )

    def _unauthorised(self) -> PerdureError:
        return Unavailable(
            f"{self._name}: Cloudflare did not accept the API token in ${self._env} for this account; create "
            "one with the permission Account / D1 / Edit, set it there and check the account id"
        )

    def _unknown(self) -> PerdureError:
        return BadUrl(
            f"{self._name}: the account has no such D1 database; check both ids (`wrangler d1 list` shows "
            "them), or create one with `wrangler d1 create`"
        )


@cache
def _certificates() -> ssl.SSLContext:
    """Reading the authorities takes longer than a request, so it is done once."""
    return httpx.create_ssl_context()


def is_local(endpoint: str) -> bool:
    """Whether an endpoint is on this machine."""
    return httpx.URL(endpoint).host in ("127.0.0.1", "::1", "localhost")


def _said(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:200]


def _json(response: httpx.Response) -> Mapping[str, Any]:
    try:
        answer = response.json()
    except ValueError:
        return {}
    return cast("Mapping[str, Any]", answer) if isinstance(answer, dict) else {}


def _messages(answer: Mapping[str, Any]) -> str:
    errors = answer.get("errors")
    if not isinstance(errors, list):
        return ""
    said = [str(e.get("message", "")) for e in errors if isinstance(e, dict)]
    return "; ".join(said)[:300]


def _rows(result: Any, count: int) -> list[Rows]:
    out: list[Rows] = []
    parts: list[Any] = result if isinstance(result, list) else []
    for part in parts:
        rows = (part.get("results") or {}).get("rows") if isinstance(part, dict) else None
        if not isinstance(rows, list) or part.get("success") is not True:
            raise AnswerLost("an answer of which a part is missing")
        out.append(cast(Rows, rows))
    if len(out) != count:
        raise AnswerLost(f"an answer to {len(out)} statements of {count}")
    return out


def _retry_after(response: httpx.Response) -> float:
    """The seconds of a ``Retry-After`` header, which may be a date."""
    value = response.headers.get("Retry-After", "")
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return 0.0
