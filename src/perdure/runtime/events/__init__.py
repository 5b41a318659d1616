"""Events of runs: publication by their workers, and subscription from any process."""

from perdure.engine.events import END, LAST

__all__ = ["END", "LAST"]
