"""Ids of the default assistants, one for each graph. All users of a tenant share them."""

from __future__ import annotations

import uuid

_NAMESPACE = uuid.UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")
"""UUID namespace of the ids, the same as of LangGraph's server: ids that clients have stored stay valid."""


def make_default_id(graph: str) -> str:
    """Return the id of a graph's default assistant."""
    return str(uuid.uuid5(_NAMESPACE, graph))
