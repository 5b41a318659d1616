"""Whatever comes beside an import of a thread, of sessions or of items comes out as one after the other.

Another import, an edit or a run at the target, messages, removals, sweeps, copies, and readers.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command

from perdure import Retention, RetentionRules
from perdure.admin.moving import move
from perdure.database.blocking import SyncDatabase
from perdure.database.opening import make_database
from perdure.engine.queue.inbox import Accept
from perdure.engine.transfer import importing
from perdure.errors import Corrupt, NotFound, Unavailable
from perdure.history.histories import SyncHistories
from perdure.imports.histories.sessions import SessionImporter, SourceSession
from perdure.imports.importer import Importer, ImportOptions
from perdure.imports.sqlite import SqliteSource
from perdure.model.records import Partition
from perdure.model.runs.messages import Message
from perdure.model.runs.queue import Debounce
from perdure.retention.sweeper import RetentionOptions
from perdure.storage.port import Driver
from tests.interleavings.explorer import Case, Interrupted, World, check
from tests.interleavings.test_checkpoints import again
from tests.langgraph import graphs
from tests.langgraph.session import config

THREAD, OTHER = "ada", "other"
NOW = 2000
FRESH = 1 << 24
_FILES = TemporaryDirectory()
GRAPHS: Mapping[str, Any] = {"chain": graphs.chain, "asking": graphs.asking}


@cache
def source_files(kind: str) -> tuple[Path, Path]:
    """Return two states of a source: after a turn, and as it went on from there."""
    older, newer = (Path(_FILES.name) / f"{kind} {age}.db" for age in ("older", "newer"))
    with SqliteSaver.from_conn_string(str(older)) as saver:
        GRAPHS[kind](saver).invoke({"said": ["at the source"]}, config(THREAD))
    shutil.copy(older, newer)
    with SqliteSaver.from_conn_string(str(newer)) as saver:
        go_on(GRAPHS[kind](saver), "later at the source")
    return older, newer


def go_on(graph: Any, text: str) -> None:
    """Answer the first question of the thread, or run its graph again."""
    asked = graph.get_state(config(THREAD)).interrupts
    given: Any = Command(resume={asked[0].id: text}) if asked else {"said": [text]}
    graph.invoke(given, config(THREAD), durability="sync")


class Target(World):
    """A database to which a thread is imported. Each operation is of its own process."""

    kind = "chain"

    def database(self) -> SyncDatabase:
        return make_database(self.driver, tenant=self.tenant)

    def saver(self) -> Any:
        return self.database().checkpointer()

    def graph(self) -> Any:
        return GRAPHS[self.kind](self.saver())


class Asked(Target):
    kind = "asking"


def bring(world: Target, age: int = 0, **options: Any) -> Any:
    """Import the thread from the older or the newer state of the source. An import that is repeated, as
    another process came in between, does not count what it had stored before."""
    with closing(SqliteSource(source_files(world.kind)[age])) as source:
        given = ImportOptions(tenant=world.tenant, **options)
        report = Importer(source, world.database(), given).import_thread(THREAD)
    return report.why.partition("(")[0]


def go_on_here(world: Target) -> None:
    go_on(world.graph(), "at the target")


def edit(world: Target) -> None:
    node = "second" if world.kind == "chain" else "quiet"
    again(lambda: world.graph().update_state(config(THREAD), {"said": ["edited"]}, as_node=node) and None)


def accept(world: Target) -> Any:
    message = Message("m", {"message": "hello"}, "g")
    return world.run(Accept(world.here, message, NOW, Debounce(), "enqueue", 100, FRESH).store(None)).seq


def sweep(world: Target) -> None:
    options = RetentionOptions(rules=RetentionRules(Retention(keep_last=1)))
    world.database().apply_retention_to(THREAD, options)


def copy_here(world: Target) -> None:
    again(lambda: world.saver().copy_thread(OTHER, THREAD))


def move_here(world: Target) -> None:
    database, other = world.database(), Partition(world.tenant, OTHER)
    again(lambda: move(database, other, database, world.here))


def said(world: Target) -> Any:
    state = world.graph().get_state(config(THREAD))
    return state.values.get("said"), sorted(each.value for each in state.interrupts)


def read(world: Target) -> Any:
    """Return what readers see, and how much is stored; the ids of new checkpoints differ."""
    database = world.database()
    threads = sorted(each.thread_id for each in database.threads())
    found = [world.run(importing.survey(Partition(world.tenant, name))) for name in (THREAD, "copy")]
    # An edit that is repeated may have stored its writes twice.
    stored = [(len(each.checkpoints), each.is_partial) for each in found]
    try:
        values: Any = again(partial(said, world)), sorted(database.tags(THREAD))
    except (NotFound, Corrupt) as error:
        values = type(error).__name__
    return threads, stored, values, [str(each) for each in database.fsck()]


def target(kind: type[Target], *acts: Callable[[Any], Any]) -> Callable[[Driver], Target]:
    def new(driver: Driver) -> Target:
        world = kind(driver)
        world.graph().invoke({"said": ["another"]}, config(OTHER), durability="sync")
        for act in acts:
            act(world)
        return world

    return new


def stop_at(request: int) -> Callable[[Target], None]:
    """Return an import that ends as its process is killed at a request."""

    def act(world: Target) -> None:
        killed = world.over(Killed(world.driver, request))
        with pytest.raises(Unavailable):
            bring(killed)

    return act


class Killed(Interrupted):
    """A driver that answers no request from the ``at``-th one on."""

    def __init__(self, inner: Driver, at: int) -> None:
        super().__init__(inner, at, lambda: None)

    def _count(self) -> None:
        super()._count()
        if self.has_acted:
            raise Unavailable("the process is gone")


OPERATIONS: Mapping[str, Callable[[Target], Any]] = {
    "import": bring,
    "import what came since": lambda w: bring(w, 1),
    "import unverified": lambda w: bring(w, verify=False),
    "look at an import": lambda w: bring(w, 1, dry_run=True),
    "edit": edit,
    "accept": accept,
    "read": lambda w: again(lambda: said(w)),
    "list": lambda w: sorted(each.thread_id for each in w.database().threads()),
    "list the checkpoints": lambda w: len(list(w.saver().list(config(THREAD)))),
    "measure": lambda w: w.database().measure(THREAD).checkpoints.count,
    "check": lambda w: [str(finding) for finding in w.database().fsck(THREAD)],
    "tag": lambda w: w.database().tag(THREAD, "latest") and None,
    "copy": lambda w: w.saver().copy_thread(THREAD, "copy"),
    "copy here": copy_here,
    "move here": move_here,
    "prune": lambda w: w.saver().prune([THREAD]),
    "prune everything": lambda w: w.saver().prune([THREAD], strategy="delete"),
    "sweep": sweep,
    "delete": lambda w: w.saver().delete_thread(THREAD),
}
SEQUENCES: Mapping[str, Callable[[Target], Any]] = {
    "go on": go_on_here,
    "import and go on": lambda w: [act(w) for act in (bring, go_on_here)],
    "import and delete": lambda w: (bring(w), w.saver().delete_thread(THREAD)),
    "delete and import": lambda w: (w.saver().delete_thread(THREAD), bring(w)),
}
ARRIVING = ("import", "import what came since", "import unverified", "copy here", "move here")
ARRIVES = (
    "what arrives is not there yet: a check says so, a copy of it is refused, and it is not measured; a copy "
    "to its name is refused until what a dead import has left is gone"
)
STAYS = "what an import has stored of a thread that went on meanwhile stays beside it until it is pruned"
EXCUSED: Mapping[tuple[str, str], str] = {
    **{(name, other): ARRIVES for name in ARRIVING for other in ("check", "copy", "copy here", "measure")},
    **{("import what came since", other): STAYS for other in ("edit", "go on", "import and go on")},
}
CLEARS = "what a dead import has left goes before a thread begins at its name: in between nothing is there"
REFUSED = "a move that is refused on its way removes what a dead import has left, too"
CLEARED = {
    **{("edit", other): CLEARS for other in ("list", "measure", "copy", "copy here")},
    ("move here", "accept"): REFUSED,
}
CASES: Mapping[str, Case[Any]] = {
    "nothing there": Case(target(Target), OPERATIONS, read, EXCUSED, SEQUENCES),
    "an import was killed": Case(
        target(Target, stop_at(6)), OPERATIONS, read, {**EXCUSED, **CLEARED}, SEQUENCES
    ),
    "imported": Case(target(Target, bring), OPERATIONS, read, EXCUSED, SEQUENCES),
    "imported with a question": Case(target(Asked, bring), OPERATIONS, read, EXCUSED, SEQUENCES),
    "went on": Case(
        target(Target, bring, go_on_here),
        OPERATIONS,
        read,
        EXCUSED,
        SEQUENCES,
    ),
}


# Sessions


SESSION = "ada"


def messages(*texts: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text} for text in texts]


def histories(world: World) -> SyncHistories:
    return make_database(world.driver, tenant=world.tenant).history()


def bring_session(world: World, *texts: str, replaces: bool = False) -> Any:
    importer = SessionImporter(histories(world), replaces=replaces)
    return [(each.state, each.messages) for each in importer.run([SourceSession(SESSION, messages(*texts))])]


def say(world: World, text: str) -> None:
    def turn() -> None:
        there = histories(world).load(SESSION)
        histories(world).commit(there, messages(text))

    again(turn)


def with_session(*texts: str) -> Callable[[Driver], World]:
    def new(driver: Driver) -> World:
        world = World(driver)
        for text in texts:
            say(world, text)
        return world

    return new


def load(world: World) -> Any:
    found = histories(world)
    return [each["content"] for each in found.load(SESSION).messages], list(found.sessions())


SESSIONS: Mapping[str, Callable[[World], Any]] = {
    "import": lambda w: bring_session(w, "one", "two"),
    "import what came since": lambda w: bring_session(w, "one", "two", "three"),
    "import otherwise": lambda w: bring_session(w, "other", "words"),
    "replace": lambda w: bring_session(w, "other", "words", replaces=True),
    "replace by what was": lambda w: bring_session(w, "one", replaces=True),
    "say": lambda w: say(w, "said"),
    "load": lambda w: load(w)[0],
    "delete": lambda w: histories(w).delete(SESSION),
}
CASES = {
    **CASES,
    "no session": Case(with_session(), SESSIONS, load),
    "a session": Case(with_session("one"), SESSIONS, load),
    "a session that went on": Case(with_session("one", "here"), SESSIONS, load),
}
QUICK = 20
"""Pairs of a set-up that are explored in the quick run."""


@pytest.mark.parametrize("setting", CASES)
def test_some_pairs_come_out_as_one_after_the_other(setting: str) -> None:
    check(setting, CASES[setting], size=QUICK)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("setting", CASES)
def test_all_pairs_come_out_as_one_after_the_other(setting: str) -> None:
    check(setting, CASES[setting])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("setting", CASES)
def test_some_pairs_come_out_as_one_after_the_other_in_a_database(setting: str, stored: Driver) -> None:
    check(setting, CASES[setting], stored, size=QUICK)
