"""Prices of models in perdure.toml and in variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.config.prices import read_prices
from perdure.errors import BadSetting
from perdure.model.model_calls import NO_PRICES, Price

TABLE = """
[prices]
currency = "EUR"
[prices.models."gpt-4.1*"]
input = 2
output = 8.0
cache_read = 0.5
"""


def test_prices_come_from_the_file_and_variables_go_first(tmp_path: Path) -> None:
    assert read_prices(tmp_path, {}) == NO_PRICES
    (tmp_path / "perdure.toml").write_text(TABLE, encoding="utf-8")
    found = read_prices(tmp_path, {})
    assert (found.models, found.currency) == ({"gpt-4.1*": Price(2.0, 8.0, 0.5)}, "EUR")
    own = read_prices(tmp_path, {"PERDURE_PRICES_MODELS": '{"m": {"input": 1, "output": 2}}'})
    assert (own.models, own.currency) == ({"m": Price(1.0, 2.0)}, "EUR")


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("m = 3", "m has to be a table with input and output"),
        ("m = { input = 3 }", "m has to be a table with input and output"),
        ("m = { input = 3, output = 4, cached = 1 }", "m has to be a table with input and output"),
        ("m = { input = -3, output = 4 }", "the prices of m have to be numbers of at least 0"),
        ("m = { input = '3', output = 4 }", "the prices of m have to be numbers of at least 0"),
        ("m = { input = nan, output = 4 }", "the prices of m have to be numbers of at least 0"),
    ],
)
def test_a_price_that_is_none_is_named(tmp_path: Path, table: str, words: str) -> None:
    (tmp_path / "perdure.toml").write_text(f"[prices.models]\n{table}\n", encoding="utf-8")
    with pytest.raises(BadSetting, match=words):
        read_prices(tmp_path, {})
