"""What of a run's config is stored beside its checkpoints: what was asked for by name, and no secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph

import perdure
from perdure.langgraph import translate
from tests.langgraph.savers import DRIVERS, opened

SECRET = "sk-canary-51ab"
ALLOWED = frozenset({"user_id", "run_id"})
SCALARS = st.one_of(st.text(max_size=9), st.integers(), st.booleans(), st.floats(allow_nan=False))
KEYS = st.one_of(
    st.sampled_from(
        ["api_key", "user_id", "run_id", "thread_id", "checkpoint_ns", "__pregel_x", "__perdure_load"]
    ),
    st.text(max_size=6),
)
MAPS = st.dictionaries(KEYS, st.one_of(SCALARS, st.none(), st.lists(SCALARS, max_size=2)), max_size=6)


@given(MAPS, MAPS)
def test_a_configurable_value_is_stored_only_when_its_key_is_allowed(
    configurable: dict[str, Any], more: dict[str, Any]
) -> None:
    configurable["api_key"] = SECRET
    # LangGraph copies configurable values into the config's metadata on the way.
    config: Any = {"configurable": configurable, "metadata": {**more, **configurable}}
    found = translate.metadata(config, {"source": "loop"}, ALLOWED)
    assert SECRET not in repr(found)
    assert found.keys() <= {"source"} | ALLOWED | (more.keys() - configurable.keys())
    for key in ALLOWED & configurable.keys():
        if isinstance(configurable[key], str | int | float | bool):
            assert found[key] == configurable[key]


@given(MAPS, MAPS)
def test_keys_with_two_underscores_are_never_taken_from_a_config(
    left: dict[str, Any], right: dict[str, Any]
) -> None:
    left["__perdure_epoch"] = right["__token"] = SECRET
    config: Any = {"configurable": left, "metadata": right}
    found = translate.metadata(config, {"source": "loop"}, ALLOWED | {"__token", "__perdure_epoch"})
    assert not [key for key in found if key.startswith("__")]


@given(MAPS, MAPS)
def test_given_metadata_wins_and_stays_whole(given_: dict[str, Any], more: dict[str, Any]) -> None:
    found = translate.metadata({"configurable": dict(more), "metadata": dict(more)}, given_, frozenset(more))  # type: ignore[arg-type]
    assert {k: found[k] for k in given_} == given_


class State(TypedDict, total=False):
    text: str


def nested(saver: perdure.PerdureSaver) -> Any:
    """A graph whose node calls a subgraph, and another graph by its own config."""

    def say(state: State, config: RunnableConfig) -> State:
        return {"text": "said"}

    inner = StateGraph(State).add_node("say", say).add_edge(START, "say").add_edge("say", END).compile()

    def call(state: State, config: RunnableConfig) -> State:
        inner.invoke(state, {**config, "configurable": {**config["configurable"], "inner_key": SECRET}})
        return {"text": "called"}

    outer = StateGraph(State).add_node("inner", inner).add_node("call", call)
    outer = outer.add_edge(START, "inner").add_edge("inner", "call").add_edge("call", END)
    return outer.compile(checkpointer=saver)


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_secret_in_a_config_is_stored_nowhere(driver: str, tmp_path: Path) -> None:
    config: Any = {
        "configurable": {
            "thread_id": "t",
            "api_key": SECRET,
            "user_id": "u7",
            "__private": SECRET,
            "tier": "gold",
        },
        "metadata": {"campaign": "autumn", "__hidden": SECRET},
    }
    with opened(driver, tmp_path) as db:
        saver = db.checkpointer(metadata_keys=["user_id"])
        graph = nested(saver).with_config({"configurable": {"other_key": SECRET}})
        graph.invoke({"text": "hi"}, config)
        graph.update_state(config, {"text": "changed"})
        found = [*saver.list({"configurable": {"thread_id": "t"}})]
        assert {t.config["configurable"]["checkpoint_ns"].split(":")[0] for t in found} >= {"", "inner"}
        for stored in found:
            assert SECRET not in repr((stored.metadata, stored.checkpoint, stored.pending_writes))
            assert "tier" not in stored.metadata
            assert not [key for key in stored.metadata if key.startswith("__")]
        first = found[-1].metadata
        newest = next(t.metadata for t in found if t.metadata["source"] == "loop")
        assert newest["user_id"] == "u7"  # type: ignore[typeddict-item]
        assert newest["campaign"] == "autumn"  # type: ignore[typeddict-item]
        assert first is not newest
    for path in tmp_path.iterdir():
        assert SECRET.encode() not in path.read_bytes()


@pytest.mark.parametrize("keys", [[], ["tier"], ["tier", "api_key"]])
def test_the_allowlist_is_the_callers(tmp_path: Path, keys: list[str]) -> None:
    config: Any = {"configurable": {"thread_id": "t", "api_key": SECRET, "tier": "gold"}}
    with opened("memory", tmp_path) as db:
        graph = nested(db.checkpointer(metadata_keys=keys))
        graph.invoke({"text": "hi"}, config)
        metadata: Any = db.checkpointer().get_tuple({"configurable": {"thread_id": "t"}}).metadata  # type: ignore[union-attr]
    assert {k: metadata[k] for k in ("tier", "api_key") if k in metadata} == {
        k: v for k, v in config["configurable"].items() if k in keys
    }
