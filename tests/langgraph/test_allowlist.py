"""State of the user's own types comes back as it was if it was allowed; else it is refused by name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from perdure import TypeNotAllowed
from tests.langgraph import kinds
from tests.langgraph.graphs import appended
from tests.langgraph.kinds import GIVEN, Address, Mood, Order, Person, Shop, Stranger, expect, shop
from tests.langgraph.savers import DRIVERS, opened
from tests.langgraph.session import config

OWN = [Order, Person, Address, Mood]


@pytest.mark.parametrize(
    "allow", [[Order], [Shop], OWN, [(own.__module__, own.__name__) for own in OWN]],
    ids=["the outermost", "the state", "each", "by name"],
)  # fmt: skip
@pytest.mark.parametrize("driver", DRIVERS)
def test_allowed_types_come_back_as_they_were(driver: str, allow: list[Any], tmp_path: Path) -> None:
    with opened(driver, tmp_path) as db:
        expect(shop(db.checkpointer(allow=allow)).invoke(GIVEN, config()), ["hot", "served"])
        cold = shop(db.checkpointer(allow=allow))
        expect(cold.get_state(config()).values, ["hot", "served"])
        expect(cold.invoke({"messages": []}, config()), ["hot", "served", "served"])
        assert len(list(cold.get_state_history(config()))) == 6


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("driver", DRIVERS)
def test_other_types_are_refused_by_name_when_they_are_stored(
    driver: str, durability: Any, tmp_path: Path
) -> None:
    with opened(driver, tmp_path) as db:
        saver = db.checkpointer()
        with pytest.raises(TypeNotAllowed, match=r"tests\.langgraph\.kinds\.(Order|Person) is not allowed"):
            shop(saver).invoke(GIVEN, config(), durability=durability)
        assert list(saver.list(config())) == []


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_stored_type_is_refused_by_a_saver_that_does_not_allow_it(driver: str, tmp_path: Path) -> None:
    with opened(driver, tmp_path) as db:
        shop(db.checkpointer(allow=[Order])).invoke(GIVEN, config())
        for saver in (db.checkpointer(), db.checkpointer(allow=[Person])):
            with pytest.raises(TypeNotAllowed, match=r"tests\.langgraph\.kinds\.\w+ is not allowed"):
                shop(saver).get_state(config())


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_type_inside_a_delta_channel_follows_the_same_rule(driver: str, tmp_path: Path) -> None:
    class Queue(TypedDict):
        orders: Annotated[list[Any], DeltaChannel(appended)]

    def build(saver: Any) -> Any:
        graph = StateGraph(Queue)
        graph.add_node("again", lambda state: {"orders": [state["orders"][-1]]})
        return graph.add_edge(START, "again").add_edge("again", END).compile(checkpointer=saver)

    given = {"orders": [kinds.GIVEN["order"]]}
    with opened(driver, tmp_path) as db:
        build(db.checkpointer(allow=[Order])).invoke(given, config())
        assert (
            build(db.checkpointer(allow=[Order])).get_state(config()).values["orders"] == given["orders"] * 2
        )
        with pytest.raises(TypeNotAllowed):
            build(db.checkpointer(allow=[Person])).invoke({"orders": [Stranger(name="Eve")]}, config("other"))
        with pytest.raises(TypeNotAllowed):
            build(db.checkpointer()).get_state(config())


def test_in_strict_mode_the_graph_brings_its_own_allowlist(tmp_path: Path) -> None:
    """Compiling hands the state's types to the saver; ``allow`` is not needed."""
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-m",
            "tests.langgraph.kinds",
            f"sqlite:///{tmp_path / 'threads.db'}",
        ],
        env={**os.environ, "LANGGRAPH_STRICT_MSGPACK": "true"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_without_strict_mode_the_same_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeNotAllowed):
        kinds.main(f"sqlite:///{tmp_path / 'threads.db'}")
