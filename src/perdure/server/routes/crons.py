"""Routes of crons: create, find, change and remove them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Path, Request, Response
from pydantic import AwareDatetime, BeforeValidator, Field

from perdure.errors import NotFound
from perdure.model.times import to_micros
from perdure.runtime.agents.run_user import USER_EMAIL
from perdure.runtime.crons import Cron, Due
from perdure.runtime.threads.index import contains
from perdure.runtime.threads.threads import missing_error
from perdure.server import responses, thread_ids
from perdure.server.auth.filters import Filter
from perdure.server.auth.identity import Refusal, User, require_stamp
from perdure.server.auth.reserved_names import list_verified_names, without_claims
from perdure.server.openapi import make_router
from perdure.server.requests import (
    Body,
    Breakpoints,
    Config,
    Contents,
    Mapped,
    Modes,
    Names,
    NewRun,
    Offset,
    Page,
    Strategy,
)
from perdure.server.resources import Caller, CallerNow, GatedRoute, ThreadId
from perdure.server.responses import Json
from perdure.server.runs.cron_schedules import BadSchedule, Schedule
from perdure.server.runs.crons import Completion, CronJob
from perdure.server.runs.run_arguments import check_run

router = make_router("crons", GatedRoute)

_OWN = {"schedule", "timezone", "end_time", "assistant_id", "metadata", "on_run_completed", "enabled"}
"""Fields of a cron that are not part of the run to create."""


_DESCRIBED = ("schedule", "end_time", "metadata", "enabled", "on_run_completed")
"""Fields of the cron itself, for authorisation."""


def _make_aware(value: Any) -> Any:
    """Return a time, in UTC if it names no zone."""
    if not isinstance(value, str):
        return value
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        return value
    if time.tzinfo is not None:
        return time
    return time.replace(tzinfo=UTC)


_When = Annotated[AwareDatetime, BeforeValidator(_make_aware)]


class _Changes(Body):
    """Fields of a cron that can be changed."""

    timezone: Annotated[str, Field(min_length=1)] | None = None
    end_time: _When | None = None
    input: Any = None
    metadata: Mapped | None = None
    config: Config | None = None
    context: Mapped | None = None
    webhook: str | None = None
    interrupt_before: Breakpoints = None
    interrupt_after: Breakpoints = None
    on_run_completed: Completion | None = None
    enabled: bool | None = None
    stream_mode: Modes = None
    stream_subgraphs: bool | None = None
    stream_resumable: bool | None = None
    durability: Literal["sync", "async", "exit"] | None = None

    def dump_sent(self) -> dict[str, Any]:
        """Return the fields that were sent; null counts as absent, except for ``end_time``, which it
        clears."""
        return {
            name: getattr(self, name)
            for name in self.model_fields_set
            if getattr(self, name) is not None or name == "end_time"
        }


class _Patch(_Changes):
    """Changes of a cron."""

    schedule: str | None = None


class _New(_Changes):
    """A cron to create."""

    assistant_id: str
    schedule: str
    multitask_strategy: Strategy | None = None
    checkpoint_during: bool | None = None


class _Asked(Body):
    """Conditions of a search."""

    assistant_id: str | None = None
    thread_id: str | None = None
    enabled: bool | None = None
    metadata: Contents = Field(default_factory=dict)


A = TypeVar("A", bound=_Asked)


class _Search(_Asked):
    limit: Page = 10
    offset: Offset = 0
    sort_by: (
        Literal[
            "cron_id", "assistant_id", "thread_id", "created_at", "updated_at", "next_run_date", "end_time"
        ]
        | None
    ) = None
    sort_order: Literal["asc", "desc"] | None = None
    select: Names | None = None


CronId = Annotated[uuid.UUID, Path()]


@router.post("/threads/{thread_id}/runs/crons")
async def create_for_thread(caller: CallerNow, thread_id: ThreadId, new: _New) -> Json:
    """Create a cron that runs an assistant on a thread."""
    return await _create(caller, thread_id, new)


@router.post("/runs/crons")
async def create(caller: CallerNow, request: Request, new: _New) -> Json:
    """Create a cron that runs an assistant on a new thread each time, or on the one that is named."""
    named = await thread_ids.read_from_request(request)
    return await _create(caller, thread_ids.require_same_thread(named), new)


@router.post("/runs/crons/search")
async def search(caller: CallerNow, asked: _Search) -> Json:
    """Find crons, the most recently created ones first."""
    crons, asked = await _find(caller, asked, ("limit", "offset"))
    found = [_show(cron) for cron in crons]
    by = asked.sort_by or "created_at"
    found.sort(key=lambda entry: (entry[by] or "", entry["cron_id"]), reverse=asked.sort_order != "asc")
    return responses.make_page(found, asked, lambda entry: entry)


@router.post("/runs/crons/count")
async def count(caller: CallerNow, asked: _Asked) -> Json:
    """Count crons."""
    return Json(len((await _find(caller, asked, ()))[0]))


@router.get("/runs/crons/{cron_id}")
async def get(caller: CallerNow, cron_id: CronId) -> Json:
    """Return a cron."""
    conditions = await caller.may("crons", "read", {"cron_id": str(cron_id)})
    return Json(_show(await _find_visible(caller, str(cron_id), conditions)))


@router.patch("/runs/crons/{cron_id}")
async def patch(caller: CallerNow, cron_id: CronId, changes: _Patch) -> Json:
    """Change a cron. ``metadata`` is merged, the rest replaced; a null ``end_time`` removes it."""
    given = _drop_claims(caller.user, changes.dump_sent())
    unchanged = dict.fromkeys(("schedule", "end_time", "enabled", "on_run_completed"))
    value: dict[str, Any] = {
        "cron_id": str(cron_id),
        "payload": _select_payload(given),
        "metadata": {},
        **unchanged,
        **_select_described(given),
    }
    conditions = await caller.may("crons", "update", value)
    given = _join_authorized(given, value["payload"])
    cron = await _find_visible(caller, str(cron_id), conditions)
    job = CronJob.read(cron)
    require_stamp(conditions, _change(caller, job, given, value["metadata"]).metadata)
    if job.thread_id is not None:
        await _find_thread_to_run(caller, job.thread_id, job.assistant_id, job.thread)
    now = await caller.host.runtime.now()

    def alter(stored: Cron) -> Due:
        before = CronJob.read(stored)
        if not caller.sees(conditions, before.metadata):
            raise _missing_error(str(cron_id))
        job = _change(caller, before, given, value["metadata"])
        if (job.schedule, job.enabled) == (before.schedule, before.enabled):
            return Due(job.dump(), stored.due_at)
        return Due(job.dump(), _find_first_time(job, now))

    return Json(_show(await caller.runtime.crons.change(str(cron_id), alter)))


@router.delete("/runs/crons/{cron_id}", status_code=204)
async def delete(caller: CallerNow, cron_id: CronId) -> Response:
    """Remove a cron. Runs that it created go on."""
    conditions = await caller.may("crons", "delete", {"cron_id": str(cron_id)})
    await _find_visible(caller, str(cron_id), conditions)
    await caller.runtime.crons.remove(str(cron_id))
    return Response(status_code=204)


async def _create(caller: Caller, thread_id: str | None, new: _New) -> Json:
    given = _drop_claims(caller.user, new.dump_sent())
    value: dict[str, Any] = {
        "payload": {**_select_payload(given), "assistant_id": new.assistant_id},
        "cron_id": None,
        "thread_id": thread_id,
        "user_id": caller.user.identity or None,
        "end_time": None,
        "metadata": {},
        **_select_described(given),
    }
    conditions = await caller.may("crons", "create", value)
    given = _join_authorized(given, value["payload"])
    metadata = dict(value["metadata"])
    require_stamp(conditions, metadata)
    thread = None
    if thread_id is not None:
        thread = await _find_thread_to_run(caller, thread_id, new.assistant_id)
    assistant = await caller.find_assistant_to_run(new.assistant_id)
    job = CronJob(
        assistant_id=assistant.assistant_id,
        graph_id=assistant.graph_id,
        thread_id=thread_id,
        thread=thread,
        schedule=Schedule(
            given["schedule"], given.get("timezone"), _to_micros_or_none(given.get("end_time"))
        ),
        payload=_check_payload(caller, assistant.assistant_id, thread_id, _select_payload(given)),
        metadata=metadata,
        on_run_completed=None if thread_id is not None else new.on_run_completed or "delete",
        enabled=new.enabled is not False,
        user=_choose_stored_user(caller.user),
    )
    due_at = _find_first_time(job, await caller.host.runtime.now())
    return Json(_show(await caller.runtime.crons.create(job.dump(), due_at)))


async def _find_thread_to_run(
    caller: Caller, thread_id: str, assistant_id: str, known: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the facts that a cron notes about its thread. ``NotFound`` if the user may not create runs on
    the thread, or if it is another thread than the ``known`` one."""
    value = {"thread_id": thread_id, "assistant_id": assistant_id, "metadata": {}, "kwargs": {}}
    conditions = await caller.may("threads", "create_run", value)
    row = await caller.find_visible_thread(thread_id, conditions)
    if known is not None and known["created_at"] != row.created_at:
        raise missing_error(thread_id)
    return {"created_at": row.created_at, "conditions": conditions}


