"""Storage of checkpoints and pending writes: the use cases of a super-step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeGuard, TypeVar

from perdure.engine.requests import expect_unchanged
from perdure.engine.threads import arrival_leftovers, transfer_claim
from perdure.engine.threads.drafts import CheckpointDraft, DraftsCheckpoint, DraftsWrites
from perdure.engine.threads.steering import Taking
from perdure.engine.threads.thread_records import put_head
from perdure.engine.threads.thread_state import (
    HeadView,
    View,
    guards,
    has_gone_back,
    load_view,
    outrun_error,
    removed_checkpoint_error,
    unwritten_error,
)
from perdure.engine.threads.undisturbed import is_disturbed
from perdure.engine.transact import Budget, commit_with_chunks, retry_attempt
from perdure.errors import Conflict, Corrupt, HeadConflict, NotFound
from perdure.model.checkpoint import CheckpointRecord, PendingWrite
from perdure.model.heads import ROOT, HeadClaim, LoadedHead, Verdict, are_of_one_run, judge
from perdure.model.ops import (
    ApplicationStatement,
    Check,
    Commit,
    Committed,
    Delete,
    Expect,
    Fetch,
    Get,
    Op,
    Put,
    Range,
    Refused,
)
from perdure.model.program import Program, ask
from perdure.model.record_versions import successor
from perdure.model.records import CHECKPOINT, GC, HEAD, WRITE, Key, Partition, Record
from perdure.model.removal_plan import ORIGIN
from perdure.model.values.packs import make_chunk_puts
from perdure.model.write_records import make_new_puts, plan_puts, put_over, read_by_record, read_writes

R = TypeVar("R")


@dataclass(slots=True, eq=False, kw_only=True)
class StepPut(ABC, Generic[R]):
    """Put of a super-step: one attempt on the thread as its caller remembers it, then on what is read.

    Attributes:
        first_version: start of the versions and generations of a new thread, so that a thread that was
            deleted and made again has neither the versions nor the chunks of its past.
        on_older: called if records that were known to be stored are missing, because the database came back
            in an older state.
        taking: messages that the run takes with what it stores.
        remembered: the thread as the caller remembers it.
    """

    partition: Partition
    claim: HeadClaim | None
    epoch: int | None
    first_version: int
    budget: Budget
    on_older: Callable[[Partition], None]
    taking: Taking | None = None
    remembered: View | None = field(default=None, init=False)

    def store(self, view: View | None) -> Program[R]:
        """Store what is put and return it as stored; ``view`` is the thread as the caller remembers it.

        Raises:
            HeadConflict: another run moved the head or filled a slot.
        """
        self.remembered = view
        if view is None:
            stored = None
        else:
            stored = yield from self._attempt(view)
        if stored is None:
            stored = yield from retry_attempt(self.partition, None, self._load, self._attempt)
        if self.taking is not None:
            self.taking.note_stored()
        return stored

    @abstractmethod
    def decide(self, view: View) -> tuple[tuple[Op, ...], int]:
        """Return the guards of the put, and the generation to plan it under.

        Raises:
            Conflict: the put may not happen on the thread as ``view`` has it.
        """

    @abstractmethod
    def _attempt(self, view: View) -> Program[R | None]: ...

    @abstractmethod
    def _get_guarding_namespace(self) -> str:
        """Return the namespace whose head decides whether the put may happen."""

    def _load(self) -> Program[View]:
        view = yield from load_view(self.partition, self._get_guarding_namespace())
        if self.remembered is not None and has_gone_back(self.remembered, view):
            self.on_older(self.partition)
        return view

    def _try_decide(self, view: View) -> tuple[tuple[Op, ...], int] | None:
        """Return the result of ``decide``, ``None`` if a remembered view shows a conflict: that view may be
        out of date, and only one that is read now may refuse a write."""
        try:
            return self.decide(view)
        except Conflict:
            if view is self.remembered:
                return None
            raise

    def _plan_guards(self, view: View) -> tuple[tuple[Op, ...], int]:
        """Return the guards of a write, and the generation to plan it under.

        A thread without a generation is given one: chunks known to be stored in a thread must not be taken
        for stored in a later thread of the same name.
        """
        fence, unchanged = guards(self.partition, view, self.epoch)
        if view.generation:
            return (fence, unchanged), view.generation
        born = Put(GC, (), expect=Expect.ABSENT, version=self.first_version)
        return (fence, born, transfer_claim.UNCLAIMED), self.first_version

    def _commit(
        self,
        view: View,
        ops: Sequence[Op],
        chunks: Sequence[Put],
        statements: tuple[ApplicationStatement, ...] = (),
    ) -> Program[Committed | Refused]:
        """Commit; if a thread's first write is refused, remove what an arrival left at its name."""
        outcome = yield from commit_with_chunks(self.partition, ops, chunks, self.budget, statements)
        if not view.generation and not isinstance(outcome, Committed):
            yield from arrival_leftovers.clear(self.partition, self.first_version, self.budget)
        return outcome


