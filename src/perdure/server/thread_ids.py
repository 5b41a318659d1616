"""Which thread a request is for: ``thread_id``, or ``context_id``, which is the same under the name that
agents use between each other.

It is named in the path, in the query, or at the top of a JSON body. Metadata, context and config are the
client's own, and whatever they hold under these names names nothing here. A request that names two threads
is refused; so is one that needs a thread and names none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request

from perdure.server.auth.identity import Refusal

NAMES = ("thread_id", "context_id")

_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_ID_MAX = 255


def thread_id_of(value: str) -> str:
    """A thread's id, checked: any text of 1 to 255 characters that a database can hold."""
    if not 0 < len(value) <= _ID_MAX or not value.isprintable():
        raise Refusal(422, f"a thread id has 1 to {_ID_MAX} characters, all of them visible or plain spaces")
    return value


def in_query(request: Request) -> list[str]:
    """What the query calls the thread."""
    return [value for name in NAMES for value in request.query_params.getlist(name)]


def in_body(said: Mapping[str, Any]) -> list[str]:
    """What a body calls the thread. ``null`` is as good as absent."""
    found = [said[name] for name in NAMES if said.get(name) is not None]
    if not all(isinstance(value, str) for value in found):
        raise Refusal(422, "thread_id and context_id are text")
    return found


async def in_request(request: Request) -> list[str]:
    """What the query and the body call the thread. A body that cannot be read is for its route to refuse,
    and one that is a list names a thread for each of its parts."""
    found = in_query(request)
    if request.method in _WITH_BODY:
        try:
            said = await request.json()
        except (ValueError, RecursionError, ClientDisconnect):
            return found
        if isinstance(said, dict):
            found += in_body(said)
    return found


def only(named: Iterable[str]) -> str | None:
    """The one thread of all that was named, ``None`` when none was; ``Refusal`` when two were."""
    different = set(named)
    if len(different) > 1:
        raise Refusal(
            422,
            "the request names two threads; thread_id and context_id are the same thing, send one of them",
        )
    return thread_id_of(different.pop()) if different else None
