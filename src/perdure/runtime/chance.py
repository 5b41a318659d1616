"""Chance, which parts what would otherwise happen at the same moment: pauses, and looks at the database.

It is a source of its own, so that whoever seeds Python's shared one, or watches it, is not disturbed by what
a worker does beside.
"""

from __future__ import annotations

import random

spread = random.Random()
