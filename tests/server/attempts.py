"""Everything that somebody may try with another's threads, runs, assistants and items: a way for every route.

``attempts`` is given names, Alice's or such as nothing has: what is answered is to be the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlencode

from tests.server.tenants import Names, said

Kind = Literal[
    "missing", "empty", "refused command", "refused call", "listens", "claims", "own", "contradictory"
]
"""What is to come of it: there is no such thing; an answer as if there were nothing; as the first of a
command; an error of JSON-RPC; a stream on which nothing is told; the same but where names are common to all,
as one that would be made is taken; something of one's own; or that the request names two threads."""


@dataclass(frozen=True)
class Attempt:
    """A request. ``route`` is the path as the server declares it, ``ids`` what is put into it."""

    method: str
    route: str
    ids: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    kind: Kind = "missing"

    @property
    def url(self) -> str:
        path = self.route
        for name, value in self.ids.items():
            path = path.replace(f"{{{name}}}", value)
        return f"{path}?{urlencode(self.query)}" if self.query else path

    @property
    def sent(self) -> str:
        return f"{self.url} {json.dumps(self.body)} {dict(self.headers)}"

    def __str__(self) -> str:
        return f"{self.method} {self.url} {json.dumps(self.body)} {dict(self.headers)}"


OWN = "own-thread"
"""The thread of whoever tries."""

MINE = said("this is mine")
_FAKE = {"owner": "alice"}


def attempts(names: Names) -> Iterator[Attempt]:
    """All of them, the claims last."""
    yield from _assistants(names)
    yield from _threads(names)
    yield from _states(names)
    yield from _runs(names)
    yield from _new_runs(names)
    yield from _commands(names)
    yield from _store(names)
    yield from _crons(names)
    yield from _memory()
    yield from _tools(names)
    yield from _claims(names)


def _assistants(names: Names) -> Iterator[Attempt]:
    ids = {"assistant_id": names.assistant}
    at = "/assistants/{assistant_id}"
    yield Attempt("GET", at, ids)
    yield Attempt("PATCH", at, ids, {"name": "taken", "metadata": {"owner": "bob"}})
    yield Attempt("DELETE", at, ids)
    yield Attempt("DELETE", at, ids, query={"delete_threads": "true"})
    yield Attempt("POST", f"{at}/versions", ids, {})
    yield Attempt("POST", f"{at}/latest", ids, {"version": 1})
    yield Attempt("GET", f"{at}/graph", ids)
    yield Attempt("GET", f"{at}/graph", ids, query={"xray": "true"})
    yield Attempt("GET", f"{at}/schemas", ids)
    yield Attempt("GET", f"{at}/subgraphs", ids)
    yield Attempt("GET", f"{at}/subgraphs/{{namespace}}", {**ids, "namespace": "turn"})
    for asked in ({}, {"metadata": _FAKE}, {"graph_id": "chat"}, {"name": "canary"}, {"limit": 1000}):
        yield Attempt("POST", "/assistants/search", body=asked, kind="empty")
    for asked in ({}, {"metadata": _FAKE}, {"name": "canary"}):
        yield Attempt("POST", "/assistants/count", body=asked, kind="empty")


