"""Parts for tests of applications, drivers and savers.

- ``assert_sound(graph)`` and ``strict(graph)``: faults of a graph, before and while it runs.
- ``from_export(path)``: recorded threads in a database in memory.
- ``perdure.testing.fixtures``: pytest fixtures, such as ``cold``, to resume in what amounts to a new process.
- ``perdure.testing.faults``: a database that fails, or ends its process, at a chosen request to storage.
- ``perdure.testing.conformance``: the contracts of a driver, a checkpointer and a store.

The last three need pytest, or are imported by their own names to keep this package quick to import.
"""

from perdure.testing.graph_assertions import assert_sound, strict
from perdure.testing.recorded_threads import from_export

__all__ = ["assert_sound", "from_export", "strict"]
