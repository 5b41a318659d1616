"""Errors about values that are not stored or not built: the channels, the types, and the option to pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from perdure.errors import PerdureError, TypeNotAllowed, Unreadable
from perdure.langgraph.datatypes import TypeName
from perdure.langgraph.serde import Serde
from perdure.model.joined_values import joined
from perdure.model.tree import Tree


def on_write(serde: Serde, error: PerdureError, values: Iterable[tuple[str, Any]]) -> PerdureError:
    """Return the error for values of a write of which one was refused.

    Args:
        serde: The serializer that refused it.
        error: The error of the refusal.
        values: The values, by channel.
    """
    missing: dict[TypeName, None] = {}
    channels: dict[str, None] = {}
    for channel, value in values:
        try:
            found = serde.missing(value) if isinstance(error, TypeNotAllowed) else []
            if not isinstance(error, TypeNotAllowed):
                serde.payload(value)
        except PerdureError:
            channels[channel] = None
            continue
        if found:
            channels[channel] = None
            missing.update(dict.fromkeys(found))
    if missing:
        return serde.types.refusal(list(missing), f"{_named(channels)}: ")
    return type(error)(f"{_named(channels)}: {error}") if channels else error


def on_read(serde: Serde, error: Unreadable, trees: Mapping[str, Tree]) -> Unreadable:
    """Return the error for stored values of which one was refused.

    Args:
        serde: The serializer that refused it.
        error: The error of the refusal.
        trees: The values, by channel.
    """
    channels: dict[str, None] = {}
    found: dict[str, Unreadable] = {}
    for channel, tree in trees.items():
        for each in serde.unreadable(*joined(tree)):
            channels[channel] = None
            found[str(each)] = each
    if not found:
        return error
    refused = [each for each in found.values() if isinstance(each, TypeNotAllowed)]
    others = [each for each in found.values() if not isinstance(each, TypeNotAllowed)]
    names = list(dict.fromkeys(name for each in refused for name in each.types))
    texts = list(map(str, others))
    if names:
        texts.append(str(serde.types.refusal(names)))
    kinds = {type(each) for each in others or refused}
    kind: type[Unreadable] = kinds.pop() if len(kinds) == 1 else Unreadable
    return kind(f"{_named(channels)}: {'; '.join(texts)}")


def _named(channels: Iterable[str]) -> str:
    names = [repr(name) for name in channels]
    return f"channel{'s' if len(names) > 1 else ''} {', '.join(names)}"