@dataclass(slots=True, eq=False, kw_only=True)
class CheckpointPut(StepPut[tuple[View, CheckpointRecord]]):
    """Put of a checkpoint that also moves the head of its namespace to it.

    Attributes:
        namespace: the namespace of the checkpoint.
        before: the checkpoint that the loop stored last.
        base_generation: the generation in which the loop loaded or stored what it builds on.
        planned: state after the commit in progress, if it is accepted.
    """

    plan: DraftsCheckpoint
    namespace: str
    parent: str | None
    source: str | None
    loaded: LoadedHead | None
    before: str | None
    fork_on_conflict: bool
    base_generation: int
    planned: tuple[View, CheckpointRecord] | None = field(default=None, init=False)

    def is_committed_by(self, effect: object) -> TypeGuard[Commit]:
        """Return True if this commit stores the checkpoint, and nothing was staged for it."""
        if self.planned is None or not isinstance(effect, Commit):
            return False
        key = self.namespace, self.planned[1].id
        # Searched from the end, as only chunks come behind a checkpoint.
        for op in reversed(effect.ops):
            if op.kind is CHECKPOINT and op.key == key and isinstance(op, Put):
                return True
        return False

    def _get_guarding_namespace(self) -> str:
        return self.namespace

    def _load(self) -> Program[View]:
        self.plan.freeze()
        return StepPut._load(self)

    def decide(self, view: View) -> tuple[tuple[Op, ...], int]:
        checks, generation = self._plan_guards(view)
        head, parent = view.head, self.parent
        verdict = judge(
            namespace=self.namespace,
            head=view.head_id,
            parent=parent,
            source=self.source,
            loaded=self.loaded,
        )
        if verdict is Verdict.ADVANCE and self.claim is not None and not _holds(self.claim, head):
            raise outrun_error(self.partition, parent)
        if verdict is Verdict.LOST and not self.fork_on_conflict:
            raise HeadConflict(
                f"thread {self.partition.thread!r}: another run moved the head to "
                f"{view.head_id} while this one built on {parent}; nothing of this "
                "step was stored. Load the thread again and repeat the call"
            )
        return checks, generation

    def _attempt(self, view: View) -> Program[tuple[View, CheckpointRecord] | None]:
        partition, namespace, parent, loaded = self.partition, self.namespace, self.parent, self.loaded
        yield from self._require_start(view)
        decided = self._try_decide(view)
        if decided is None:
            return None
        guarded, generation = decided
        head = view.head
        draft = yield from self._draft(view, generation)
        if draft is None:
            return None
        record = draft.checkpoint
        if view.head_id != parent:
            record = record._replace(prior=view.head_id or ORIGIN)
        # A parent that is not the head may have been removed meanwhile, by a prune or because the database
        # came back in an older state. If this run loaded or stored the parent, check that it is still stored.
        parent_check: list[Check] = []
        if parent not in (None, view.head_id) and parent in (loaded and loaded.addressed, self.before):
            parent_check = [Check(CHECKPOINT, (namespace, parent), Expect.PRESENT)]
        version = successor(head.version, record.id) if head else self.first_version
        new_head = HeadView(version, record.id, record.seq)
        moved = put_head(namespace, new_head, expect_unchanged(head))
        chunks = make_chunk_puts(draft.chunks, generation)
        after = View(
            new_head,
            generation,
            view.epoch,
            view.open_run,
            record.id if namespace == ROOT else view.root_head,
        )
        self.planned = after, record
        # A commit has at most one operation for each record.
        proof: list[Op] = [check for check in draft.checks if check not in parent_check]
        proof += draft.replayed
        if self.taking is not None:
            proof += yield from self.taking.plan_ops()
        ops: list[Op] = [*guarded, *parent_check, *proof, moved]
        new = record.put(Expect.ABSENT)
        outcome = yield from self._commit(view, [*ops, new], chunks)
        if outcome == Refused(CHECKPOINT, new.key):
            stored = yield from self._read_stored(record)
            if stored is None:
                return None
            record = _merge_with_stored(stored, record)
            raised = _raise_generation(guarded, generation, record.id)
            moved, after = self._plan_repeated_move(view, after, stored, moved)
            outcome = yield from commit_with_chunks(
                partition,
                [*raised, *parent_check, *proof, moved, record.put(Expect.PRESENT)],
                chunks,
                self.budget,
            )
            if raised != guarded:
                after = after._replace(generation=successor(generation, record.id))
        if not isinstance(outcome, Committed):
            if parent_check and outcome == Refused(*parent_check[0][:2]):
                raise removed_checkpoint_error(partition, parent)
            if outcome.kind is WRITE:
                if self.base_generation == generation:
                    self.on_older(partition)
                raise unwritten_error(partition, parent)
            if _misses(outcome, draft.checks):
                self.on_older(partition)
            return None
        return after, record

    def _require_start(self, view: View) -> Program[None]:
        """Raise ``NotFound`` if the loop was to begin at a checkpoint that is not stored: it has loaded none,
        and names one that is neither its own nor the head."""
        is_own = self.parent in (None, self.before, view.head_id)
        if self.loaded is None or self.loaded.addressed is not None or self.namespace != ROOT or is_own:
            return
        (found,) = yield from ask(Fetch(self.partition, (Get(CHECKPOINT, (ROOT, self.parent)),)))
        if not found:
            raise NotFound(
                f"thread {self.partition.thread!r} has no checkpoint {self.parent}; nothing was stored. "
                "`perdure threads history` lists what there is"
            )

    def _draft(self, view: View, generation: int) -> Program[CheckpointDraft | None]:
        """Return the draft to store, ``None`` if a chunk that it needs was removed since the view."""
        try:
            return (yield from self.plan.draft(view, generation, view.head.seq + 1 if view.head else 1))
        except Corrupt:
            if not (yield from is_disturbed(self.partition, view.generation)):
                raise
            return None

    def _read_stored(self, record: CheckpointRecord) -> Program[CheckpointRecord | None]:
        """Return the checkpoint stored under this id, ``None`` if it was removed since.

        Raises:
            Conflict: it has another parent; replacing it would orphan its descendants or make the history
                circular.
        """
        if record.parent_id in (None, record.id):
            ids = [record.id]
        else:
            ids = [record.id, record.parent_id]
        found, *parents = yield from ask(
            Fetch(self.partition, tuple(Get(CHECKPOINT, (self.namespace, i)) for i in ids))
        )
        if not found:
            return None
        stored = CheckpointRecord.read(found[0])
        # A prune may have removed the parent, and linked the stored checkpoint to an earlier one.
        is_pruned = stored.cut and (record.parent_id is None or (bool(parents) and not parents[0]))
        if record.parent_id == stored.parent_id or is_pruned:
            return stored
        raise Conflict(
            f"thread {self.partition.thread!r}: checkpoint {record.id} is stored already, with the parent "
            f"{stored.parent_id}, and cannot be put on {record.parent_id}; nothing of this step was stored. "
            "Give the new checkpoint an id of its own"
        )

    def _plan_repeated_move(
        self, view: View, after: View, stored: CheckpointRecord, moved: Put
    ) -> tuple[Put, View]:
        """Return the put of the head for a checkpoint that is stored already, and the view of the thread
        afterwards. The head moves to the checkpoint if it is at its parent, otherwise it stays where it is.
        Its sequence number stays in both cases.
        """
        head = view.head
        if head is None:
            return moved, after
        target = stored.id if head.checkpoint_id in (stored.id, stored.parent_id) else head.checkpoint_id
        fields = {"checkpoint_id": target, "seq": head.seq}
        root_head = target if self.namespace == ROOT else view.root_head
        seen = after._replace(head=HeadView(moved.version, target, head.seq), root_head=root_head)
        return moved._replace(fields=fields), seen


