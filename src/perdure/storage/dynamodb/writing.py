"""Writes to the table: commits as one transaction, chunks before it, and the removal of a partition.

A commit's transaction includes the partition's root item: it requires the incarnation under which the records
are stored and sets a new revision. So a partition is removed by deleting its incarnation in one write; the
records under it are garbage from then on, and no late writer reaches them.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from perdure.errors import Contention, PerdureError, Unavailable
from perdure.model.ops import (
    Check,
    Commit,
    Committed,
    Drop,
    Expect,
    Fetch,
    Get,
    Op,
    Put,
    Range,
    Refused,
    Stage,
)
from perdure.model.records import KINDS, Partition, Record
from perdure.model.values.compression import compress_body
from perdure.storage import in_doubt
from perdure.storage.dynamodb import items
from perdure.storage.dynamodb.actions import Learned, action_of, make_root_action
from perdure.storage.dynamodb.client import Client, ConditionFailed, Unanswered
from perdure.storage.dynamodb.commit_plan import CommitPlan, find_versions, plan_commit
from perdure.storage.dynamodb.items import Item, PartitionRoot
from perdure.storage.dynamodb.reading import Reader
from perdure.storage.evaluation import holds

_ROUNDS = 64
_BATCH = 25
_PARTS_AT_ONCE = 8
_TOKEN = 12

Parts = tuple[bytes, int]
"""The parts of a body: the name that they share, and their count."""


class Writer:
    """Writes to one table."""

    def __init__(self, client: Client, reader: Reader) -> None:
        self._client = client
        self._reader = reader

    # Commit

    def commit(self, effect: Commit) -> Committed | Refused:
        if not effect.ops:
            return Committed()
        with self._reader.get_commit_lock(effect.partition):
            return self._commit(effect)

    def _commit(self, effect: Commit) -> Committed | Refused:
        partition, ops = effect.partition, effect.ops
        writes = any(not isinstance(op, Check) for op in ops)
        learned = [Learned()] * len(ops)
        staged_in = b""
        # A commit that only creates is tried as the first of its partition, without reading the root. If it
        # is not the first, the refusal returns the root, and costs no more than reading the root.
        only_creates = all(isinstance(op, Put) and op.expect is Expect.ABSENT for op in ops)
        root = self._reader.get_cached(partition) or items.NO_ROOT
        if not root.revision and not only_creates:
            root = self._reader.read_root(partition)
        for _ in range(_ROUNDS):
            if not root.incarnation and (outcome := _decide_on_empty(ops)) is not None:
                return outcome
            plan = plan_commit(partition, ops, root)
            incarnation = root.incarnation or secrets.token_bytes(items.INCARNATION)
            revision = secrets.token_bytes(_TOKEN)
            stored_parts: list[Parts] = []
            try:
                if plan.early and staged_in != incarnation:
                    self._stage_all(partition, incarnation, _select_puts(ops, plan.early))
                    staged_in = incarnation
                inside, own = [
                    [
                        (ops[n], self._lay_out(partition, incarnation, ops[n], stored_parts), learned[n])
                        for n in group
                    ]
                    for group in (plan.inside, plan.own)
                ]
                table = self._client.table
                new_revision = revision if writes else b""
                actions = [
                    make_root_action(
                        table, partition, root, incarnation, new_revision, inside, after=plan.after
                    ),
                    *(action_of(table, partition, incarnation, *each) for each in own),
                ]
                self._transact(effect, actions, revision)
            except ConditionFailed as failed:
                later_root = _find_root(failed.reasons[0], root)
                if later_root.revision == revision:
                    return self._note_commit(partition, incarnation, revision, ops, learned)
                self._discard(partition, incarnation, stored_parts)
                if later_root.dead and any(map(items.expiry_of, _select_puts(ops, plan.inside))):
                    # A removal was cut short. It is completed before the root, which names it, may expire.
                    self._clear_incarnations(partition, later_root.dead)
                    later_root = self._reader.read_root(partition)
                if later_root.incarnation != root.incarnation:
                    # The partition was removed meanwhile: nothing refers to the early chunks.
                    self._unstage(partition, incarnation, _select_puts(ops, plan.early))
                    root = self._reader.remember(partition, later_root)
                    learned = [Learned()] * len(ops)
                    continue
                if plan.after and later_root.revision != plan.after:
                    # Another commit came between: the next attempt includes the checks that were left out.
                    root = self._reader.remember(partition, later_root)
                    continue
                refused = _judge(ops, plan, failed.reasons, later_root, learned)
                if refused is not None:
                    return refused
            except PerdureError as error:
                if not isinstance(error, Unanswered):
                    self._discard(partition, incarnation, stored_parts)
                raise
            else:
                return self._note_commit(partition, incarnation, revision, ops, learned)
        raise Contention(f"thread {partition.thread!r} keeps being removed and made again; try again")

    def _transact(self, effect: Commit, actions: list[Item], revision: bytes) -> None:
        """Carry out a commit.

        Raises:
            ConditionFailed: A condition did not hold.
            PerdureError: The commit was not carried out, or, as ``Unanswered``, perhaps it was.
        """
        try:
            # The token makes a repetition of a transaction that was carried out succeed without effect.
            self._client.call(
                "transact_write_items", TransactItems=actions, ClientRequestToken=revision.hex()
            )
        except Unanswered as lost:
            try:
                applied = self._was_applied(effect, revision)
            except Unavailable:
                raise lost from None
            if not applied:
                raise

    def _was_applied(self, effect: Commit, revision: bytes) -> bool:
        """Return True if a commit without an answer is found in the table."""
        if all(isinstance(op, Check) for op in effect.ops):
            return False
        root = self._reader.read_root(effect.partition)
        if root.revision == revision:
            return True
        return in_doubt.was_applied(effect, self._reader.fetch(in_doubt.evidence(effect)))

    def _note_commit(
        self,
        partition: Partition,
        incarnation: bytes,
        revision: bytes,
        ops: Sequence[Op],
        learned: list[Learned],
    ) -> Committed:
        if any(not isinstance(op, Check) for op in ops):
            self._reader.remember(
                partition, PartitionRoot(incarnation, revision, {}, stored=find_versions(ops))
            )
        old_parts = [seen.parts for seen in learned if seen.parts]
        self._discard(partition, incarnation, old_parts)
        return Committed()

    # Bodies in parts

    def _lay_out(self, partition: Partition, incarnation: bytes, op: Op, stored_parts: list[Parts]) -> Item:
        """Return the attributes that carry an operation's body; a large one is stored in parts now, under a
        name to which nothing refers until the record does."""
        if not isinstance(op, Put) or not op.kind.body:
            return {}
        body = compress_body(op)
        if len(body) <= items.BODY_MAX:
            return {"b": {"B": body}}
        pieces = [body[at : at + items.PART] for at in range(0, len(body), items.PART)]
        nonce = secrets.token_bytes(_TOKEN)
        stored_parts.append((nonce, len(pieces)))
        expiry = {k: v for k, v in items.item_of(partition, incarnation, op).items() if k == "x"}
        keys = items.make_part_keys(partition, incarnation, nonce, len(pieces))
        puts = [
            {"PutRequest": {"Item": {**key, **expiry, "b": {"B": piece}}}}
            for key, piece in zip(keys, pieces, strict=True)
        ]
        self._write_batches(puts, _PARTS_AT_ONCE)
        return {"p": {"B": nonce}, "pn": {"N": str(len(pieces))}}

    def _discard(self, partition: Partition, incarnation: bytes, parts: Sequence[Parts]) -> None:
        keys = [
            key
            for nonce, count in parts
            for key in items.make_part_keys(partition, incarnation, nonce, count)
        ]
        # A failure does not change the outcome: nothing refers to the parts, and they go with the thread.
        with suppress(PerdureError):
            self._delete(keys)

    # Stage

    def stage(self, effect: Stage) -> None:
        partition = effect.partition
        for put in effect.puts:
            if put.kind.grows is None:
                self.commit(Commit(partition, (put._replace(expect=Expect.ANY),)))
        puts = [put for put in effect.puts if put.kind.grows is not None]
        if not puts:
            return
        for _ in range(_ROUNDS):
            root = self._reader.load_root(partition)
            incarnation = root.incarnation or self._create_incarnation(partition, root)
            if not incarnation:
                continue
            self._stage_all(partition, incarnation, puts)
            if self._reader.read_root(partition).incarnation == incarnation:
                return
            # The partition was removed meanwhile: nothing refers to the chunks that were just stored.
            self._unstage(partition, incarnation, puts)
        raise Contention(f"thread {partition.thread!r} keeps being removed and made again; try again")

    def _create_incarnation(self, partition: Partition, root: PartitionRoot) -> bytes:
        """Create an incarnation; return empty bytes if another process was first."""
        incarnation, revision = secrets.token_bytes(items.INCARNATION), secrets.token_bytes(_TOKEN)
        action = make_root_action(self._client.table, partition, root, incarnation, revision, ())
        try:
            self._client.call("update_item", **action["Update"])
        except ConditionFailed:
            return b""
        self._reader.remember(partition, PartitionRoot(incarnation, revision, {}))
        return incarnation

    def _stage_all(self, partition: Partition, incarnation: bytes, puts: Sequence[Put]) -> None:
        self._reader.spread(lambda put: self._stage_one(partition, incarnation, put), puts)

    def _unstage(self, partition: Partition, incarnation: bytes, puts: Sequence[Put]) -> None:
        self._delete([items.key_of(partition, incarnation, put.kind, put.key) for put in puts])

    def _stage_one(self, partition: Partition, incarnation: bytes, put: Put) -> None:
        """Store an immutable record, or raise the growing field of the existing one."""
        unconditional = put._replace(expect=Expect.ANY)
        stored_parts: list[Parts] = []
        body = self._lay_out(partition, incarnation, unconditional, stored_parts)
        action = action_of(self._client.table, partition, incarnation, unconditional, body, Learned())
        for _ in range(_ROUNDS):
            try:
                self._client.call("put_item", **action["Put"])
            except ConditionFailed:
                if self._raise_growing(partition, incarnation, put):
                    # After a lost answer the existing record may be this very one.
                    if stored_parts and not self._refers_to(partition, incarnation, put, stored_parts[0]):
                        self._discard(partition, incarnation, stored_parts)
                    return
            else:
                return
        raise Contention(f"thread {partition.thread!r}: a chunk keeps being collected and stored; try again")

    def _refers_to(self, partition: Partition, incarnation: bytes, put: Put, parts: Parts) -> bool:
        """Return True if a record's body is stored in these parts."""
        answer = self._client.call(
            "get_item",
            TableName=self._client.table,
            Key=items.key_of(partition, incarnation, put.kind, put.key),
            ConsistentRead=True,
            ProjectionExpression="p, pn",
        )
        return items.parts_of(answer.get("Item", {})) == parts

    def _raise_growing(self, partition: Partition, incarnation: bytes, put: Put) -> bool:
        """Raise a record's growing field to the put's value if it is less; return True if the record
        exists."""
        name = str(put.kind.grows)
        key = items.key_of(partition, incarnation, put.kind, put.key)
        try:
            self._client.call(
                "update_item",
                TableName=self._client.table,
                Key=key,
                UpdateExpression="SET #grows = :size",
                ConditionExpression=f"{items.PRESENT} AND #grows < :size",
                ExpressionAttributeNames={"#grows": name},
                ExpressionAttributeValues={":size": {"N": str(put.fields[name])}},
            )
        except ConditionFailed:
            answer = self._client.call(
                "get_item",
                TableName=self._client.table,
                Key=key,
                ConsistentRead=True,
                ProjectionExpression="pk",
            )
            return "Item" in answer
        return True

    # Drop

    def drop(self, effect: Drop) -> Committed | Refused:
        partition = effect.partition
        is_guarded = bool(effect.checks) or effect.if_empty
        with self._reader.get_commit_lock(partition):
            for _ in range(_ROUNDS):
                root = self._reader.read_root(partition)
                refused = self._find_refused(effect)
                if refused is not None:
                    return refused
                if not root.revision or (effect.if_empty and self._has_records(partition)):
                    return Committed()
                # Every commit gives the root a new revision: what was read still holds, or this write fails.
                if root.incarnation and not self._delete_incarnation(partition, root, is_guarded=is_guarded):
                    continue
                self._clear_incarnations(partition, [n for n in (*root.dead, root.incarnation) if n])
                return Committed()
        raise Contention(f"thread {partition.thread!r} keeps being removed and made again; try again")

    def _find_refused(self, effect: Drop) -> Refused | None:
        """Return the first check of a removal that does not hold now."""
        if not effect.checks:
            return None
        gets = tuple(Get(check.kind, check.key) for check in effect.checks)
        for check, found in zip(
            effect.checks, self._reader.fetch(Fetch(effect.partition, gets)), strict=True
        ):
            if not holds(check, found[0] if found else None):
                return Refused(check.kind, check.key)
        return None

    def _has_records(self, partition: Partition) -> bool:
        """Return True if a partition holds records of any kind."""
        ranges = tuple(Range(kind, limit=1, bodies=False) for kind in KINDS)
        return any(self._reader.fetch(Fetch(partition, ranges)))

    def _delete_incarnation(self, partition: Partition, root: PartitionRoot, *, is_guarded: bool) -> bool:
        """Delete the incarnation, so that the partition holds nothing; return False if the root was changed
        meanwhile."""
        names = {f"#{name}": name for name in items.EMBEDDED}
        self._reader.remember(partition, items.NO_ROOT)
        try:
            self._client.call(
                "update_item",
                TableName=self._client.table,
                Key=items.make_root_key(partition),
                UpdateExpression=f"SET rev = :rev REMOVE inc, x, {', '.join(names)} ADD dead :dead",
                ConditionExpression="inc = :inc AND rev = :seen" if is_guarded else "inc = :inc",
                ExpressionAttributeNames=names,
                ExpressionAttributeValues={
                    ":rev": {"B": secrets.token_bytes(_TOKEN)},
                    ":inc": {"B": root.incarnation},
                    ":dead": {"BS": [root.incarnation]},
                    **({":seen": {"B": root.revision}} if is_guarded else {}),
                },
            )
        except ConditionFailed:
            return False
        return True

    def _clear_incarnations(self, partition: Partition, dead: Sequence[bytes]) -> None:
        """Delete all items under deleted incarnations, and forget these."""
        for incarnation in dead:
            self._delete_items(partition, incarnation)
        self._forget(partition, dead)

    def _delete_items(self, partition: Partition, incarnation: bytes) -> None:
        """Delete all items under an incarnation, page by page."""
        pk, page = items.collection(partition, incarnation), list[Item]()
        select = {"ProjectionExpression": "pk, sk"}
        for key in self._reader.query(pk, b"\x00", b"\xff" * 16, select=select):
            page.append(key)
            if len(page) == 40 * _BATCH:
                self._delete(page)
                page = []
        self._delete(page)

    def _forget(self, partition: Partition, dead: Sequence[bytes]) -> None:
        """Remove deleted incarnations from the root, and the root itself if it holds nothing else."""
        target: Any = {"TableName": self._client.table, "Key": items.make_root_key(partition)}
        try:
            if dead:
                self._client.call(
                    "update_item",
                    **target,
                    UpdateExpression="DELETE dead :dead",
                    ConditionExpression=items.PRESENT,
                    ExpressionAttributeValues={":dead": {"BS": list(dead)}},
                )
            unused = "attribute_not_exists(inc) AND attribute_not_exists(dead)"
            self._client.call("delete_item", **target, ConditionExpression=unused)
        except ConditionFailed:
            # The root was removed, or is in use again, or another process is removing it and completes this.
            return

    # Batches

    def _delete(self, keys: Sequence[Item]) -> None:
        self._write_batches(
            [{"DeleteRequest": {"Key": {"pk": k["pk"], "sk": k["sk"]}}} for k in keys], _BATCH
        )

    def _write_batches(self, requests: Sequence[Item], size: int) -> None:
        groups = [list(requests[at : at + size]) for at in range(0, len(requests), size)]
        self._reader.spread(
            lambda group: self._client.request_batch("batch_write_item", group, "UnprocessedItems"), groups
        )


