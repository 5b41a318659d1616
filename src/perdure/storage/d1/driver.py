"""Cloudflare D1: pending requests are sent as one batch, which is one transaction.

Every commit is guarded by a receipt that is written with it (``d1.writing``). The outcome of a batch whose
answer was lost is read from its receipts before it is sent again, and a copy that arrives late is refused by
its receipts: nothing is applied twice.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from perdure.model.ops import Commit, Committed, Drop, Fetch, Find, Now, Refused, Stage
from perdure.model.program import Effect
from perdure.model.records import Record
from perdure.storage.batching import Batcher, PendingRequest
from perdure.storage.d1 import reading, schema, writing
from perdure.storage.d1.binding import SCHEME, BindingUrl, InlineBatcher
from perdure.storage.d1.columns import Rows, Statement, weight
from perdure.storage.d1.rest import AnswerLost, Rejected, Transport
from perdure.storage.d1.retry import Tries, give_up_error, translate
from perdure.storage.d1.url import D1Url
from perdure.storage.outage import PATIENCE_S, Outage
from perdure.storage.port import Capabilities, CommitLimits

R = TypeVar("R")
Finish = Callable[[list[Rows], int | None], Any]
"""Returns the answer of a request, given the rows of its statements and the position of its refusal."""

SCHEMA_VERSION = schema.SCHEMA_VERSION

_WORKERS = 4
_STATEMENTS = 48
_REQUEST_BYTES = 8_000_000
_SLOT_SECONDS = 86_400


class D1Driver:
    """One D1 database behind a transport. Opening it neither creates nor migrates the schema."""

    def __init__(
        self,
        transport: Transport,
        name: str,
        *,
        sleep: Callable[[float], object] = time.sleep,
        has_threads: bool = True,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._transport = transport
        self._name = name
        self._sleep = sleep
        self._outage = Outage(patience_s)
        self.capabilities = Capabilities(
            has_listing=True, searches_items=True, has_threads=has_threads, statements="D1"
        )
        self.limits = CommitLimits(ops=5_000, bytes=1_800_000)
        self._slots: deque[_Slot] = deque()
        self._batcher: Batcher | InlineBatcher
        if has_threads:
            self._batcher = Batcher(self._execute, name=name, workers=_WORKERS, most=64, moment=0.5)
        else:
            self._batcher = InlineBatcher(self._execute)

    def perform(self, effect: Effect[R]) -> R:
        return self._batcher.perform(effect)

    async def aperform(self, effect: Effect[R]) -> R:
        return await self._batcher.aperform(effect)

    def close(self) -> None:
        self._batcher.close()
        self._transport.close()

    # One group

    def _execute(self, group: Sequence[PendingRequest]) -> None:
        """Answer a group in as few requests as possible."""
        try:
            slot = self._slots.pop()
        except IndexError:
            slot = _Slot()
        try:
            waiting: list[_Part] = []
            for job in group:
                try:
                    if isinstance(job.effect, Drop) and not job.effect.if_empty:
                        job.answer = self._drop(job.effect, slot)
                    else:
                        waiting.append(_make_part(job))
                except Exception as error:
                    job.error = error
            while waiting:
                self._send(_take_parts(waiting), slot)
        finally:
            self._slots.append(slot)

    def _send(self, parts: Sequence[_Part], slot: _Slot) -> None:
        """Answer the parts in one request; if the database refuses it, in one request each."""
        try:
            self._run(parts, slot)
        except Rejected as error:
            if len(parts) == 1:
                parts[0].job.error = translate(error, self._name)
                return
            for part in parts:
                self._send([part], slot)
        except Exception as error:
            for part in parts:
                if not part.done:
                    part.job.error = error

    def _run(self, parts: Sequence[_Part], slot: _Slot) -> None:
        """Answer the parts in one request, repeated as often as ``Tries`` allows.

        Raises:
            Rejected: The database refused a statement; nothing was carried out.
        """
        commits = [part for part in parts if part.guarded]
        n = slot.take_number() if commits else 0
        ids = [slot.receipt(number) for number in range(len(commits))]
        receipt_ids = dict(zip(map(id, commits), ids, strict=True))
        if isinstance(failure := self._outage.get_current_failure(), AnswerLost):
            raise give_up_error(failure, self._name, unsure=False) from failure
        tries = Tries(sleep=self._sleep, outage=self._outage)
        remaining = list(parts)
        while remaining:
            statements: list[Statement] = []
            if commits and slot.is_new:
                statements.append(writing.forget_receipts())
            spans: list[tuple[_Part, int, int]] = []
            for part in remaining:
                start = len(statements)
                statements += part.make(receipt_ids.get(id(part), ""), n)
                spans.append((part, start, len(statements)))
            if commits:
                statements.append(writing.select_receipts(ids))
            try:
                results: list[Rows] = []
                if statements:
                    results = self._transport.batch(statements)
            except AnswerLost as lost:
                if not tries.wait_for_next(lost):
                    raise give_up_error(lost, self._name, unsure=bool(commits) and tries.unsure) from lost
                if commits and tries.unsure and self._resolve(commits, ids, n, tries, unsure=True):
                    remaining, commits = _finish_writes(remaining), []
                continue
            except Rejected as error:
                # Our own receipts may have refused a second copy of the batch, which a gateway may have sent.
                unsure = tries.unsure or writing.RECEIPT in str(error)
                if commits and self._resolve(commits, ids, n, tries, unsure=unsure):
                    remaining, commits = _finish_writes(remaining), []
                    continue
                raise
            self._outage.end()
            slot.is_new = slot.is_new and not commits
            verdicts = _read_verdicts(results[-1], n) if commits else {}
            for part, start, end in spans:
                part.read(results[start:end], verdicts[receipt_ids[id(part)]] if part.guarded else None)
            return

    def _resolve(
        self, commits: Sequence[_Part], ids: Sequence[str], n: int, tries: Tries, *, unsure: bool
    ) -> bool:
        """Return True if a batch whose answer was lost was applied; its commits are answered then."""
        while True:
            try:
                (rows,) = self._transport.batch([writing.select_receipts(ids)])
                break
            except AnswerLost as lost:
                if not tries.wait_for_next(lost):
                    raise give_up_error(lost, self._name, unsure=True) from lost
            except Rejected as error:
                if not unsure:
                    return False
                raise give_up_error(AnswerLost(str(error)), self._name, unsure=True) from error
        verdicts = _read_verdicts(rows, n)
        if len(verdicts) < len(ids):
            return False
        for part, receipt in zip(commits, ids, strict=True):
            part.read([], verdicts[receipt])
        return True

    def _drop(self, effect: Drop, slot: _Slot) -> Committed | Refused:
        """Hide the partition in one batch, then remove its rows page by page."""
        more = True

        def finish(results: list[Rows], refused: int | None) -> Committed | Refused:
            nonlocal more
            more = not results or bool(results[-1][0][0])
            if refused is None:
                return Committed()
            return Refused(effect.checks[refused].kind, effect.checks[refused].key)

        def hide(id_: str, n: int) -> list[Statement]:
            receipt = writing.receipt(effect.partition, effect.checks, id_, n)
            return [receipt, writing.drop(effect.partition, id_), *writing.sweep()]

        job, page_job = PendingRequest(effect), PendingRequest(effect)
        try:
            self._run([_Part(job, guarded=True, writes=True, make=hide, finish=finish)], slot)
            while more and isinstance(job.answer, Committed):
                self._run(
                    [_Part(page_job, writes=True, make=lambda _, __: writing.sweep(), finish=finish)], slot
                )
        except Rejected as error:
            raise translate(error, self._name) from error
        return cast("Committed | Refused", job.answer)


@dataclass(slots=True, eq=False)
class _Part:
    """The part of one request in a batch. ``guarded`` is True if it is conditional on a receipt, ``size`` the
    number and the bytes of its statements."""

    job: PendingRequest
    guarded: bool = False
    writes: bool = False
    done: bool = False
    size: tuple[int, int] = (0, 0)
    make: Callable[[str, int], list[Statement]] = field(default=lambda _, __: [])
    finish: Finish = field(default=lambda _, __: None)

    def read(self, results: list[Rows], refused: int | None) -> None:
        self.job.answer = self.finish(results, refused)
        self.done = True


class _Slot:
    """The receipts of one worker's batches: a name, and a number that rises with every batch."""

    def __init__(self) -> None:
        self._take_name()

    def _take_name(self) -> None:
        self._name = secrets.token_hex(8)
        self._n = 0
        self._named_at = time.time()
        self.is_new = True

    def take_number(self) -> int:
        # Old receipts are removed: a slot takes a new name long before this happens to its own. Receipts also
        # age while this machine sleeps, so the calendar counts.
        if abs(time.time() - self._named_at) > _SLOT_SECONDS:
            self._take_name()
        self._n += 1
        return self._n

    def receipt(self, number: int) -> str:
        return f"{self._name}.{number}"


