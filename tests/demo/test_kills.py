"""The demo's promise, over HTTP: what was written before kill -9 stays, and the answer goes on after it.

The process is the genuine one; its model is an endpoint whose answers are known: each word has one place.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.demo.endpoint import OUTLINE, STEPS, WORDS, Endpoint, endpoint
from tests.demo.process import Demo, need_the_parts, running, saying, wait_for
from tests.servers.ports import free_port

pytestmark = pytest.mark.timeout(360)
MOMENTS = 20


@pytest.fixture(autouse=True)
def _parts() -> None:
    need_the_parts()


@dataclass
class Reader:
    """What somebody sees who reads an answer to its end, through lost connections, as the page does."""

    demo: Demo
    topic: str
    ids: list[int] = field(default_factory=list)
    attempts: list[dict[str, Any]] = field(default_factory=list)
    written: dict[str, str] = field(default_factory=dict)
    """The texts of messages as they were streamed, by their ids."""
    stored: list[dict[str, Any]] = field(default_factory=list)
    """The messages of the latest state that was told."""
    stored_before: list[list[dict[str, Any]]] = field(default_factory=list)
    """The same at the end of each attempt but the last."""
    began = 0.0

    def read(self) -> None:
        run = ""
        address = f"{self.demo.address}/threads/{self.topic}/runs"
        until = time.monotonic() + 120
        with httpx.Client(timeout=60, trust_env=False) as client:
            while time.monotonic() < until:
                try:
                    if run:
                        headers = {"Last-Event-ID": str(self.ids[-1]) if self.ids else "-1"}
                        asked = client.stream("GET", f"{address}/{run}/stream", headers=headers)
                    else:
                        body = saying(f"Tell me a long story about {self.topic}")
                        headers = {"Idempotency-Key": self.topic}
                        asked = client.stream("POST", f"{address}/stream", json=body, headers=headers)
                    with asked as stream:
                        assert stream.status_code == 200
                        run = stream.headers.get("Content-Location", run).rpartition("/")[2]
                        if self._heard(stream.iter_lines()):
                            return
                except httpx.TransportError:
                    time.sleep(0.1)
        raise AssertionError("the answer has no end")

    def _heard(self, lines: Iterator[str]) -> bool:
        event: dict[str, str] = {}
        for line in lines:
            if line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                event[name] = value
            elif event and not line:
                if "id" in event:
                    self.ids.append(int(event["id"]))
                self._take(event["event"], json.loads(event.get("data", "null")))
                if event["event"] == "end":
                    return True
                event = {}
        return False

    def _take(self, name: str, data: Any) -> None:
        if name == "metadata":
            if self.attempts:
                self.stored_before.append(self.stored)
            self.began = self.began or time.monotonic()
            self.attempts.append(data)
        elif name == "values":
            self.stored = data["messages"]
        elif name == "messages" and data[0]["type"].startswith("AI"):
            self.written[data[0]["id"]] = self.written.get(data[0]["id"], "") + data[0]["content"]


def hit_and_kept(demo: Demo, reader: Reader) -> tuple[list[str], list[str]]:
    """The steps that the last attempt began with, and those that had ended, as the page finds them out."""
    rows = demo.ask("POST", f"/threads/{reader.topic}/history", json={"limit": 100})
    known = {row["checkpoint_id"]: row for row in rows}
    steps: list[list[str]] = []
    row = known.get(reader.attempts[-1].get("checkpoint_id"))
    while row is not None and "__start__" not in row["next"]:
        steps.insert(0, row["next"])
        row = known.get(row["parent_checkpoint_id"])
    again = steps.pop() if steps else []
    return again, [name for names in steps for name in names]


def check(demo: Demo, model: Endpoint, reader: Reader) -> str:
    """Check what a reader saw of an answer with one interruption at most; returns the step that was hit."""
    final = demo.ask("GET", f"/threads/{reader.topic}/state")["values"]["messages"]
    calls = model.calls[reader.topic]
    repeated = [step for step in STEPS if calls[step] > 1]
    assert sum(calls.values()) - len(STEPS) == len(repeated) <= 1, (
        "no step is done again but the one under way"
    )
    assert reader.ids == sorted(set(reader.ids)), "no event is told twice"
    # The whole answer is there, each paragraph once, by the last call for it.
    assert [message["type"] for message in final] == ["human", *["ai"] * len(STEPS)]
    assert final[1]["content"] == OUTLINE
    for step, message in zip(STEPS[1:], final[2:], strict=True):
        written = [f"{reader.topic}/{step[-1]}/{calls[step]}/{n}" for n in range(WORDS)]
        assert message["content"].split() == written
    assert reader.stored == final
    # What was shown as stored before stays as it was.
    for before in reader.stored_before:
        assert before == final[: len(before)]
    # What was shown and is not stored was written by the step that was hit.
    ids = {message["id"] for message in final}
    lost = [text for message_id, text in reader.written.items() if message_id not in ids]
    assert len(lost) <= 1
    if len(reader.attempts) == 1:
        assert not repeated
        assert not lost
        return ""
    again, kept = hit_and_kept(demo, reader)
    if "checkpoint_id" not in reader.attempts[-1] or again == []:
        assert not lost
        return "before the first step" if not kept else "after the last step"
    assert [*kept, *again] == list(STEPS[: len(kept) + 1])
    assert repeated in ([], again), "the step that is done again is the one that is named"
    if lost:
        assert lost[0].split()[0].split("/")[1] == again[0][-1]
    return again[0]


HELD = (("outline", 0), ("paragraph 1", 0), ("paragraph 1", 5), ("paragraph 2", 11), ("paragraph 3", 3))


def test_a_kill_costs_each_of_several_answers_only_its_step_under_way(tmp_path: Path) -> None:
    """Every answer is at a moment of its own, at which its model waits, when the process is killed."""
    held = {f"topic-{number}": where for number, where in enumerate(HELD)}
    waiting: set[str] = set()
    released = threading.Event()

    def hold(topic: str, step: str, call: int, place: int) -> None:
        if call == 1 and held[topic] == (step, place):
            waiting.add(topic)
            released.wait(60)

    def words_of(reader: Reader, step: str) -> list[int]:
        """Count the words that were shown of the first call of a step."""
        shown = list(reader.written.values())
        return [len(text.split()) for text in shown if f"/{step[-1]}/1/" in text]

    def has_come(reader: Reader) -> bool:
        step, place = held[reader.topic]
        return words_of(reader, step) == ([place] if place else [])

    with endpoint(hold) as model, running(tmp_path / "demo.db", free_port(), model) as demo:
        readers = [Reader(demo, topic) for topic in held]
        with ThreadPoolExecutor(len(readers)) as pool:
            reading = [pool.submit(reader.read) for reader in readers]
            wait_for("every answer at its moment", lambda: len(waiting) == len(held))
            wait_for("what the models wrote to be shown", lambda: all(map(has_come, readers)))
            demo.kill_server()
            released.set()
            for each in reading:
                each.result()
        for reader in readers:
            assert [attempt["attempt"] for attempt in reader.attempts] == [1, 2]
            step, place = held[reader.topic]
            assert check(demo, model, reader) == step
            assert words_of(reader, step) == ([place] if place else [])


@pytest.mark.slow
def test_a_kill_at_any_of_twenty_moments_costs_the_step_under_way(tmp_path: Path) -> None:
    hit: list[str] = []
    with endpoint() as model, running(tmp_path / "demo.db", free_port(), model) as demo:
        whole = Reader(demo, "topic-99")
        whole.read()
        length = time.monotonic() - whole.began
        assert check(demo, model, whole) == ""
        for moment in range(MOMENTS):
            reader = Reader(demo, f"topic-{moment}")
            reading = threading.Thread(target=reader.read)
            reading.start()
            wait_for("the answer's beginning", lambda at=reader: at.began)
            time.sleep(max(0.0, length * moment / MOMENTS - (time.monotonic() - reader.began)))
            demo.kill_server()
            reading.join(120)
            hit.append(check(demo, model, reader))
    print(f"{MOMENTS} kills, by the step under way: {dict(Counter(hit))}")  # the measurement
    assert {"paragraph 1", "paragraph 2", "paragraph 3"} <= set(hit), hit
