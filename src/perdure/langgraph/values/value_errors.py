"""Errors about values that are not stored or not built: the channels, the types, and the option to pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from perdure.errors import PerdureError, TypeNotAllowed, Unreadable
from perdure.langgraph.values.datatypes import TypeName
from perdure.langgraph.values.object_packing import find_wire_form
from perdure.langgraph.values.serde import Serde
from perdure.model.values.joined_values import join_tree
from perdure.model.values.tree import Tree

_DEPTH_MAX = 100
_SHOWN_MAX = 5
_NAME_MAX = 100


def make_write_error(serde: Serde, error: PerdureError, values: Iterable[tuple[str, Any]]) -> PerdureError:
    """Return the error for a write with a value that was refused.

    Args:
        serde: The serializer that refused it.
        error: The error of the refusal.
        values: The values, by channel.
    """
    if not isinstance(error, TypeNotAllowed):
        texts = [
            f"{_name_channels([channel])}{found[0]}: {found[1]}"
            for channel, value in values
            if (found := _find_unfit_part(serde, value)) is not None
        ]
        if texts:
            return type(error)("; ".join(dict.fromkeys(texts)))
        return error
    missing: dict[TypeName, None] = {}
    channels: dict[str, None] = {}
    for channel, value in values:
        try:
            found_types = serde.find_missing(value)
        except PerdureError:
            channels[channel] = None
            continue
        if found_types:
            channels[channel] = None
            missing.update(dict.fromkeys(found_types))
    if missing:
        return serde.types.refusal(list(missing), f"{_name_channels(channels)}: ")
    if channels:
        return type(error)(f"{_name_channels(channels)}: {error}")
    return error


def _find_unfit_part(serde: Serde, value: Any) -> tuple[str, PerdureError] | None:
    """Return the path of the innermost part of a value that cannot be stored, and its error; ``None`` if the
    value can be stored."""
    error = _find_refusal(serde, value)
    if error is None:
        return None
    path: list[str] = []
    while len(path) < _DEPTH_MAX:
        refusals = ((name, part, _find_refusal(serde, part)) for name, part in _list_parts(value))
        unfit = next(((name, part, e) for name, part, e in refusals if e is not None), None)
        if unfit is None:
            break
        name, value, error = unfit
        path.append(name)
    else:
        # The value is nested without an end: the beginning of the path is enough.
        del path[_SHOWN_MAX:]
    return "".join(path), error


def _find_refusal(serde: Serde, value: Any) -> PerdureError | None:
    try:
        serde.payload(value)
    except TypeNotAllowed:
        return None
    except PerdureError as error:
        return error
    return None


def _show_key(name: Any, at: int) -> str:
    """Return a key in a path: as it is if it is a name or a number, which programs choose. Any other key
    may be what a user wrote, and is named by its place among the keys."""
    is_name = isinstance(name, str) and name.isidentifier()
    if is_name or isinstance(name, int):
        return f"[{name!r}]"[:_NAME_MAX]
    return f"[key {at}]"


def _list_parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a value: the items of containers, and the fields of objects, by their paths."""
    if isinstance(value, Mapping):
        for at, (name, part) in enumerate(tuple(value.items())):
            yield _show_key(name, at), part
            if not isinstance(name, str):
                yield f".key({at})", name
        return
    if isinstance(value, list | tuple | set | frozenset | deque) and not hasattr(value, "_fields"):
        is_ordered = not isinstance(value, set | frozenset)
        for at, part in enumerate(tuple(value)):
            yield f"[{at}]" if is_ordered else "{…}", part
        return
    if isinstance(value, str | bytes | bytearray | int | float | None):
        return
    try:
        form = find_wire_form(value)
    except Exception:
        # The object's own code failed, so its parts are unknown; the error of the whole object says so.
        return
    if form is not None and isinstance(form.argument, Mapping):
        for name, part in form.argument.items():
            yield f".{name}", part


def make_read_error(serde: Serde, error: Unreadable, trees: Mapping[str, Tree]) -> Unreadable:
    """Return the error for stored values, one of which was refused.

    Args:
        serde: The serializer that refused it.
        error: The error of the refusal.
        trees: The values, by channel.
    """
    channels: dict[str, None] = {}
    errors: dict[str, Unreadable] = {}
    for channel, tree in trees.items():
        for each in serde.unreadable(*join_tree(tree)):
            channels[channel] = None
            errors[str(each)] = each
    if not errors:
        return error
    refused = [each for each in errors.values() if isinstance(each, TypeNotAllowed)]
    others = [each for each in errors.values() if not isinstance(each, TypeNotAllowed)]
    names = list(dict.fromkeys(name for each in refused for name in each.types))
    # Errors without type names, such as for a stored call, have no option that allows them.
    texts = [str(each) for each in (*others, *refused) if not getattr(each, "types", ())]
    if names:
        texts.append(str(serde.types.refusal(names)))
    kinds = {type(each) for each in others or refused}
    if len(kinds) == 1:
        kind: type[Unreadable] = kinds.pop()
    else:
        kind = Unreadable
    return kind(f"{_name_channels(channels)}: {'; '.join(texts)}")


def _name_channels(channels: Iterable[str]) -> str:
    names = [repr(name) for name in channels]
    return f"channel{'s' if len(names) > 1 else ''} {', '.join(names)}"
