"""Translates channel versions: the stock savers' text becomes the integer that it begins with.

The text is a number, and noise that distinguishes the branches of a thread; within a branch the number alone
gives the order. An imported thread cannot keep text: LangGraph asks for the first version of a channel
without naming the thread, so Perdure's savers always answer with an integer, and text and integers do not
compare.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_STOCK = re.compile(r"(\d{32})\.\d.*", re.ASCII)


def translate_versions(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checkpoint of LangGraph's with its versions translated; versions of other savers stay."""
    seen = checkpoint.get("versions_seen") or {}
    return {
        **checkpoint,
        "channel_versions": _translate_all(checkpoint.get("channel_versions") or {}),
        "versions_seen": {node: _translate_all(versions) for node, versions in seen.items()},
    }


def _translate_all(versions: Mapping[str, Any]) -> dict[str, Any]:
    return {channel: _translate_one(version) for channel, version in versions.items()}


def _translate_one(version: Any) -> Any:
    if isinstance(version, str) and (found := _STOCK.fullmatch(version)):
        return int(found[1])
    return version
