"""Single values come back exactly as from the stock serializer in its strict mode, or are refused by name.

Covers perdure.langgraph.values.object_building, perdure.langgraph.values.object_packing,
perdure.langgraph.values.payloads.
"""

from __future__ import annotations

import collections
import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import ormsgpack
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from perdure.errors import Corrupt, PerdureError, TypeNotAllowed, Unreadable, Unserialisable
from perdure.langgraph.codecs import Codec
from perdure.langgraph.values.serde import Serde
from tests.langgraph.specimens import OWN, VALUES, Colour, Person, Point, likeness
from tests.pairwise import pairwise

STOCK = JsonPlusSerializer(allowed_msgpack_modules=OWN)
OURS = Serde(OWN)


def back(value: Any, serde: Serde = OURS) -> Any:
    return serde.value(*serde.payload(value))


@settings(max_examples=300)
@given(VALUES)
def test_a_value_comes_back_as_from_the_stock_serializer(value: Any) -> None:
    assert likeness(back(value)) == likeness(STOCK.loads_typed(STOCK.dumps_typed(value)))


@pytest.mark.parametrize("limit", [0, 2, None])
def test_a_deque_keeps_its_limit(limit: int | None) -> None:
    """With the stock serializer it would grow without end after it was read; it reads what is stored here."""
    value = {"last": [collections.deque([1, {"a": (2,)}][:limit], limit)]}
    for found in (back(value), STOCK.loads_typed(("msgpack", OURS.pack(value)))):
        (last,) = found["last"]
        assert last == collections.deque([1, {"a": [2]}][:limit])
        assert last.maxlen == limit


class Pair(NamedTuple):
    left: int
    right: int


class Words(list[str]):
    pass


ODD: list[Any] = [
    2**64,
    -(2**63) - 1,
    object(),
    int,
    Person,
    range(3),
    1j,
    (i for i in range(0)),
    lambda: None,
    collections.OrderedDict(a=1),
    collections.Counter("aab"),
    collections.defaultdict(list, a=[1]),
    Words("ab"),
    Pair(1, 2),
    pathlib.PurePosixPath("/a"),
    pathlib.PureWindowsPath("a"),
    {Colour.RED: 1},
    {(1, "a"): 2},
    {frozenset({1}): 2},
    {b"k": 1},
    ValueError("text"),
    memoryview(b"bytes"),
    [bytearray(b"inside")],
    _DeltaSnapshot([1, {"a": HumanMessage("x", id="1")}]),
    float("nan"),
    {"a": {1, 2}, "b": [{"c": object()}]},
]


@pytest.mark.parametrize("value", ODD, ids=lambda v: type(v).__name__)
def test_an_odd_value_is_refused_or_comes_back_as_from_the_stock_serializer(value: Any) -> None:
    try:
        found = back(value)
    except PerdureError as error:
        assert isinstance(error, Unserialisable | TypeNotAllowed)  # noqa: PT017 - either outcome is right
    else:
        assert likeness(found) == likeness(STOCK.loads_typed(STOCK.dumps_typed(value)))


def test_numpy_arrays_come_back_and_lone_numbers_are_refused() -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed; the array cases need it")
    arrays = [
        numpy.array([[1, 2], [3, 4]]),
        numpy.array([[1, 2], [3, 4]]).T,
        numpy.arange(12)[::3],
        numpy.zeros((0, 3)),
        numpy.array(5.5),
        numpy.array(["ü", "b"]),
        numpy.array([1, 2], dtype=">i4"),
        {"deep": [numpy.ones(3, dtype="float32")]},
    ]
    for array in arrays:
        assert likeness(back(array)) == likeness(STOCK.loads_typed(STOCK.dumps_typed(array)))
    # An array of no dimensions is not the number that was put.
    for scalar in (numpy.float64(1.5), numpy.int64(3), numpy.bool_(True), numpy.datetime64("2020-01-01")):
        with pytest.raises(Unserialisable):
            back({"n": scalar})


# A kind of array that NumPy will drop; those that programs have are still refused.
@pytest.mark.filterwarnings("ignore:The chararray class is deprecated:DeprecationWarning")
def test_numpy_arrays_that_would_come_back_as_others_are_refused() -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed; the array cases need it")
    named = [("a", "i4"), ("b", "f8")]
    for array in (
        numpy.array([object()]),
        numpy.zeros(2, dtype=named),
        numpy.zeros(2, dtype=numpy.dtype(named, align=True)),
        numpy.zeros(2, dtype=[("a", "i4", (2,))]),
        numpy.rec.array([(1, 2.0)], dtype=named),
        numpy.ma.masked_array([1, 2], mask=[False, True]),
        numpy.char.array(["a", "b"]),
    ):
        for value in (array, [{"deep": array}]):
            with pytest.raises(Unserialisable, match="read back it would be another; keep plain data"):
                back(value)
    kept = Codec(numpy.ma.MaskedArray, lambda a: [a.data.tolist(), a.mask.tolist()], _masked)
    array = numpy.ma.masked_array([1, 2], mask=[False, True])
    assert repr(back(array, Serde(codecs=[kept]))) == repr(array)


def _masked(parts: list[Any]) -> Any:
    import numpy

    return numpy.ma.masked_array(*parts)


def nested(value: Any, make: Callable[[Any], Any], depth: int) -> Any:
    for _ in range(depth):
        value = make(value)
    return value


@dataclasses.dataclass
class Holder:
    held: Any


LEAVES: dict[str, Any] = {"plain": 0, "surrogate": "a lone \ud800", "object": Holder(0)}
NESTS: dict[str, Callable[[Any], Any]] = {
    "list": lambda v: [v],
    "dict": lambda v: {"k": v},
    "tuple": lambda v: (v,),
    "mixed": lambda v: [{"k": (v,)}],
    "object": Holder,
}


