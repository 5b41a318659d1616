"""D1 when answers are lost, late, wrong or refused: nothing is applied twice or acknowledged falsely.

Covers perdure.storage.d1.retry.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from types import NoneType, SimpleNamespace

import pytest

from perdure.errors import MigrationRequired, StatementRefused, TooLarge, Unavailable, Unserialisable
from perdure.model.ops import (
    Commit,
    Committed,
    Drop,
    Expect,
    Fetch,
    FindRuns,
    FindThreads,
    Get,
    Put,
    Range,
    Refused,
    Stage,
)
from perdure.model.records import CHUNK, HEAD, KINDS, TAG, WRITE, Partition
from perdure.storage.batching import Batcher, PendingRequest
from perdure.storage.d1 import driver as backend
from perdure.storage.d1 import writing
from perdure.storage.d1.columns import Rows
from perdure.storage.d1.rest import Rejected, RestTransport
from perdure.storage.d1.url import D1Url
from perdure.testing.conformance import rows
from perdure.testing.conformance.concurrency import at_once
from perdure.testing.conformance.rows import HERE
from tests.servers import d1
from tests.servers.d1_proxy import Change, Fault, Instead, Lose, Proxy, Request, proxy
from tests.servers.ports import free_port

DAY = 86_400
THERE = Partition("", "other")
LOG = (
    "CREATE TABLE applied (name TEXT NOT NULL)",
    "CREATE TRIGGER inserted AFTER INSERT ON perdure_tag BEGIN INSERT INTO applied VALUES (new.name); END",
    "CREATE TRIGGER updated AFTER UPDATE ON perdure_tag BEGIN INSERT INTO applied VALUES (new.name); END",
)
"""Counts how often each tag was really written."""


@dataclass
class Bench:
    """A driver behind a proxy. ``naps`` are the pauses that it made, or would have made."""

    proxy: Proxy
    driver: backend.D1Driver
    direct: RestTransport
    naps: list[float] = field(default_factory=list)

    def ask(self, *statements: str) -> list[Rows]:
        """Statements past the proxy and the driver."""
        return self.direct.batch([(statement, ()) for statement in statements])

    def writes(self) -> list[Request]:
        return [r for r in self.proxy.requests if any("INSERT" in text for text, _ in r)]


@pytest.fixture
def bench() -> Iterator[Bench]:
    with migrated() as id_, proxy(d1.started().origin) as between:
        naps: list[float] = []
        target = D1Url.of(d1.started().url(id_, between.endpoint))
        with (
            closing(backend.D1Driver(target.connect(), target.name, sleep=naps.append)) as driver,
            D1Url.of(d1.started().url(id_)).session() as direct,
        ):
            yield Bench(between, driver, direct, naps)


@contextmanager
def migrated() -> Iterator[str]:
    with d1.database() as id_:
        backend.migrate(d1.started().url(id_))
        yield id_


def once(fault: Fault, of: Callable[[Request], bool] = lambda _: True) -> Callable[[Request], Fault]:
    """A fault of the first request that is so."""
    left = [fault]
    return lambda request: left.pop() if left and of(request) else None


def is_commit(request: Request) -> bool:
    return any(text.startswith("INSERT INTO perdure_receipt") for text, _ in request)


# Lost and late answers


@pytest.mark.parametrize(
    ("share", "of"), [(0.2, "all"), pytest.param(0.7, "commits", marks=pytest.mark.slow)]
)
def test_lost_answers_apply_nothing_twice_and_refuse_nothing_falsely(
    bench: Bench, share: float, of: str
) -> None:
    bench.ask(*LOG)
    chance = random.Random(7)

    def fault(request: Request) -> Fault:
        meant = of == "all" or is_commit(request)
        return Lose(twice=chance.random() < 0.3) if meant and chance.random() < share else None

    bench.proxy.fault = fault
    rounds = 120
    rows.store_ops(bench.driver, rows.head(seq=0, version=1))
    for n in range(1, rounds + 1):
        put = rows.head(seq=n, expect=n, version=n + 1)
        assert rows.commit(bench.driver, put, rows.tag(f"t{n}", Expect.ANY)), f"write {n} was refused"
        assert not rows.commit(bench.driver, put, rows.tag(f"t{n}", Expect.ANY)), f"write {n} held twice"
    bench.proxy.fault = lambda _: None
    ((counted,),) = bench.ask("SELECT count(*) AS a, count(DISTINCT name) AS b FROM applied")
    assert counted == [rounds, rounds]
    record = rows.get(bench.driver, HEAD, "")
    assert record is not None
    assert record.version == rounds + 1


def test_lost_answers_under_many_writers_lose_no_increment(bench: Bench) -> None:
    bench.ask(*LOG)
    chance = random.Random(8)
    bench.proxy.fault = lambda _: Lose(twice=chance.random() < 0.3) if chance.random() < 0.25 else None
    rows.store_ops(bench.driver, rows.head(seq=0, version=1))

    def work(n: int) -> None:
        for i in range(12):
            while True:
                record = rows.get(bench.driver, HEAD, "")
                assert record is not None
                seq, version = record.fields["seq"], record.version
                put = rows.head(seq=seq + 1, expect=version, version=version + 1)
                if rows.commit(bench.driver, put, rows.tag(f"{n}-{i}", Expect.ANY)):
                    break

    at_once(6, work)
    bench.proxy.fault = lambda _: None
    record = rows.get(bench.driver, HEAD, "")
    assert record is not None
    assert record.fields["seq"] == 6 * 12
    ((counted,),) = bench.ask("SELECT count(*) AS a, count(DISTINCT name) AS b FROM applied")
    assert counted == [72, 72]


def test_a_lost_answer_costs_one_look_at_the_receipt(bench: Bench) -> None:
    bench.proxy.fault = once(Lose())
    rows.store_ops(bench.driver, rows.tag("t", Expect.ABSENT))
    assert [is_commit(r) for r in bench.proxy.requests] == [True, False]


def test_a_lost_refusal_is_the_same_refusal(bench: Bench) -> None:
    bench.proxy.fault = once(Lose())
    outcome = bench.driver.perform(Commit(HERE, (rows.tag("t"), rows.head("a", expect=3))))
    assert outcome == Refused(HEAD, ("a",))
    assert rows.everything(bench.driver) == []


def test_a_request_that_never_arrived_is_sent_again(bench: Bench) -> None:
    bench.proxy.fault = once(Instead(500, b"<html>", {"Retry-After": "2"}))
    rows.store_ops(bench.driver, rows.tag("t", Expect.ABSENT))
    assert [is_commit(r) for r in bench.proxy.requests] == [True, False, True]
    assert bench.naps == [2.0]


def test_a_copy_that_arrives_late_is_refused_as_a_whole(bench: Bench) -> None:
    rows.store_ops(bench.driver, rows.tag("t", version=1))
    late = bench.proxy.requests[-1]
    rows.store_ops(bench.driver, rows.tag("t", version=2))
    with pytest.raises(Rejected, match="NOT NULL constraint failed: perdure_receipt"):
        bench.direct.batch([(text, tuple(given)) for text, given in late])
    record = rows.get(bench.driver, TAG, "t")
    assert record is not None
    assert record.version == 2


def test_a_drop_that_arrives_late_does_not_drop_what_came_after(bench: Bench) -> None:
    rows.store_ops(bench.driver, rows.tag("old"))
    bench.driver.perform(Drop(HERE))
    late = bench.proxy.requests[-1]
    rows.store_ops(bench.driver, rows.tag("new"))
    with pytest.raises(Rejected):
        bench.direct.batch([(text, tuple(given)) for text, given in late])
    assert rows.keys(bench.driver, Range(TAG)) == [("new",)]


@pytest.mark.parametrize("writers", [1, 2])
def test_a_batch_that_a_gateway_delivers_twice_is_answered_as_applied(bench: Bench, writers: int) -> None:
    rows.store_ops(bench.driver, rows.head(seq=0, version=1))
    jobs = [Commit(HERE, (rows.head(seq=1, expect=1, version=2),)), Commit(THERE, (rows.tag("t"),))]
    group = [PendingRequest(effect) for effect in jobs[:writers]]
    delivered: list[Request] = []

    def deliver(request: Request) -> Fault:
        if is_commit(request) and not delivered:
            delivered.append(request)
            bench.direct.batch([(text, tuple(given)) for text, given in request])
        return None

    bench.proxy.fault = deliver
    bench.driver._execute(group)
    assert delivered
    assert [(job.answer, job.error) for job in group] == [(Committed(), None)] * writers
    record = rows.get(bench.driver, HEAD, "")
    assert record is not None
    assert record.version == 2


def test_a_receipt_that_may_not_be_looked_up_leaves_open_whether_the_write_was_stored(bench: Bench) -> None:
    rows.store_ops(bench.driver, rows.tag("t", version=1))
    refusal = {"success": False, "errors": [{"code": 7400, "message": "The request is malformed: policy"}]}
    faults: list[Fault] = [Lose(), Instead(400, json.dumps(refusal).encode())]
    bench.proxy.fault = lambda _: faults.pop(0) if faults else None
    with pytest.raises(
        Unavailable, match="whether the last write was stored could not be found out"
    ) as raised:
        rows.commit(bench.driver, rows.tag("t", 1, version=2))
    assert "policy" in str(raised.value)
    assert "nothing of it was stored" not in str(raised.value)
    assert faults == []
    record = rows.get(bench.driver, TAG, "t")
    assert record is not None
    assert record.version == 2


def test_receipts_age_by_the_calendar(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that slept for a week does not go on with receipts that others have forgotten."""
    bench.ask(*LOG)
    rows.store_ops(bench.driver, rows.head(seq=0, version=1))
    bench.ask(f"UPDATE perdure_receipt SET at = at - {8 * DAY}")
    awake = time.time() + 8 * DAY
    clock = SimpleNamespace(time=lambda: awake, monotonic=time.monotonic, sleep=time.sleep)
    monkeypatch.setattr(backend, "time", clock)
    seen: list[Request] = []

    def fault(request: Request) -> Fault:
        seen.append(request)
        if len(seen) == 2:  # another client begins
            bench.ask(writing.forget_receipts()[0])
        return Lose() if len(seen) == 1 else None

    bench.proxy.fault = fault
    rows.store_ops(bench.driver, rows.tag("t", Expect.ANY))
    assert len(seen) == 2
    ((counted,),) = bench.ask("SELECT count(*) AS a FROM applied")
    assert counted == [1]


