"""Commands on the schema of a graph: its fingerprint, its record, the plan of a deploy, and pins."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.markup import escape

from perdure.cli.app import (
    AsJson,
    DataPlace,
    ThreadId,
    handle_in,
    new_group,
    open_database,
    out,
    print_json,
    quote_id,
    say,
    show_progress_bar,
    warn,
)
from perdure.model.records import INTERNAL

if TYPE_CHECKING:
    from langgraph.pregel import Pregel

    from perdure.config.graph_choice import ChosenGraph
    from perdure.runtime.agents.agent import Agent
    from perdure.schema.schema import Schema

schema = new_group(
    "schema", "Change a graph under live threads: record its schema, check it, and plan a deploy."
)
GraphPlace = Annotated[
    str | None,
    typer.Argument(
        metavar="[GRAPH]",
        help="The graph or Agent: its place, e.g. app:graph or ./app.py:graph, or its name in perdure.toml "
        "or langgraph.json; without it the only one there",
        show_default=False,
    ),
]
SchemaPlace = Annotated[
    str | None,
    typer.Option(
        "--schema",
        help="The Schema, e.g. app:schema; by default the one of the settings, the Agent or the checkpointer",
        show_default=False,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", help="The settings file", show_default="perdure.toml or langgraph.json here"),
]
RecordFile = Annotated[Path, typer.Option("--file", help="The file with the recorded schemas")]
_FILE = Path("perdure.schema.json")


@schema.command()
def show(
    graph_word: GraphPlace = None,
    schema_place: SchemaPlace = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Show what threads depend on: the channels, types, nodes and interrupts of a graph, and the steps."""
    from perdure.langgraph.migration.fingerprint import fingerprint

    chosen = _choose_one(graph_word, config)
    place = chosen.word
    agent, found = _load_agent(chosen, schema_place)
    printed = fingerprint(_get_graph(agent))
    if as_json:
        steps = [str(step) for step in found.steps]
        print_json({"graph": place, "version": found.version, "steps": steps, "fingerprint": printed})
        return
    out.print(f"[bold]{escape(place)}[/]  schema version {found.version}")
    for step in found.steps:
        out.print(f"step       {escape(str(step))}")
    for name, channel_type in printed["channels"].items():
        out.print(f"channel    {escape(name)}: {escape(channel_type)}")
    for name, fields in printed["types"].items():
        out.print(f"type       {escape(name)}: {escape(', '.join(f'{f}: {t}' for f, t in fields.items()))}")
    for what in ("nodes", "interrupts"):
        for name in printed[what]:
            out.print(f"{what[:-1]:<10} {escape(name)}")


