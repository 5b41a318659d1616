"""Reads a LangGraph server over its HTTP API, in pages, with LangGraph's own client.

No answer takes more memory than its bound: a page that is larger is asked for again in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from langgraph_sdk import get_sync_client
from langgraph_sdk.client import SyncLangGraphClient
from langgraph_sdk.errors import APIStatusError, UnprocessableEntityError

from perdure.errors import BadUrl, Conflict, NotAllowed, NotFound, TooLarge, Unavailable
from perdure.imports.langgraph_server.bounded_answers import BoundedTransport
from perdure.storage.url import redact

SCHEMES = ("http://", "https://")
"""Beginnings of a server's URL."""

PAGE = 100
"""Number of threads, assistants, crons or items of one request."""

STATES = 20
"""Number of states of one request: few, as each has the whole conversation up to it."""

_DENIED = (401, 403)
_ABSENT = (404, 405, 501)
_TEMPORARY = (408, 425, 429)
_REASON_MOST = 300
R = TypeVar("R")


class ServerApi:
    """A LangGraph server.

    Args:
        url: Its URL, with the prefix of its routes if it has one.
        headers: Headers of every request. The header ``x-api-key`` is LANGGRAPH_API_KEY of the environment,
            as with LangGraph's client.

    Raises:
        BadUrl: The URL is not one of HTTP, or a header is reserved for the client.
    """

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        if not url.startswith(SCHEMES):
            raise BadUrl(f"{redact(url)} is not the URL of a server; pass http://… or https://…")
        self.name = redact(url)
        self._is_selecting = True
        try:
            with get_sync_client(url=url.rstrip("/"), headers=headers) as default_client:
                http_client = default_client.http.client
                client = httpx.Client(
                    base_url=http_client.base_url,
                    # Only compressions whose output can be bounded are accepted.
                    headers={**http_client.headers, "accept-encoding": "gzip, deflate"},
                    timeout=httpx.Timeout((10, 120, 60, 10)),
                    transport=BoundedTransport(httpx.HTTPTransport(retries=5)),
                )
        except ValueError as error:
            raise BadUrl(f"{self.name}: {error}; the key of a server is LANGGRAPH_API_KEY") from error
        self.client = SyncLangGraphClient(client)

    def call(self, request: Callable[[], R]) -> R:
        """Return the result of a request.

        Raises:
            Conflict: The server has something else under this name.
            NotAllowed: The server refuses the caller, or the request.
            NotFound: There is no such thing, or no such route.
            TooLarge: The answer is larger than its bound.
            Unavailable: The server does not answer, or fails.
        """
        try:
            return request()
        except APIStatusError as error:
            raise self._translate(error) from error
        except (
            httpx.HTTPError,
            httpx.InvalidURL,
            ValueError,
            TypeError,
            LookupError,
            RecursionError,
        ) as error:
            raise Unavailable(f"{self.name} cannot be read: {type(error).__name__}") from error

    def _translate(self, error: APIStatusError) -> Exception:
        status = error.status_code
        if status in _DENIED:
            return NotAllowed(
                f"{self.name} refuses the request ({status}); set LANGGRAPH_API_KEY, or pass "
                "--header 'Authorization: Bearer …'"
            )
        reason = f"{self.name} answers {status}: {' '.join(str(error.message).split())[:_REASON_MOST]}"
        if status in _ABSENT:
            return NotFound(reason)
        if status >= 500 or status in _TEMPORARY:
            return Unavailable(reason)
        if status == 409:
            return Conflict(reason)
        return NotAllowed(reason)

    def threads(self) -> Iterator[Mapping[str, Any]]:
        """Yield every thread, the oldest first; without its values, if the server can leave them out."""
        return self._pages(self._search_threads)

    def _search_threads(self, limit: int, offset: int) -> Any:
        """Return a page of threads. Aegra refuses a choice of fields, but never shows values, so it is
        asked without one."""
        if self._is_selecting:
            try:
                return self.client.threads.search(
                    limit=limit,
                    offset=offset,
                    sort_by="created_at",
                    sort_order="asc",
                    select=["thread_id", "metadata", "created_at", "status"],
                )
            except UnprocessableEntityError:
                self._is_selecting = False
        return self.client.threads.search(limit=limit, offset=offset, sort_by="created_at", sort_order="asc")

    def count(self) -> int | None:
        """Return the number of threads, None if the server does not count them."""
        try:
            return self.call(lambda: int(self.client.threads.count()))
        except NotFound:
            return None

    def states(self, thread: str, namespace: str) -> Iterator[Mapping[str, Any]]:
        """Yield every state of a thread in a namespace, the newest first."""
        body: dict[str, Any] = {"limit": STATES}
        if namespace:
            body["checkpoint"] = {"checkpoint_ns": namespace}
        seen: set[str] = set()
        path = f"/threads/{quote(thread, safe='')}/history"
        while True:
            try:
                found = self._request_list(lambda: self.client.http.post(path, json=dict(body)))
            except TooLarge:
                if body["limit"] == 1:
                    raise
                body["limit"] //= 2
                continue
            fresh = [state for state in found if state.get("checkpoint") and _get_id(state) not in seen]
            yield from fresh
            seen.update(map(_get_id, fresh))
            if len(found) < body["limit"] or not fresh:
                return
            # Every server takes ``before`` in this form.
            last = {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": _get_id(fresh[-1])}
            body["before"] = {"configurable": last}

    def latest(self, thread: str) -> Mapping[str, Any]:
        """Return a thread's latest state."""
        found: Any = self.call(lambda: self.client.threads.get_state(thread))
        if not isinstance(found, dict):
            raise Unavailable(f"{self.name} sends something else than a state; check its URL")
        return found

    def graph_of(self, thread: str) -> str | None:
        """Return the name of the graph in a thread's metadata, None without one."""
        found = self.call(lambda: self.client.threads.get(thread))
        return (found.get("metadata") or {}).get("graph_id")

    def assistants(self) -> Iterator[Mapping[str, Any]]:
        """Yield every assistant at its current version."""
        return self._pages(lambda limit, offset: self.client.assistants.search(limit=limit, offset=offset))

    def versions(self, assistant_id: str) -> list[Mapping[str, Any]]:
        """Return every version of an assistant, the oldest first."""
        found = self._pages(
            lambda limit, offset: self.client.assistants.get_versions(
                assistant_id, limit=limit, offset=offset
            )
        )
        return sorted(found, key=lambda version: version["version"])

    def crons(self) -> Iterator[Mapping[str, Any]]:
        """Yield every cron; none if the server has no crons."""
        return self._pages(lambda limit, offset: self.client.crons.search(limit=limit, offset=offset))

    def items(self) -> Iterator[Mapping[str, Any]]:
        """Yield every item of the store; none if the server has no store."""

        def search(limit: int, offset: int) -> Any:
            return self.client.store.search_items((), limit=limit, offset=offset)["items"]

        return self._pages(search)

    def _pages(self, read: Callable[[int, int], Any]) -> Iterator[Mapping[str, Any]]:
        """Yield objects that are read in pages, by a limit and an offset."""
        limit, offset = PAGE, 0
        while True:
            try:
                page = self._request_list(lambda most=limit, at=offset: read(most, at))  # type: ignore[misc]
            except NotFound:
                return
            except TooLarge:
                if limit == 1:
                    raise
                limit //= 2
                continue
            yield from page
            offset += len(page)
            if len(page) < limit:
                return

    def _request_list(self, request: Callable[[], Any]) -> list[Mapping[str, Any]]:
        """Return the objects that a request yields; raise ``Unavailable`` for anything else."""
        found = self.call(request)
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            raise Unavailable(f"{self.name} sends something else than a list of objects; check its URL")
        return found

    def close(self) -> None:
        """Close the connections."""
        self.client.close()


def _get_id(state: Mapping[str, Any]) -> str:
    return str(state["checkpoint"]["checkpoint_id"])
