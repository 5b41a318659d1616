"""Agents of deepagents in a runtime: a process that ends within a subagent repeats one step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio
import os
import sys

import perdure
from deepagents import create_deep_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from perdure.runtime import Runtime, Settings


class Model(GenericFakeChatModel):
    called: str
    answers: list

    def bind_tools(self, tools, **kwargs):
        return self

    def _generate(self, messages, *args, **kwargs):
        number = sum(message.type == "ai" for message in messages)
        print(self.called, number, flush=True)
        answer = self.answers[number].model_copy()
        return ChatResult(generations=[ChatGeneration(message=answer)])


def call(name, number, **args):
    return AIMessage("", tool_calls=[{"name": name, "args": args, "id": f"call {number}"}])


def first(what: str) -> str:
    '''Look something up.'''
    print("first tool", flush=True)
    return "found"


def second(what: str) -> str:
    '''Look it up again.'''
    if sys.argv[1] == "dies":
        os._exit(9)
    print("second tool", flush=True)
    return "found again"


ask = call("task", 1, description="What is a lease?", subagent_type="researcher")
agent_model = Model(messages=iter([]), called="agent", answers=[ask, AIMessage("Done.")])
steps = [call("first", 2, what="lease"), call("second", 3, what="lease"), AIMessage("A right for a time.")]
sub_model = Model(messages=iter([]), called="subagent", answers=steps)
researcher = {
    "name": "researcher",
    "description": "Looks things up.",
    "system_prompt": "Be brief.",
    "model": sub_model,
    "tools": [first, second],
}
agent = create_deep_agent(agent_model, subagents=[researcher])


async def main() -> None:
    async with (
        perdure.connect("sqlite:///threads.db", migrate=True) as db,
        Runtime(db, agent, settings=Settings(lease=2.0)) as runtime,
    ):
        run = await runtime.wait(await runtime.accept("ada", "what is a lease?", dedupe_key="1"))
        print(run.state, flush=True)


asyncio.run(main())
"""


@pytest.mark.slow
def test_a_process_that_ends_in_a_subagent_repeats_one_step(tmp_path: Path) -> None:
    pytest.importorskip("deepagents")
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")

    def run(how: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "program.py", how]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)

    died = run("dies")
    assert died.returncode == 9, died.stderr
    assert died.stdout.splitlines() == ["agent 0", "subagent 0", "first tool", "subagent 1"]
    ended = run("lives")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["second tool", "subagent 2", "agent 1", "done"]
