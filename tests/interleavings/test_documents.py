"""Whatever two processes do at once with documents and crons comes out as one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import pytest

from perdure.engine import documents, versioned_documents
from perdure.engine.documents import Document
from perdure.engine.queue import crons
from perdure.engine.queue.crons import Cron, Due
from perdure.engine.versioned_documents import Versioned
from perdure.model.ops import Expect, Fetch, Get
from perdure.model.program import Program, ask
from perdure.model.records import LANE
from perdure.model.runs.queue import CRONS, Lane
from perdure.storage.port import Driver
from tests.interleavings.explorer import Case, World, check

NOW = 2000
OF = "things"
NAME = "one"

_FRESH = count(1)


def new_version() -> int:
    return next(_FRESH) << 24


# Documents


def put(world: World, word: str, expect: Expect | int) -> Any:
    return body(
        world.run(documents.put(world.here, OF, NAME, {"word": word}, NOW, expect, fresh=new_version()))
    )


def append(world: World, word: str) -> Any:
    def longer(before: Document | None) -> Mapping[str, Any]:
        words = [] if before is None else before.body.get("words", [])
        return {"words": [*words, word]}

    return body(world.run(documents.change(world.here, OF, NAME, longer, NOW, new_version())))


def body(found: Document | None) -> Any:
    return None if found is None else dict(found.body)


def listed(world: World) -> Any:
    found = world.run(documents.list_newest(world.here, OF, 10))
    named = world.run(documents.get_many(world.here, OF, [NAME, "two"]))
    return [body(document) for document in (*found, *named)]


def with_a_document(driver: Driver) -> World:
    world = World(driver)
    put(world, "first", Expect.ABSENT)
    return world


DOCUMENTS: Mapping[str, Callable[[World], Any]] = {
    "create": lambda w: put(w, "created", Expect.ABSENT),
    "replace": lambda w: put(w, "replaced", Expect.PRESENT),
    "put": lambda w: put(w, "put", Expect.ANY),
    "append a": lambda w: append(w, "a"),
    "append b": lambda w: append(w, "b"),
    "remove": lambda w: w.run(documents.remove(w.here, OF, NAME)),
    "get": lambda w: body(w.run(documents.get(w.here, OF, NAME))),
}


# Documents with versions


def versioned(found: Versioned | None) -> Any:
    return None if found is None else (dict(found.body), found.number, found.last)


def revise(world: World, word: str) -> Any:
    def longer(before: Versioned) -> Mapping[str, Any]:
        return {"words": [*before.body["words"], word]}

    return versioned(world.run(versioned_documents.revise(world.here, OF, NAME, longer, NOW, new_version())))


def create(world: World) -> Any:
    first = {"words": ["first"]}
    return versioned(world.run(versioned_documents.create(world.here, OF, NAME, first, NOW, new_version())))


def choose(world: World, number: int) -> Any:
    program = versioned_documents.choose(world.here, OF, NAME, number, NOW, new_version())
    return versioned(world.run(program))


def versions(world: World) -> Any:
    return [versioned(each) for each in world.run(versioned_documents.list_versions(world.here, OF, NAME))]


def read_versions(world: World) -> Any:
    return versioned(world.run(versioned_documents.get(world.here, OF, NAME))), versions(world)


def remove_versions(world: World) -> bool:
    return world.run(versioned_documents.remove(world.here, OF, NAME))


def with_versions(driver: Driver) -> World:
    world = World(driver)
    create(world)
    revise(world, "second")
    revise(world, "third")
    return world


VERSIONS: Mapping[str, Callable[[World], Any]] = {
    "create": create,
    "revise": lambda w: revise(w, "a"),
    "revise otherwise": lambda w: revise(w, "b"),
    "choose the first": lambda w: choose(w, 1),
    "choose the fourth": lambda w: choose(w, 4),
    "remove": remove_versions,
    "read": lambda w: versioned(w.run(versioned_documents.get(w.here, OF, NAME))),
    "list": versions,
}
SEVERAL_VERSIONS: Mapping[str, Callable[[World], Any]] = {
    "remove and create": lambda w: (remove_versions(w), create(w)),
    "remove, create and revise": lambda w: (remove_versions(w), create(w), revise(w, "c")),
    "revise and choose": lambda w: (revise(w, "c"), choose(w, 2)),
}


# Crons


def cron(found: Cron | None) -> Any:
    return None if found is None else (found.id, dict(found.body), found.due_at, found.claimed_until)


def make(world: World, name: str, due_at: int | None) -> Any:
    return cron(world.run(crons.create(world.here, name, Due({"n": name}, due_at), NOW, new_version())))


def change(world: World, name: str, alter: Callable[[Cron], Due | None]) -> Any:
    return cron(world.run(crons.change(world.here, name, alter, NOW, new_version())))


def start_due(world: World) -> Any:
    """Start the crons that are due, as the service does: claim each, and set when it is due again."""
    started: list[str] = []
    for found in world.run(crons.list_by_time(world.here, NOW, 10)).crons:
        if found.claimed_until > NOW:
            continue
        claimed = unless_changed(world, found, Due(found.body, found.due_at, NOW + 50))
        if claimed is None:
            continue
        started.append(found.id)
        unless_changed(world, claimed, Due({**claimed.body, "ran": True}, NOW + 1000))
    return started


def unless_changed(world: World, before: Cron, after: Due) -> Cron | None:
    is_same = False

    def altered(held: Cron) -> Due | None:
        nonlocal is_same
        is_same = held.version == before.version
        return after if is_same else None

    changed = world.run(crons.change(world.here, before.id, altered, NOW, new_version()))
    return changed if is_same else None


def claim(world: World, name: str) -> Any:
    """Claim the start of a cron that is due; a worker that is too late looks again."""
    while True:
        found = world.run(crons.get(world.here, name))
        if found is None or found.due_at is None or found.due_at > NOW or found.claimed_until > NOW:
            return None
        claimed = unless_changed(world, found, Due(found.body, found.due_at, NOW + 50))
        if claimed is not None:
            return cron(claimed)


def read_crons(world: World) -> Any:
    def lane() -> Program[Lane]:
        (found,) = yield from ask(Fetch(world.here, (Get(LANE, (CRONS,)),)))
        return Lane.read(CRONS, found)

    return [cron(each) for each in world.run(crons.read_all_crons(world.here))], world.run(lane()).due_at


def with_crons(driver: Driver) -> World:
    world = World(driver)
    make(world, "due", NOW - 10)
    make(world, "later", NOW + 100)
    make(world, "paused", None)
    return world


def with_one_cron(driver: Driver) -> World:
    world = World(driver)
    make(world, "due", NOW - 10)
    return world


CRONS_OF_A_TENANT: Mapping[str, Callable[[World], Any]] = {
    "create": lambda w: make(w, "new", NOW + 20),
    "create a paused one": lambda w: make(w, "new", None),
    "create the earliest": lambda w: make(w, "new", NOW - 20),
    "create one that is there": lambda w: make(w, "due", NOW + 5),
    "pause": lambda w: change(w, "due", lambda held: Due(held.body, None)),
    "resume": lambda w: change(w, "paused", lambda held: Due(held.body, NOW - 5)),
    "edit": lambda w: change(w, "due", lambda held: Due({**held.body, "edited": True}, held.due_at)),
    "put off": lambda w: change(w, "due", lambda held: Due(held.body, NOW + 500)),
    "leave": lambda w: change(w, "due", lambda held: None),
    "claim": lambda w: claim(w, "due"),
    "remove": lambda w: w.run(crons.remove(w.here, "due")),
    "remove another": lambda w: w.run(crons.remove(w.here, "later")),
    "arm": lambda w: w.run(crons.arm(w.here, new_version())) and None,
    "find due ones": lambda w: [cron(each) for each in w.run(crons.list_by_time(w.here, NOW, 10)).crons],
    "list": lambda w: [cron(each) for each in w.run(crons.read_all_crons(w.here))],
}
SEVERAL_CRONS: Mapping[str, Callable[[World], Any]] = {
    "start": start_due,
    "remove and create": lambda w: (w.run(crons.remove(w.here, "due")), make(w, "due", NOW)),
}

CASES: Mapping[str, Case[World]] = {
    "no documents": Case(World, DOCUMENTS, listed),
    "a document": Case(with_a_document, DOCUMENTS, listed),
    "no versions": Case(World, VERSIONS, read_versions, sequences=SEVERAL_VERSIONS),
    "versions": Case(with_versions, VERSIONS, read_versions, sequences=SEVERAL_VERSIONS),
    "no crons": Case(World, CRONS_OF_A_TENANT, read_crons, sequences=SEVERAL_CRONS),
    "a cron": Case(with_one_cron, CRONS_OF_A_TENANT, read_crons, sequences=SEVERAL_CRONS),
    "crons": Case(with_crons, CRONS_OF_A_TENANT, read_crons, sequences=SEVERAL_CRONS),
}


@pytest.mark.parametrize("setting", CASES)
def test_all_pairs_come_out_as_one_after_the_other(setting: str) -> None:
    check(setting, CASES[setting])


@pytest.mark.slow
@pytest.mark.parametrize("setting", CASES)
def test_all_pairs_come_out_as_one_after_the_other_in_a_database(setting: str, stored: Driver) -> None:
    check(setting, CASES[setting], stored)