def _decide_on_empty(ops: Sequence[Op]) -> Committed | Refused | None:
    """Return the outcome of a commit on a partition that holds nothing, ``None`` if it has to be written."""
    for op in ops:
        if not holds(op, None):
            return Refused(op.kind, op.key)
    if any(isinstance(op, Put) for op in ops):
        return None
    return Committed()


def _select_puts(ops: Sequence[Op], positions: Sequence[int]) -> list[Put]:
    return [op for n in positions if isinstance(op := ops[n], Put)]


def _find_root(reason: Any, root: PartitionRoot) -> PartitionRoot:
    """Return the root as a failed transaction saw it: the assumed one, unless the root's condition failed."""
    if reason.get("Code") != "ConditionalCheckFailed":
        return root
    return items.root_of(reason.get("Item") or {})


def _judge(
    ops: Sequence[Op],
    plan: CommitPlan,
    reasons: Sequence[Any],
    root: PartitionRoot,
    learned: list[Learned],
) -> Refused | None:
    """Return the refusal by the first operation whose expectation failed. Where only a condition of the
    layout failed, the facts that the next attempt needs are put into ``learned``.

    Args:
        ops: The operations of the commit.
        plan: The plan of the commit.
        reasons: The transaction's reasons, the root's first.
        root: The root as the transaction saw it.
        learned: The facts for each operation, updated.
    """
    failed: list[int] = []
    if reasons[0].get("Code") == "ConditionalCheckFailed":
        failed += [n for n in plan.inside if not holds(ops[n], root.records.get(ops[n].kind.name))]
        for n in plan.inside:
            if ops[n].kind.body and not isinstance(ops[n], Check):
                learned[n] = Learned(root.parts)
    for n, reason in zip(plan.own, reasons[1:], strict=True):
        if reason.get("Code") != "ConditionalCheckFailed":
            continue
        op, item = ops[n], reason.get("Item")
        record: Record | None = None
        if item:
            record = items.record_of(op.kind, item)
        if not holds(op, record):
            failed.append(n)
            continue
        grows = op.kind.grows
        grown = (
            isinstance(op, Put)
            and grows is not None
            and record is not None
            and record.fields[grows] > op.fields[grows]
        )
        learned[n] = Learned(items.parts_of(item or {}), grown)
    if failed:
        return Refused(ops[min(failed)].kind, ops[min(failed)].key)
    return None
