"""The public surface, pinned: adding a name here is a decision."""

from __future__ import annotations

import perdure


def test_the_top_level_names_are_these() -> None:
    assert set(perdure.__all__) == {
        "BadUrl",
        "Busy",
        "Codec",
        "Conflict",
        "Corrupt",
        "Database",
        "Fenced",
        "HeadConflict",
        "MissingExtra",
        "NotFound",
        "NotWaiting",
        "PerdureError",
        "PerdureSaver",
        "PerdureStore",
        "Thread",
        "TryLater",
        "TypeNotAllowed",
        "TypeNotFound",
        "Unavailable",
        "Unmigrated",
        "connect",
        "connect_sync",
    }
    assert all(getattr(perdure, name).__doc__ for name in perdure.__all__)


def test_every_error_is_in_one_tree() -> None:
    from perdure import errors

    for name, value in vars(errors).items():
        if isinstance(value, type) and value.__module__ == errors.__name__:
            assert issubclass(value, perdure.PerdureError), name
            assert value.__name__ in (errors.__doc__ or ""), f"{name} is missing in the tree at the top"
