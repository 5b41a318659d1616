"""Deliberate breaks of the runtime, one a promise: each rewrites a line of the code that keeps it."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from perdure.engine.queue import claims
from perdure.engine.threads import steering
from perdure.model.runs import messages, queue
from perdure.runtime.accepting import Acceptance
from perdure.runtime.worker import attempt
from perdure.storage.memory import MemoryDriver
from tests.mutants.breaks import no_fence
from tests.mutants.drivers import MaxIdHead


@dataclass(frozen=True)
class Break:
    """A promise, and what breaks it."""

    name: str
    promise: str
    apply: Callable[[pytest.MonkeyPatch], None]
    driver: Callable[[MemoryDriver], Any] = lambda driver: driver
    steers: bool = False


def rewritten(owner: Any, name: str, old: str, new: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Replace a piece of a function's source, which has to be there."""
    function = inspect.getattr_static(owner, name)
    getter: Any = function.fget if isinstance(function, property) else function
    source = textwrap.dedent(inspect.getsource(getter))
    assert source.count(old) == 1, f"{name} has {source.count(old)} times {old!r}"
    scope: dict[str, Any] = {}
    exec(source.replace(old, new), vars(sys.modules[getter.__module__]), scope)  # noqa: S102 - our own source
    return lambda patch: patch.setattr(owner, name, scope[name])


BREAKS = [
    Break("no fence", "a stale holder stores nothing", no_fence),
    Break(
        "no run id",
        "an input is applied once",
        rewritten(
            attempt,
            "config_of",
            "calls = ModelCalls(",
            'del configurable["run_id"], metadata["run_id"]\n    calls = ModelCalls(',
        ),
    ),
    Break(
        "no compare-and-set on the queue",
        "of two that change a queue at once one begins again",
        rewritten(
            queue.Lane,
            "put",
            "expect: Expectation = self.version or Expect.ABSENT",
            "expect: Expectation = Expect.ANY",
        ),
    ),
    Break(
        "time-to-live only",
        "who takes over is told apart from who held",
        rewritten(
            claims.Claim,
            "_plan",
            "epoch = successor(seen.epoch, self.owner, self.fresh) if seen.epoch",
            "epoch = seen.epoch if seen.epoch",
        ),
    ),
    Break(
        "no outbox key",
        "a reply is sent under one key, however often",
        rewritten(
            messages.Reply, "id", "{self.run_id}:{self.ord}", "{self.run_id}:{self.ord}:{self.attempts}"
        ),
    ),
    Break(
        "claim of a held thread",
        "a message is not claimed as it is accepted while another holds its thread",
        rewritten(
            Acceptance,
            "_begin_at_once",
            "if accept_and_claim.may_begin(accept, known, runner.graphs.agents.keys()):",
            "if True:",
        ),
    ),
    Break("max-id head", "the latest is what the head says", lambda patch: None, MaxIdHead),
    Break(
        "no dedupe",
        "a message that is sent again is not accepted again",
        rewritten(messages.Message, "put_with_key", "if self.dedupe:", "if False:"),
    ),
    Break(
        "no binding",
        "a message in the state of a steered run is the run's",
        rewritten(
            steering.Taking,
            "plan_ops",
            "return lane.join(upto).put(0), replace(run, last=upto).put()",
            "return ()",
        ),
        steers=True,
    ),
]
