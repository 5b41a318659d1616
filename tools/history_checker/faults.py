"""What is done to a deployment while it is used: kills, pauses past the lease, outages of its database, and
deployments of a newer version, one process after the other."""

from __future__ import annotations

import asyncio
import random
import signal
from dataclasses import dataclass

from .databases import Database
from .deployment import LEASE_S, Deployment, Member
from .recording import Recorder

GAP_S = (1.0, 5.0)
PAUSE_S = (0.5 * LEASE_S, 2.5 * LEASE_S)
OUTAGE_S = (1.0, 8.0)
DEPLOYS = (1 / 3, 2 / 3)
OUTAGES = (1 / 4, 3 / 4)
"""When deployments and outages are due, as shares of a history; further outages come at random."""


@dataclass
class Faults:
    """Faults by a seed; ``counts`` has how many of each there were."""

    deployment: Deployment
    database: Database
    recorder: Recorder
    chance: random.Random

    def __post_init__(self) -> None:
        self.counts: dict[str, int] = {}

    async def go_on(self, minutes: float, over: asyncio.Event) -> None:
        """Disturb the deployment until it is over, and leave everything running."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        due = sorted(
            [(share, self._deploy) for share in DEPLOYS]
            + [(share, self._take_database) for share in OUTAGES],
            key=lambda each: each[0],
        )
        while not over.is_set():
            await asyncio.sleep(self.chance.uniform(*GAP_S))
            if due and loop.time() > began + due[0][0] * minutes * 60:
                await due.pop(0)[1]()
                continue
            (act,) = self.chance.choices(
                (self._kill, self._pause, self._disturb, self._take_database), (6, 6, 2, 1)
            )
            await act()

    async def _kill(self) -> None:
        member = self._member()
        self._note("kill", member)
        await asyncio.to_thread(member.kill)
        await asyncio.sleep(self.chance.uniform(0, 1))
        await self._start(member)

    async def _pause(self) -> None:
        member = self._member()
        self._note("pause", member)
        member.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(self.chance.uniform(*PAUSE_S))
        finally:
            member.signal(signal.SIGCONT)

    async def _take_database(self) -> None:
        self._note("outage")
        await asyncio.to_thread(self.database.begin_outage)
        try:
            await asyncio.sleep(self.chance.uniform(*OUTAGE_S))
        finally:
            await asyncio.to_thread(self.database.end_outage)
        self.recorder.note_event("the outage is over")
        for member in self.deployment.members:
            if not member.is_alive:
                self._note("ended by itself", member)
                await self._start(member)

    async def _disturb(self) -> None:
        if (what := await asyncio.to_thread(self.database.disturb)) is not None:
            self._note(what)

    async def _deploy(self) -> None:
        """Replace one process after the other by one of a newer version."""
        self._note("deploy")
        self.deployment.write_next_version()
        for member in self.deployment.members:
            await asyncio.to_thread(member.stop)
            await self._start(member)

    async def _start(self, member: Member) -> None:
        member.start()
        await asyncio.to_thread(member.wait_until_ready)

    def _member(self) -> Member:
        return self.chance.choice(self.deployment.members)

    def _note(self, what: str, member: Member | None = None) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
        self.recorder.note_event(what, member=None if member is None else member.name)