def _change(caller: Caller, job: CronJob, given: Mapping[str, Any], metadata: Mapping[str, Any]) -> CronJob:
    """Return a cron after a change, which is checked like a new cron. A user who changes the run to create
    becomes the user of the cron's runs, so that no user can act as another."""
    new = _select_payload(given)
    current = job.schedule
    schedule = Schedule(
        given.get("schedule", current.expression), given.get("timezone", current.timezone), current.end
    )
    if "end_time" in given:
        schedule = schedule._replace(end=_to_micros_or_none(given["end_time"]))
    if job.thread_id is not None and given.get("on_run_completed") is not None:
        raise Refusal(422, "on_run_completed is for crons without a thread; this one has a thread")
    if new:
        job = replace(job, user=_choose_stored_user(caller.user))
    return replace(
        job,
        schedule=schedule,
        payload=_check_payload(caller, job.assistant_id, job.thread_id, {**job.payload, **new}),
        metadata={**job.metadata, **metadata},
        on_run_completed=given.get("on_run_completed", job.on_run_completed),
        enabled=given.get("enabled", job.enabled),
    )


def _drop_claims(user: User, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that were sent, with metadata that states nothing about an authenticated user."""
    if "metadata" not in given:
        return dict(given)
    return {**given, "metadata": without_claims(user, given["metadata"])}


def _select_payload(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the run to create."""
    return {name: value for name, value in given.items() if name not in _OWN}


def _join_authorized(given: Mapping[str, Any], payload: Any) -> dict[str, Any]:
    """Return the fields of a cron with those of its run as the authorization handler left them."""
    if not isinstance(payload, Mapping):
        raise Refusal(500, "the authorization handler left a payload that is not a mapping")
    cron_fields = {name: value for name, value in given.items() if name in _OWN}
    return {**cron_fields, **_select_payload(payload)}


def _select_described(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the cron itself, for authorisation."""
    return {name: given[name] for name in _DESCRIBED if name in given}


def _check_payload(
    caller: Caller, assistant_id: str, thread_id: str | None, payload: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields of the run as they may be stored. ``Refusal`` if no such run could be created."""
    new = NewRun.model_validate({**payload, "assistant_id": assistant_id})
    new = check_run(caller, new, is_stateless=thread_id is None)
    return new.model_dump(mode="json", include=set(payload), exclude_none=True)


def _find_first_time(job: CronJob, now: int) -> int | None:
    """Return when a cron is due first. ``Refusal`` if its schedule is not valid, or has no time left."""
    try:
        first = job.schedule.find_next_after(now)
    except BadSchedule as error:
        raise Refusal(422, str(error)) from error
    if first is None and job.enabled:
        raise Refusal(422, "the schedule has no time between now and its end; change one of them")
    if job.enabled:
        return first
    return None


def _to_micros_or_none(time: datetime | None) -> int | None:
    if time is None:
        return None
    try:
        utc = time.astimezone(UTC)
    except OverflowError:
        raise Refusal(422, "end_time is outside of the years 1 to 9999") from None
    return to_micros(utc)


def _choose_stored_user(user: User) -> dict[str, Any]:
    """Return the stored facts about the user: of the fields of a token only the verified email."""
    return {
        "email": list_verified_names(user).get(USER_EMAIL),
        "identity": user.identity,
        "permissions": list(user.permissions),
        "display_name": user.display_name,
    }


async def _find_visible(caller: Caller, cron_id: str, conditions: Filter | None) -> Cron:
    """Return a cron that the user may see. ``NotFound`` if it does not exist or is not visible to the
    user."""
    cron = await caller.runtime.crons.get(cron_id)
    if not caller.sees(conditions, cron.body["metadata"]):
        raise _missing_error(cron_id)
    return cron


async def _find(caller: Caller, asked: A, page: Sequence[str]) -> tuple[list[Cron], A]:
    """Return the crons that a search finds, and the search as the authorization handler left it. ``page`` has
    the names of the fields that choose a page."""
    names = ("assistant_id", "thread_id", "metadata", *page)
    asked, conditions = await caller.narrow("crons", asked, names)
    assistant_id = asked.assistant_id
    if assistant_id is not None:
        assistant_id = caller.host.assistants.id_of(assistant_id) or assistant_id
    found = [
        cron
        for cron in await caller.runtime.crons.read_all()
        if contains(cron.body["metadata"], asked.metadata)
        and caller.sees(conditions, cron.body["metadata"])
        and assistant_id in (None, cron.body["assistant_id"])
        and asked.thread_id in (None, cron.body["thread_id"])
        and asked.enabled in (None, cron.body["enabled"])
    ]
    return found, asked


def _show(cron: Cron) -> dict[str, Any]:
    job = CronJob.read(cron)
    last = dict(job.last)
    if last:
        last["at"] = responses.format_time(last["at"])
    return {
        "cron_id": cron.id,
        "assistant_id": job.assistant_id,
        "thread_id": job.thread_id,
        "schedule": job.schedule.expression,
        "timezone": job.schedule.timezone,
        "end_time": responses.format_optional_time(job.schedule.end),
        "next_run_date": responses.format_optional_time(cron.due_at),
        "payload": {**job.payload, "assistant_id": job.assistant_id, "schedule": job.schedule.expression},
        "metadata": dict(job.metadata),
        "on_run_completed": job.on_run_completed,
        "enabled": job.enabled,
        "user_id": job.user["identity"] or None,
        "last_run": last or None,
        "created_at": responses.format_time(cron.created_at),
        "updated_at": responses.format_time(cron.updated_at),
    }


def _missing_error(cron_id: str) -> NotFound:
    return NotFound(f"Cron {cron_id!r} not found.")
