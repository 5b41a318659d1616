"""A side effect is begun by the attempt that holds the run, and by no attempt that is over."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from perdure.engine.queue.claims import Claim
from perdure.errors import Fenced
from perdure.model.ops import Now
from perdure.model.program import ask
from perdure.model.records import Partition
from perdure.runtime import Runtime, Ticket, effects_sync
from perdure.storage.port import run
from tests.runtime.graphs import WITHIN_S, Storage, eventually, go, settings, working

SHORT = settings(lease=0.5, poll=0.05)


class Steps(TypedDict):
    text: str


class Payment:
    """A plain node that pays when the gate of its call is open: a call has the number of calls before it.
    ``errors`` has what its calls raised."""

    def __init__(self) -> None:
        self.gates = [threading.Event(), threading.Event()]
        self.calls = 0
        self.paid = list[int]()
        self.errors = list[BaseException]()

    def node(self, state: Steps) -> Steps:
        call, self.calls = self.calls, self.calls + 1
        assert self.gates[call].wait(WITHIN_S)
        try:
            effects_sync(self.paid.append, label="pay")(call)
        except BaseException as error:
            self.errors.append(error)
            raise
        return {"text": "paid"}

    @property
    def graph(self) -> Any:
        return StateGraph(Steps).add_node("pay", self.node).add_edge(START, "pay").compile()


async def end(how: str, runtime: Runtime, front: Runtime, ticket: Ticket) -> None:
    if how == "cancel":
        assert await front.cancel("ada", ticket.id)
    elif how == "rollback":
        assert await front.stop("ada", ticket.id, rollback=True)
    elif how == "interrupt":
        await front.submit("ada", {"text": "again"}, strategy="interrupt")
    elif how == "delete":
        await front.delete("ada")
    else:
        runtime._worker.runner.hand_over()


@pytest.mark.parametrize("how", ["cancel", "rollback", "interrupt", "delete", "hand over"])
@pytest.mark.parametrize("is_far", [False, True], ids=["here", "elsewhere"])
def test_a_node_that_outlives_its_run_begins_no_side_effect(near: Storage, how: str, is_far: bool) -> None:
    """The run has ended, the next one may be under way on its thread, and a node that cannot be interrupted
    goes on."""

    async def main() -> None:
        payment = Payment()
        async with (
            working(near.database(), payment.graph, settings=settings()) as runtime,
            working(near.database(), payment.graph, works=False) as front,
        ):
            leases = runtime._worker.runner.leases
            ticket = await runtime.submit("ada", {"text": "hello"})
            await eventually(lambda: payment.calls)
            (first,) = leases.working.values()
            await end(how, runtime, front if is_far else runtime, ticket)
            if is_far:
                # What a notification of the database does.
                leases.renew_now(lambda partition: partition.thread == "ada")
            await eventually(lambda: first not in leases.working.values())
            if how in ("interrupt", "hand over"):
                await eventually(lambda: payment.calls == 2)
            payment.gates[0].set()
            await eventually(lambda: payment.errors or payment.paid)
            assert [type(error) for error in payment.errors] == [Fenced]
            payment.gates[1].set()
            if how == "hand over":
                assert (await runtime.wait(ticket, 30)).state == "done"
            await eventually(lambda: not leases.working)
        assert payment.paid == ([1] if how in ("interrupt", "hand over") else [])

    go(main())


def test_a_node_that_outlives_a_failed_attempt_leaves_its_side_effect_to_the_next(near: Storage) -> None:
    async def main() -> None:
        payment, failures = Payment(), list[int]()

        async def fail(state: Steps) -> None:
            if not failures:
                await eventually(lambda: payment.calls)
                failures.append(1)
                raise RuntimeError("once")

        builder = StateGraph(Steps).add_node("pay", payment.node).add_node("fail", fail)
        graph = builder.add_edge(START, "pay").add_edge(START, "fail").compile()
        async with working(near.database(), graph, settings=settings()) as runtime:
            ticket = await runtime.submit("ada", {"text": "hello"})
            await eventually(lambda: payment.calls == 2)
            payment.gates[0].set()
            await eventually(lambda: payment.errors or payment.paid)
            payment.gates[1].set()
            assert (await runtime.wait(ticket, 30)).attempts == 2
        assert ([type(error) for error in payment.errors], payment.paid) == ([Fenced], [1])

    go(main())


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_node_that_blocks_the_event_loop_past_its_lease_pays_unless_another_worker_may(
    near: Storage, is_taken: bool
) -> None:
    paid = list[int]()
    calls = list[int]()

    async def pay(state: Steps) -> Steps:
        calls.append(len(calls))
        if len(calls) == 1:
            time.sleep(1.5 * SHORT.lease)  # noqa: ASYNC251
            if is_taken:
                assert run(take(), near.driver)
        effects_sync(paid.append, label="pay")(calls[-1])
        return {"text": "paid"}

    def take() -> Any:
        now = yield from ask(Now())
        claim = Claim(Partition("", "ada"), "other", {"agent"}, now, SHORT.lease_us, 1, 1 << 60)
        return (yield from claim.take(None))

    async def main() -> None:
        graph = StateGraph(Steps).add_node("pay", pay).add_edge(START, "pay").compile()
        async with working(near.database(), graph, settings=SHORT) as runtime:
            run_ended = await runtime.wait(await runtime.submit("ada", {"text": "hello"}), 30)
        assert (run_ended.state, paid) == ("done", [1 if is_taken else 0])

    go(main())
