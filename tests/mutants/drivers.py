"""Drivers that break one promise each, around a driver that keeps it: they rewrite requests or answers."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from perdure.model.ops import (
    Check,
    Commit,
    Committed,
    Delete,
    Drop,
    Expect,
    Fetch,
    Find,
    FindDue,
    Get,
    Now,
    Op,
    Put,
    Range,
    Stage,
)
from perdure.model.records import BLOB, CHECKPOINT, CHUNK, GC, HEAD, PACK, TAG, WRITE
from perdure.storage.port import Capabilities, Driver


class Broken:
    """A driver around another one that does not do what it was asked: see the subclasses."""

    def __init__(self, inner: Driver) -> None:
        self.inner = inner

    capabilities = Capabilities()

    @property
    def limits(self) -> Any:
        return self.inner.limits

    def perform(self, effect: Any) -> Any:
        return self.inner.perform(self.rewrite(effect))

    async def aperform(self, effect: Any) -> Any:
        return self.perform(effect)

    def close(self) -> None:
        self.inner.close()

    def rewrite(self, effect: Any) -> Any:
        """Another effect in the place of this one."""
        if isinstance(effect, Commit):
            return Commit(effect.partition, tuple(o for op in effect.ops for o in self.op(effect, op)))
        return effect

    def op(self, commit: Commit, op: Op) -> tuple[Op, ...]:
        return (op,)


def changed(value: Any, **fields: Any) -> Any:
    """A copy with other fields, be it of a dataclass or of a named tuple."""
    return value._replace(**fields) if hasattr(value, "_replace") else replace(value, **fields)


class NoTenant(Broken):
    def rewrite(self, effect: Any) -> Any:
        if isinstance(effect, Find):
            return changed(effect, tenant="" if effect.tenant is not None else None)
        if isinstance(effect, Now):
            return effect
        return changed(effect, partition=effect.partition._replace(tenant=""))


class NoThread(Broken):
    def rewrite(self, effect: Any) -> Any:
        if isinstance(effect, Find | Now):
            return effect
        return changed(effect, partition=effect.partition._replace(thread="thread"))


class DueBeforeItsTime(Broken):
    def rewrite(self, effect: Any) -> Any:
        return changed(effect, until=1 << 62) if isinstance(effect, FindDue) else super().rewrite(effect)


class DueInAnyOrder(Broken):
    def perform(self, effect: Any) -> Any:
        answer = self.inner.perform(effect)
        return answer[::-1] if isinstance(effect, FindDue) else answer


class NoNamespace(Broken):
    def op(self, commit: Commit, op: Op) -> tuple[Op, ...]:
        return (changed(op, key=("",)) if op.kind is HEAD else op,)

    def rewrite(self, effect: Any) -> Any:
        if isinstance(effect, Fetch):
            return changed(
                effect,
                items=tuple(
                    changed(i, key=("",)) if isinstance(i, Get) and i.kind is HEAD else i
                    for i in effect.items
                ),
            )
        return super().rewrite(effect)


class KeyEndsAtNul(Broken):
    """As a client would have it that hands text to C."""

    def rewrite(self, effect: Any) -> Any:
        def cut(thing: Any) -> Any:
            return changed(thing, key=tuple(k.split("\0")[0] if isinstance(k, str) else k for k in thing.key))

        if isinstance(effect, Fetch):
            return changed(effect, items=tuple(cut(i) if isinstance(i, Get) else i for i in effect.items))
        if isinstance(effect, Commit):
            ops = {(op.kind.name, op.key): op for op in map(cut, effect.ops)}
            return Commit(effect.partition, tuple(ops.values()))
        return effect


class NoHeadCompare(Broken):
    def op(self, commit: Commit, op: Op) -> tuple[Op, ...]:
        return (changed(op, expect=Expect.ANY) if op.kind is HEAD else op,)


class MaxIdHead(Broken):
    def op(self, commit: Commit, op: Op) -> tuple[Op, ...]:
        if not isinstance(op, Put) or op.kind is not HEAD:
            return (op,)
        (answer,) = self.inner.perform(Fetch(commit.partition, (Get(HEAD, op.key),)))
        largest = max([op.fields["checkpoint_id"], *(r.fields["checkpoint_id"] for r in answer)])
        return (changed(op, fields={**op.fields, "checkpoint_id": largest}),)


class NonAtomic(Broken):
    def perform(self, effect: Any) -> Any:
        if isinstance(effect, Commit):
            for op in effect.ops:
                outcome = self.inner.perform(Commit(effect.partition, (op,)))
                if not isinstance(outcome, Committed):
                    return outcome
            return Committed()
        return self.inner.perform(effect)


class CheckThenWrite(Broken):
    """The expectations are looked at first, in a transaction of their own."""

    def perform(self, effect: Any) -> Any:
        if isinstance(effect, Commit):
            checks = tuple(Check(op.kind, op.key, op.expect) for op in effect.ops)
            outcome = self.inner.perform(Commit(effect.partition, checks))
            if not isinstance(outcome, Committed):
                return outcome
            time.sleep(0.001)
            free = (changed(op, expect=Expect.ANY) for op in effect.ops if not isinstance(op, Check))
            return self.inner.perform(Commit(effect.partition, tuple(free)))
        return self.inner.perform(effect)


class LostStage(Broken):
    def perform(self, effect: Any) -> Any:
        return None if isinstance(effect, Stage) else self.inner.perform(effect)


class NoDrop(Broken):
    """Only the head goes, so that the thread looks deleted."""

    def rewrite(self, effect: Any) -> Any:
        return Commit(effect.partition, (Delete(HEAD, ("",)),)) if isinstance(effect, Drop) else effect


class Shrinking(Broken):
    def rewrite(self, effect: Any) -> Any:
        if isinstance(effect, Stage | Commit):
            puts = effect.puts if isinstance(effect, Stage) else effect.ops
            gone = tuple(Delete(op.kind, op.key) for op in puts if isinstance(op, Put) and op.kind is CHUNK)
            self.inner.perform(Commit(effect.partition, gone))
        return effect


class TornFetch(Broken):
    def perform(self, effect: Any) -> Any:
        if isinstance(effect, Fetch):
            out: list[Any] = []
            for item in effect.items:
                out += self.inner.perform(Fetch(effect.partition, (item,)))
                time.sleep(0)
            return tuple(out)
        return self.inner.perform(effect)


class CaseBlindOrder(Broken):
    def perform(self, effect: Any) -> Any:
        answer = self.inner.perform(effect)
        if not isinstance(effect, Fetch):
            return answer

        def order(record: Any) -> list[Any]:
            return [k.casefold() if isinstance(k, str) else k for k in record.key]

        return tuple(
            tuple(sorted(found, key=order, reverse=item.reverse))
            if isinstance(item, Range) and item.by is None
            else found
            for item, found in zip(effect.items, answer, strict=True)
        )


class NoBy(Broken):
    def rewrite(self, effect: Any) -> Any:
        if isinstance(effect, Fetch):
            return changed(
                effect,
                items=tuple(
                    changed(i, by=None, after=None) if isinstance(i, Range) and i.by else i
                    for i in effect.items
                ),
            )
        return effect


class PutsDoNotCheckGc(Broken):
    def op(self, commit: Commit, op: Op) -> tuple[Op, ...]:
        return () if isinstance(op, Check) and op.kind is GC else (op,)


class UnguardedChunkDelete(Broken):
    def op(self, commit: Commit, op: Op) -> tuple[Op, ...]:
        is_chunk = isinstance(op, Delete) and op.kind in (CHUNK, BLOB, PACK)
        return (Delete(op.kind, op.key),) if is_chunk else (op,)


class TagLeavesGenerationAlone(Broken):
    def op(self, commit: Commit, op: Op) -> tuple[Op, ...]:
        tags = any(isinstance(o, Put) and o.kind is TAG for o in commit.ops)
        return () if tags and op.kind is GC else (op,)


class WriteDemandsCheckpoint(Broken):
    def rewrite(self, effect: Any) -> Any:
        if isinstance(effect, Commit):
            wanted = {op.key[:2] for op in effect.ops if isinstance(op, Put) and op.kind is WRITE}
            here = {op.key for op in effect.ops if op.kind is CHECKPOINT}
            checks = tuple(Check(CHECKPOINT, key, Expect.PRESENT) for key in wanted - here)
            return Commit(effect.partition, (*effect.ops, *checks))
        return effect
