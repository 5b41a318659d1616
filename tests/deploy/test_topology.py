"""The compose file's topology as plain processes: its commands and its environment, without its containers.

Servers that run nothing, workers that serve nobody, one PostgreSQL; clients reach the servers by one address,
as behind a Service. Every process is replaced while streams are open.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from tests.backends import EMPTY
from tests.deploy.test_files import DEPLOY, SERVICES
from tests.server.acceptance.serving import Line, Place
from tests.server.issuer import AUDIENCE, ISSUER, SECRET, token
from tests.servers.ports import free_port

PROGRAM = Path(sys.executable).with_name("perdure")
STEPS = 40
WITHIN_S = 150.0
"""How long anything is waited for; four processes that start at once take long where there is little else."""
AGENT = """
import asyncio
import operator
from pathlib import Path
from typing import Annotated

from langchain_core.messages import AIMessage
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph

HERE = Path(__file__).parent


class State(MessagesState):
    steps: int
    trail: Annotated[list[int], operator.add]


async def step(state: State) -> dict:
    number = len(state["trail"])
    # One in the middle of it lasts until the test says so.
    while number == 5 and not (HERE / "go").exists():
        await asyncio.sleep(0.05)
    get_stream_writer()({"step": number})
    return {"trail": [number]}


async def answer(state: State) -> dict:
    return {"messages": [AIMessage("heard " + state["messages"][-1].text)]}


def onward(state: State) -> str:
    return "step" if len(state["trail"]) < state.get("steps", 0) else "answer"


builder = StateGraph(State)
builder.add_node(step)
builder.add_node(answer)
builder.add_conditional_edges(START, onward, ["step", "answer"])
builder.add_conditional_edges("step", onward, ["step", "answer"])
builder.add_edge("answer", END)
graph = builder.compile()
"""


async def eventually(what: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not await what():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.05)


class Topology:
    """Processes as the compose file starts them. Those that still run at the end are killed."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self._processes: list[subprocess.Popen[bytes]] = []
        shutil.copy(DEPLOY / "agent" / "perdure.toml", folder)
        (folder / "agent.py").write_text(AGENT)

    def command(self, service: str, **instead: str) -> list[str]:
        return [instead.get(word, word) for word in SERVICES[service]["command"]]

    def _environment(self, port: int = 0) -> dict[str, str]:
        clean = {
            k: v for k, v in os.environ.items() if not k.startswith(("PERDURE_", "DATABASE_", "LANGGRAPH_"))
        }
        # Containers listen to everybody; a test does not.
        return {
            **clean,
            "DATABASE_URL": self.url,
            "PERDURE_HTTP_HOST": "127.0.0.1",
            "PERDURE_HTTP_PORT": str(port),
            # Each user is a tenant; workers are told nothing of them.
            "PERDURE_AUTH_JWT_SECRET": SECRET,
            "PERDURE_AUTH_JWT_ISSUER": ISSUER,
            "PERDURE_AUTH_JWT_AUDIENCE": AUDIENCE,
        }

    def once(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PROGRAM, *words],
            cwd=self.folder, env=self._environment(), capture_output=True, text=True, timeout=WITHIN_S,
        )  # fmt: skip

    def start(self, words: list[str], port: int = 0) -> subprocess.Popen[bytes]:
        with self._log(len(self._processes)).open("wb") as log:
            process = subprocess.Popen(
                [PROGRAM, *words],
                cwd=self.folder, env=self._environment(port),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self._processes.append(process)
        return process

    def log(self, process: subprocess.Popen[bytes]) -> str:
        return self._log(self._processes.index(process)).read_text()

    def _log(self, number: int) -> Path:
        return self.folder / f"{number}.log"

    async def server(self, service: str) -> Served:
        """A server that is ready."""
        place = Place(free_port())
        process = self.start(self.command(service), place.port)

        async def is_ready() -> bool:
            assert process.poll() is None, self.log(process)
            with suppress(httpx.TransportError):
                async with place.http() as http:
                    return (await http.get("/ready")).is_success
            return False

        await eventually(is_ready)
        return Served(place, process)

    async def worker(self, **instead: str) -> subprocess.Popen[bytes]:
        """A worker that works."""
        process = self.start(self.command("worker", **instead))

        async def works() -> bool:
            assert process.poll() is None, self.log(process)
            return " runs agent on " in self.log(process)

        await eventually(works)
        return process

    async def stopped(self, process: subprocess.Popen[bytes]) -> str:
        """Ask a process to end as an orchestrator does; its log, when it has ended in order."""
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, WITHIN_S) == 0, self.log(process)
        assert "Traceback" not in self.log(process), self.log(process)
        return self.log(process)

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait(WITHIN_S)


class Served:
    """A server process and where it listens."""

    def __init__(self, place: Place, process: subprocess.Popen[bytes]) -> None:
        self.place = place
        self.process = process


