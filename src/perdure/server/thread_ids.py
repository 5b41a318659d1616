"""Identification of the thread of a request: ``thread_id``, or ``context_id``, its name in protocols
between agents.

The id is given in the path, in the query, or at the top level of a JSON body. Metadata, context and config
are the client's own data, and these names have no effect there. A request that names two threads is refused;
so is one that needs a thread and names none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request

from perdure.runtime.agent_memory.memory_turns import is_lane
from perdure.server.auth.identity import Refusal

NAMES = ("thread_id", "context_id")

_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_ID_MAX = 255
OF_AGENT = re.compile(r"a2a:([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}):(.+)", re.DOTALL)
"""Form of the threads that agents have in contexts beside the context's own (``a2a.contexts``): the ids of
the agent and the context."""


def thread_id_of(value: str) -> str:
    """Return a thread's id after checking it: any text of 1 to 255 characters that a database can store,
    except the names of the runtime's own threads."""
    if not 0 < len(value) <= _ID_MAX or not value.isprintable():
        raise Refusal(422, f"a thread id has 1 to {_ID_MAX} characters, all of them visible or plain spaces")
    return refuse_lane(value)


def refuse_lane(thread_id: str) -> str:
    """Return a thread's id. Raise ``Refusal`` for one of the runtime's own threads, which no client names."""
    if is_lane(thread_id):
        raise Refusal(422, "thread ids that begin with 'perdure.memory:' are the server's own; take another")
    return thread_id


def refuse_to_create_of_agent(thread_id: str) -> None:
    """Raise ``Refusal`` for the thread of an agent in a context, which only a message to the agent begins:
    who creates it before would get the messages of the context's user."""
    if OF_AGENT.fullmatch(thread_id) is not None:
        raise Refusal(
            422,
            "thread ids that begin with 'a2a:' and the id of an assistant are those of agents in A2A "
            "contexts; take another",
        )


def read_from_query(request: Request) -> list[str]:
    """Return the thread ids in the query."""
    return [value for name in NAMES for value in request.query_params.getlist(name)]


def read_from_body(body: Mapping[str, Any]) -> list[str]:
    """Return the thread ids in a body. ``null`` counts as absent."""
    found = [body[name] for name in NAMES if body.get(name) is not None]
    if not all(isinstance(value, str) for value in found):
        raise Refusal(422, "thread_id and context_id are text")
    return found


async def read_from_request(request: Request) -> list[str]:
    """Return the thread ids in the query and the body. From a body that cannot be read, or is a list, no
    ids are returned: the route refuses it, or reads the thread of each item."""
    found = read_from_query(request)
    if request.method in _WITH_BODY:
        try:
            body = await request.json()
        except (ValueError, RecursionError, ClientDisconnect):
            return found
        if isinstance(body, dict):
            found += read_from_body(body)
    return found


def require_same(thread_id: str, named: Any) -> None:
    """Raise ``Refusal`` if a reference to a checkpoint names another thread than the request. ``None`` counts
    as absent."""
    if named not in (None, thread_id):
        raise Refusal(
            422,
            "the checkpoint's thread_id is not the thread of the request; leave it out, or send the request "
            "to the checkpoint's thread",
        )


def require_same_thread(named: Iterable[str]) -> str | None:
    """Return the thread that all the ids name, None if there are no ids. ``Refusal`` if they differ."""
    different = set(named)
    if len(different) > 1:
        raise Refusal(
            422,
            "the request names two threads; thread_id and context_id are the same thing, send one of them",
        )
    if different:
        return thread_id_of(different.pop())
    return None
