"""Passwords that a function returns, e.g. tokens of a cloud; they are renewed before they end.

A source calls its provider in an OS thread of its own, so that no event loop waits for it, and once for all
connections of a driver. A token is renewed in the background when four fifths of its life are over. If the
provider fails, the token at hand is used until it ends. A token that the server refuses is replaced at once,
as the password may have been changed meanwhile. Tokens are in no error, log or ``repr``.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from datetime import datetime
from math import inf, isfinite
from typing import Any, NamedTuple, Protocol, cast

from perdure.errors import BadUrl, PerdureError, Unavailable

_log = logging.getLogger("perdure.storage.credentials")

Answer = str | tuple[str, datetime | float]
"""A token, alone or with its end: a ``datetime`` with a time zone, or seconds since 1970."""


class CredentialProvider(Protocol):
    """A credential provider of redis-py."""

    def get_credentials(self) -> tuple[str] | tuple[str, str]: ...


Password = str | Callable[[], Answer | Awaitable[Answer]] | CredentialProvider
"""A password, or a function or provider that returns one."""

_RENEWED_AFTER_S = 600.0
"""Seconds after which a provider that names no end is called again."""
_RENEWED_AT_PART = 0.8
_REPLACED_AFTER_S = 0.2
"""Seconds between two calls for a token that the server refuses."""
_ANSWER_S = 30.0
_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0, 15.0, 30.0)
_SIZE_MOST = 64 << 10
_chance = random.Random()  # noqa: S311 - jitter between processes


class Endpoint(NamedTuple):
    """The server and the user that a token is for; ``shown`` names the database in errors."""

    shown: str
    host: str
    port: int
    user: str


@dataclass(frozen=True, slots=True, eq=False)
class Token:
    """A token, the times by ``time.monotonic`` at which it ends and from which it is renewed, and its end by
    the calendar in microseconds since 1970, if that is known."""

    value: str = field(repr=False)
    ends_at: float = inf
    renew_at: float = inf
    valid_until: int | None = None

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.ends_at


class PasswordState(NamedTuple):
    """The state of a password source.

    Attributes:
        provider: the provider's name.
        failures: calls of the provider that failed since the last token.
        valid_until: the end of the token at hand in microseconds since 1970, ``None`` without a token or a
            known end.
    """

    provider: str
    failures: int
    valid_until: int | None


class PasswordSource:
    """The password of one user at one server.

    Args:
        provider: Returns a token. It is called in a thread of its own; what it returns may be awaited, in an
            event loop of its own.
        name: The provider's name, for errors.
        endpoint: The server and the user that the token is for.
        remedy: The remedy if the provider fails.
    """

    def __init__(
        self,
        provider: Callable[[], Answer | Awaitable[Answer]],
        name: str,
        endpoint: Endpoint,
        remedy: str = "see that it can be called there and returns the password, or (password, end)",
    ) -> None:
        self._provider = provider
        self.name = name
        self.endpoint = endpoint
        self._remedy = remedy
        self._lock = threading.Lock()
        self._token: Token | None = None
        self._attempt: Future[None] | None = None
        self._error: Exception | None = None
        self._failures = 0
        self._not_before = self._refused_at = -inf

    def __repr__(self) -> str:
        return f"PasswordSource({self.name!r})"

    def current(self, within_s: float) -> Token:
        """Return the token to sign in with, blocking until there is one; not for an event loop.

        Raises:
            Unavailable: The provider returned no token within ``within_s`` seconds.
        """
        until = time.monotonic() + max(within_s, _PAUSES_S[0])
        while True:
            with self._lock:
                token, now = self._token, time.monotonic()
                if token is not None and not token.is_over:
                    if now >= token.renew_at:
                        self._join_or_start_attempt(now)
                    return token
                attempt, error, not_before = self._join_or_start_attempt(now), self._error, self._not_before
            if attempt is not None:
                # An attempt may take longer than ``within_s``, the time for which the server is waited for.
                wait_for([attempt], _ANSWER_S)
                if not attempt.done():
                    raise self._to_error(TimeoutError(), f"did not answer within {_ANSWER_S:.0f} seconds")
            elif error is not None and not_before >= until:
                raise self._to_error(error)
            else:
                time.sleep(max(0.0, not_before - now))

    def peek(self) -> Token | None:
        """Return the token to use from now on, ``None`` if none is at hand; a token that is due is renewed in
        the background. Never blocks."""
        with self._lock:
            token, now = self._token, time.monotonic()
            if token is None or now >= token.renew_at:
                self._join_or_start_attempt(now)
            if token is None or token.is_over:
                return None
            return token

    @property
    def state(self) -> PasswordState:
        with self._lock:
            token = self._token
            return PasswordState(self.name, self._failures, getattr(token, "valid_until", None))

    def refuse(self, token: Token) -> None:
        """Note that the server refused a token, so that the next connection gets another one."""
        with self._lock:
            if self._token is token:
                self._token = None
                self._not_before = max(self._not_before, self._refused_at + _REPLACED_AFTER_S)
                self._refused_at = time.monotonic()

    def refusal(self) -> str:
        """Return the text of the error that the server refused a token of this provider."""
        return (
            f"the server refused the password that {self.name} returned for user "
            f"{self.endpoint.user or '(none)'!r}; see that this user may sign in with it, and that the URL "
            "names the user, the host and the port that it is made for"
        )

    def _join_or_start_attempt(self, now: float) -> Future[None] | None:
        """Return the attempt that is under way, or begin one; during a pause after a failure return
        ``None``."""
        if self._attempt is not None:
            return self._attempt
        if now < self._not_before:
            return None
        attempt = self._attempt = Future[None]()
        threading.Thread(
            target=self._call_provider, args=(attempt,), name="perdure-password", daemon=True
        ).start()
        return attempt

    def _call_provider(self, attempt: Future[None]) -> None:
        token: Token | None = None
        failed: Exception | None = None
        try:
            token = _token_of(self._provider())
        except Exception as error:  # any error of the provider
            failed = error
        with self._lock:
            self._attempt, self._error, now = None, failed, time.monotonic()
            if failed is None:
                self._token, self._failures, self._not_before = token, 0, -inf
            else:
                pause = _PAUSES_S[min(self._failures, len(_PAUSES_S) - 1)]
                self._failures += 1
                self._not_before = now + pause * (0.5 + _chance.random())
                if self._token is not None:
                    _log.warning(
                        "%s: %s failed (%s); the password at hand is used until it ends",
                        self.endpoint.shown,
                        self.name,
                        type(failed).__name__,
                    )
        attempt.set_result(None)

    def _to_error(self, error: Exception, text: str = "") -> PerdureError:
        if isinstance(error, PerdureError):
            return error
        new = Unavailable(
            f"{self.endpoint.shown}: no password from {self.name}: it "
            f"{text or f'failed ({type(error).__name__})'}; {self._remedy}"
        )
        new.__cause__ = error
        return new


def source_of(password: Password | None, endpoint: Endpoint) -> PasswordSource | None:
    """Return the source of a password; ``None`` if there is no password.

    Raises:
        BadUrl: It is neither a text, nor a function, nor a provider of redis-py.
    """
    if password is None:
        return None
    provider: Any = getattr(password, "get_credentials", password)
    if isinstance(password, str):
        return PasswordSource(lambda: password, "the password", endpoint)
    if not callable(provider):
        raise BadUrl(
            f"{endpoint.shown}: password= is {type(password).__name__}; pass a text, or a function without "
            "arguments that returns one"
        )
    named_object: Any = password
    if not hasattr(password, "__qualname__"):
        named_object = type(password)
    return PasswordSource(
        cast("Any", provider), f"{named_object.__module__}.{named_object.__qualname__}", endpoint
    )


def _token_of(answer: Any) -> Token:
    if inspect.isawaitable(answer):
        answer = asyncio.run(_await_answer(answer))
    value: Any = answer
    end: Any = None
    if isinstance(answer, tuple) and len(answer) == 2:
        value, end = answer
        if isinstance(end, str):
            # A provider of redis-py returns the user's name and the password.
            value, end = end, None
    elif isinstance(answer, tuple) and len(answer) == 1:
        (value,) = answer
    elif hasattr(value, "token"):
        value, end = value.token, getattr(value, "expires_on", None)
    if not isinstance(value, str) or not value or "\0" in value or len(value) > _SIZE_MOST:
        raise TypeError("not a password: a text that is not empty is needed")
    now = time.monotonic()
    if end is None:
        return Token(value, renew_at=now + _RENEWED_AFTER_S)
    if isinstance(end, datetime):
        if end.tzinfo is None:
            raise TypeError("the end of a password needs a time zone")
        end_s = end.timestamp()
    else:
        end_s = float(cast(float, end))
    seconds = end_s - time.time()
    if not isfinite(seconds) or seconds <= 0:
        raise ValueError("the password has ended already")
    return Token(value, now + seconds, now + seconds * _RENEWED_AT_PART, round(end_s * 1_000_000))


async def _await_answer(answer: Awaitable[Any]) -> Any:
    return await answer
