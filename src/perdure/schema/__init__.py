"""Versions of an application's state: the declared steps, their composition, and the recorded version of each
graph.

>>> schema = Schema(version=2, steps=[rename_channel(2, "topic", "subject")])
>>> saver = db.checkpointer(schema=schema)
"""

from perdure.schema.changes import Changes
from perdure.schema.schema import Schema
from perdure.schema.steps import convert, drop, rename_channel, rename_node, rename_type

__all__ = [
    "Changes",
    "Schema",
    "convert",
    "drop",
    "rename_channel",
    "rename_node",
    "rename_type",
]
