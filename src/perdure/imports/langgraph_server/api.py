"""Reads a LangGraph server over its HTTP API, in pages, with LangGraph's own client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from langgraph_sdk import get_sync_client
from langgraph_sdk.errors import APIStatusError, NotFoundError

from perdure.errors import BadUrl, NotAllowed, Unavailable
from perdure.storage.url import redact

SCHEMES = ("http://", "https://")
"""Beginnings of a server's URL."""

PAGE = 100
"""Threads, assistants, crons or items of one request."""

STATES = 20
"""States of one request: each holds the whole conversation up to it."""

_DENIED = (401, 403)
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
        try:
            self.client = get_sync_client(url=url.rstrip("/"), headers=headers, timeout=(10, 120, 60, 10))
        except ValueError as error:
            raise BadUrl(f"{self.name}: {error}; the key of a server is LANGGRAPH_API_KEY") from error

    def call(self, request: Callable[[], R]) -> R:
        """Return the result of a request.

        Raises:
            NotAllowed: The server refuses the caller.
            NotFoundError: There is no such thing, or no such route.
            Unavailable: The server does not answer, or fails.
        """
        try:
            return request()
        except NotFoundError:
            raise
        except APIStatusError as error:
            if error.status_code in _DENIED:
                raise NotAllowed(
                    f"{self.name} refuses the request ({error.status_code}); set LANGGRAPH_API_KEY, or pass "
                    "--header 'Authorization: Bearer …'"
                ) from error
            raise Unavailable(f"{self.name} answers {error.status_code}: {error.message}") from error
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise Unavailable(f"{self.name} cannot be read: {type(error).__name__}") from error

    def threads(self) -> Iterator[Mapping[str, Any]]:
        """Yield every thread without its values, the oldest first."""
        return self._pages(
            lambda offset: self.client.threads.search(
                limit=PAGE,
                offset=offset,
                sort_by="created_at",
                sort_order="asc",
                select=["thread_id", "metadata", "created_at", "status"],
            )
        )

    def count(self) -> int | None:
        """Return the number of threads, None if the server does not count them."""
        try:
            return int(self.call(self.client.threads.count))
        except NotFoundError:
            return None

    def states(self, thread: str, namespace: str) -> Iterator[Mapping[str, Any]]:
        """Yield every state of a thread in a namespace, the newest first."""
        body: dict[str, Any] = {"limit": STATES}
        if namespace:
            body["checkpoint"] = {"checkpoint_ns": namespace}
        seen: set[str] = set()
        path = f"/threads/{quote(thread, safe='')}/history"
        while True:
            found = self.call(lambda: self.client.http.post(path, json=dict(body)))
            fresh = [state for state in found if state.get("checkpoint") and _id(state) not in seen]
            yield from fresh
            seen.update(map(_id, fresh))
            if len(found) < STATES or not fresh:
                return
            # The one form that every server takes.
            last = {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": _id(fresh[-1])}
            body["before"] = {"configurable": last}

    def latest(self, thread: str) -> Mapping[str, Any]:
        """Return a thread's latest state."""
        return self.call(lambda: self.client.threads.get_state(thread))

    def assistants(self) -> Iterator[Mapping[str, Any]]:
        """Yield every assistant at its current version."""
        return self._pages(lambda offset: self.client.assistants.search(limit=PAGE, offset=offset))

    def versions(self, assistant_id: str) -> list[Mapping[str, Any]]:
        """Return every version of an assistant, the oldest first."""
        found = self._pages(
            lambda offset: self.client.assistants.get_versions(assistant_id, limit=PAGE, offset=offset)
        )
        return sorted(found, key=lambda version: version["version"])

    def crons(self) -> Iterator[Mapping[str, Any]]:
        """Yield every cron; none if the server has no crons."""
        return self._pages(lambda offset: self.client.crons.search(limit=PAGE, offset=offset))

    def items(self) -> Iterator[Mapping[str, Any]]:
        """Yield every item of the store; none if the server has no store."""

        def search(offset: int) -> Any:
            return self.client.store.search_items((), limit=PAGE, offset=offset)["items"]

        return self._pages(search)

    def _pages(self, read: Callable[[int], Any]) -> Iterator[Mapping[str, Any]]:
        offset = 0
        while True:
            try:
                page = self.call(lambda at=offset: read(at))  # type: ignore[misc]
            except NotFoundError:
                return
            yield from page
            offset += len(page)
            if len(page) < PAGE:
                return

    def close(self) -> None:
        """Close the connections."""
        self.client.close()


def _id(state: Mapping[str, Any]) -> str:
    return str(state["checkpoint"]["checkpoint_id"])
