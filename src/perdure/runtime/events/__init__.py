"""Events of runs: publication by their workers, and subscription from any process."""

from perdure.engine.queue.events import END, LAST

__all__ = ["END", "LAST"]
