"""Events of runs: publication by their workers, and subscription from any process."""

from perdure.engine.queue.events import END, LAST
from perdure.engine.queue.waits import REMINDER

__all__ = ["END", "LAST", "REMINDER"]
