"""Crons of the API: their contents, and what is started when one is due.

A cron starts a run as a client's request would, as the user who created the cron. Each time has an
idempotency key of its own, so that several processes that start the cron at the same time create one run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple

from starlette.datastructures import Headers

from perdure.errors import Contention, NotFound, PerdureError, QueueFull, Unavailable
from perdure.runtime.crons import Cron, Due
from perdure.runtime.worker.cron_service import Fired, Firing
from perdure.server.assistants import NONE_TO_RUN
from perdure.server.auth.identity import Refusal, User
from perdure.server.requests import NewRun
from perdure.server.resources import Caller, ServerState
from perdure.server.runs.cron_schedules import Schedule
from perdure.server.runs.run_creation import AcceptedRun, submit
from perdure.server.runs.run_request_headers import IDEMPOTENCY_KEY
from perdure.server.runs.temporary_threads import remove_after_run

Completion = Literal["delete", "keep"]

_LATE_US = 60 * 1_000_000
"""Lateness from which a time counts as missed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CronJob:
    """Contents of a cron.

    Attributes:
        assistant_id: The assistant to run.
        graph_id: The assistant's graph.
        thread_id: The thread; None for a new one each time.
        thread: When that thread was created, and the filter of the threads on which its user may run. A
            thread with the same id that was created later, or that the filter excludes now, gets no run.
        schedule: When it is due.
        payload: The run's other fields, as its client sent them.
        metadata: Metadata of the cron and of its runs.
        on_run_completed: Treatment of a run's own thread after the run.
        enabled: False to start nothing.
        user: The identity, the permissions and the verified email of the user who created it.
        last: Its latest start: the time ``at``, with the ``thread_id`` and ``run_id``, or with an ``error``.
    """

    assistant_id: str
    graph_id: str
    thread_id: str | None
    thread: Mapping[str, Any] | None
    schedule: Schedule
    payload: Mapping[str, Any]
    metadata: Mapping[str, Any]
    on_run_completed: Completion | None
    enabled: bool
    user: Mapping[str, Any]
    last: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def read(cls, cron: Cron) -> CronJob:
        """Return the contents of a stored cron."""
        body: dict[str, Any] = dict(cron.body)
        schedule: Any = Schedule(**body["schedule"])
        return cls(**{**body, "schedule": schedule})

    def dump(self) -> dict[str, Any]:
        """Return the contents as plain JSON data."""
        return {**asdict(self), "schedule": self.schedule._asdict()}

    def find_next_after(self, moment: int) -> int | None:
        """Return the first time after a moment at which it is started, both in microseconds."""
        if self.enabled:
            return self.schedule.find_next_after(moment)
        return None

    def make_new_run(self, cron_id: str) -> NewRun:
        """Return the run that it starts."""
        fields = {
            **self.payload,
            "assistant_id": self.assistant_id,
            "metadata": {**self.metadata, "cron_id": cron_id},
            "on_completion": None,
        }
        if self.thread_id is None:
            fields["on_completion"] = self.on_run_completed
        return NewRun.model_validate(fields)


class _Accepted(NamedTuple):
    """A run that was accepted; ``then`` is called once its cron has moved on, and ``undo`` if its cron
    was removed meanwhile."""

    run: AcceptedRun
    then: Callable[[], None] | None
    undo: Callable[[], Awaitable[None]]


class CronStarter:
    """Starts the crons of a server's database."""

    def __init__(self, host: ServerState) -> None:
        self._host = host

    def serve(self) -> None:
        """Start the crons of the server's runtime from now on, except those of graphs that it does not
        have."""
        graphs = self._host.runtime.graphs
        self._host.runtime.serve_crons(self.start, lambda cron: cron.body["graph_id"] in graphs)

    async def start(self, firing: Firing) -> Fired:
        """Start the run of a cron.

        A cron is removed with its thread; one whose thread was deleted while the cron was created is removed
        here. A cron whose assistant is gone, or whose user has lost the thread, is disabled. Any other
        refusal is noted with the cron, which is due again at its next time.

        Raises:
            Unavailable: The database does not answer; the same time has to be tried again.
            Contention: Other writers won each attempt; the same time has to be tried again.
            QueueFull: The thread's queue is full, and each time is to be started; this one is tried again.
        """
        job, due_at = CronJob.read(firing.cron), firing.cron.due_at or firing.now
        missed = self._host.runtime.settings.missed_crons
        if missed == "none" and firing.now - due_at > _LATE_US:
            return Fired(_make_due(job, firing.now), "missed")
        moment = due_at
        if missed != "all":
            moment = max(due_at, firing.now)
        try:
            accepted = await self._accept(firing, job)
        except (Unavailable, Contention):
            raise
        except (PerdureError, Refusal) as error:
            if isinstance(error, QueueFull) and missed == "all":
                raise
            kind, is_gone = type(error).__name__, isinstance(error, NotFound)
            if is_gone and await self._is_without_thread(firing.tenant, job):
                return Fired(None, "removed", kind)
            job = replace(job, last={"at": due_at, "error": kind}, enabled=not is_gone)
            return Fired(_make_due(job, moment), "disabled" if is_gone else "failed", kind)
        started = {"at": due_at, "thread_id": accepted.run.thread_id, "run_id": accepted.run.run_id}
        after = _make_due(replace(job, last=started), moment)
        return Fired(after, then=accepted.then, undo=accepted.undo)

    async def _is_without_thread(self, tenant: str, job: CronJob) -> bool:
        """Return True if the thread of a cron does not exist any more, also if a later thread has its id."""
        if job.thread_id is None:
            return False
        row = await self._host.runtime.for_tenant(tenant).threads.find(job.thread_id)
        return row is None or (job.thread is not None and row.created_at != job.thread["created_at"])

    async def _accept(self, firing: Firing, job: CronJob) -> _Accepted:
        fields = {"display_name": job.user["display_name"]}
        if email := job.user.get("email"):
            fields["email"] = email
        user = User(job.user["identity"], firing.tenant, tuple(job.user["permissions"]), fields)
        runtime = self._host.runtime.for_tenant(firing.tenant)
        # The user's rights were checked when the cron was created or changed.
        caller = Caller(self._host, user, runtime, is_program=True)
        new = job.make_new_run(firing.cron.id)
        if job.thread_id is not None and job.thread is not None:
            row = await caller.threads.find(job.thread_id)
            is_same_thread = row is not None and row.created_at == job.thread["created_at"]
            if row is None or not is_same_thread or not caller.sees(job.thread["conditions"], row.metadata):
                raise NotFound(NONE_TO_RUN)
        headers = Headers({IDEMPOTENCY_KEY: firing.key})
        modes = tuple(new.stream_mode or ("values",))
        accepted = await submit(caller, headers, job.thread_id, new, modes=modes, is_kept=True)

        def remove_later() -> None:
            self._host.run_in_background(remove_after_run(caller, accepted))

        async def undo() -> None:
            if job.thread_id is None:
                await caller.threads.remove(accepted.thread_id)
            else:
                await runtime.cancel(accepted.thread_id, accepted.run_id, rollback=True)

        # A thread is removed only once the cron has moved on: it holds the key by which a second start is
        # recognised.
        is_kept = job.thread_id is not None or job.on_run_completed == "keep"
        return _Accepted(accepted, None if is_kept else remove_later, undo)


def _make_due(job: CronJob, moment: int) -> Due:
    return Due(job.dump(), job.find_next_after(moment))
