"""Calls to a server, recorded with what they were answered.

A status of the 400s refuses: nothing of the call was done, as if it had reached nobody. Any other failure
leaves it unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx

from .deployment import GRAPH, Server
from .facts import GONE
from .recording import OK, REFUSED, UNKNOWN, Recorder

DEBOUNCE = "debounce"
"""How a message is sent that waits for more of them."""
_DEBOUNCE_MS = "5000"
_AGAIN = (408, 429)
Thread = tuple[str, str]
"""A tenant, and the name of a thread within it."""


class Caller:
    """A user of a tenant who calls servers."""

    def __init__(self, client: httpx.AsyncClient, recorder: Recorder, tenant: str) -> None:
        self._client = client
        self._recorder = recorder
        self.tenant = tenant
        self._headers = {"Authorization": f"Bearer {tenant}/user"}

    async def start(
        self,
        server: Server,
        thread: str,
        do: str,
        body: Mapping[str, Any],
        *,
        key: str,
        strategy: str | None = None,
        **given: Any,
    ) -> tuple[str, str]:
        """Start a run; the outcome and the run's id."""
        body = {"assistant_id": GRAPH, "if_not_exists": "create", **body}
        headers = {"Idempotency-Key": key}
        if strategy == DEBOUNCE:
            headers["X-Debounce-Ms"] = _DEBOUNCE_MS
        elif strategy is not None:
            headers["X-Multitask-Strategy"] = strategy
        outcome, answer = await self._call(
            server, "POST", f"/threads/{thread}/runs", do, (self.tenant, thread),
            given={**given, "strategy": strategy or "enqueue"},
            body=body, headers=headers, read=lambda found: {"run": found["run_id"]},
        )  # fmt: skip
        return outcome, answer.get("run", "")

    async def read(self, server: Server, thread: str) -> dict[str, Any]:
        """Read a thread's state: its entries and its questions, by name with their ids."""
        _, answer = await self._call(
            server, "GET", f"/threads/{thread}/state", "read", (self.tenant, thread),
            read=lambda found: {"entries": entries_of(found["values"]), "questions": _questions(found)},
            absent={"entries": [], "questions": {}},
        )  # fmt: skip
        return answer

    async def read_history(self, server: Server, thread: str) -> None:
        def read(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
            return {
                "states": [
                    {
                        "id": state["checkpoint"]["checkpoint_id"],
                        "parent": (state["parent_checkpoint"] or {}).get("checkpoint_id"),
                        "entries": entries_of(state["values"]),
                    }
                    for state in found
                ]
            }

        await self._call(
            server, "GET", f"/threads/{thread}/history?limit=1000", "history", (self.tenant, thread),
            read=read, absent={"states": []},
        )  # fmt: skip

    async def list_threads(self, server: Server) -> None:
        """Read all threads of the tenant in one listing, each with its entries."""
        await self._call(
            server, "POST", "/threads/search", "listing", (self.tenant,), body={"limit": 1000},
            read=lambda found: {"threads": {one["thread_id"]: entries_of(one["values"]) for one in found}},
        )  # fmt: skip

    async def join(self, server: Server, thread: str, run: str) -> None:
        """Wait for the end of a run and read what it left."""
        await self._call(
            server, "GET", f"/threads/{thread}/runs/{run}/join", "join", (self.tenant, thread),
            given={"run": run}, read=lambda found: {"entries": entries_of(found)}, absent={"entries": []},
        )  # fmt: skip

    async def prune(self, server: Server, thread: str) -> None:
        """Remove all of a thread's history but its latest state."""
        body = {"thread_ids": [thread], "strategy": "keep_latest"}
        await self._call(server, "POST", "/threads/prune", "prune", (self.tenant, thread), body=body)

    async def read_run(self, server: Server, thread: str, run: str) -> str:
        """Read the status of a run; ``gone`` if there is none."""
        _, answer = await self._call(
            server, "GET", f"/threads/{thread}/runs/{run}", "run", (self.tenant, thread), given={"run": run},
            read=lambda found: {
                "status": found["status"],
                "part_of": found.get("taken_up_by", found["run_id"]),
            },
            absent={"status": GONE},
        )  # fmt: skip
        return str(answer.get("status", ""))

    async def retry(self, server: Server, thread: str, run: str) -> tuple[str, str]:
        """Run a failed run again; the outcome and the new run's id."""
        outcome, answer = await self._call(
            server, "POST", f"/threads/{thread}/runs/{run}/retry", "retry", (self.tenant, thread),
            given={"run": run}, read=lambda found: {"run": found["run_id"]},
        )  # fmt: skip
        return outcome, answer.get("run", "")

    async def cancel(self, server: Server, thread: str, run: str, action: str) -> None:
        path = f"/threads/{thread}/runs/{run}/cancel?action={action}"
        given = {"run": run, "action": action}
        await self._call(server, "POST", path, "cancel", (self.tenant, thread), given=given)

    async def update(self, server: Server, thread: str, element: str) -> None:
        """Append to a thread's state without a run."""
        await self._call(
            server, "POST", f"/threads/{thread}/state", "update", (self.tenant, thread),
            given={"element": element}, body={"values": {"log": [f"m:{element}"]}, "as_node": "close"},
        )  # fmt: skip

    async def delete(self, server: Server, thread: str) -> str:
        outcome, _ = await self._call(server, "DELETE", f"/threads/{thread}", "delete", (self.tenant, thread))
        return outcome

    async def put(self, server: Server, item: str, value: str) -> None:
        await self._call(
            server, "PUT", "/store/items", "put", (self.tenant, "items", item), given={"value": value},
            body={"namespace": ["items"], "key": item, "value": {"value": value}},
        )  # fmt: skip

    async def get(self, server: Server, item: str) -> None:
        await self._call(
            server, "GET", f"/store/items?namespace=items&key={item}", "get", (self.tenant, "items", item),
            read=lambda found: {"value": None if found is None else found["value"]["value"]},
            absent={"value": None},
        )  # fmt: skip

    async def remove(self, server: Server, item: str) -> None:
        await self._call(
            server, "DELETE", "/store/items", "remove", (self.tenant, "items", item),
            body={"namespace": ["items"], "key": item},
        )  # fmt: skip

    async def _call(
        self,
        server: Server,
        method: str,
        path: str,
        do: str,
        on: Sequence[str],
        *,
        given: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        read: Callable[[Any], dict[str, Any]] | None = None,
        absent: Mapping[str, Any] | None = None,
    ) -> tuple[str, dict[str, Any]]:
        """Make a call; its outcome, and what ``read`` finds in the answer. ``absent`` is what a 404 says."""
        call_id = self._recorder.note_call(do, on, at=server.name, **(given or {}))
        try:
            answer = await self._client.request(
                method, server.url + path, json=body, headers={**self._headers, **(headers or {})}
            )
        except httpx.ConnectError:
            # It reached nobody: the record has it as refused, and who made it makes it again.
            self._recorder.note_answer(call_id, REFUSED, error="ConnectError")
            return UNKNOWN, {}
        except httpx.TransportError as error:
            self._recorder.note_answer(call_id, UNKNOWN, error=type(error).__name__)
            return UNKNOWN, {}
        if answer.status_code == 404 and absent is not None:
            found = dict(absent)
        elif answer.is_success:
            found = {} if read is None else read(answer.json())
        else:
            is_refusal = 400 <= answer.status_code < 500 and answer.status_code not in _AGAIN
            outcome = REFUSED if is_refusal else UNKNOWN
            self._recorder.note_answer(call_id, outcome, status=answer.status_code, why=answer.text[:200])
            return outcome, {}
        self._recorder.note_answer(call_id, OK, **found)
        return OK, found


def entries_of(values: Any) -> list[str]:
    """Return the entries of a thread's values."""
    return list((values or {}).get("log", ()))


def _questions(state: Mapping[str, Any]) -> dict[str, str]:
    """Return the open questions of a state, by their names, with their ids."""
    asked = state.get("interrupts") or [one for task in state["tasks"] for one in task["interrupts"]]
    return {one["value"]: one["id"] for one in asked}
