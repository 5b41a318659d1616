"""What a process loads at its start is exempt from the collector, and collections go on."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from perdure.runtime import garbage_collector

class Ring:
    pass

loaded = Ring()
before = gc.get_threshold()
garbage_collector.exempt_existing()
assert gc.get_freeze_count() > 1000
assert not any(each is loaded for each in gc.get_objects())
assert gc.isenabled()
assert gc.get_threshold()[0] > before[0] and gc.get_threshold()[1:] == before[1:]

died = []
class Dies(Ring):
    def __del__(self):
        died.append(1)

for _ in range(2 * gc.get_threshold()[0]):
    ring = Dies()
    ring.itself = ring
assert died, "rings that came since are collected"
"""


def test_what_is_there_is_exempt_and_what_comes_is_collected() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=120)
