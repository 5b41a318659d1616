"""One recorded history: a deployment under load and faults, and then at rest."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx

from .databases import Backend, Database, open_database
from .deployment import Deployment
from .facts import SETTLED
from .faults import Faults
from .http_calls import Caller
from .library_client import read_sessions, take_turns
from .load import Conversation, Load
from .notices import receive_notices
from .recording import Recorder

TENANTS = ("ada", "ben")
_ANSWER_S = 20.0
_POLL_S = 0.5
_ROUNDS = 4
"""How often the questions of a thread are answered at the end: an answer may lead to the next one."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a history is made. The same seed makes the same choices; their times are the machine's."""

    backend: Backend
    minutes: float
    seed: int
    servers: int = 2
    workers: int = 1
    clients: int = 2
    users: int = 2
    places: int = 2
    length: int = 40
    has_faults: bool = True
    rest_s: float = 240.0
    defect: str | None = None


def record(plan: Plan, folder: Path, file: Path) -> dict[str, int]:
    """Record a history into a file; how many faults of each kind there were."""
    with open_database(plan.backend) as database:
        deployment = Deployment(
            folder, database.url, servers=plan.servers, workers=plan.workers, defect=plan.defect
        )
        for number in range(plan.clients):
            name = f"client-{number}"
            deployment.add_client(name, take_turns, database.url, str(file), name, list(TENANTS))
        with deployment:
            return asyncio.run(_record(plan, deployment, database, file))


async def _record(plan: Plan, deployment: Deployment, database: Database, file: Path) -> dict[str, int]:
    chance = random.Random(plan.seed)
    recorder = Recorder(file, "users")
    over = asyncio.Event()
    faults = Faults(deployment, database, recorder, random.Random(chance.random()))
    async with AsyncExitStack() as stack:
        stack.callback(recorder.close)
        client = await stack.enter_async_context(
            httpx.AsyncClient(timeout=_ANSWER_S, trust_env=False, limits=httpx.Limits(max_connections=None))
        )
        webhook = await stack.enter_async_context(receive_notices(recorder, chance))
        loads = [
            Load(
                Caller(client, recorder, tenant), deployment.servers,
                random.Random(chance.random()), plan.places, plan.length, webhook,
            )
            for tenant in TENANTS
        ]  # fmt: skip
        async with asyncio.TaskGroup() as group:
            for load in loads:
                group.create_task(load.delete_over_and_over(over))
                group.create_task(load.use(plan.places, over))
                for user in range(plan.users * plan.places):
                    group.create_task(load.use(user % plan.places, over))
            disturbing = group.create_task(faults.go_on(plan.minutes, over)) if plan.has_faults else None
            await asyncio.sleep(plan.minutes * 60)
            over.set()
            if disturbing is not None:
                await disturbing
        recorder.note_event("the load is over")
        for member in deployment.clients:
            member.kill()
        for load in loads:
            await _rest(load, plan.rest_s)
        deployment.add_client("reader", read_sessions, database.url, str(file), "reader", list(TENANTS))
        await asyncio.to_thread(deployment.clients[-1].finish)
    return faults.counts


async def _rest(load: Load, within_s: float) -> None:
    """Read every thread until its runs have ended, and then what is left of it."""
    deadline = asyncio.get_running_loop().time() + within_s
    for thread in load.threads:
        await _await_runs(load, thread, deadline)
    for thread in load.threads:
        for _ in range(_ROUNDS):
            if not await load.answer_all(thread):
                break
            await _await_runs(load, thread, deadline)
        for server in load.servers:
            await load.caller.read_history(server, thread.name)
            await load.caller.read(server, thread.name)


async def _await_runs(load: Load, thread: Conversation, deadline: float) -> None:
    pending = dict.fromkeys(thread.runs)
    while pending:
        for run in list(pending):
            status = await load.caller.read_run(load.servers[0], thread.name, run)
            if status in SETTLED:
                del pending[run]
        if pending and asyncio.get_running_loop().time() > deadline:
            return
        if pending:
            await asyncio.sleep(_POLL_S)