@dataclass(slots=True, eq=False, kw_only=True)
class WritesPut(StepPut[bool]):
    """Put of a task's writes; the checkpoint that they belong to need not be stored yet.

    A slot is written once; the reserved negative slots are overwritten.

    Attributes:
        seen: versions of the slots that the writer's loop loaded, by task and index. A filled slot that is
            neither the loop's own nor among these belongs to a rival run and raises ``HeadConflict``. With
            ``None`` (a bare call without a load, or forks allowed) filled slots are kept, negative ones
            overwritten.
        claim: demands that the head is as it was loaded or claimed, or has moved to the loop's own next
            checkpoint.
        consumed: keys of the answers without an interrupt's id that the task has taken with these writes:
            they are removed, because the next interrupt would take them again.
        statements: statements on the application's own tables that the task gave. They are executed only if
            the task's checkpoint is stored, because its step is repeated otherwise. If a result of the task
            is stored already, its statements were executed with it, and are left out.
        checkpoint: namespace and id of the checkpoint that the writes belong to.
    """

    plan: DraftsWrites
    seen: Mapping[tuple[str, int], int] | None
    consumed: Sequence[Key] = ()
    statements: tuple[ApplicationStatement, ...] = ()
    checkpoint: tuple[str, str]

    def _get_guarding_namespace(self) -> str:
        return ROOT  # also for writes of a subgraph, whose run is the root's

    def decide(self, view: View) -> tuple[tuple[Op, ...], int]:
        claim = self.claim
        if claim is not None and self.plan.child() is None and not _holds(claim, view.head):
            raise outrun_error(self.partition, claim.checkpoint_id)
        checks, generation = self._plan_guards(view)
        if claim is not None and view.head is not None and _holds(claim, view.head):
            checks = (*checks, _plan_claim(claim, view.head))
        return checks, generation

    def _attempt(self, view: View) -> Program[bool | None]:
        partition, claim = self.partition, self.claim
        decided = self._try_decide(view)
        if decided is None:
            return None
        checks, generation = decided
        if claim is not None and not _holds(claim, view.head) and (own := self.plan.child()) is not None:
            (own_checkpoint,) = yield from ask(Fetch(partition, (Get(CHECKPOINT, (ROOT, own)),)))
            if not own_checkpoint and view is self.remembered:
                return None
            if not own_checkpoint:
                raise outrun_error(partition, claim.checkpoint_id)
        draft = self.plan.draft(view, generation)
        before = self.plan.before() if claim is None else None
        needed = {key for key in (before, self.checkpoint if self.statements else None) if key is not None}
        presence_checks = tuple(Check(CHECKPOINT, key, Expect.PRESENT) for key in sorted(needed))
        checks = (
            *checks,
            *presence_checks,
            *(check for check in draft.checks if check not in presence_checks),
        )
        if self.taking is not None:
            checks = (*checks, *(yield from self.taking.plan_ops()))
        checks = (*checks, *(Delete(WRITE, key) for key in self.consumed))
        ops: list[Op] = [*checks, *make_new_puts(draft.writes, Expect.ABSENT)]
        chunks = make_chunk_puts(draft.chunks, generation)
        outcome = yield from self._commit(view, ops, chunks, self.statements)
        if isinstance(outcome, Committed):
            return True
        if before is not None and outcome == Refused(CHECKPOINT, before) and self.plan.before() == before:
            raise removed_checkpoint_error(partition, before[1])
        if self.statements and outcome == Refused(CHECKPOINT, self.checkpoint):
            raise removed_checkpoint_error(partition, self.checkpoint[1])
        if outcome.kind is not WRITE:
            if _misses(outcome, draft.checks):
                self.on_older(partition)
            return None
        tasks = dict.fromkeys(w.key[:3] for w in draft.writes)
        answers = yield from ask(Fetch(partition, tuple(Range(WRITE, task) for task in tasks)))
        records = [record for answer in answers for record in answer]
        ops = self._plan_overwrites(draft.writes, records, checks, generation)
        filled = {write.key for write in read_writes(records) if write.idx >= 0}
        statements = () if any(write.key in filled for write in draft.writes) else self.statements
        outcome = yield from commit_with_chunks(partition, ops, chunks, self.budget, statements)
        if isinstance(outcome, Committed):
            return True
        return None

    def _plan_overwrites(
        self,
        writes: Sequence[PendingWrite],
        records: Sequence[Record],
        checks: tuple[Op, ...],
        generation: int,
    ) -> list[Op]:
        """Return the operations that store writes when some of their slots are filled already.

        Raises:
            HeadConflict: another run has filled one of the slots.
        """
        puts: list[Op] = []
        free: list[PendingWrite] = []
        slots = {write.key: write for write in read_writes(records)}
        for write in writes:
            stored = slots.get(write.key)
            if stored is None:
                free.append(write)
                continue
            if _is_foreign(stored, write, self.seen):
                raise HeadConflict(
                    f"thread {self.partition.thread!r}: another run has already written task {write.task_id} "
                    f"of checkpoint {write.checkpoint_id}; nothing of this write was stored. Load the "
                    "thread again and repeat the call"
                )
            if write.idx < 0:
                puts.append(put_over(write, stored))
                if not are_of_one_run(stored.nonce, write.nonce):
                    puts += make_new_puts([stored.aside])
                checks = _raise_generation(checks, generation, write.task_id)
        return [*checks, *puts, *plan_puts(free, read_by_record(records))]


