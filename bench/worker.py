"""The process in which one saver lives: questions arrive as JSON lines, answers leave the same way."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from pathlib import Path

from bench.candidate import URL_VARIABLE, Place
from bench.graphs import SCENARIOS
from bench.probes import Probe
from bench.savers import CANDIDATES


async def serve(name: str, scenario: str, place: Place, answers: int) -> None:
    candidate = CANDIDATES[name]
    async with candidate.open(place) as saver:
        probe = Probe(candidate, SCENARIOS[scenario], saver, place.folder)
        send(answers, {"ready": True})
        for line in iter(sys.stdin.readline, ""):
            question = json.loads(line)
            try:
                answer = await probe.answer(question["ask"], question["with"])
            except Exception as error:
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"[:500]}
            probe.reported_bytes += send(answers, answer)


def send(answers: int, answer: dict[str, object]) -> int:
    return os.write(answers, json.dumps(answer).encode() + b"\n")


def main() -> None:
    """Standard output is kept for answers; whatever a library prints goes to standard error."""
    answers = os.dup(1)
    os.dup2(2, 1)
    name, scenario, folder = sys.argv[1:4]
    place = Place(Path(folder), os.environ.get(URL_VARIABLE, ""))
    asyncio.run(serve(name, scenario, place, answers))


if __name__ == "__main__":
    main()