@pairwise(nest=NESTS, depth=[300, 3000, 100_000], leaf=LEAVES)
def test_what_is_nested_too_deeply_is_refused(nest: str, depth: int, leaf: str) -> None:
    with pytest.raises(Unserialisable, match="it is nested too deeply, or contains itself"):
        back(nested(LEAVES[leaf], NESTS[nest], depth), Serde())


def test_what_contains_itself_is_refused() -> None:
    of_list: list[Any] = []
    of_dict: dict[str, Any] = {}
    of_object = Holder([])
    message = AIMessage("")
    of_list.append([of_list])
    of_dict["k"] = [of_dict]
    of_object.held.append(of_object)
    message.additional_kwargs["m"] = message
    for value in (of_list, of_dict, of_object, message, [_DeltaSnapshot(of_list)]):
        with pytest.raises(Unserialisable, match="it is nested too deeply, or contains itself"):
            back(value, Serde())


@given(st.sets(st.tuples(st.text(max_size=3), st.tuples(st.integers(0, 9)) | st.uuids())))
def test_tuples_in_a_set_stay_tuples(value: set[Any]) -> None:
    """Here the stock serializer hands back a list: what it stored cannot be a set's element."""
    assert likeness(back(value)) == likeness(value)
    assert likeness(back(frozenset(value))) == likeness(frozenset(value))


@dataclasses.dataclass
class Derived:
    given: int
    derived: int = dataclasses.field(init=False, default=0)


def test_an_object_that_could_not_be_built_again_is_refused_before_it_is_stored() -> None:
    with pytest.raises(Unserialisable, match="Derived"):
        Serde((Derived,)).pack([Derived(1)])


class Mine(pydantic.BaseModel):
    text: str


@dataclasses.dataclass
class Loose:
    text: str


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Mine(text="x"), "Mine"),
        ([{"deep": Loose("x")}], "Loose"),
        ({"deep": Pair(1, 2)}, "Pair"),
    ],
)
def test_a_type_that_is_not_allowed_is_named_on_the_way_in(value: Any, name: str) -> None:
    with pytest.raises(TypeNotAllowed, match=rf"{__name__}\.{name}"):
        back(value)


@pytest.mark.parametrize("value", [Mine(text="x"), [{"deep": Loose("x")}]])
def test_a_type_that_is_not_allowed_is_named_on_the_way_out(value: Any) -> None:
    body = Serde((Mine, Loose)).pack(value)
    with pytest.raises(TypeNotAllowed, match=rf"{__name__}\.(Mine|Loose)"):
        OURS.unpack(body)
    assert Serde((Mine, Loose)).unpack(body) == value


def test_the_types_of_an_allowed_class_are_allowed_with_it() -> None:
    @dataclasses.dataclass
    class Outer:
        inner: list[Loose] | None

    types = Serde((Outer,)).types
    assert types.find(Loose.__module__, "Loose") is Loose
    with pytest.raises(TypeNotAllowed):
        types.find(Mine.__module__, "Mine")


def test_a_failure_of_one_value_does_not_colour_the_next() -> None:
    with pytest.raises(TypeNotAllowed):
        OURS.pack(Mine(text="x"))
    with pytest.raises(Unserialisable, match="64-bit"):
        OURS.pack(2**70)
    with pytest.raises(Corrupt, match="cannot be unpacked"):
        OURS.unpack(OURS.pack("text")[:-1])
    assert back("fine") == "fine"


class Broken:
    def model_dump(self) -> dict[str, Any]:
        raise ValueError("it says canary")


def test_an_error_does_not_quote_the_value() -> None:
    with pytest.raises(Unserialisable) as caught:
        Serde((Broken,)).pack(Broken())
    assert "canary" not in str(caught.value)
    # The value of a member of an enum is the program's own, and is named.
    stored = ormsgpack.packb(ormsgpack.Ext(0, ormsgpack.packb((Colour.__module__, "Colour", "x" * 1000))))
    with pytest.raises(Unreadable) as spoiled:
        OURS.unpack(stored)
    assert "x" * 50 in str(spoiled.value)
    assert "x" * 100 not in str(spoiled.value)


HALVES = st.text(st.characters(categories=["Cs", "Ll", "Cc"]), min_size=1, max_size=6)


@given(HALVES)
def test_lone_surrogates_and_nul_survive(text: str) -> None:
    text = f"\0{text}\ud800"
    values: list[Any] = [
        text,
        [text, {"k": text}],
        {"k": [text], "plain": 1},
        HumanMessage(text, id="1", additional_kwargs={"k": [text]}),
        AIMessage([{"type": "text", "text": text}], id="1", response_metadata={"deep": {"er": text}}),
        Point({"x": text}, text),
    ]
    for value in values:
        found = back(value)
        assert type(found) is type(value)
        assert found == value


def test_a_surrogate_in_a_dict_key_is_refused() -> None:
    for value in (
        {"\ud800": 1},
        [{"a": {"\ud800": "x"}}],
        HumanMessage("x", additional_kwargs={"\ud800": 1}),
    ):
        with pytest.raises(Unserialisable, match="surrogate"):
            back(value)


@pytest.mark.parametrize("cut", [1, 2, 5, 9])
def test_a_payload_cut_short_is_corrupt(cut: int) -> None:
    body = OURS.pack([HumanMessage("hello", id="1")])
    with pytest.raises(Corrupt):
        OURS.unpack(body[:-cut])
    with pytest.raises(Corrupt, match="unknown type"):
        OURS.value(9, body)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        OURS.unpack(body)
    except PerdureError as error:
        assert isinstance(error, Corrupt | Unreadable)  # noqa: PT017 - either outcome is right