def _threads(names: Names) -> Iterator[Attempt]:
    at = "/threads/{thread_id}"
    for thread_id in (names.idle, names.asks, names.failed, names.busy, names.live):
        yield Attempt("GET", at, {"thread_id": thread_id})
        yield Attempt("DELETE", at, {"thread_id": thread_id})
        yield Attempt("POST", f"{at}/copy", {"thread_id": thread_id})
        yield Attempt("GET", f"{at}/storage", {"thread_id": thread_id})
        yield Attempt("GET", f"{at}/tags", {"thread_id": thread_id})
        tag = {"thread_id": thread_id, "name": "mine"}
        yield Attempt("PUT", f"{at}/tags/{{name}}", tag, {})
        yield Attempt("PUT", f"{at}/tags/{{name}}", tag, {"checkpoint_id": names.checkpoint})
        yield Attempt("DELETE", f"{at}/tags/{{name}}", tag)
        named = {"thread_id": thread_id, "name": "s"}
        yield Attempt("POST", f"{at}/signals/{{name}}", named, {})
        yield Attempt("GET", f"{at}/stream", {"thread_id": thread_id}, headers={"Last-Event-ID": "-"})
    ids = {"thread_id": names.idle}
    yield Attempt("GET", at, ids, query={"include": "ttl"})
    yield Attempt("GET", f"{at}/stream", ids, query={"stream_mode": "lifecycle"})
    yield Attempt("PATCH", at, ids, {"metadata": {"owner": "bob"}})
    yield Attempt("PATCH", at, ids, {"metadata": _FAKE, "ttl": {"ttl": 0.001}})
    yield Attempt("PATCH", at, ids, {"metadata": {}}, headers={"Prefer": "return=minimal"})
    searches: list[dict[str, Any]] = [
        {},
        {"ids": [names.idle, names.asks, names.failed, names.busy, names.live]},
        {"metadata": _FAKE},
        {"metadata": {"title": "canary"}, "ids": [names.idle]},
        {"values": {"messages": []}},
        *({"status": status} for status in ("idle", "busy", "interrupted", "error")),
    ]
    for asked in searches:
        yield Attempt("POST", "/threads/search", body={**asked, "limit": 1000}, kind="empty")
        yield Attempt("POST", "/threads/count", body=asked, kind="empty")
    extract = {"extract": {"said": "values.messages[0].content"}, "ids": [names.idle], "select": ["values"]}
    yield Attempt("POST", "/threads/search", body=extract, kind="empty")
    for strategy in ("delete", "keep_latest"):
        pruned = {"thread_ids": [names.idle, names.busy, names.asks], "strategy": strategy}
        yield Attempt("POST", "/threads/prune", body=pruned, kind="empty")


def _states(names: Names) -> Iterator[Attempt]:
    at, ids = "/threads/{thread_id}", {"thread_id": names.idle}
    past = {"thread_id": names.idle, "checkpoint_ns": "", "checkpoint_id": names.checkpoint}
    for thread_id in (names.idle, names.asks, names.failed, names.busy, names.live):
        yield Attempt("GET", f"{at}/state", {"thread_id": thread_id}, query={"subgraphs": "true"})
        yield Attempt("POST", f"{at}/state", {"thread_id": thread_id}, {"values": MINE, "as_node": "turn"})
        yield Attempt("POST", f"{at}/history", {"thread_id": thread_id}, {"limit": 100})
        yield Attempt("GET", f"{at}/history", {"thread_id": thread_id})
    yield Attempt("GET", f"{at}/state", ids, query={"select": "values.messages"})
    yield Attempt("GET", f"{at}/state/{{checkpoint_id}}", {**ids, "checkpoint_id": names.checkpoint})
    yield Attempt("POST", f"{at}/state/checkpoint", ids, {"checkpoint": past})
    yield Attempt("POST", f"{at}/state", ids, {"values": MINE, "checkpoint": past})
    yield Attempt("GET", f"{at}/history", ids, query={"before": names.checkpoint})
    befores: tuple[Any, ...] = (names.checkpoint, past, {"configurable": past})
    for before in befores:
        yield Attempt("POST", f"{at}/history", ids, {"before": before})
    # From a thread of one's own to what is Alice's.
    own = {"thread_id": OWN}
    yield Attempt("GET", f"{at}/state/{{checkpoint_id}}", {**own, "checkpoint_id": names.checkpoint})
    yield Attempt("POST", f"{at}/state/checkpoint", own, {"checkpoint": past}, kind="contradictory")
    yield Attempt("POST", f"{at}/history", own, {"before": names.checkpoint}, kind="own")
    for body in ({"before": past}, {"before": {"configurable": past}}, {"checkpoint": past}):
        yield Attempt("POST", f"{at}/history", own, body, kind="contradictory")