def test_reads_that_shared_a_lost_request_are_read_again(bench: Bench) -> None:
    rows.store_ops(bench.driver, rows.tag("t", version=1))
    jobs = [
        Fetch(HERE, (Get(TAG, ("t",)),)),
        Commit(HERE, (rows.tag("t", 1, 2),)),
        Stage(HERE, (rows.chunk(b"d"),)),
    ]
    group = [PendingRequest(effect) for effect in jobs]
    bench.proxy.fault = once(Lose())
    bench.driver._execute(group)
    assert [job.error for job in group] == [None] * 3
    assert group[0].answer[0][0].key == ("t",)
    assert group[1].answer == Committed()
    assert rows.get(bench.driver, CHUNK, b"d") is not None


def test_when_nothing_answers_any_more_the_error_says_what_is_unknown(bench: Bench) -> None:
    bench.proxy.fault = lambda _: Lose()
    with pytest.raises(Unavailable, match="whether the last write was stored could not be found out"):
        rows.commit(bench.driver, rows.tag("t"))
    bench.proxy.fault = lambda _: Instead(503)
    with pytest.raises(Unavailable, match="status 503"):
        bench.driver.perform(FindThreads(None))
    bench.proxy.fault = lambda _: None
    rows.store_ops(bench.driver, rows.tag("u"))