def _make_part(job: PendingRequest) -> _Part:
    """Return a request as a part of a batch."""
    effect = job.effect
    if isinstance(effect, Fetch):
        reads, readers = reading.fetch(effect.partition, effect.items)

        def finish_fetch(results: list[Rows], _: int | None) -> tuple[tuple[Record, ...], ...]:
            answers: list[list[Record]] = [[] for _ in effect.items]
            for reader, rows in zip(readers, results, strict=True):
                reader.answer(rows, answers)
            return tuple(map(tuple, answers))

        return _make_plain_part(job, reads, finish_fetch)
    if isinstance(effect, Find):
        return _make_plain_part(job, [reading.find(effect)], lambda r, _: reading.parse_find(effect, r[0]))
    if isinstance(effect, Now):
        return _make_plain_part(job, [reading.now()], lambda r, _: int(r[0][0][0]))
    if isinstance(effect, Stage):
        puts = writing.write(effect.partition, effect.puts, None)
        return _make_plain_part(job, puts, lambda _, __: None, writes=True)
    if isinstance(effect, Drop):
        # It may be repeated after a lost answer: it removes no record.
        return _make_plain_part(job, [writing.drop_empty(effect.partition)], lambda _, __: Committed())
    if not isinstance(effect, Commit):
        raise TypeError(f"not a storage request: {type(effect).__name__}")

    drafted = writing.write(effect.partition, effect.ops, "")
    receipt_sql, receipt_parameters = writing.receipt(effect.partition, effect.ops, "", 0)

    def make_statements(id_: str, n: int) -> list[Statement]:
        named = [(text, (*given[:3], id_, *given[4:])) for text, given in drafted]
        return [(receipt_sql, (*receipt_parameters[:3], id_, str(n), *receipt_parameters[5:])), *named]

    def finish_commit(_: list[Rows], refused: int | None) -> Committed | Refused:
        if refused is None:
            return Committed()
        return Refused(effect.ops[refused].kind, effect.ops[refused].key)

    size = _measure([(receipt_sql, receipt_parameters), *drafted])
    return _Part(job, guarded=True, writes=True, make=make_statements, finish=finish_commit, size=size)


