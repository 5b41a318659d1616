"""What users do with a thread: the scripts that run on Perdure and on LangGraph's own saver."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from langgraph.types import Command, StateUpdate

from tests.langgraph import graphs
from tests.langgraph.graphs import STATES, Build
from tests.langgraph.session import Script, Session, config


def said(*items: str) -> dict[str, Any]:
    return {"said": list(items)}


async def turns(s: Session) -> None:
    for n in range(4):
        await s.invoke(said(f"turn {n}"))
        await s.state()
    await s.history()


async def messages(s: Session) -> None:
    for n in range(4):
        await s.invoke(graphs.message(n))
    old = await s.at(step=4)
    await s.invoke(None, old)
    await s.invoke(graphs.message(4))
    await s.state()
    await s.history()


async def replay(s: Session) -> None:
    for n in range(3):
        await s.invoke(said(f"turn {n}"))
    old = await s.at(step=4)
    await s.state(old)
    await s.invoke(None, old)
    await s.state()
    await s.invoke(said("after the replay"))
    await s.invoke(None, old)
    await s.history()


async def fork(s: Session) -> None:
    for n in range(3):
        await s.invoke(said(f"turn {n}"))
    old = await s.at(step=4)
    forked = await s.update(old, said("edited"), "first")
    await s.state()
    await s.state(forked)
    await s.invoke(None, forked)
    await s.invoke(said("on the fork"))
    await s.history()


async def fork_of_a_fork(s: Session) -> None:
    for n in range(2):
        await s.invoke(said(f"turn {n}"))
    old = await s.at(step=1)
    one = await s.update(old, said("fork one"), "first")
    await s.invoke(None, one)
    two = await s.update(one, said("fork two"), "second")
    await s.state(two)
    three = await s.update(old, said("fork three"), "first")
    await s.invoke(None, three)
    await s.invoke(said("and on"))
    await s.invoke(said("from one"), one)
    await s.state()
    await s.history()


async def input_at_an_old_checkpoint(s: Session) -> None:
    for n in range(3):
        await s.invoke(said(f"turn {n}"))
    old = await s.at(step=2)
    await s.invoke(said("instead"), old)
    await s.state()
    await s.invoke(said("and on"))
    await s.invoke(said("again instead"), old)
    await s.history()


async def copy(s: Session) -> None:
    for n in range(2):
        await s.invoke(said(f"turn {n}"))
    for at in (await s.at(step=4), await s.at(step=99), await s.at(step=-1)):
        copied = await s.update(at, None, "__copy__")
        await s.state(copied)
        await s.state()
        await s.invoke(None, copied)
    await s.invoke(said("after the copies"))
    await s.history()


async def copy_with_values(s: Session) -> None:
    for n in range(2):
        await s.invoke(said(f"turn {n}"))
    for at in (await s.at(step=4), await s.at(step=99)):
        copied = await s.update(at, [(said("instead"), "first")], "__copy__")
        await s.state(copied)
        await s.invoke(None, copied)
    await s.invoke(said("after the copies"))
    await s.history()


async def bulk(s: Session) -> None:
    await s.bulk(
        config(),
        [
            [StateUpdate(said("given"), "__input__")],
            [StateUpdate(said("one"), "first")],
            [StateUpdate(said("two"), "second")],
        ],
    )
    await s.state()
    await s.invoke(said("turn"))
    await s.bulk(config(), [[StateUpdate(said("a"), "first"), StateUpdate(said("b"), "second")]])
    await s.invoke(None)
    await s.history()


async def clear(s: Session) -> None:
    await s.invoke(said("turn 0"))
    old = await s.at(step=1)
    await s.update(old, None, "__end__")
    await s.state()
    await s.invoke(said("turn 1"))
    await s.history()


async def edits(s: Session) -> None:
    await s.update(config(), said("before anything"), "second")
    await s.invoke(said("turn 0"))
    await s.update(config(), said("edited"))
    await s.update(config(), said("again"), "first")
    await s.state()
    await s.invoke(None)
    await s.history()


async def answers(s: Session) -> None:
    await s.invoke(said("turn"))
    found = await s.state()
    ids = [i.id for i in sorted(found.interrupts, key=lambda i: i.value)]
    await s.invoke(Command(resume={ids[0]: "one"}))
    await s.state()
    await s.invoke(Command(resume={ids[1]: "two"}))
    await s.state()
    await s.history()


async def answers_at_once(s: Session) -> None:
    await s.invoke(said("turn"))
    found = await s.state()
    await s.invoke(Command(resume={i.id: f"answer to {i.value}" for i in found.interrupts}))
    await s.invoke(said("next turn"))
    await s.history()


async def answers_at_the_head(s: Session) -> None:
    await s.invoke(said("turn"))
    found = await s.state()
    await s.invoke(Command(resume="Ada"), found.config)
    found = await s.state()
    await s.invoke(Command(resume=36), found.config)
    await s.state()
    await s.history()


async def answers_again(s: Session) -> None:
    await s.invoke(said("turn"))
    asked = await s.state()
    await s.invoke(Command(resume="Ada"))
    await s.invoke(Command(resume=36))
    await s.invoke(Command(resume="Grace"), asked.config)
    await s.state()
    await s.invoke(Command(resume=85))
    await s.invoke(None, asked.config)
    await s.state()
    await s.history()


async def updates_with_an_answer(s: Session) -> None:
    await s.invoke(said("turn"))
    await s.invoke(Command(resume="Ada", update=said("by the way")))
    await s.state()
    await s.invoke(Command(resume=36))
    await s.invoke(Command(update=said("goto"), goto="after"))
    await s.history()


async def failures(s: Session) -> None:
    for n in range(2):
        await s.invoke(said(f"turn {n}"))
        await s.state()
        await s.invoke(None)
        await s.state()
    await s.invoke(said("turn 2"))
    await s.invoke(said("turn 3"))
    await s.invoke(None)
    await s.history()


async def subgraph_turns(s: Session) -> None:
    for n in range(3):
        await s.invoke(said(f"turn {n}"))
        await s.state(subgraphs=True)
    await s.history()


async def subgraph_replay(s: Session) -> None:
    for n in range(3):
        await s.invoke(said(f"turn {n}"))
    old = await s.at(step=5)
    await s.invoke(None, old)
    await s.invoke(said("after the replay"))
    forked = await s.update(old, said("edited"), "enter")
    await s.invoke(None, forked)
    await s.invoke(said("after the fork"))
    await s.history()


async def subgraph_answers(s: Session) -> None:
    for n in range(2):
        await s.invoke(said(f"turn {n}"))
        asked = await s.state(subgraphs=True)
        await s.invoke(Command(resume=f"answer {n}"))
        await s.state(subgraphs=True)
    await s.invoke(None, asked.config)
    await s.state(subgraphs=True)
    await s.invoke(Command(resume="another answer"))
    await s.history()


async def workflow(s: Session) -> None:
    for n in range(2):
        await s.invoke(n)
        await s.state()
        await s.invoke(Command(resume=10 + n))
    await s.history()
    old = await s.at(step=0)
    await s.invoke(None, old)
    await s.state()


Scenario = tuple[Build, Script]


def _scenarios() -> dict[str, Scenario]:
    out: dict[str, Scenario] = {
        "messages": (graphs.chat, messages),
        "workflow": (graphs.functional, workflow),
    }

    def add(name: str, build: Callable[..., Any], *scripts: Script, **options: Any) -> None:
        for script in scripts:
            for kind, state in STATES.items():
                out[f"{name}-{script.__name__}-{kind}"] = (partial(build, state=state, **options), script)

    add(
        "chain", graphs.chain, turns, replay, fork, fork_of_a_fork, input_at_an_old_checkpoint, copy,
        copy_with_values, bulk, clear, edits,
    )  # fmt: skip
    add("asking", graphs.asking, answers, answers_at_once)
    add("asking_twice", graphs.asking_twice, answers_at_the_head, answers_again, updates_with_an_answer)
    add("sending", graphs.sending, turns, replay)
    add("failing", graphs.failing, failures)
    for name, stateful in (("per task", False), ("stateful", True)):
        add(f"nested {name}", graphs.nested, subgraph_turns, subgraph_replay, stateful=stateful)
        add(f"nested {name} asking", graphs.nested, subgraph_answers, stateful=stateful, ask=True)
        add(f"embedded {name}", graphs.embedded, subgraph_turns, subgraph_replay, stateful=stateful)
        add(f"embedded {name} asking", graphs.embedded, subgraph_answers, stateful=stateful, ask=True)
    return out


SCENARIOS = _scenarios()
