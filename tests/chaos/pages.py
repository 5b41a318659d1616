"""Damage to the pages of a SQLite file: single bits, pages of nothing, of elsewhere and of earlier."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import apsw

PAGE = 1024


@dataclass(frozen=True, slots=True)
class Damage:
    """A file as it is after something happened to it."""

    what: str
    page: int
    content: bytes


def pages(content: bytes) -> list[bytes]:
    return [content[at : at + PAGE] for at in range(0, len(content), PAGE)]


def damages(content: bytes, earlier: list[bytes], count: int, chance: random.Random) -> Iterator[Damage]:
    """``count`` files with one piece of damage each, spread over all pages. ``earlier`` are the same file
    before."""
    own = pages(content)
    older = [pages(each) for each in earlier]
    places = chance.sample(range(len(own)), len(own))
    given = 0
    for number in itertools.count():
        if given == count:
            return
        place = places[number % len(own)]
        page = own[place]
        kind = chance.choice(("bit", "bit", "bit", "nothing", "elsewhere", "earlier"))
        if kind == "bit":
            # Of a page that is hardly used, most bits stand for nothing.
            used = [at for at in range(PAGE) if page[at]] or [0]
            at = chance.choice(used) if chance.random() < 0.7 else chance.randrange(PAGE)
            bit = 1 << chance.randrange(8)
            changed = page[:at] + bytes((page[at] ^ bit,)) + page[at + 1 :]
            what = f"bit {bit} of byte {at}"
        elif kind == "nothing":
            changed, what = bytes(PAGE), "a page of zeros"
        elif kind == "elsewhere":
            other = chance.randrange(len(own))
            changed, what = own[other], f"a copy of page {other + 1}"
        else:
            versions = {each[place] for each in older if place < len(each)} - {page}
            if not versions:
                continue
            changed, what = chance.choice(sorted(versions)), "an earlier version of the page"
        if changed != page:
            given += 1
            yield Damage(what, place + 1, b"".join((*own[:place], changed, *own[place + 1 :])))


def folded(path: Path) -> bytes:
    """The file with its log taken over into it."""
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.read_bytes()


def names_of_pages(path: Path) -> dict[int, str]:
    """Which table or index each page belongs to."""
    with closing(apsw.Connection(str(path))) as connection:
        rows = connection.execute("SELECT pageno, name FROM dbstat").fetchall()
    return {int(str(number)): str(name) for number, name in rows}
