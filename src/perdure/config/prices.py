"""Table of prices of models, by which tokens are shown with their costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from perdure.config.settings import SETTINGS
from perdure.config.sources import OWN, read_environment, read_file, value_of
from perdure.model.model_calls import Prices

_MODELS, _CURRENCY = "prices.models", "prices.currency"


def read_prices(folder: Path, environ: Mapping[str, str]) -> Prices:
    """Return the prices that the variables, or else the ``perdure.toml`` of a folder, set; none by default.

    Raises:
        BadSetting: The file or a value is invalid.
    """
    path = folder / OWN
    entries = read_file(path).entries if path.is_file() else {}
    entries = {**entries, **read_environment(environ, {}, folder).entries}
    values = {
        key: value_of(SETTINGS[key], entries[key]) if key in entries else SETTINGS[key].default
        for key in (_MODELS, _CURRENCY)
    }
    return Prices(values[_MODELS] or {}, values[_CURRENCY])
