"""Text is not a sequence of names, and a config has parts of the types that LangGraph reads."""

from typing import Any

import pytest

from perdure.model.arguments import check_run_config, read_mapping, refuse_text


@pytest.mark.parametrize("text", ["", "ab", b"ab", bytearray(b"ab"), memoryview(b"ab")])
def test_text_is_refused_by_the_argument_s_name(text: object) -> None:
    with pytest.raises(TypeError, match=r"names takes a sequence, not .*write \[name\]"):
        refuse_text("names", text)


@pytest.mark.parametrize("values", [(), ["ab"], ("a", "b"), {"ab"}, frozenset(["a"]), {"a": 1}, iter("ab")])
def test_what_holds_names_is_taken(values: object) -> None:
    refuse_text("names", values)


UNFIT: list[dict[str, Any]] = [
    {"recursion_limit": "x"},
    {"recursion_limit": 0},
    {"recursion_limit": -5},
    {"recursion_limit": 1.5},
    {"recursion_limit": True},
    {"max_concurrency": "a"},
    {"max_concurrency": -1},
    {"tags": "x"},
    {"tags": [5]},
    {"tags": {"a": 1}},
    {"run_name": 5},
    {"run_id": "zz"},
    {"run_id": 5},
    {"callbacks": ["x"]},
    {"callbacks": {}},
    {"configurable": [1]},
    {"metadata": "text"},
]


@pytest.mark.parametrize("config", UNFIT, ids=str)
def test_a_config_with_which_no_run_could_begin_is_refused_by_its_part(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(config))} of a config"):
        check_run_config(config)


def test_a_config_may_leave_out_any_part() -> None:
    names = ("recursion_limit", "max_concurrency", "tags", "run_name", "run_id", "callbacks", "configurable")
    check_run_config({})
    check_run_config(dict.fromkeys((*names, "metadata")))
    check_run_config(
        {"recursion_limit": 2**63, "max_concurrency": 1, "tags": ["a"], "callbacks": [], "own": 1}
    )
    check_run_config({"run_id": "AAAAAAAA-AAAA-4AAA-8AAA-AAAAAAAAAAAA", "run_name": ""})


def test_what_is_no_mapping_counts_as_an_empty_one() -> None:
    given = {"a": 1}
    assert read_mapping(given) is given
    assert [read_mapping(each) for each in (None, [("a", 1)], "a", 1)] == [{}] * 4
