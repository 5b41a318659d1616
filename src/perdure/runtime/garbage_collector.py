"""Garbage collector of a process that serves or works: objects that exist after its start are not searched
again.

Only for Perdure's own processes: an application that contains a runtime decides for itself.
"""

from __future__ import annotations

import gc

_YOUNG = 20_000
"""Number of new containers after which the young ones are searched. Under load most of them belong to steps
that end within milliseconds; with Python's 700 they are searched again and again while they live."""


def exempt_existing() -> None:
    """Exempt all objects that exist now from garbage collection, and search new ones less often."""
    gc.collect()
    gc.freeze()
    _, middle, old = gc.get_threshold()
    gc.set_threshold(_YOUNG, middle, old)
