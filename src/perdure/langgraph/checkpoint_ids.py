"""Makes ids and times of checkpoints as LangGraph makes them."""

from __future__ import annotations

from datetime import UTC, datetime

from langgraph.checkpoint.base.id import uuid6


def make_checkpoint_id() -> tuple[str, str]:
    """Return the id of a new checkpoint, larger than earlier ones by this clock, and its time, ISO 8601."""
    return str(uuid6()), datetime.now(UTC).isoformat()
