"""Covers tests.chaos.researching.

A deep agent with to-dos, files, three subagents at once and a question, whose process is killed again and
again: what is stored is not done again, subagents go on in the middle, and all ends as without a kill.

Some kills by default; more than sixty with ``PERDURE_CHAOS=full``, for about as many minutes as
``PERDURE_RESEARCH_MINUTES`` says, two without it.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

import perdure
from examples.researcher.agent import FIELDS
from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.database.opening import open_database
from perdure.langgraph.reading.thread_files import load_file, load_files
from perdure.langgraph.reading.thread_messages import load_messages
from perdure.langgraph.saver import PerdureSaver
from perdure.model.model_calls import NO_PRICES
from tests.backends import EMPTY
from tests.chaos.researching import LEAD, LEASE_S, THREAD, USER, Life, Zygote

FULL = os.environ.get("PERDURE_CHAOS") == "full"
MINUTES = float(os.environ.get("PERDURE_RESEARCH_MINUTES", "2"))
KILLS, LATE_KILLS, LOOK_UPS = (60, 12, 40) if FULL else (6, 2, 4)
"""Kills while three subagents work, kills from the answer on, and what each subagent looks up."""
PACE_S = max(0.1, MINUTES * 60 / (KILLS + LATE_KILLS) - LEASE_S - 0.5) / 1.5 if FULL else 0.15
AT: Any = {"configurable": {"thread_id": THREAD}}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 + 120 * MINUTES)]


class Stored:
    """What is stored of the thread.

    Attributes:
        calls: The calls of models and tools whose results are stored.
        questions: The ids of the questions.
        agents: The names of the agents by their namespaces.
    """

    def __init__(self, database: SyncDatabase) -> None:
        self.calls: set[str] = set()
        self.questions: set[str] = set()
        self.agents: dict[str, str] = {}
        answers: dict[str, dict[str, None]] = {}
        for found in reversed(list(database.checkpointer().list(AT))):
            namespace = found.config["configurable"]["checkpoint_ns"]
            self.agents[namespace] = found.metadata.get("lc_agent_name") or LEAD
            for _, channel, value in found.pending_writes or ():
                if channel == "__interrupt__":
                    self.questions |= {each.id for each in value}
                for each in value if channel == "messages" and isinstance(value, list) else ():
                    if each.type == "tool":
                        self.calls.add(f"tool {each.tool_call_id}")
                    elif each.type == "ai":
                        answers.setdefault(namespace, {})[each.id] = None
        for namespace, ids in answers.items():
            self.calls |= {f"model {self.agents[namespace]} {number}" for number in range(len(ids))}


def read(url: str) -> Stored:
    with perdure.connect_sync(url) as database:
        return Stored(database)


def outcome(url: str) -> dict[str, Any]:
    """Return what the agent made: its conversations, to-dos, and files in the thread and the store."""
    with perdure.connect_sync(url) as database:
        handle = handle_of(database)
        partition = handle.partition(THREAD)
        assert database.fsck(THREAD) == []
        agents = Stored(database).agents
        latest = database.checkpointer().get_tuple(AT)
        assert latest is not None
        listed = handle.run(load_files(partition, handle.digest)).files
        kept = database.store().search(("files", USER))
        return {
            "conversations": {name: conversation(database, space) for space, name in agents.items()},
            "agents": sorted(agents.values()),
            "todos": latest.checkpoint["channel_values"]["todos"],
            "files": {
                each.path: handle.run(load_file(partition, handle.digest, each.path)).text for each in listed
            },
            "memories": {item.key: item.value["content"] for item in kept},
        }


def conversation(database: SyncDatabase, namespace: str) -> list[Any]:
    """Return the transcript of an agent, as the inspector shows it."""
    handle = handle_of(database)
    shown: list[Any] = []
    cursor: str | None = ""
    while cursor is not None:
        page = handle.run(
            load_messages(handle.partition(THREAD), handle.digest, NO_PRICES, cursor, namespace=namespace)
        )
        shown = [*page.messages, *shown]
        cursor = page.cursor
    times = [each["at"] for each in shown if each["at"] is not None]
    assert times == sorted(times)
    names = ("role", "text", "tool_calls", "tool_call_id", "status")
    return [[each[name] for name in names] for each in shown]


class Killed:
    """Lives of processes that were killed, and what each of them began."""

    def __init__(self, zygote: Zygote, first: Life, seed: int) -> None:
        self._zygote, self._random = zygote, random.Random(seed)
        self.life = first
        self.kills = 0
        self.resumed: Counter[str] = Counter()
        """Subagents that a process found in the middle, with the number of times."""

    def lines(self) -> list[tuple[int, str]]:
        path = Path(self.life.begun)
        return [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []

    def begun(self, number: int) -> list[str]:
        return [call for life, call in self.lines() if life == number]

    def go_on(self, *, at_most: int, answers: bool) -> bool:
        """Let processes live until so many are killed; return True if one of them ended before."""
        for _ in range(at_most):
            at_start = self._random.random() < 0.2
            kill_after = self._random.uniform(0, 2 * (LEASE_S if at_start else self.life.pace))
            if self.live(answers=answers, kill_after=kill_after, at_start=at_start) == 0:
                return True
        return False

    def live(self, *, until: str = "", **terms: Any) -> int:
        """Let one process live, and check that it did not do again what was stored before it began."""
        before = read(self.life.url)
        self.life = replace(self.life, number=self.life.number + 1, until=until, **terms)
        ended = self._zygote.live(self.life)
        assert ended in (0, signal.SIGKILL)
        self.kills += ended == signal.SIGKILL
        begun = self.begun(self.life.number)
        assert not before.calls.intersection(begun), "a call was made again whose result was stored"
        for name in FIELDS:
            first = next((call for call in begun if call.startswith((f"model {name} ", f"tool {name}-"))), "")
            if first and f"model {name} 0" in before.calls:
                self.resumed[name] += 1
        return ended


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
def test_a_deep_agent_survives_kills_in_the_middle_of_its_subagents(backend: str, tmp_path: Path) -> None:
    with EMPTY[backend]() as url, Zygote() as zygote:
        calm = f"sqlite:///{tmp_path / 'calm.db'}"
        for each in (calm, url):
            open_database(each, migrate=True).close()
        undisturbed = Life(0, calm, str(tmp_path / "calm"), 0.0, LOOK_UPS)
        assert zygote.live(undisturbed) == 0
        expected = outcome(calm)
        require_all(expected)

        killed = Killed(zygote, Life(-1, url, str(tmp_path / "begun"), PACE_S, LOOK_UPS), seed=7)
        assert killed.live(answers=False, kill_after=0.0, until=f"model {FIELDS[0]} 1") == signal.SIGKILL
        assert not killed.go_on(at_most=KILLS - 1, answers=False), "it was done too soon"
        assert killed.kills == KILLS
        assert killed.live(answers=False, kill_after=None) == 0
        questions = read(url).questions
        assert len(questions) == 1
        killed.go_on(at_most=LATE_KILLS, answers=True)
        assert killed.live(answers=True, kill_after=None) == 0

        stored = read(url)
        assert stored.questions == questions, "it was asked once"
        assert outcome(url) == expected
        assert set(killed.resumed) == set(FIELDS), "each subagent went on in the middle"
        counts = Counter(call for _, call in killed.lines())
        assert counts.keys() == stored.calls == {call for _, call in read_lines(undisturbed)}
        again = sum(count > 1 for count in counts.values())
        print(
            f"{killed.kills} kills, {len(counts)} calls, {again} of them begun again, {dict(killed.resumed)}"
        )


def forget_subagents(patch: pytest.MonkeyPatch) -> None:
    """Let a subagent begin anew: a process that goes on does not find where it was."""
    load = PerdureSaver.aget_tuple

    async def load_unless_nested(self: PerdureSaver, config: RunnableConfig) -> CheckpointTuple | None:
        if config.get("configurable", {}).get("checkpoint_ns"):
            return None
        return await load(self, config)

    patch.setattr(PerdureSaver, "aget_tuple", load_unless_nested)


def test_a_subagent_that_begins_anew_is_noticed(tmp_path: Path) -> None:
    with EMPTY["sqlite"]() as url, Zygote() as zygote:
        open_database(url, migrate=True).close()
        breaks = f"{__name__}:{forget_subagents.__name__}"
        first = Life(-1, url, str(tmp_path / "begun"), 0.15, LOOK_UPS, breaks=breaks)
        killed = Killed(zygote, first, seed=7)
        assert killed.live(answers=False, kill_after=0.0, until=f"model {FIELDS[0]} 1") == signal.SIGKILL
        with pytest.raises(AssertionError, match="a call was made again whose result was stored"):
            killed.go_on(at_most=20, answers=False)


def require_all(made: Mapping[str, Any]) -> None:
    """Require that the agent did all that it is to do."""
    assert made["agents"] == sorted([LEAD, "editor", *FIELDS])
    assert [each["status"] for each in made["todos"]] == ["completed"] * 2
    assert sorted(made["files"]) == [*(f"/notes/{name}.md" for name in sorted(FIELDS)), "/report.md"]
    assert "Above all" in made["files"]["/report.md"]
    assert made["memories"] == {"/asked.md": "durable threads\n"}
    for name in FIELDS:
        assert len(made["conversations"][name]) == 2 * LOOK_UPS + 4
    said = made["conversations"]["editor"]
    assert [each[1] for each in said if each[0] == "tool"] == ["/report.md is published."]


def read_lines(life: Life) -> list[tuple[int, str]]:
    return [tuple(json.loads(line)) for line in Path(life.begun).read_text().splitlines()]
