"""A thread moves when its queue is at rest."""

from __future__ import annotations

import pytest

import perdure
from perdure import admin
from perdure.database.base import handle_of
from perdure.engine.queue.claims import Claim
from perdure.engine.queue.inbox import Accept
from perdure.engine.queue.runs import Ending, HeldRun, finish
from perdure.errors import Conflict
from perdure.model.records import Partition
from perdure.model.runs.messages import Message
from perdure.model.runs.queue import Debounce
from perdure.testing.conformance.backend import at as place
from perdure.testing.conformance.backend import put


def test_a_thread_whose_queue_is_not_at_rest_stays_where_it_is() -> None:
    with perdure.connect_sync("memory://") as source, perdure.connect_sync("memory://") as target:
        at = Partition("", "busy")
        put(source.checkpointer(), place(thread="busy"), "c1")
        accept = Accept(at, Message("id", {"input": 1}, "g"), 1, Debounce(), "enqueue", 10, 1 << 30)
        handle_of(source).run(accept.store(None))
        with pytest.raises(Conflict, match=r"under way.*nothing of it was moved"):
            admin.move(source, at, target)
        assert target.checkpointer().get_tuple(place(thread="busy")) is None
        held = handle_of(source).run(Claim(at, "w", {"g"}, 2, 10, 5, 1 << 30).take(None))
        assert isinstance(held, HeldRun)
        with pytest.raises(Conflict, match="under way"):
            admin.move(source, at, target)
        handle_of(source).run(finish(held, Ending("done", {}), 3, 1 << 30, 90))
        assert admin.move(source, at, target).digest == source.digest("busy")
