"""Refusal of names that are no text: those with half of a character, which some databases cannot hold.

It is the same on every backend: a name that one of them takes could not be moved to another.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from perdure.errors import Unserialisable
from perdure.model.ops import Commit, Drop, Fetch, Find, Get, Put, Stage
from perdure.model.program import Effect
from perdure.model.records import KINDS

_NAMED = frozenset(kind for kind in KINDS if any(column.kind == "text" for column in kind.key))
"""Kinds with text in their keys. The keys of chunks are bytes; a request may contain thousands of these."""


def require_text(names: Iterable[object]) -> None:
    """Raise ``Unserialisable`` for a name with a lone surrogate. What is not text is passed over."""
    for name in names:
        # The flag is a part of the object: most names are looked at without reading them.
        if isinstance(name, str) and not name.isascii():
            try:
                name.encode()
            except UnicodeEncodeError as error:
                raise ill_formed(repr(name)) from error


def ill_formed(name: str) -> Unserialisable:
    """Return the error for a name, which is given as it is to be shown."""
    return Unserialisable(
        f"the name {name} holds a lone surrogate, half of a character, and cannot be stored; names of "
        "tenants, threads, namespaces, checkpoints, channels, nodes, tasks, runs, sessions, keys and tags "
        "have to be well-formed text"
    )


def require_names(effect: Effect[Any]) -> None:
    """Raise ``Unserialisable`` if a name in a storage request has a lone surrogate."""
    if isinstance(effect, Find):
        for part in (getattr(effect, field.name) for field in fields(effect)):
            require_text(part if isinstance(part, tuple) else (part,))
        return
    if not isinstance(effect, Fetch | Commit | Stage | Drop):
        return
    require_text(effect.partition)
    if isinstance(effect, Fetch):
        for item in effect.items:
            if item.kind not in _NAMED:
                continue
            if isinstance(item, Get):
                require_text(item.key)
            else:
                require_text(item.prefix)
                if isinstance(item.after, tuple):
                    require_text(item.after)
    elif isinstance(effect, Commit):
        for op in effect.ops:
            if op.kind in _NAMED:
                require_text(op.key)
            if isinstance(op, Put):
                require_text(op.fields.values())
    elif isinstance(effect, Drop):
        for check in effect.checks:
            require_text(check.key)