def _runs(names: Names) -> Iterator[Attempt]:
    each = "/threads/{thread_id}/runs/{run_id}"
    for thread_id, run_id in (
        (names.idle, names.idle_run),
        (names.asks, names.asks_run),
        (names.failed, names.failed_run),
        (names.busy, names.running),
        (names.busy, names.pending),
        (names.live, names.live_run),
        # A run's id on a thread of one's own.
        (OWN, names.idle_run),
        (OWN, names.running),
    ):
        ids = {"thread_id": thread_id, "run_id": run_id}
        yield Attempt("GET", each, ids)
        yield Attempt("GET", f"{each}/join", ids)
        yield Attempt("GET", f"{each}/stream", ids, headers={"Last-Event-ID": "-1"})
        yield Attempt("POST", f"{each}/cancel", ids, query={"action": "rollback"})
        yield Attempt("POST", f"{each}/retry", ids)
        yield Attempt("DELETE", each, ids, query={"checkpoints": "delete"})
    ids = {"thread_id": names.busy, "run_id": names.running}
    yield Attempt("GET", f"{each}/stream", ids, query={"cancel_on_disconnect": "1", "stream_mode": "values"})
    yield Attempt("GET", f"{each}/join", ids, query={"cancel_on_disconnect": "1"})
    yield Attempt("POST", f"{each}/cancel", ids, query={"wait": "1"})
    for thread_id in (names.idle, names.busy):
        yield Attempt("GET", "/threads/{thread_id}/runs", {"thread_id": thread_id})
    yield Attempt("GET", "/threads/{thread_id}/runs", ids, query={"status": "pending"})
    chosen = {"thread_id": names.busy, "run_ids": [names.running, names.pending]}
    yield Attempt("POST", "/runs/cancel", body=chosen)
    yield Attempt("POST", "/runs/cancel", body={"context_id": names.busy, "run_ids": [names.running]})
    yield Attempt("POST", "/runs/cancel", body={**chosen, "thread_id": OWN})
    failed = {"thread_id": names.failed, "run_ids": [names.failed_run]}
    yield Attempt("POST", "/runs/retry", body=failed)
    yield Attempt("POST", "/runs/retry", body={**failed, "thread_id": OWN}, kind="empty")
    yield Attempt("POST", "/runs/retry", body={"status": "error"}, kind="empty")
    for status in ("all", "running", "pending"):
        yield Attempt("POST", "/runs/cancel", body={"status": status}, kind="empty")


def _new_runs(names: Names) -> Iterator[Attempt]:
    on = "/threads/{thread_id}/runs"
    new = {"assistant_id": "chat", "input": MINE}
    ways: list[tuple[str, dict[str, Any]]] = [
        (names.idle, new),
        (names.idle, {**new, "checkpoint_id": names.checkpoint}),
        (names.idle, {**new, "checkpoint": {"checkpoint_id": names.checkpoint}}),
        (names.asks, {"assistant_id": "ask", "command": {"resume": "yes"}}),
        (names.asks, {"assistant_id": "ask", "command": {"resume": {names.question: "yes"}}}),
        (names.live, {"assistant_id": "ask", "command": {"goto": "turn", "update": MINE}}),
        (names.busy, {**new, "multitask_strategy": "interrupt"}),
        (names.busy, {**new, "multitask_strategy": "rollback"}),
        (names.busy, {**new, "multitask_strategy": "coalesce"}),
        (names.idle, {**new, "metadata": _FAKE, "config": {"metadata": _FAKE}}),
    ]
    for how in ("", "/stream", "/wait"):
        for thread_id, body in ways:
            yield Attempt("POST", f"{on}{how}", {"thread_id": thread_id}, body)
        # With what is Alice's, on no thread or on one's own.
        theirs = {**new, "assistant_id": names.assistant}
        yield Attempt("POST", f"/runs{how}", body=theirs)
        yield Attempt("POST", f"{on}{how}", {"thread_id": OWN}, theirs)
        # On Alice's thread, which the body names.
        for name in ("thread_id", "context_id"):
            yield Attempt("POST", f"/runs{how}", body={**new, name: names.idle})
    yield Attempt("POST", "/runs/batch", body=[theirs])
    own = {"thread_id": OWN}
    elsewhere = {"configurable": {"thread_id": names.idle, "checkpoint_id": names.checkpoint}}
    yield Attempt("POST", f"{on}/wait", own, {**new, "config": elsewhere}, kind="own")
    yield Attempt("POST", f"{on}/wait", own, {**new, "checkpoint_id": names.checkpoint}, kind="own")
    past = {"thread_id": names.idle, "checkpoint_id": names.checkpoint}
    yield Attempt("POST", f"{on}/stream", own, {**new, "checkpoint": past}, kind="contradictory")


