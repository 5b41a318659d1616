"""Packs after few checkpoints, so that the short histories of batteries have them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from perdure.engine.threads import packing
from perdure.model.values import packs


def pack_soon() -> None:
    """Pack after each third checkpoint from now on, in this process."""
    packs.BLOCK = 3
    packing._LEAST = 1


@contextmanager
def packing_soon() -> Iterator[None]:
    """Pack after each third checkpoint for a while."""
    before = packs.BLOCK, packing._LEAST
    pack_soon()
    try:
        yield
    finally:
        packs.BLOCK, packing._LEAST = before
