"""The Lua scripts of the Redis driver: one a request, atomic in the slot of its bucket."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files

from perdure.model.records import KINDS
from perdure.storage.kv.layout import shape

NUMBERS = {kind: number for number, kind in enumerate(KINDS, start=1)}
"""By which number a script knows a kind. Nothing stored depends on it."""


@dataclass(frozen=True, slots=True)
class Script:
    """A script and the name by which a server knows it once it was loaded."""

    text: bytes
    sha: bytes


def _kinds() -> str:
    """The declared kinds, as a table in Lua."""
    lines = []
    for kind in KINDS:
        own = shape(kind)
        by = ", ".join(f"'{name}'" for name in kind.by)
        index = f"'{own.index.kind}'" if own.index is not None else "false"
        lines.append(
            f"  {{ name = '{kind.name}', head = {own.head}, ordered = {len(own.ordered)}, by = {{ {by} }}, "
            f"index = {index}, rest = {_lua(bool(own.rest))}, grows = {_lua(kind.grows is not None)} }},"
        )
    table = "\n".join(lines)
    return (
        f"local KINDS = {{\n{table}\n}}\nlocal BY_NAME = {{}}\n"
        "for _, kind in ipairs(KINDS) do\n  BY_NAME[kind.name] = kind\nend\n"
    )


def _lua(flag: bool) -> str:
    return "true" if flag else "false"


def _script(name: str) -> Script:
    folder = files("perdure.storage.kv") / "lua"
    shared, own = (folder.joinpath(f"{part}.lua").read_text("utf-8") for part in ("records", name))
    text = (_kinds() + shared + own).encode()
    # Servers name scripts by this digest; it protects nothing.
    return Script(text, sha1(text, usedforsecurity=False).hexdigest().encode())


COMMIT = _script("commit")
FETCH = _script("fetch")
THREADS = _script("threads")
INDEXED = _script("indexed")
DROP = _script("drop")
ALL = (COMMIT, FETCH, THREADS, INDEXED, DROP)