def test_receipts_do_not_pile_up(bench: Bench) -> None:
    bench.ask("INSERT INTO perdure_receipt VALUES ('gone.0', 1, unixepoch() - 8 * 86400, NULL)")
    for n in range(60):
        rows.store_ops(bench.driver, rows.tag(f"t{n}"))
    ((found,),) = bench.ask("SELECT count(*) AS a, sum(id = 'gone.0') AS b FROM perdure_receipt")
    assert found[0] <= 4
    assert found[1] == 0


# Answers that are none


def test_too_many_requests_are_waited_out_as_long_as_asked(bench: Bench) -> None:
    answers = [Instead(429, b"{}", {"Retry-After": "3"}), Instead(429), Instead(429, b"slow down")]
    bench.proxy.fault = lambda _: answers.pop(0) if answers else None
    rows.store_ops(bench.driver, rows.tag("t", Expect.ABSENT))
    assert bench.naps[0] == 3.0
    assert len(bench.naps) == 3
    assert all(0 < nap < 2 for nap in bench.naps[1:])
    assert [is_commit(r) for r in bench.proxy.requests] == [True] * 4


def test_a_service_that_asks_for_too_much_patience_is_given_up(bench: Bench) -> None:
    bench.proxy.fault = lambda _: Instead(429, b"", {"Retry-After": "3600"})
    with pytest.raises(Unavailable, match="too many requests; nothing of the request was stored"):
        rows.commit(bench.driver, rows.tag("t"))
    assert bench.naps == []


