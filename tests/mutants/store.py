"""Deliberate breaks of the store, and of what it rests on in a driver."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import repeat
from typing import Any

import pytest

from perdure.engine.items import item_writes, items
from perdure.errors import Unserialisable
from perdure.langgraph import store
from perdure.model import store_items as model
from perdure.model.ops import Commit, Delete, Expect, Find, FindExpired, FindItems, FindThreads, Now, Op, Put
from perdure.model.records import ITEM, THREADS, Record
from perdure.model.values import json_values
from perdure.storage.port import Capabilities
from tests.mutants.breaks import Mutant
from tests.mutants.drivers import Broken, changed


class NoSpace(Broken):
    def rewrite(self, effect: Any) -> Any:
        if isinstance(effect, Now):
            return effect
        if isinstance(effect, FindThreads):
            return changed(effect, space=THREADS)
        if isinstance(effect, Find):
            return effect
        return changed(effect, partition=effect.partition._replace(space=THREADS))


class NoPrefix(Broken):
    def rewrite(self, effect: Any) -> Any:
        return changed(effect, prefix="") if isinstance(effect, FindThreads | FindItems) else effect


class EverythingIsDue(Broken):
    def rewrite(self, effect: Any) -> Any:
        return changed(effect, until=1 << 62) if isinstance(effect, FindExpired) else effect


class UnguardedItemDelete(Broken):
    def op(self, commit: Commit, op: Op) -> tuple[Op, ...]:
        return (changed(op, unchanged={}) if isinstance(op, Delete) and op.kind is ITEM else op,)


class UnguardedItemPut(Broken):
    def op(self, commit: Commit, op: Op) -> tuple[Op, ...]:
        return (changed(op, expect=Expect.ANY) if _is_item(op) else op,)


class ForgetsWhatIsKept(Broken):
    capabilities = Capabilities(keeps_fields=True)

    def op(self, commit: Commit, op: Op) -> tuple[Op, ...]:
        return (changed(op, keep=None) if isinstance(op, Put) else op,)


def _is_item(op: Op) -> bool:
    return isinstance(op, Put) and op.kind is ITEM


def versions_counted(patch: pytest.MonkeyPatch) -> None:
    """An item that was deleted and made again has the version that it had."""
    patch.setattr(store, "_versions", lambda: repeat(1))


def stale_items_returned(patch: pytest.MonkeyPatch) -> None:
    """What is over is seen until a sweep removes it."""
    for module in (items, item_writes):
        patch.setattr(module, "is_over", lambda record, now: False)


def ends_at_their_last_moment(patch: pytest.MonkeyPatch) -> None:
    """A read that comes from a clock behind takes time away, and one without an end gets one."""
    patch.setattr(items, "postpone_expiry", lambda record, now: now)


def slashes_for_terminators(patch: pytest.MonkeyPatch) -> None:
    """Labels are joined as they are, so that ``("a/b",)`` and ``("a", "b")`` have one name."""
    for module in (items, model):
        patch.setattr(module, "name_of", lambda labels: "".join(f"{label}/" for label in labels))
    for module in (items, model):
        patch.setattr(module, "labels_of", lambda name: tuple(name.split("/")[:-1]))
    patch.setattr(model, "_AFTER", "0")


def creation_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = item_writes._plan

    def plan(writes: Any, stored: Mapping[str, Record], *, exact: bool) -> tuple[Op, ...]:
        ops = real(writes, stored, exact=exact)
        return tuple(
            op._replace(fields={**op.fields, "created_at": op.fields["updated_at"]})
            if isinstance(op, Put)
            else op
            for op in ops
        )

    patch.setattr(item_writes, "_plan", plan)
    puts: Any = item_writes._plan_overwrite
    patch.setattr(
        item_writes, "_plan_overwrite", lambda writes: tuple(op._replace(keep=None) for op in puts(writes))
    )


def lost_writes_unsaid(patch: pytest.MonkeyPatch) -> None:
    """A writer that loses a race gives up, and says nothing."""
    patch.setattr(item_writes, "EXACT", 1 << 30)
    patch.setattr(item_writes, "Committed", object)


def searched_by_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(items, "_newest_first", lambda place: (0, "", place[1].key))


def empty_ones_listed(patch: pytest.MonkeyPatch) -> None:
    def is_inhabited(*_: Any) -> Any:
        yield from ()
        return True

    patch.setattr(items, "_is_inhabited", is_inhabited)


def anything_stored(patch: pytest.MonkeyPatch) -> None:
    """What is not plain is stored as text, as ``json.dumps(default=str)`` would."""
    real = json_values.convert_to_plain

    def lenient(value: object, where: str, depth: int = 0) -> Any:
        try:
            return real(value, where, depth)
        except Unserialisable:
            return str(value)

    patch.setattr(json_values, "convert_to_plain", lenient)


STORE_MUTANTS = (
    Mutant("the space is missing from the key", "driver", NoSpace),
    Mutant("the space is missing from the key, seen from above", "store", NoSpace),
    Mutant("a catalogue's prefix is ignored", "driver", NoPrefix),
    Mutant("a catalogue's prefix is ignored, seen from above", "store", NoPrefix),
    Mutant("every item with an end is due", "driver", EverythingIsDue),
    Mutant("an item is deleted though it was renewed", "driver", UnguardedItemDelete),
    Mutant("a sweep deletes without its guard", "store", UnguardedItemDelete),
    Mutant("a renewal overwrites without its guard", "store", UnguardedItemPut),
    Mutant("versions of items come back", "store", patch=versions_counted),
    Mutant("stale items are returned", "store", patch=stale_items_returned),
    Mutant("every read sets an end", "store", patch=ends_at_their_last_moment),
    Mutant("labels end in a slash", "store", patch=slashes_for_terminators),
    Mutant("a put keeps nothing", "driver", ForgetsWhatIsKept),
    Mutant("a put keeps nothing, seen from above", "store", ForgetsWhatIsKept),
    Mutant("a put forgets the time of creation", "store", patch=creation_forgotten),
    Mutant("a lost race loses the write", "store", patch=lost_writes_unsaid),
    Mutant("a namespace is searched by key", "store", patch=searched_by_key),
    Mutant("namespaces without items are listed", "store", patch=empty_ones_listed),
    Mutant("what is not plain is stored as text", "store", patch=anything_stored),
)