def _make_plain_part(
    job: PendingRequest, statements: list[Statement], finish: Finish, *, writes: bool = False
) -> _Part:
    """Return a part whose statements are not conditional on a receipt."""
    return _Part(job, writes=writes, make=lambda _, __: statements, finish=finish, size=_measure(statements))


def _read_verdicts(rows: Rows, n: int) -> dict[str, int | None]:
    """Return the verdicts of a batch's receipts: the position of the first refusal, or ``None``."""
    return {row[0]: row[2] for row in rows if int(row[1]) == n}


def _finish_writes(parts: Sequence[_Part]) -> list[_Part]:
    """Mark the writes of a batch as done, as they are known to be applied, and return its reads."""
    for part in parts:
        part.done = part.done or part.writes
    return [part for part in parts if not part.writes]


def _measure(statements: Sequence[Statement]) -> tuple[int, int]:
    return len(statements), weight(statements)


def _take_parts(waiting: list[_Part]) -> list[_Part]:
    """Remove the first parts, as many as fit in one request and at least one, and return them."""
    taken = [waiting.pop(0)]
    count, size = taken[0].size
    while waiting:
        count += waiting[0].size[0]
        size += waiting[0].size[1]
        if count > _STATEMENTS or size > _REQUEST_BYTES:
            break
        taken.append(waiting.pop(0))
    return taken


def open_driver(url: str) -> D1Driver:
    """Open the database of a URL; it must have this release's schema."""
    target = _parse_target(url)
    transport = target.connect()
    try:
        schema.check(transport, target.name)
    except BaseException:
        transport.close()
        raise
    is_remote = isinstance(target, D1Url)
    return D1Driver(transport, target.name, has_threads=is_remote, patience_s=target.patience)


def _parse_target(url: str) -> D1Url | BindingUrl:
    if url.startswith(f"{SCHEME}:"):
        return BindingUrl.of(url)
    return D1Url.of(url)


def schema_version(url: str) -> int:
    """Return the database's schema version, 0 when there is none."""
    target = _parse_target(url)
    with target.session() as transport:
        return schema.version(transport, target.name)


def plan_migration(url: str) -> list[str]:
    """Return the statements that ``migrate`` would execute now."""
    return list(schema.plan_migration(_parse_target(url).name, schema_version(url)))


def migrate(url: str) -> int:
    """Create or upgrade the schema, once for all concurrent callers; return the version that the database
    had."""
    target = _parse_target(url)
    with target.session() as transport:
        return schema.apply(transport, target.name)