def _merge_with_stored(stored: CheckpointRecord, record: CheckpointRecord) -> CheckpointRecord:
    """Return a checkpoint that is stored again: with its new contents, at its old place."""
    nonces = (*record.seen, stored.nonce, *stored.seen)
    return record._replace(
        seq=stored.seq,
        parent_id=stored.parent_id,
        cut=stored.cut,
        prior=stored.prior,
        carried=stored.carried,
        seen=tuple(dict.fromkeys(n for n in nonces if n and n != record.nonce)),
    )


def _misses(outcome: Refused, checks: Sequence[Check]) -> bool:
    """Return True if a commit was refused by one of these checks, because a record that was known to be
    stored is missing. A missing chunk does not count: it may have been packed."""
    is_chunk = outcome.kind.grows is not None
    return not is_chunk and any((check.kind, check.key) == (outcome.kind, outcome.key) for check in checks)


def _holds(claim: HeadClaim, head: HeadView | None) -> bool:
    return head is not None and claim.holds(head.checkpoint_id, head.version)


def _plan_claim(claim: HeadClaim, head: HeadView) -> Op:
    if head.version == claim.after:
        return Check(HEAD, (ROOT,), claim.after)
    fields = {"checkpoint_id": head.checkpoint_id, "seq": head.seq}
    return Put(HEAD, (ROOT,), fields, expect=claim.before, version=claim.after)


def _raise_generation(checks: tuple[Op, ...], generation: int, by: str) -> tuple[Op, ...]:
    """Return the guards with the collection generation raised.

    Chunks that an overwritten record referred to may be unreachable now, so no writer may rely on them while
    a collection deletes them.
    """
    raised = Put(GC, (), expect=generation, version=successor(generation, by))
    return tuple(raised if isinstance(op, Check) and op.kind is GC else op for op in checks)


def _is_foreign(
    stored: PendingWrite, offered: PendingWrite, seen: Mapping[tuple[str, int], int] | None
) -> bool:
    if seen is None or stored.nonce == offered.nonce:
        return False
    return seen.get((stored.task_id, stored.idx)) != stored.version