def _commands(names: Names) -> Iterator[Attempt]:
    on = "/threads/{thread_id}/commands"
    ids = {"thread_id": names.asks}
    answer = {"interrupt_id": names.question, "namespace": [], "response": "yes"}
    said_of: list[tuple[str, dict[str, Any]]] = [
        ("input.respond", answer),
        ("input.respond", {"responses": [answer]}),
        ("agent.getTree", {}),
        ("agent.getTree", {"run_id": names.asks_run}),
        ("state.get", {}),
        ("state.get", {"namespace": ["turn"], "keys": ["messages"]}),
        ("state.listCheckpoints", {}),
        ("state.listCheckpoints", {"before": names.checkpoint}),
        ("state.fork", {"checkpoint_id": names.checkpoint, "input": MINE}),
        ("unheard.of", {}),
    ]
    for method, params in said_of:
        body = {"id": 1, "method": method, "params": params}
        yield Attempt("POST", on, ids, body, kind="refused command")
    own = {"thread_id": OWN}
    for method, params in (
        ("input.respond", answer),
        ("state.fork", {"checkpoint_id": names.checkpoint}),
        ("agent.getTree", {"run_id": names.asks_run}),
        ("run.start", {"assistant_id": names.assistant, "input": MINE}),
    ):
        body = {"id": 1, "method": method, "params": params}
        yield Attempt("POST", on, own, body, kind="refused command")
    channels = [
        "values",
        "updates",
        "messages",
        "lifecycle",
        "input",
        "tools",
        "tasks",
        "checkpoints",
        "custom",
    ]
    for thread_id in (names.idle, names.asks, names.busy, names.live):
        for since in ({}, {"since": 0}):
            yield Attempt(
                "POST",
                "/threads/{thread_id}/stream/events",
                {"thread_id": thread_id},
                {"channels": channels, **since},
                kind="listens",
            )


def _store(names: Names) -> Iterator[Attempt]:
    for labels in ([names.label], ["alice", names.label], ["acme", names.label]):
        item = {"namespace": labels, "key": names.key}
        dotted = {"namespace": ".".join(labels), "key": names.key}
        yield Attempt("GET", "/store/items", query=dotted, kind="empty")
        yield Attempt("DELETE", "/store/items", body=item, kind="empty")
        yield Attempt("PUT", "/store/items", body={**item, "value": {"mine": 1}}, kind="empty")
        yield Attempt("DELETE", "/store/items", body=item, kind="empty")
        yield Attempt("POST", "/store/items/search", body={"namespace_prefix": labels}, kind="empty")
        yield Attempt("POST", "/store/namespaces", body={"prefix": labels}, kind="empty")
        yield Attempt("POST", "/store/namespaces", body={"suffix": labels}, kind="empty")
    for body in ({}, {"namespace_prefix": ["alice"]}, {"filter": {"said": "x"}}):
        yield Attempt("POST", "/store/items/search", body=body, kind="empty")
    for asked in ({}, {"max_depth": 1}):
        yield Attempt("POST", "/store/namespaces", body=asked, kind="empty")


