"""Runs a batch of statements through a D1 binding: the object that a Cloudflare Worker has for its database.

A binding answers with promises. Everything here runs in the one thread of a Worker, so a promise is waited
for where it is needed: by Pyodide's ``run_sync``, or by the function that the caller gives.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, TypeVar, cast

from perdure.errors import BadUrl
from perdure.model.program import Effect
from perdure.storage.batching import PendingRequest
from perdure.storage.d1.columns import Rows, Statement
from perdure.storage.d1.rest import PASSING, AnswerLost, Rejected
from perdure.storage.outage import PATIENCE_S

R = TypeVar("R")
Wait = Callable[[Any], Any]
"""Returns the value of a promise of the binding."""

SCHEME = "d1+binding"


class Binding(Protocol):
    """A D1 database as Workers see it: ``prepare(sql).bind(*values)`` makes a statement, and ``batch`` runs
    statements in one transaction."""

    def prepare(self, sql: str, /) -> Any: ...

    def batch(self, statements: Any, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class _Bound:
    binding: Binding
    wait: Wait
    pack: Callable[[Sequence[Any]], Any]
    null: Any = None
    """JavaScript's null, which newer releases of Pyodide tell apart from None, their undefined."""


_bound: dict[str, _Bound] = {}
_numbers = itertools.count(1)


@contextmanager
def open_binding(binding: Binding, wait: Wait | None = None) -> Iterator[str]:
    """Yield the URL of a binding for ``perdure.connect``, valid during the block and in this process alone.

    Args:
        binding: The binding, such as ``env.DB``.
        wait: Returns the value of a promise of the binding; by default Pyodide's ``run_sync``.

    Raises:
        BadUrl: This is not a Python Worker, and no ``wait`` was given.
    """
    pack: Callable[[Sequence[Any]], Any] = list
    wait_for, null = wait, None
    if wait_for is None:
        try:
            ffi = import_module("pyodide.ffi")
        except ModuleNotFoundError as error:
            raise BadUrl(
                "a D1 binding is there in a Python Worker only; elsewhere use d1://ACCOUNT_ID/DATABASE_ID, "
                "or pass wait=…"
            ) from error
        wait_for, pack = cast(Wait, ffi.run_sync), ffi.to_js
        null = getattr(ffi, "jsnull", None)
    name = f"{next(_numbers)}"
    _bound[name] = _Bound(binding, wait_for, pack, null)
    try:
        yield f"{SCHEME}://{name}"
    finally:
        del _bound[name]


class BindingTransport:
    """Transport over a binding."""

    def __init__(self, bound_to: _Bound) -> None:
        self._target = bound_to

    def batch(self, statements: Sequence[Statement]) -> list[Rows]:
        """Run the statements as ``Transport.batch`` does."""
        target = self._target
        try:
            prepared = [
                target.binding.prepare(sql).bind(
                    *(target.null if value is None else value for value in given)
                )
                for sql, given in statements
            ]
            answers = _to_python(target.wait(target.binding.batch(target.pack(prepared))))
        except Exception as error:
            message = str(error).removeprefix("Error: ").removeprefix("D1_ERROR: ")[:300]
            if "D1_ERROR" in str(error) and ("SQLITE_" in message or not PASSING.search(message)):
                raise Rejected(message) from error
            raise AnswerLost(message or type(error).__name__) from error
        if not isinstance(answers, list) or len(answers) != len(statements):
            raise AnswerLost("an answer to another number of statements")
        return [_read_rows(answer, target.null) for answer in answers]

    def close(self) -> None:
        """Leave the binding to the Worker."""


@dataclass(frozen=True, slots=True)
class BindingUrl:
    """The URL of a binding that ``open_binding`` has yielded."""

    name: str
    to: _Bound
    patience: float = PATIENCE_S

    @classmethod
    def of(cls, url: str) -> BindingUrl:
        """Read a URL; raise ``BadUrl`` if nothing is bound under it."""
        found = _bound.get(url.removeprefix(f"{SCHEME}://"))
        if found is None:
            raise BadUrl(
                f"{url}: no D1 binding is open under this URL; take the one that open_binding(env.DB) yields"
            )
        return cls(url, found)

    def connect(self) -> BindingTransport:
        """Return a transport over the binding."""
        return BindingTransport(self.to)

    @contextmanager
    def session(self) -> Iterator[BindingTransport]:
        """Yield a transport."""
        yield self.connect()


class InlineBatcher:
    """Executes each request where it is made, without threads."""

    def __init__(self, execute: Callable[[Sequence[PendingRequest]], None]) -> None:
        self._execute = execute

    def perform(self, effect: Effect[R]) -> R:
        """Return the answer of a request, or raise its error."""
        request = PendingRequest(effect)
        self._execute([request])
        if request.error is not None:
            raise request.error
        return cast(R, request.answer)

    async def aperform(self, effect: Effect[R]) -> R:
        """Return the same as ``perform``."""
        return self.perform(effect)

    def close(self) -> None:
        """Do nothing: there is nothing to end."""


def _to_python(answer: Any) -> Any:
    """Return a value of JavaScript as a value of Python."""
    if hasattr(answer, "to_py"):
        return answer.to_py()
    return answer


def _read_rows(answer: Any, null: Any) -> list[list[Any]]:
    found: Any = None
    if isinstance(answer, dict) and answer.get("success") is True:
        found = answer.get("results")
    if not isinstance(found, list):
        raise AnswerLost("an incomplete answer")
    return [[None if value is null else value for value in row.values()] for row in found]