@pytest.fixture
def topology(tmp_path: Path) -> Iterator[Topology]:
    with EMPTY["postgresql"]() as url:
        made = Topology(tmp_path, url)
        try:
            yield made
        finally:
            made.close()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients come back at once instead of after seconds."""
    monkeypatch.setattr(
        "langgraph_sdk._async.http._reconnect_delay", lambda attempt, **_: 0.1 * (attempt + 1)
    )


def client_of(place: Place, user: str = "ada") -> LangGraphClient:
    headers = {"Authorization": f"Bearer {token(SECRET, 'HS256', sub=user)}"}
    timeout: Any = httpx.Timeout(WITHIN_S)
    return get_client(url=place.url, api_key=None, headers=headers, timeout=timeout)


def said(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def heard(values: Any) -> list[str]:
    return [message["content"] for message in values["messages"]]


class Follower:
    """Somebody who follows a run until its end, wherever it is told."""

    def __init__(self, client: LangGraphClient) -> None:
        self.thread_id = f"walk {uuid.uuid4()}"
        self.seen: list[Any] = []
        self._client = client

    async def follow(self) -> None:
        stream = self._client.runs.stream(
            self.thread_id,
            "agent",
            input={"steps": STEPS, **said("walk")},
            config={"recursion_limit": 200},
            stream_mode="custom",
            stream_resumable=True,
            if_not_exists="create",
        )
        async for part in stream:
            self.seen.append(part)

    async def is_under_way(self) -> bool:
        return sum(part.event == "custom" for part in self.seen) == 5

    def check(self, values: Any) -> None:
        """Every step was told in order, none is missing, and what was told is what is stored."""
        assert self.seen[-1].event == "end"
        assert self.seen[-1].data["status"] == "success"
        ids = [int(part.id) for part in self.seen[:-1]]
        assert ids == sorted(set(ids))
        steps = [part.data["step"] for part in self.seen if part.event == "custom"]
        assert list(dict.fromkeys(steps)) == list(range(STEPS))
        attempts = sum(part.event == "metadata" for part in self.seen)
        # Only the step that was under way is done again where the run goes on.
        assert len(steps) - STEPS <= attempts - 1
        assert values["trail"] == list(range(STEPS))
        assert heard(values) == ["walk", "heard walk"]


# A client says so when it has to come back.
@pytest.mark.filterwarnings("ignore:Request failed, attempting reconnect:UserWarning")
@pytest.mark.timeout(600)
@pytest.mark.slow
def test_the_topology_serves_and_is_replaced_without_a_loss(topology: Topology) -> None:
    asyncio.run(_served_and_replaced(topology))


async def _served_and_replaced(topology: Topology) -> None:
    # The first step of all, and what the others wait for.
    assert topology.once(["migrate", "--check"]).returncode == 1
    assert topology.once(topology.command("migrate")).returncode == 0
    assert topology.once(["migrate", "--check"]).returncode == 0
    # This worker lets nothing go on when it is told to stop.
    first, second, hasty = await asyncio.gather(
        topology.server("server-1"), topology.server("server-2"), topology.worker(**{"25": "0"})
    )

    # A turn by each server, on one thread; another user's of the same name is another one.
    async with asyncio.timeout(WITHIN_S), client_of(first.place) as here, client_of(second.place) as there:
        values = await here.runs.wait("trip", "agent", input=said("one"), if_not_exists="create")
        assert heard(values) == ["one", "heard one"]
        values = await there.runs.wait("trip", "agent", input=said("two"))
        assert heard(values) == ["one", "heard one", "two", "heard two"]
    async with asyncio.timeout(WITHIN_S), client_of(second.place, "bob") as bob:
        values = await bob.runs.wait("trip", "agent", input=said("mine"), if_not_exists="create")
        assert heard(values) == ["mine", "heard mine"]

    line = Line(first.place)
    try:
        async with client_of(line.near) as client:
            await _replaced(topology, line, client, first, second, hasty)
    finally:
        line.close()


async def _replaced(
    topology: Topology,
    line: Line,
    client: LangGraphClient,
    first: Served,
    second: Served,
    hasty: subprocess.Popen[bytes],
) -> None:
    followers = [Follower(client) for _ in range(6)]
    following = [asyncio.ensure_future(follower.follow()) for follower in followers]
    waiting = asyncio.ensure_future(
        client.runs.wait("waits", "agent", input={"steps": 8, **said("wait")}, if_not_exists="create")
    )
    for follower in followers:
        await eventually(follower.is_under_way)

    # Servers, one after the other: new requests go to the one that stays.
    line.target = second.place.port
    assert "Every accepted run is stored" in await topology.stopped(first.process)
    third = await topology.server("server-1")
    line.target = third.place.port
    assert "Every accepted run is stored" in await topology.stopped(second.process)
    assert not any(task.done() for task in (*following, waiting))

    # Workers: one that hands its runs over at once, one that lets them end.
    patient = await topology.worker()
    handed_over = (await topology.stopped(hasty)).count("run.handed_over")
    await topology.worker()
    (topology.folder / "go").touch()
    await topology.stopped(patient)
    await asyncio.wait_for(asyncio.gather(*following), WITHIN_S)
    assert heard(await asyncio.wait_for(waiting, WITHIN_S)) == ["wait", "heard wait"]

    for follower in followers:
        state = await client.threads.get_state(follower.thread_id)
        follower.check(state["values"])
        runs = await client.runs.list(follower.thread_id)
        assert [run["status"] for run in runs] == ["success"]
    # All runs were the first worker's.
    assert handed_over == len(followers) + 1
    assert all(sum(part.event == "metadata" for part in each.seen) == 2 for each in followers)