def _crons(names: Names) -> Iterator[Attempt]:
    ids, at = {"cron_id": names.cron}, "/runs/crons/{cron_id}"
    yield Attempt("GET", at, ids)
    yield Attempt("PATCH", at, ids, {"enabled": False, "metadata": _FAKE})
    yield Attempt("PATCH", at, ids, {"input": MINE})
    yield Attempt("DELETE", at, ids)
    new = {"assistant_id": "chat", "schedule": "0 9 * * *", "input": MINE}
    for thread_id in (names.idle, names.live):
        yield Attempt("POST", "/threads/{thread_id}/runs/crons", {"thread_id": thread_id}, new)
    yield Attempt("POST", "/runs/crons", body={**new, "assistant_id": names.assistant})
    for asked in ({}, {"metadata": _FAKE}, {"assistant_id": "chat"}, {"thread_id": names.idle}):
        yield Attempt("POST", "/runs/crons/search", body=asked, kind="empty")
        yield Attempt("POST", "/runs/crons/count", body=asked, kind="empty")


def _memory() -> Iterator[Attempt]:
    """These servers' graphs have none; what of other users is refused has tests of its own."""
    yield Attempt("GET", "/memory")
    yield Attempt("GET", "/limits", kind="empty")
    yield Attempt("DELETE", "/memory")
    yield Attempt("DELETE", "/memory/{entry_id}", {"entry_id": "facts-1"})


def _tools(names: Names) -> Iterator[Attempt]:
    headers = {"Accept": "application/json, text/event-stream"}
    listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    yield Attempt("POST", "/mcp", body=listing, headers=headers, kind="empty")
    call = {"name": names.assistant, "arguments": MINE}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    yield Attempt("POST", "/mcp", body=body, headers=headers, kind="refused call")
    yield Attempt("POST", "/mcp/", body=listing, headers=headers, kind="empty")
    card = {"assistant_id": names.assistant}
    yield Attempt("GET", "/.well-known/agent-card.json", query=card)
    theirs = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": "a:b"}}
    for route in ("/a2a/{assistant_id}", "/a2a/{assistant_id}/"):
        yield Attempt("POST", route, {"assistant_id": names.assistant}, theirs)
    chat = {"assistant_id": "chat"}
    for thread_id, run_id in (
        (names.idle, names.idle_run),
        (names.busy, names.running),
        (OWN, names.asks_run),
    ):
        task = {"id": f"{run_id}:{thread_id}"}
        for method in ("tasks/get", "tasks/cancel", "GetTask", "CancelTask"):
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": task}
            version = {} if "/" in method else {"A2A-Version": "1.0"}
            yield Attempt("POST", "/a2a/{assistant_id}", chat, body, headers=version, kind="refused call")
        said_to = {**_message(), "taskId": task["id"]}
        body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": said_to}}
        yield Attempt("POST", "/a2a/{assistant_id}", chat, body, kind="refused call")


def _message() -> dict[str, Any]:
    parts = [{"kind": "text", "text": "this is mine"}]
    return {"kind": "message", "messageId": "m1", "role": "user", "parts": parts}


def _claims(names: Names) -> Iterator[Attempt]:
    """To make what has the name of what is Alice's."""
    for if_exists in ("raise", "do_nothing"):
        body: dict[str, Any] = {"graph_id": "chat", "assistant_id": names.assistant, "if_exists": if_exists}
        yield Attempt("POST", "/assistants", body=body, kind="claims")
        body = {"thread_id": names.idle, "if_exists": if_exists, "metadata": _FAKE}
        yield Attempt("POST", "/threads", body=body, kind="claims")
    new = {"assistant_id": "chat", "input": MINE, "if_not_exists": "create"}
    for how, thread_id in (("", names.idle), ("/stream", names.failed), ("/wait", names.busy)):
        route = f"/threads/{{thread_id}}/runs{how}"
        yield Attempt("POST", route, {"thread_id": thread_id}, new, kind="claims")
    start = {"id": 1, "method": "run.start", "params": {"assistant_id": "chat", "input": MINE}}
    yield Attempt("POST", "/threads/{thread_id}/commands", {"thread_id": names.live}, start, kind="claims")
    said_to = {**_message(), "contextId": names.asks}
    body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": said_to}}
    yield Attempt("POST", "/a2a/{assistant_id}", {"assistant_id": "chat"}, body, kind="claims")
