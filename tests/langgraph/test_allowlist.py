"""State of the user's own types comes back as it was if it was allowed; else it is refused by name.

Covers perdure.langgraph.values.value_errors.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from pydantic import BaseModel
from typing_extensions import TypedDict

from perdure import TypeNotAllowed
from perdure.errors import Unserialisable
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
        saver = db.checkpointer(allow="listed")
        with pytest.raises(TypeNotAllowed, match="channel") as caught:
            shop(saver).invoke(GIVEN, config(), durability=durability)
        # All that is missing, where, and what to write.
        for text in ("thread 't'", *(f"{own.__module__}.{own.__name__}" for own in OWN)):
            assert text in str(caught.value)
        assert "db.checkpointer(allow=[Order, Person, Address, Mood])" in str(caught.value)
        assert list(saver.list(config())) == []


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_stored_type_is_refused_by_a_saver_that_does_not_allow_it(driver: str, tmp_path: Path) -> None:
    with opened(driver, tmp_path) as db:
        shop(db.checkpointer(allow=[Order])).invoke(GIVEN, config())
        for saver in (db.checkpointer(allow="listed"), db.checkpointer(allow=[Person])):
            with pytest.raises(TypeNotAllowed, match=r"channels? 'order'.*kinds\.Order") as caught:
                shop(saver).get_state(config())
            assert "thread 't'" in str(caught.value)
            with pytest.raises(TypeNotAllowed, match=r"channels? 'order'.*kinds\.Order"):
                list(shop(saver).get_state_history(config()))


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
            build(db.checkpointer(allow="listed")).get_state(config())
        assert build(db.checkpointer()).get_state(config()).values["orders"] == given["orders"] * 2


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


def test_without_strict_mode_the_same_program_runs_as_well(tmp_path: Path) -> None:
    kinds.main(f"sqlite:///{tmp_path / 'threads.db'}")


class Contact(BaseModel):
    name: str


class Answer(TypedDict):
    messages: Annotated[list[Any], add_messages]
    contact: Any


def paid(saver: Any, calls: list[str]) -> Any:
    """A model that costs something, which answers with an object, and a node after it."""

    def model(state: Any) -> Any:
        calls.append("model")
        return {"messages": [AIMessage("Ada", id="a1")], "contact": Contact(name="Ada")}

    builder = StateGraph(Answer)
    builder.add_node("model", model)
    builder.add_node("after", lambda state: {"messages": [AIMessage("done", id="a2")]})
    return builder.add_edge(START, "model").add_edge("model", "after").compile(checkpointer=saver)


async def ask(graph: Any, given: Any, mode: str, durability: Any) -> Any:
    if mode == "sync":
        return await asyncio.to_thread(graph.invoke, given, config(), durability=durability)
    return await graph.ainvoke(given, config(), durability=durability)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("driver", DRIVERS)
def test_an_answer_that_was_paid_for_is_kept_until_its_type_is_allowed(
    driver: str, durability: Any, mode: str, tmp_path: Path
) -> None:
    calls: list[str] = []
    given = {"messages": [HumanMessage("who?", id="h1")]}
    with opened(driver, tmp_path) as db:
        with pytest.raises(TypeNotAllowed, match=r"'contact'.*Contact is not allowed.*allow=\[Contact\]"):
            asyncio.run(ask(paid(db.checkpointer(allow="listed"), calls), given, mode, durability))
        assert calls == ["model"]
        with pytest.raises(TypeNotAllowed, match="'contact'"):
            paid(db.checkpointer(allow="listed"), calls).get_state(config())
        graph = paid(db.checkpointer(allow=[Contact]), calls)
        assert graph.get_state(config()).values["contact"] == Contact(name="Ada")
        found = asyncio.run(ask(graph, None, mode, durability))
        assert calls == ["model"]
        assert [m.content for m in found["messages"]] == ["who?", "Ada", "done"]
        assert found["contact"] == Contact(name="Ada")
        assert db.fsck() == []


def test_by_default_it_simply_works(tmp_path: Path) -> None:
    calls: list[str] = []
    with opened("sqlite", tmp_path) as db:
        found = paid(db.checkpointer(), calls).invoke({"messages": []}, config())
        assert found["contact"] == Contact(name="Ada")
        assert paid(db.checkpointer(), calls).get_state(config()).values["contact"] == Contact(name="Ada")


def test_a_value_that_cannot_be_stored_leaves_the_run_where_it_was(tmp_path: Path) -> None:
    def build(value: Any, saver: Any) -> Any:
        builder = StateGraph(Answer).add_node("model", lambda state: {"contact": value})
        return builder.add_edge(START, "model").compile(checkpointer=saver)

    with opened("sqlite", tmp_path) as db:
        saver = db.checkpointer()
        for value, path in ((object(), ""), ({"deep": [object()]}, r"\['deep'\]\[0\]")):
            refusal = rf"thread 't'.*channel 'contact'{path}: an object of type"
            with pytest.raises(Unserialisable, match=refusal):
                build(value, saver).invoke({"messages": [HumanMessage("who?", id="h1")]}, config())
            assert build(value, saver).get_state(config()).next == ("model",)
        assert build("fine", saver).invoke(None, config())["contact"] == "fine"


def test_a_serializer_is_refused_with_what_to_use_instead(tmp_path: Path) -> None:
    with opened("memory", tmp_path) as db:
        with pytest.raises(TypeError, match=r"codecs=\[perdure\.Codec"):
            db.checkpointer(serde=JsonPlusSerializer(pickle_fallback=True))  # type: ignore[arg-type]
        saver = db.checkpointer()
        with pytest.raises(AttributeError, match=r"codecs=\[perdure\.Codec"):
            saver.serde = JsonPlusSerializer(pickle_fallback=True)
        with pytest.raises(AttributeError, match=r"codecs=\[perdure\.Codec"):
            saver.serde.dumps_typed({})