def test_a_service_without_a_connection_is_waited_for_no_longer_than_the_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CLOUDFLARE_API_TOKEN", "token")
    endpoint = f"http://127.0.0.1:{free_port()}/client/v4"
    target = D1Url.of(f"d1://account/database?patience=0.5&endpoint={endpoint}")
    with closing(target.connect()) as transport:
        naps: list[float] = []

        def sleep(seconds: float) -> None:
            naps.append(seconds)
            time.sleep(seconds)

        with (
            closing(
                backend.D1Driver(transport, target.name, sleep=sleep, patience_s=target.patience)
            ) as driver,
            pytest.raises(Unavailable, match="no connection"),
        ):
            rows.commit(driver, rows.tag("t"))
    assert sum(naps) <= 0.5


def edited(edit: Callable[[dict[str, object]], object]) -> Change:
    def make(answer: bytes) -> Instead:
        content = json.loads(answer)
        edit(content)
        return Instead(200, json.dumps(content).encode())

    return Change(make)


def _drop_one(content: dict[str, object]) -> None:
    result = content["result"]
    assert isinstance(result, list)
    result.pop()


def _fail_one(content: dict[str, object]) -> None:
    result = content["result"]
    assert isinstance(result, list)
    result[0]["success"] = False


BROKEN: dict[str, Fault] = {
    "no success": edited(lambda content: content.update(success=False)),
    "success and errors": edited(lambda content: content.update(errors=[{"code": 1, "message": "half"}])),
    "a part is missing": edited(_drop_one),
    "a part failed": edited(_fail_one),
    "no result": edited(lambda content: content.pop("result")),
    "not JSON": Change(lambda _: Instead(200, b"<html>maintenance</html>")),
    "not an object": Change(lambda _: Instead(200, b"[]")),
    "empty": Change(lambda _: Instead(200)),
    "cut short": Change(lambda answer: Instead(200, answer[: len(answer) // 2])),
    "a page of a proxy": Instead(502, b"<html>bad gateway</html>"),
    "D1 is overloaded": Instead(
        400, b'{"success": false, "errors": [{"code": 7500, "message": "D1 DB is overloaded."}]}'
    ),
    "an internal error": Instead(
        500, b'{"success": false, "errors": [{"code": 7500, "message": "internal error; reference = x"}]}'
    ),
}


@pytest.mark.parametrize("fault", BROKEN.values(), ids=BROKEN)
def test_an_answer_that_does_not_tell_is_asked_for_again_and_never_believed(
    bench: Bench, fault: Fault
) -> None:
    rows.store_ops(bench.driver, rows.tag("t", version=1))
    bench.proxy.fault = once(fault)
    rows.store_ops(bench.driver, rows.tag("t", 1, version=2))
    bench.proxy.fault = once(fault)
    record = rows.get(bench.driver, TAG, "t")
    assert record is not None
    assert record.version == 2
    bench.proxy.fault = lambda _: fault
    with pytest.raises(Unavailable):
        rows.get(bench.driver, TAG, "t")
    with pytest.raises(Unavailable):
        rows.commit(bench.driver, rows.tag("t"))


def test_a_refused_statement_is_an_error_of_its_own_caller_alone(bench: Bench) -> None:
    bench.ask(
        "CREATE TRIGGER no AFTER INSERT ON perdure_tag WHEN new.name = 'bad'"
        " BEGIN SELECT RAISE(ABORT, 'not this one'); END"
    )
    group = [PendingRequest(Commit(HERE, (rows.tag(name, Expect.ABSENT),))) for name in ("a", "bad", "b")]
    bench.driver._execute(group)
    assert [job.answer for job in group] == [Committed(), None, Committed()]
    assert isinstance(group[1].error, StatementRefused)
    assert "not this one" in str(group[1].error)
    assert rows.keys(bench.driver, Range(TAG)) == [("a",), ("b",)]


def test_text_that_is_not_unicode_is_an_error_of_its_own_caller_alone(bench: Bench) -> None:
    odd = Partition("", "\ud800")
    group = [
        PendingRequest(Commit(THERE, (rows.tag("t", Expect.ABSENT),))),
        PendingRequest(Fetch(odd, (Get(HEAD, ("",)),))),
        PendingRequest(FindRuns(None, "\ud800")),
        PendingRequest(Drop(odd)),
        PendingRequest(Fetch(THERE, (Get(TAG, ("t",)),))),
    ]
    bench.driver._execute(group)
    assert [type(job.error) for job in group] == [NoneType, *[Unserialisable] * 3, NoneType]
    assert group[0].answer == Committed()
    assert group[4].answer[0][0].key == ("t",)


def test_a_request_that_is_too_large_for_the_sum_of_its_callers_is_split(bench: Bench) -> None:
    def heavy(request: Request) -> Fault:
        weight = sum(len(p or "") for _, given in request for p in given)
        return Instead(413, b"<html>Payload Too Large") if weight > 1_000_000 else None

    bench.proxy.fault = heavy
    sizes = (300_000, 300_000, 10, 600_000)
    group = [
        PendingRequest(Stage(HERE, (rows.chunk(b"%d" % n, body=random.Random(n).randbytes(s)),)))
        for n, s in enumerate(sizes)
    ]
    bench.driver._execute(group)
    assert [type(job.error) for job in group] == [NoneType] * 3 + [TooLarge]
    assert "write smaller values" in str(group[3].error)
    assert rows.keys(bench.driver, Range(CHUNK, bodies=False)) == [(b"0",), (b"1",), (b"2",)]


def test_a_table_that_is_gone_is_named_as_unmigrated(bench: Bench) -> None:
    bench.ask("DROP TABLE perdure_tag")
    with pytest.raises(MigrationRequired, match="run `perdure migrate --db d1://"):
        rows.get(bench.driver, TAG, "t")


# Limits


def test_a_record_that_d1_cannot_hold_is_too_large(bench: Bench) -> None:
    before = len(bench.proxy.requests)
    with pytest.raises(TooLarge, match="write a smaller value"):
        rows.commit(bench.driver, rows.chunk(b"d", body=random.Random(1).randbytes(1_000_000)))
    with pytest.raises(TooLarge, match="64 bits"):
        rows.commit(bench.driver, rows.gc(1 << 63))
    assert len(bench.proxy.requests) == before
    rows.store_ops(bench.driver, rows.chunk(b"d", body=random.Random(1).randbytes(256 * 3515)))


def test_text_that_is_not_unicode_is_refused(bench: Bench) -> None:
    with pytest.raises(Unserialisable):
        rows.commit(bench.driver, rows.tag("\ud800"))
    with pytest.raises(Unserialisable):
        rows.commit(bench.driver, rows.tag("t"), at=Partition("", "\ud800"))


def test_no_statement_passes_the_limits_of_d1(bench: Bench) -> None:
    everything = [Range(kind) for kind in KINDS]
    fields = rows.write("t", 0).fields
    many = [
        Put(WRITE, ("n" * 500, "c", f"t{n}", n), fields, b"x" * 300, Expect.ABSENT, n) for n in range(3000)
    ]
    rows.store_ops(bench.driver, *rows.every_kind())
    rows.store_ops(bench.driver, *many)
    bench.driver.perform(Fetch(HERE, (*everything, *(Get(WRITE, op.key) for op in many))))
    assert len(rows.keys(bench.driver, Range(WRITE))) == 3001
    for request in bench.proxy.requests:
        for text, given in request:
            assert len(text) < 100_000
            assert len(given) <= 100
            assert all(p is None or len(p.encode()) <= 2_000_000 for p in given)


def test_commits_that_wait_share_a_request_within_the_limits(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, submitted = threading.Event(), threading.Semaphore(0)
    batcher = bench.driver._batcher
    assert isinstance(batcher, Batcher)
    submit = batcher._submit

    def noted(job: PendingRequest) -> None:
        submit(job)
        submitted.release()

    monkeypatch.setattr(batcher, "_submit", noted)
    bench.proxy.judging.acquire()
    try:
        with ThreadPoolExecutor(64) as pool:
            jobs = [pool.submit(rows.commit, bench.driver, rows.tag(f"t{n}")) for n in range(64)]
            for _ in jobs:
                assert submitted.acquire(timeout=60)
            bench.proxy.judging.release()
            release.set()
            assert all(job.result() for job in jobs)
    finally:
        if not release.is_set():
            bench.proxy.judging.release()
    assert len(bench.proxy.requests) < 20
    assert max(len(r) for r in bench.proxy.requests) <= 50
    assert len(rows.keys(bench.driver, Range(TAG))) == 64


# Dropping


def test_a_large_partition_is_dropped_in_pages_and_out_of_sight_at_once(bench: Bench) -> None:
    size = 2 * writing.DROP_ROWS + 10
    rows.store_ops(
        bench.driver, *(rows.write("t", n) for n in range(size)), rows.checkpoint("c", run_id="run")
    )
    pages = [0]

    def die_after_one(request: Request) -> Fault:
        pages[0] += any(text.startswith("DELETE FROM perdure_write ") for text, _ in request)
        return Instead(500) if pages[0] > 1 else None

    bench.proxy.fault = die_after_one
    with pytest.raises(Unavailable):
        bench.driver.perform(Drop(HERE))
    bench.proxy.fault = lambda _: None
    assert rows.everything(bench.driver) == []
    assert bench.driver.perform(FindThreads(None)) == ()
    assert bench.driver.perform(FindRuns(None, "run")) == ()
    rows.store_ops(bench.driver, rows.tag("new"))
    bench.driver.perform(Drop(Partition("acme", "another")))
    left = bench.ask(*(f"SELECT count(*) AS n FROM perdure_{kind.name}" for kind in KINDS))
    assert sum(found[0][0] for found in left) == 1, "a later drop did not finish what an earlier one left"
    assert rows.keys(bench.driver, Range(TAG)) == [("new",)]


def test_what_asks_for_nothing_costs_no_request(bench: Bench) -> None:
    assert bench.driver.perform(Fetch(HERE, ())) == ()
    bench.driver.perform(Stage(HERE, ()))
    assert bench.proxy.requests == []
