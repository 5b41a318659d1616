"""Types that need a form of their own: stored by an explicit codec, read by it, refused without it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

import perdure
from perdure import Codec, TypeNotFound
from perdure.errors import Unserialisable
from perdure.langgraph.values.serde import Serde
from perdure.model.values import refs
from tests.langgraph.savers import DRIVERS, opened
from tests.langgraph.session import config

FRAME = pandas.DataFrame({"item": ["a", "b"], "sold": [1, 2], "price": [1.5, float("nan")]})


class State(TypedDict):
    table: Any
    more: list[Any]


def dump(frame: pandas.DataFrame) -> str:
    return frame.to_json(orient="table", double_precision=15)


def load(text: str) -> pandas.DataFrame:
    return pandas.read_json(io.StringIO(text), orient="table")


FRAMES = Codec(pandas.DataFrame, dump, load)
STAMPS = Codec(pandas.Timestamp, lambda stamp: stamp.isoformat(), pandas.Timestamp)
NUMBERS = Codec(numpy.float64, float, numpy.float64)
ALL = [FRAMES, STAMPS, NUMBERS]
STAMP = pandas.Timestamp("2020-01-01T12:00:00.000000001+01:00")


def tables(saver: perdure.PerdureSaver) -> Any:
    builder = StateGraph(State).add_node("keep", lambda state: {"more": [*state["more"], STAMP]})
    return builder.add_edge(START, "keep").compile(checkpointer=saver)


@pytest.mark.parametrize("driver", DRIVERS)
def test_data_frames_and_numbers_are_stored_by_their_codecs(driver: str, tmp_path: Path) -> None:
    given = {"table": FRAME, "more": [{"deep": FRAME}, numpy.float64(1.5), {numpy.float64(2.5)}]}
    with opened(driver, tmp_path) as db:
        tables(db.checkpointer(codecs=ALL)).invoke(given, config())
        graph = tables(db.checkpointer(codecs=ALL, allow="listed"))
        for state in (graph.get_state(config()), next(graph.get_state_history(config()))):
            pandas.testing.assert_frame_equal(state.values["table"], FRAME)
            frame, number, numbers, stamp = state.values["more"]
            pandas.testing.assert_frame_equal(frame["deep"], FRAME)
            assert (number, type(number)) == (1.5, numpy.float64)
            assert {type(each) for each in numbers} == {numpy.float64}
            assert (stamp, type(stamp)) == (STAMP, pandas.Timestamp)
        with pytest.raises(TypeNotFound, match=r"'table'.*codec for pandas.*codecs=\[…\]"):
            tables(db.checkpointer()).get_state(config())
        shown = {channel.name: channel.value for channel in db.show("t").channels}
        assert shown["table"]["value"] == dump(FRAME)


@pytest.mark.parametrize("value", [FRAME, STAMP, numpy.float64(1.5), pandas.Series([1])], ids=str)
def test_without_a_codec_they_are_refused_before_they_are_stored(value: Any, tmp_path: Path) -> None:
    with opened("memory", tmp_path) as db:
        saver = db.checkpointer()
        with pytest.raises(
            perdure.PerdureError, match=r"'__start__'.*codecs=\[perdure\.Codec\(\w+, dump, load"
        ):
            tables(saver).invoke({"table": value, "more": []}, config())
        assert list(saver.list(config())) == []


def test_a_codec_that_does_not_work_is_found_at_the_first_put() -> None:
    def failing(value: Any) -> Any:
        raise OSError("with text of the user's: canary")

    for codec in (
        Codec(pandas.DataFrame, failing, load),
        Codec(pandas.DataFrame, dump, failing),
        Codec(pandas.DataFrame, dump, lambda text: text),
        Codec(pandas.DataFrame, lambda frame: frame, load),
        Codec(pandas.DataFrame, lambda frame: object(), load),
    ):
        with pytest.raises(Unserialisable) as caught:
            Serde(codecs=[codec]).payload([FRAME])
        assert "canary" not in str(caught.value)


def test_what_a_codec_loads_is_no_one_elses_to_choose() -> None:
    """A row names a codec; whether there is one is for the program to say."""
    body = Serde(codecs=[FRAMES]).pack(FRAME)
    with pytest.raises(TypeNotFound):
        Serde(codecs=[NUMBERS]).unpack(body)
    assert [str(e) for e in Serde().unreadable(refs.MSGPACK, body)]


def test_codecs_are_for_classes_and_one_each() -> None:
    for wrong in (dict, str, type(None), FRAME, list[int]):
        with pytest.raises(ValueError, match="codec is for a class"):
            Codec(wrong, dump, load)
    with pytest.raises(ValueError, match="two codecs"):
        Serde(codecs=[FRAMES, Codec(pandas.DataFrame, dump, load, name="other")])
    with pytest.raises(ValueError, match="two codecs"):
        Serde(codecs=[FRAMES, Codec(pandas.Series, dump, load, name=FRAMES.name)])