@schema.command()
def check(
    graphs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[GRAPH]...",
            help="The graphs or Agents: places, e.g. app:graph, or names in perdure.toml or langgraph.json; "
            "without any all of those files",
            show_default=False,
        ),
    ] = None,
    *,
    schema_place: SchemaPlace = None,
    config: Config = None,
    file: RecordFile = _FILE,
    write: Annotated[bool, typer.Option("--write", help="Record the schema as it is now")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare graphs with their recorded schemas, for CI.

    Exit code 1 when a graph changed and its version did not, when a new version is not recorded, or when a
    declared step does not lead to the graph. With --write the schema is recorded; a graph that changed needs
    a new version for that.
    """
    from perdure.langgraph.migration.fingerprint import fingerprint
    from perdure.schema.schema_file import (
        RecordedSchema,
        contradictions,
        read_records,
        verdict,
        write_records,
    )

    records = read_records(file)
    failed = False
    for chosen in _choose_graphs(graphs or (), config):
        agent, found = _load_agent(chosen, schema_place)
        # A graph has two names, and is recorded under the one that was used first.
        place = chosen.word
        if place not in records and chosen.other in records:
            place = chosen.other
        now, recorded = fingerprint(_get_graph(agent)), records.get(place)
        wrong = contradictions(found, now)
        why = verdict(recorded, found.version, now)
        may_be_written = not wrong and (recorded is None or found.version > recorded.version or not why)
        if write and may_be_written:
            records[place] = RecordedSchema(found.version, now)
        is_fine = may_be_written if write else not (why or wrong)
        failed |= not is_fine
        if as_json:
            left = [] if write and may_be_written else why
            print_json({"graph": place, "version": found.version, "ok": is_fine, "why": left + wrong})
            continue
        if is_fine:
            out.print(
                f"{escape(place)}: schema version {found.version} {'recorded' if write else 'as recorded'}"
            )
            continue
        for line in wrong + why:
            warn(f"{place}: {line}")
        warn(f"{place}: {_advise(place, found.version, recorded, wrong)}")
    if write:
        write_records(file, records)
    if failed:
        raise typer.Exit(1)


def _advise(place: str, version: int, recorded: Any, wrong: list[str]) -> str:
    if wrong:
        return "correct these steps: they do not lead to the graph as it is"
    if recorded is None or version > recorded.version:
        return f"record it: perdure schema check {shlex.quote(place)} --write"
    if version < recorded.version:
        return "an older version of the program than the recorded one; update it"
    return (
        f"the graph changed, and its version did not: declare Schema({version + 1}, steps=[…]) with the "
        "steps that live threads need, then record it with --write"
    )


@schema.command()
def plan(
    graph_word: GraphPlace = None,
    *,
    schema_place: SchemaPlace = None,
    config: Config = None,
    sample: Annotated[
        int | None, typer.Option(min=1, help="Try so many threads, spread over all; all without it")
    ] = None,
    history: Annotated[bool, typer.Option("--history", help="Try every older checkpoint too")] = False,
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """Try a deploy on the stored threads, and write nothing.

    It shows how many threads are at which schema version, and every thread that would lose something: one
    that waits in a node that is gone, whose answer would not arrive, whose values the graph does not take,
    or on which a step fails. Exit code 1 if there is one.
    """
    from perdure.runtime.operations.schema_plan import plan as plan_threads

    agent, found = _load_agent(_choose_one(graph_word, config), schema_place)
    versions: Counter[str] = Counter()
    pinned = waiting = broken = 0
    with open_database(place) as database:
        names = [each.thread_id for each in database.threads() if not each.thread_id.startswith(INTERNAL)]
        tried = names
        if sample is not None:
            tried = names[:: max(1, -(-len(names) // sample))]
        plans = plan_threads(database, agent, found, tried, has_history=history)
        with show_progress_bar("threads", is_hidden=as_json) as bar:
            for each in bar.track(plans, total=len(tried), description=""):
                versions["unreadable" if each.version is None else str(each.version)] += 1
                pinned += each.pinned is not None
                waiting += bool(each.waits_in)
                broken += bool(each.problems)
                if as_json and each.problems:
                    print_json({"thread_id": each.thread_id, "problems": list(each.problems)})
                    continue
                for problem in each.problems:
                    warn(f"{quote_id(each.thread_id)}: {problem}")
    if as_json:
        print_json(
            {
                "version": found.version,
                "threads": len(names),
                "tried": len(tried),
                "versions": dict(versions),
                "pinned": pinned,
                "waiting": waiting,
                "with_problems": broken,
            }
        )
    else:
        out.print(f"{len(tried)} of {len(names)} threads tried for schema version {found.version}")
        for version, count in sorted(versions.items()):
            out.print(f"{count:>8} at version {version}")
        out.print(f"{waiting:>8} would go on with a node, {pinned} pinned, {broken} with problems")
    if broken:
        raise typer.Exit(1)


@schema.command()
def pin(
    thread_id: ThreadId,
    version: Annotated[int, typer.Argument(min=1, help="The schema version to keep the thread at")],
    *,
    graph_word: Annotated[
        str | None,
        typer.Option(
            "--graph",
            metavar="GRAPH",
            help="The graph or Agent of the thread, whose schema has the version: its place, or its name in "
            "perdure.toml or langgraph.json; without it any graph there. Not needed for the version at "
            "which the thread is stored",
            show_default=False,
        ),
    ] = None,
    schema_place: SchemaPlace = None,
    config: Config = None,
    place: DataPlace,
) -> None:
    """Keep a thread at a schema version: a newer application refuses it by name instead of migrating it.

    A version that is older than what is stored of the thread is refused, and so is one that no schema has.
    """
    from perdure.engine.threads.schema_pin import read_stored_version
    from perdure.model.records import Partition

    with open_database(place) as database:
        stored = handle_in(database).run(read_stored_version(Partition(place.tenant, thread_id)))
    if version > stored:
        _require_version(version, graph_word, schema_place, config)
    _pin(thread_id, version, place)
    say(f"{quote_id(thread_id)} is pinned to schema version {version}")


@schema.command()
def unpin(
    thread_id: ThreadId,
    *,
    place: DataPlace,
) -> None:
    """Remove the pin of a thread."""
    _pin(thread_id, None, place)
    say(f"{quote_id(thread_id)} is not pinned any more")


def _require_version(
    version: int, graph_word: str | None, schema_place: str | None, config: Path | None
) -> None:
    """Raise ``BadSetting`` for a version that no schema of the named graph, or of those of the settings, has
    yet."""
    from perdure.errors import BadSetting

    chosen = _choose_graphs([] if graph_word is None else [graph_word], config)
    newest = max(_load_agent(each, schema_place)[1].version for each in chosen)
    if version > newest:
        raise BadSetting(
            f"the schema does not have version {version}, only those up to {newest}; nothing was pinned. "
            "Take one of these, or name the graph that has it with --graph"
        )


def _pin(thread_id: str, version: int | None, place: DataPlace) -> None:
    import time

    from perdure.engine.threads.schema_pin import pin as pin_thread
    from perdure.model.records import Partition

    with open_database(place) as database:
        program = pin_thread(Partition(place.tenant, thread_id), version, time.time_ns() // 1000)
        handle_in(database).run(program)


def _choose_graphs(words: Sequence[str], config: Path | None) -> list[ChosenGraph]:
    """Return the graphs that a command names, or all graphs of the settings if it names none."""
    from perdure.config.graph_choice import choose_graphs

    return choose_graphs(words, file=config, environ=os.environ)


def _choose_one(word: str | None, config: Path | None) -> ChosenGraph:
    """Return the graph that a command names, or the only one of the settings if it names none.

    Raises:
        BadSetting: The settings have no graph, or several.
    """
    from perdure.errors import BadSetting

    found = _choose_graphs([] if word is None else [word], config)
    if len(found) > 1:
        raise BadSetting(f"which graph? Name one of {', '.join(sorted(each.word for each in found))}")
    return found[0]


def _get_graph(agent: Agent) -> Pregel[Any, Any, Any, Any]:
    return cast("Pregel[Any, Any, Any, Any]", agent.graph)


def _load_agent(chosen: ChosenGraph, schema_place: str | None) -> tuple[Agent, Schema]:
    """Return an agent and its schema.

    Raises:
        BadSetting: The settings and the agent have different schemas.
        GraphLoadError: There is no compiled graph, or no schema.
    """
    import asyncio

    from langgraph.pregel import Pregel

    from perdure.errors import GraphLoadError
    from perdure.langgraph.saver import PerdureSaver
    from perdure.runtime.agents.loading import find
    from perdure.schema.schema import Schema

    agent = asyncio.run(chosen.load(with_settings=schema_place is None))
    if not isinstance(agent.graph, Pregel):
        raise GraphLoadError(f"{chosen.place} makes a graph for each use; name a compiled graph")
    saver = agent.graph.checkpointer
    found: Any = agent.schema or (saver.schema if isinstance(saver, PerdureSaver) else Schema())
    if schema_place is not None:
        found = find(schema_place).found
    if not isinstance(found, Schema):
        raise GraphLoadError(f"{schema_place} is not a Schema of perdure.schema, but {type(found).__name__}")
    return agent, found
