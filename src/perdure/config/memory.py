"""Settings of memory, for all graphs without a policy of their own: what they remember, and for which
user."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel

from perdure.config.models import load_model_or_function
from perdure.config.resolve import ResolvedConfig
from perdure.errors import BadSetting
from perdure.memory.extraction import ModelExtractor
from perdure.memory.policy import MemoryPolicy, verified_user
from perdure.runtime.agents.module_files import names_file

_NUMBERS = ("nearest", "newest", "tokens", "debounce", "max_wait")


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """Settings of a memory's policy.

    Attributes:
        numbers: The numeric fields of ``MemoryPolicy`` that are set.
        model: The extractor of facts: a provider and its model, or the place of a chat model or a function;
            ``None`` to extract nothing.
        user: The user of all runs; ``None`` for the verified user of each run.
    """

    numbers: dict[str, Any]
    model: str | None
    user: str | None

    def load(self, root: Path) -> MemoryPolicy:
        """Return the policy.

        Args:
            root: The project's folder, at which a file's path starts.

        Raises:
            BadSetting: The model cannot be used.
            GraphLoadError: There is no object at the model's place.
        """
        extract: Any = None
        if self.model is not None:
            extract = load_model_or_function("memory.model", self.model, root)
            if isinstance(extract, BaseChatModel):
                extract = ModelExtractor(extract)
        return MemoryPolicy(extract=extract, user=self.user or verified_user, **self.numbers)


def make_memory_settings(configuration: ResolvedConfig) -> MemorySettings | None:
    """Return the settings, or ``None`` if memory is not enabled.

    Raises:
        BadSetting: Facts are to be extracted, but no model is named; or a setting is given, but memory is not
            enabled.
    """
    given = configuration.select_given("memory.")
    is_enabled = configuration["memory.enabled"] or bool(configuration["memory.extract"])
    if not is_enabled:
        if others := sorted(set(given) - {"enabled", "extract", "model"}):
            raise BadSetting(
                f"{configuration.name(f'memory.{others[0]}')} is set, but memory.enabled is not true; set "
                "memory.enabled as well, or leave the other setting out"
            )
        return None
    model: str | None = configuration["memory.model"]
    if configuration["memory.extract"] and model is None:
        raise BadSetting(
            f"{configuration.name('memory.extract')} is true, but no model is named to extract facts with; "
            "set FACT_EXTRACTION_MODEL or memory.model, e.g. openai:gpt-4o-mini or ./models.py:small. A "
            "graph's own model cannot be seen from outside, so there is no default"
        )
    if model is not None and names_file(model):
        model = configuration.resolve_place(model, configuration.entries["memory.model"].base)
    numbers = {name: configuration[f"memory.{name}"] for name in _NUMBERS if name in given}
    return MemorySettings(
        numbers, model if configuration["memory.extract"] else None, configuration["memory.user"]
    )
