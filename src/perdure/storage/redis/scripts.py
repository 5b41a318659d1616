"""The Lua scripts of the Redis driver: one a request, atomic in the slot of its bucket."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files

from perdure.model.records import KINDS, LANE, Kind
from perdure.storage.kv.keys import LAYOUT_VERSION, find_layout

NUMBERS = {kind: number for number, kind in enumerate(KINDS, start=1)}
"""The numbers by which scripts know the kinds. Nothing stored depends on them."""


def is_polled(kind: Kind) -> bool:
    """Return True if the kind's index is a key of its own: it is read all the time, and must keep its entries
    while releases that do not know the kind clean the index that the other kinds share."""
    return kind is LANE


@dataclass(frozen=True, slots=True)
class Script:
    """A script, and the digest by which a server knows it once it is loaded."""

    text: bytes
    sha: bytes


def _write_kinds() -> str:
    """Return the declared kinds in Lua. A script builds the few that it needs: building all would take longer
    than most calls."""
    lines = []
    for kind, number in NUMBERS.items():
        form = find_layout(kind)
        by = ", ".join(f"'{name}'" for name in kind.by)
        index = "false"
        if form.index is not None:
            index = f"'{form.index.kind}'"
        lines.append(
            f"if number == {number} then\n"
            f"    kind = {{ name = '{kind.name}', head = {form.head}, ordered = {len(form.ordered)}, "
            f"by = {{ {by} }}, index = {index}, rest = {_write_lua(bool(form.rest))}, "
            f"grows = {_write_lua(kind.grows is not None)}, polled = {_write_lua(is_polled(kind))} }}"
        )
    table = "\n  else".join(lines)
    indexed = ", ".join(f"{kind.name} = {NUMBERS[kind]}" for kind in KINDS if kind.index)
    return (
        "local MADE = {}\nlocal function kind_of(number)\n  local kind = MADE[number]\n"
        f"  if kind then\n    return kind\n  end\n  {table}\n  end\n"
        f"  MADE[number] = kind\n  return kind\nend\nlocal INDEXED = {{ {indexed} }}\n"
    )


def _write_lua(flag: bool) -> str:
    return str(flag).lower()


def make_record_script(name: str, layout: int = LAYOUT_VERSION) -> Script:
    """Return a script on records, which refuses a bucket that a later layout has marked."""
    shared = "".join(map(_read_source, ("mark", "records", name)))
    return _make_script(f"local LAYOUT = {layout}\n{_write_kinds()}{shared}")


def _read_source(name: str) -> str:
    return (files("perdure.storage.redis") / "lua" / f"{name}.lua").read_text("utf-8")


def _make_script(source: str) -> Script:
    text = source.encode()
    # Servers name scripts by this digest; it protects nothing.
    return Script(text, sha1(text, usedforsecurity=False).hexdigest().encode())


COMMIT = make_record_script("commit")
FETCH = make_record_script("fetch")
THREADS = make_record_script("threads")
INDEXED = make_record_script("indexed")
DROP = make_record_script("drop")
RAISE = _make_script(_read_source("raise"))
ALL = (COMMIT, FETCH, THREADS, INDEXED, DROP, RAISE)
