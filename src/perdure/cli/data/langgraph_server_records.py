"""Writes the objects of a LangGraph server other than threads and store: assistants, crons, and the metadata
and time of each thread. Records that the target has already are left as they are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from perdure.cli.data.langgraph_server import RecordCounts, RecordTarget
from perdure.database.base import handle_of
from perdure.database.handle import DatabaseHandle
from perdure.database.opening import connect
from perdure.engine import documents
from perdure.engine.queue import crons
from perdure.errors import PerdureError, Unavailable
from perdure.imports.langgraph_server.api import ServerApi
from perdure.model.ops import Expect, Now
from perdure.model.program import ask
from perdure.model.records import OF_THREAD, Partition
from perdure.model.times import read_time
from perdure.runtime.clock import DatabaseClock
from perdure.runtime.documents import TenantDocuments
from perdure.runtime.threads.index import ThreadIndex
from perdure.runtime.threads.rows import load_row
from perdure.runtime.threads.threads import missing_error

_PARTS = ("graph_id", "name", "description", "config", "context", "metadata")


async def write_records(api: ServerApi, target: RecordTarget, without: Collection[str]) -> RecordCounts:
    """Import the records of a server; records that the target already has stay as they are.

    Args:
        api: The server.
        target: The database.
        without: Threads whose records are left out, as they were not imported.
    """
    counts = RecordCounts()
    async with connect(target.url, tenant=target.tenant, encryption_key=target.key) as database:
        records = _Records(handle_of(database), target, counts)
        await records.import_assistants(api)
        await records.import_threads(api.threads(), without)
        await records.import_crons(api.crons())
    return counts


class _Records:
    def __init__(self, handle: DatabaseHandle, target: RecordTarget, counts: RecordCounts) -> None:
        self._handle = handle
        self._clock = DatabaseClock(lambda: handle.arun(ask(Now())))
        self._target = target
        self._counts = counts
        self._graph_of: dict[str, str] = {}

    async def import_assistants(self, api: ServerApi) -> None:
        for found in api.assistants():
            self._graph_of[str(found["assistant_id"])] = str(found["graph_id"])
            if (found.get("metadata") or {}).get("created_by") == "system" and found["version"] == 1:
                continue  # Such an assistant is made from its graph here, too.
            name = str(found["assistant_id"])
            bodies = [_read_body(version) for version in api.versions(name) or (found,)]
            stored = TenantDocuments(self._handle, self._clock, self._target.tenant, "assistant")
            past = [dict(held.body) for held in reversed(await stored.read_versions(name))]
            if past != bodies[: len(past)]:
                self._counts.skipped.append(
                    f"assistant {name} was changed at the target; it stays as it is there"
                )
                continue
            current = await stored.get(name)
            if len(past) == len(bodies) and current is not None and current.number == found["version"]:
                continue
            self._counts.assistants += 1
            if self._target.dry_run:
                continue
            for body in bodies[len(past) :]:
                if await stored.revise(name, lambda _, body=body: body) is None:  # type: ignore[misc]
                    await stored.create(name, body)
            await stored.choose(name, found["version"])

    async def import_threads(self, found: Iterable[Mapping[str, Any]], without: Collection[str]) -> None:
        index = ThreadIndex(self._handle, self._target.tenant)
        for shown in found:
            name = str(shown["thread_id"])
            if name in without:
                continue
            partition = Partition(self._target.tenant, name)
            row = await self._handle.arun(load_row(partition))
            if row is not None and row.has_document:
                continue
            self._counts.threads += 1
            if self._target.dry_run:
                continue
            now = await self._clock.now()
            created = _to_microseconds(shown.get("created_at")) or (
                row.created_at if row is not None else now
            )
            body = {"metadata": dict(shown.get("metadata") or {}), "created_at": created, "ttl": None}
            program = documents.put(
                partition, *OF_THREAD, body, now, Expect.ABSENT, fresh=self._handle.draw_version()
            )
            if (made := await self._handle.arun(program)) is not None:
                await index.write(name, made)

    async def import_crons(self, found: Iterable[Mapping[str, Any]]) -> None:
        place = crons.place(self._target.tenant)
        stored_ids = {cron.id for cron in await self._handle.arun(crons.read_all_crons(place))}
        for shown in found:
            name = str(shown["cron_id"])
            if name in stored_ids:
                continue
            try:
                await self._import_cron(name, shown)
            except Unavailable:
                raise
            except (PerdureError, ValueError, KeyError) as error:
                why = f"it is not one ({type(error).__name__})"
                if isinstance(error, PerdureError):
                    why = str(error)
                self._counts.skipped.append(f"cron {name}: {why}")

    async def _import_cron(self, name: str, shown: Mapping[str, Any]) -> None:
        from perdure.server.requests import NewRun
        from perdure.server.runs.cron_schedules import Schedule
        from perdure.server.runs.crons import CronJob

        thread = None
        if thread_id := shown.get("thread_id"):
            row = await self._handle.arun(load_row(Partition(self._target.tenant, thread_id)))
            if row is None and not self._target.dry_run:
                raise missing_error(thread_id)
            thread = {"created_at": row.created_at if row is not None else 0, "conditions": None}
        payload = dict(shown.get("payload") or {})
        assistant_id = str(shown.get("assistant_id") or payload["assistant_id"])
        fields = {key: payload[key] for key in NewRun.model_fields if payload.get(key) is not None}
        fields = {key: value for key, value in fields.items() if key not in ("assistant_id", "metadata")}
        run = NewRun.model_validate({**fields, "assistant_id": assistant_id})
        identity = str(shown.get("user_id") or "")
        job = CronJob(
            assistant_id=assistant_id,
            graph_id=self._graph_of[assistant_id],
            thread_id=thread_id or None,
            thread=thread,
            schedule=Schedule(
                shown["schedule"],
                # Aegra shows the time zone with the run.
                shown.get("timezone") or payload.get("timezone"),
                _to_microseconds(shown.get("end_time")) or None,
            ),
            payload=run.model_dump(mode="json", include=set(fields), exclude_none=True),
            metadata=dict(shown.get("metadata") or {}),
            on_run_completed=None if thread_id else shown.get("on_run_completed") or "delete",
            enabled=shown.get("enabled") is not False,
            user={"email": None, "identity": identity, "permissions": [], "display_name": identity},
        )
        now = await self._clock.now()
        due = job.find_next_after(now)
        # Aegra starts a run when a cron is created, and leaves out the first time: use the time it shows.
        if due is not None and (shown_due := _to_microseconds(shown.get("next_run_date"))) > now:
            due = shown_due
        self._counts.crons += 1
        if not self._target.dry_run:
            new = crons.Due(job.dump(), due)
            place = crons.place(self._target.tenant)
            await self._handle.arun(crons.create(place, name, new, now, self._handle.draw_version()))


def _read_body(assistant: Mapping[str, Any]) -> dict[str, Any]:
    body = {part: assistant.get(part) for part in _PARTS}
    return {**body, **{part: body[part] or {} for part in ("config", "context", "metadata")}}


def _to_microseconds(text: str | None) -> int:
    if text is None:
        return 0
    return read_time(text)
