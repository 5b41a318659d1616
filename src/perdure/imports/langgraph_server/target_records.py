"""Writes assistants and crons to a LangGraph server, as far as its API allows. Existing ones are compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote

from perdure.engine.queue.crons import Cron
from perdure.engine.versioned_documents import Versioned
from perdure.errors import Conflict, NotFound
from perdure.imports.langgraph_server.api import ServerApi
from perdure.model.times import read_time, to_datetime

Outcome = Literal["written", "unchanged", "ended"]

ORIGINAL_ID = "exported_cron"
"""Key in a cron's metadata for the id that the cron had where it was exported; a server gives it a new id."""

_PARTS = ("graph_id", "name", "description", "config", "context", "metadata")
_RUN = (
    "input",
    "config",
    "context",
    "webhook",
    "interrupt_before",
    "interrupt_after",
    "multitask_strategy",
    "checkpoint_during",
    "durability",
    "stream_mode",
    "stream_subgraphs",
    "stream_resumable",
)
"""Fields of a cron's run that the API takes."""


class RecordsTarget:
    """A LangGraph server that gets assistants and crons.

    Args:
        api: The server.
    """

    def __init__(self, api: ServerApi) -> None:
        self._api = api
        self._client = api.client
        self._crons: dict[str, Mapping[str, Any]] | None = None

    def write_assistant(self, assistant_id: str, versions: Sequence[Versioned], current: int) -> Outcome:
        """Write an assistant with its versions.

        Args:
            assistant_id: Its id.
            versions: Its versions, the oldest first.
            current: The number of the current one.

        Raises:
            Conflict: The server has another assistant with this id, or stores a version differently.
            NotAllowed: The server refuses a version.
            NotFound: The server does not have its graph.
        """
        server_versions = self._read_versions(assistant_id)
        outcome: Outcome = "unchanged"
        for own, shown in zip(versions, server_versions, strict=False):
            self._compare(assistant_id, own, shown)
        for own in versions[len(server_versions) :]:
            self._write(assistant_id, own.body, is_new=own is versions[0])
            outcome = "written"
        if outcome == "written":
            server_versions = self._read_versions(assistant_id)
            if len(server_versions) != len(versions):
                raise Conflict(
                    f"assistant {assistant_id} was changed at {self._api.name} meanwhile; export it again"
                )
            for own, shown in zip(versions, server_versions, strict=True):
                self._compare(assistant_id, own, shown)
        elif len(server_versions) > len(versions):
            raise Conflict(
                f"assistant {assistant_id} was changed at {self._api.name}; it stays as it is there"
            )
        shown = self._api.call(lambda: self._client.assistants.get(assistant_id))
        if shown["version"] != current:
            self._api.call(lambda: self._client.assistants.set_latest(assistant_id, current))
            shown = self._api.call(lambda: self._client.assistants.get(assistant_id))
            outcome = "written"
        # Compare again, as `langgraph dev` keeps the previous version's context when another version is
        # chosen.
        self._compare(assistant_id, versions[current - 1], shown)
        return outcome

    def _read_versions(self, assistant_id: str) -> list[Mapping[str, Any]]:
        """Return the versions that the server has, the oldest first."""
        try:
            self._api.call(lambda: self._client.assistants.get(assistant_id))
        except NotFound:
            return []
        return self._api.versions(assistant_id)

    def _write(self, assistant_id: str, body: Mapping[str, Any], *, is_new: bool) -> None:
        parts: dict[str, Any] = {part: body.get(part) for part in _PARTS}
        if parts["context"]:
            # A server copies the config and the context to each other and refuses both: send the context
            # alone.
            config = parts["config"] or {}
            parts["config"] = {key: held for key, held in config.items() if key != "configurable"}
        if is_new:
            self._api.call(lambda: self._client.assistants.create(assistant_id=assistant_id, **parts))
        else:
            self._api.call(lambda: self._client.assistants.update(assistant_id, **parts))

    def _compare(self, assistant_id: str, own: Versioned, shown: Mapping[str, Any]) -> None:
        if (own.body.get("metadata") or {}).get("created_by") == "system":
            return  # Each server makes such an assistant from its graph.
        ours, theirs = _select_compared(own.body), _select_compared(shown)
        if different := [part for part, value in ours.items() if theirs[part] != value]:
            raise Conflict(
                f"version {own.number} of assistant {assistant_id} differs at {self._api.name}: "
                f"{', '.join(different)} differ"
            )

    def write_cron(self, cron: Cron, now: int) -> Outcome:
        """Write a cron. From now on the server starts it, with the rights of the user who exports it.

        Args:
            cron: The cron.
            now: The time in microseconds since 1970: a cron that has ended is skipped.

        Raises:
            Conflict: The server already has the cron, and either side has changed it since.
            NotAllowed: The server refuses it.
            NotFound: The server does not have its thread or assistant.
        """
        body = cron.body
        schedule: Mapping[str, Any] = body["schedule"]
        if schedule["end"] is not None and schedule["end"] <= now:
            return "ended"
        existing = self._find(cron.id)
        wanted: dict[str, Any] = {
            "assistant_id": body["assistant_id"],
            "thread_id": body["thread_id"],
            "schedule": schedule["expression"],
            "timezone": schedule["timezone"],
            "end_time": schedule["end"],
            "input": body["payload"].get("input"),
            "enabled": body["enabled"],
        }
        if existing is not None:
            found = _select_compared_cron(existing)
            if different := [part for part, value in wanted.items() if found[part] != value]:
                raise Conflict(
                    f"cron {cron.id} differs at {self._api.name}, as {existing['cron_id']}: "
                    f"{', '.join(different)} differ; nothing was changed there"
                )
            return "unchanged"
        sent: dict[str, Any] = {
            **{name: body["payload"].get(name) for name in _RUN},
            **{name: value for name, value in wanted.items() if name != "thread_id"},
            "metadata": {**body["metadata"], ORIGINAL_ID: cron.id},
        }
        if schedule["end"] is not None:
            sent["end_time"] = to_datetime(schedule["end"]).isoformat()
        if body["thread_id"] is None:
            sent["on_run_completed"] = body["on_run_completed"]
            path = "/runs/crons"
        else:
            path = f"/threads/{quote(body['thread_id'], safe='')}/runs/crons"
        sent = {name: value for name, value in sent.items() if value is not None}
        self._api.call(lambda: self._client.http.post(path, json=sent))
        return "written"

    def _find(self, cron_id: str) -> Mapping[str, Any] | None:
        if self._crons is None:
            self._crons = dict(self._list_known_crons())
        return self._crons.get(cron_id)

    def _list_known_crons(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the crons of the server, each by its id there and by the id that it had at the server that
        exported it."""
        for shown in self._api.crons():
            yield str(shown["cron_id"]), shown
            if exported := (shown.get("metadata") or {}).get(ORIGINAL_ID):
                yield str(exported), shown


def _select_compared(body: Mapping[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = dict(body.get("config") or {})
    configurable = config.pop("configurable", {})
    return {
        **{part: body.get(part) or None for part in ("graph_id", "name", "description", "metadata")},
        "config": config,
        "context": body.get("context") or configurable,
    }


def _select_compared_cron(shown: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a server's cron that are compared."""
    payload = shown.get("payload") or {}
    end = shown.get("end_time")
    return {
        "assistant_id": shown["assistant_id"],
        "thread_id": shown.get("thread_id"),
        "schedule": shown["schedule"],
        "timezone": shown.get("timezone") or payload.get("timezone"),
        "end_time": read_time(end) if end else None,
        "input": payload.get("input"),
        "enabled": shown.get("enabled") is not False,
    }
