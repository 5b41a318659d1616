"""PostgreSQL: requests that arrive while others are in progress share the next round trip.

A commit is one call of a function in the database, so no lock is held there between two messages. A group of
commits is one transaction, one flush of the log and one round trip. Reads are grouped as well, each group in
one snapshot. Each OS thread that waits for the server owns a connection.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar, cast

from psycopg import pq

from perdure.errors import Corrupt, MigrationRequired, PerdureError, TooLarge, Unavailable, Unserialisable
from perdure.model.ops import (
    Commit,
    Committed,
    Drop,
    Fetch,
    Find,
    FindItems,
    FindNearest,
    FindOutdated,
    FindRecords,
    IndexHit,
    Now,
    Refused,
)
from perdure.model.program import Effect
from perdure.model.records import ITEM, Partition, Record
from perdure.storage.batching import Batcher, PendingRequest, wait_at
from perdure.storage.in_doubt import evidence, is_in_doubt, is_repeatable, was_applied
from perdure.storage.notify import ServerNotifier
from perdure.storage.outage import Outage
from perdure.storage.port import Answers, Capabilities, CommitLimits
from perdure.storage.postgres import codec
from perdure.storage.postgres.application_statements import PostgresStatements
from perdure.storage.postgres.connection import (
    HAS_PIPELINES,
    ConnectionLost,
    ServerConnection,
    StatementCall,
    StatementRolledBack,
)
from perdure.storage.postgres.liveness import LivenessCheck
from perdure.storage.postgres.notify import PostgresListener
from perdure.storage.postgres.statements import Statement, Statements
from perdure.storage.postgres.url import PostgresUrl
from perdure.storage.postgres.vector_search import VectorSearch
from perdure.storage.postgres.write_groups import Touch, find_overwritten, outcome, split_group

R = TypeVar("R")
_LIMITS = CommitLimits(ops=20_000, bytes=16 << 20)
_WRITES_MAX = 128
_READS_MAX = 64
_ATTEMPTS = 4
_DROP_ROWS = 5_000
_ROLLBACKS = 8
_LOST_VECTORS = (
    "as pgvector was dropped from the database or moved within it; items cannot be indexed until"
    " `perdure migrate` has been run"
)
_NO_VECTORS = (
    "as the database has no pgvector: `perdure migrate` adds it if the server provides it and the user may"
    " create extensions"
)


class PostgresDriver:
    """One database. Creating the driver neither creates nor migrates the schema.

    Args:
        settings: The settings of the database's URL.
        vectors: The search by vectors, if the schema has the table for it.
        has_lost_vectors: True if there is no search because pgvector was dropped or moved after the table had
            been created.
        count_bytes: Returns the size of the database.
    """

    def __init__(
        self,
        settings: PostgresUrl,
        vectors: VectorSearch | None = None,
        *,
        has_lost_vectors: bool = False,
        count_bytes: Callable[[], int] | None = None,
    ) -> None:
        self.limits = _LIMITS
        self._settings = settings
        self._has_lost_vectors = has_lost_vectors
        self._count_bytes = count_bytes
        self._vectors = vectors
        self._sql = Statements(settings)
        self._statements = PostgresStatements()
        self._stop = threading.Event()
        self._outage = Outage(settings.patience)
        self._liveness = LivenessCheck(settings, self._outage)
        self._thread_local = threading.local()
        self._links: list[ServerConnection] = []
        self._links_lock = threading.Lock()
        self._bell: ServerNotifier | None = None
        if settings.notify is not None:
            self._bell = ServerNotifier(PostgresListener(settings, settings.notify), name=settings.name)
        writers = settings.pool // 2
        self._writes = Batcher(self._write, name=settings.name, workers=writers, most=_WRITES_MAX)
        self._reads = Batcher(
            self._read, name=settings.name, workers=settings.pool - writers, most=_READS_MAX
        )

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            has_listing=True,
            searches_items=True,
            reads_with_commits=HAS_PIPELINES,
            bell=self._bell,
            vectors=self._vectors or (_LOST_VECTORS if self._has_lost_vectors else _NO_VECTORS),
            examiner=self._vectors,
            statements=self._statements,
            count_bytes=self._count_bytes,
            password=self._settings.password,
        )

    def perform(self, effect: Effect[R]) -> R:
        return self._batcher(effect).perform(effect)

    async def aperform(self, effect: Effect[R]) -> R:
        return await self._batcher(effect).aperform(effect)

    async def acommit_and_fetch(
        self, commit: Commit, fetch: Fetch
    ) -> tuple[Committed | Refused, Answers | None]:
        """See ``port.acommit_and_fetch``."""
        return await self._writes.aperform_then(commit, fetch)

    def close(self) -> None:
        if self._bell is not None:
            self._bell.close()
        if self._writes.is_inherited:
            # The connections and locks are the parent's.
            self._writes.close()
            self._reads.close()
            return
        self._stop.set()
        self._writes.close()
        self._reads.close()
        with self._links_lock:
            for link in self._links:
                link.drop()
            self._links.clear()

    def _batcher(self, effect: Effect[Any]) -> Batcher:
        if isinstance(effect, Fetch | Find | Now):
            return self._reads
        return self._writes

    def _get_connection(self) -> ServerConnection:
        link: ServerConnection | None = getattr(self._thread_local, "link", None)
        if link is None:
            link = self._thread_local.link = ServerConnection(
                self._settings, self._stop, self._outage, self._liveness
            )
            with self._links_lock:
                self._links.append(link)
        return link

    def _connect(self) -> ServerConnection:
        """Return this OS thread's connection, opened if necessary; wait for a server that is unavailable."""
        link = self._get_connection()
        link.connect(patiently=True)
        nearest = min(each.distance_s for each in self._links)
        self._writes.wait_s = self._reads.wait_s = wait_at(nearest)
        return link

    # Writing

    def _write(self, group: Sequence[PendingRequest]) -> None:
        for jobs in split_group(group):
            if isinstance(jobs[0].effect, Drop):
                self._do_each(jobs, lambda job: self._drop(cast(Drop, job.effect)))
            else:
                self._write_together(jobs)

    def _write_together(self, jobs: Sequence[PendingRequest]) -> None:
        if not self._is_reachable(jobs):
            return
        try:
            outcomes = self._commit_with_vectors(
                [cast(codec.Write, job.effect) for job in jobs], [job for job in jobs if job.then is not None]
            )
        except ConnectionLost:
            self._resolve_all(jobs)
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].error = _error_of(error, self._settings)
                return
            # One bad write must not fail the others: each is repeated by itself.
            for job in jobs:
                self._write_together([job])
        else:
            for job, answer in zip(jobs, outcomes, strict=True):
                job.answer = answer

    def _resolve_all(self, jobs: Sequence[PendingRequest]) -> None:
        """Determine the outcome of the jobs of a round trip whose answer was lost, in their order."""
        later = {id(job): jobs[at:] for at, job in enumerate(jobs, 1)}
        self._do_each(jobs, lambda job: self._resolve(job, find_overwritten(later[id(job)])))

    def _commit_with_vectors(
        self, writes: Sequence[codec.Write], readers: Sequence[PendingRequest] = ()
    ) -> list[Any]:
        """Return the outcomes of writes. The fetches of ``readers`` follow in the same round trip, if there
        is only one."""
        vectors = self._vectors
        if vectors is None or (with_vectors := vectors.commit(writes)) is None:
            return self._commit(writes, self._sql.commit, readers=readers)
        try:
            return self._commit(writes, *with_vectors)
        except (MigrationRequired, Corrupt):
            # pgvector was dropped, or created again, since this process started. The write is repeated
            # without its vectors: the database reads them from the entries, or refuses the write again.
            outcomes = self._commit(writes, self._sql.commit)
            vectors.stop_sending()
            return outcomes

    def _commit(
        self,
        writes: Sequence[codec.Write],
        statement: Statement,
        further_values: Sequence[bytes] = (),
        readers: Sequence[PendingRequest] = (),
    ) -> list[Any]:
        fetches = [cast(Fetch, reader.then) for reader in readers]
        # A commit with statements is alone, see ``split_group``: its caller fetches afterwards by itself.
        statements = [each for write in writes if isinstance(write, Commit) for each in write.statements]

        def attempt() -> list[int]:
            link = self._connect()
            values = [*codec.pack_writes(writes, link.deadline()), *further_values]
            write = StatementCall(
                statement, values, lambda r: codec.unpack_outcomes(r.get_value(0, 0) or b"")
            )
            if statements:
                return link.transact(write, lambda refusals: () if any(refusals) else statements)
            if not fetches:
                return link.ask(write)
            outcomes, answers = link.ask_both(write, self._make_fetch_call(fetches))
            if answers is not None:
                for reader, answer in zip(readers, answers, strict=True):
                    reader.read = answer
            return outcomes

        refusals = self._repeat(attempt)
        return [outcome(write, refused) for write, refused in zip(writes, refusals, strict=True)]

    def _resolve(self, job: PendingRequest, overwritten: Collection[Touch]) -> Any:
        """Repeat a write whose answer was lost, unless it turns out to be applied. Writes in ``overwritten``
        may have been overwritten later in the same round trip: they are not evidence, and must not be
        repeated."""
        try:
            return self._retry_lost(lambda: self._resolve_lost(job.effect, overwritten))
        except (ConnectionLost, StatementRolledBack, Unavailable) as error:
            raise Unavailable(
                f"{_error_of(error, self._settings)}. The connection was lost during this write: it may be "
                "stored or not; load the thread again before repeating it"
            ) from error

    def _resolve_lost(self, effect: Effect[Any], overwritten: Collection[Touch]) -> Any:
        if not isinstance(effect, Commit):
            (sole_outcome,) = self._commit_with_vectors([cast(codec.Write, effect)])
            return sole_outcome
        remaining = tuple(
            op for op in effect.ops if (effect.partition, op.kind, op.key, type(op)) not in overwritten
        )
        visible = Commit(effect.partition, remaining)
        if was_applied(visible, self._read_evidence(visible)):
            return Committed()
        if len(remaining) < len(effect.ops):
            raise Unavailable(
                f"{self._settings.name}: a later write of the same round trip overwrites this one"
            )
        if not is_repeatable(effect):
            raise Unavailable(f"{self._settings.name}: a write without expectations is not repeated")
        (sole_outcome,) = self._commit_with_vectors([effect])
        if not isinstance(sole_outcome, Refused):
            return sole_outcome
        # The lost write may have been executed only now, and may itself have caused this refusal.
        answers = self._read_evidence(visible)
        if was_applied(visible, answers):
            return Committed()
        if is_in_doubt(visible, answers):
            raise Unavailable(f"{self._settings.name}: the same records were written by others meanwhile")
        return sole_outcome

    def _read_evidence(self, commit: Commit) -> tuple[tuple[Record, ...], ...]:
        (answers,) = self._fetch([evidence(commit)])
        return answers

    def _drop(self, effect: Drop) -> Committed | Refused:
        partition = effect.partition
        names: list[bytes | None] = [codec.escape(part).encode() for part in partition]
        if effect.if_empty:
            self._retry_lost(lambda: self._repeat(lambda: self._drop_empty(partition, names)))
            return Committed()
        if effect.checks:
            refused = self._retry_lost(lambda: self._repeat(lambda: self._drop_if(effect, names)))
            if refused:
                check = effect.checks[refused - 1]
                return Refused(check.kind, check.key)
            names[:] = [None] * len(names)

        def attempt() -> bool:
            link = self._connect()
            values = [*names, b"%d" % _DROP_ROWS, b"%d" % link.deadline()]
            return link.ask(StatementCall(self._sql.drop, values, lambda r: r.get_value(0, 0) == b"\x01"))

        while self._retry_lost(lambda: self._repeat(attempt)):
            # The partition is hidden. Its name is not sent again: a new partition of this name must be kept.
            names[:] = [None] * len(names)
        return Committed()

    def _drop_empty(self, partition: Partition, names: Sequence[bytes | None]) -> None:
        link = self._connect()
        # A commit without operations locks the partition's row, so that the next statement, which has a
        # snapshot of its own, sees the records of every earlier commit.
        values = codec.pack_writes([Commit(partition, ())], link.deadline())
        lock = StatementCall(self._sql.commit, values, lambda _: None)
        link.transact(lock, lambda _: (self._sql.make_drop_empty(names),))

    def _drop_if(self, effect: Drop, names: Sequence[bytes | None]) -> int:
        """Drop a partition if its checks hold; return 0, or the number of the first that does not hold."""
        link = self._connect()
        deadline = link.deadline()
        numbers = [number.to_bytes(8, "big") for number in (_DROP_ROWS, deadline)]
        values = [*codec.pack_writes([Commit(effect.partition, effect.checks)], deadline), *names, *numbers]
        return link.ask(
            StatementCall(
                self._sql.drop_if, values, lambda r: codec.unpack_outcomes(r.get_value(0, 0) or b"")[0]
            )
        )

    # Reading

    def _read(self, group: Sequence[PendingRequest]) -> None:
        fetches = [job for job in group if isinstance(job.effect, Fetch)]
        finds = [job for job in group if isinstance(job.effect, Find)]
        clocks = [job for job in group if isinstance(job.effect, Now)]
        self._do_each(finds, lambda job: self._find(cast(Find, job.effect)))
        self._do_each(clocks[:1], lambda _: self._retry_lost(self._read_time))
        for job in clocks[1:]:
            job.answer, job.error = clocks[0].answer, clocks[0].error
        if fetches:
            self._read_together(fetches)

    def _read_together(self, jobs: Sequence[PendingRequest]) -> None:
        if not self._is_reachable(jobs):
            return
        fetches = [cast(Fetch, job.effect) for job in jobs]
        try:
            answers = self._retry_lost(lambda: self._fetch(fetches))
        except Exception as error:
            if isinstance(error, Unavailable) and not self._is_reachable(jobs):
                return
            if len(jobs) == 1:
                jobs[0].error = _error_of(error, self._settings)
                return
            for job in jobs:
                self._read_together([job])
        else:
            for job, answer in zip(jobs, answers, strict=True):
                job.answer = answer

    def _fetch(self, fetches: Sequence[Fetch]) -> list[tuple[tuple[Record, ...], ...]]:
        return self._connect().ask(self._make_fetch_call(fetches))

    def _make_fetch_call(self, fetches: Sequence[Fetch]) -> StatementCall[list[Answers]]:
        return StatementCall(
            self._sql.fetch,
            codec.pack_fetches(fetches),
            lambda r: codec.unpack_records(fetches, codec.Rows(r.ntuples, r.get_value)),
        )

    def _read_time(self) -> int:
        return self._connect().ask(
            StatementCall(self._sql.now, (), lambda r: int.from_bytes(r.get_value(0, 0) or b"", "big"))
        )

    def _find(self, effect: Find) -> tuple[IndexHit, ...]:
        vector_search: VectorSearch | None = None
        if isinstance(effect, FindNearest | FindOutdated):
            vector_search = self._vectors
        statement, values = (vector_search or self._sql).find(effect)

        def make_hit(partition: Partition, row: Sequence[bytes | None]) -> IndexHit:
            if vector_search is not None:
                return vector_search.read_hit(partition, row)
            if isinstance(effect, FindItems):
                return IndexHit(partition, codec.read_record(ITEM, row))
            if isinstance(effect, FindRecords):
                return IndexHit(partition, codec.read_clear_record(effect.kind, row))
            return IndexHit(partition, None, codec.read_listed(row))

        def unpack(result: pq.abc.PGresult) -> tuple[IndexHit, ...]:
            partition_size = len(Partition._fields)
            rows = [
                [result.get_value(row, column) for column in range(result.nfields)]
                for row in range(result.ntuples)
            ]
            return tuple(
                make_hit(
                    Partition(*(codec.unescape((v or b"").decode()) for v in row[:partition_size])),
                    row[partition_size:],
                )
                for row in rows
            )

        def attempt() -> tuple[IndexHit, ...]:
            return self._connect().ask(StatementCall(statement, values, unpack))

        return self._retry_lost(attempt)

    # Failures

    def _is_reachable(self, jobs: Sequence[PendingRequest]) -> bool:
        """Return True if the server is reachable; if not, set the error of all jobs after one wait."""
        try:
            self._connect()
        except Unavailable as error:
            for job in jobs:
                job.error = error
            return False
        return True

    def _do_each(self, jobs: Sequence[PendingRequest], work: Callable[[PendingRequest], Any]) -> None:
        """Do the jobs one by one. If one fails because the server is unavailable, the remaining jobs get its
        error."""
        for at, job in enumerate(jobs, 1):
            job.error = None
            try:
                job.answer = work(job)
            except Exception as error:
                job.error = _error_of(error, self._settings)
            rest = jobs[at:]
            if rest and isinstance(job.error, Unavailable) and not self._is_reachable(rest):
                for other in rest:
                    other.error = job.error
                return

    def _repeat(self, work: Callable[[], R]) -> R:
        """Return the result of ``work``, repeated while the server rolls it back because of other writers."""
        for attempt in range(_ROLLBACKS):
            try:
                return work()
            except StatementRolledBack:
                self._stop.wait(0.005 * attempt)
        return work()

    def _retry_lost(self, work: Callable[[], R]) -> R:
        """Return the result of ``work``, repeated after lost connections; it may be executed twice."""
        for attempt in range(_ATTEMPTS):
            try:
                return work()
            except ConnectionLost:
                self._stop.wait(0.05 * attempt)
        return work()


def _error_of(error: Exception, settings: PostgresUrl) -> Exception:
    """Return the error for a caller, translated if it is one of this driver's own."""
    new: PerdureError
    if isinstance(error, struct.error | OverflowError):
        new = TooLarge(f"{settings.name}: a number does not fit the 64 bits that PostgreSQL keeps")
    elif isinstance(error, UnicodeEncodeError):
        # A server's clients see this error, so it does not name the database.
        new = Unserialisable(
            "a name contains half of a character (a lone surrogate), which is not valid text"
        )
    elif isinstance(error, StatementRolledBack):
        new = Unavailable(
            f"{settings.name}: the write was rolled back {_ROLLBACKS} times because of other writers; "
            "try again"
        )
    elif isinstance(error, ConnectionLost):
        new = Unavailable(f"{settings.name}: the connection was lost repeatedly; try again when it is stable")
    else:
        return error
    new.__cause__ = error
    return new
