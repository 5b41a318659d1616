"""Command ``perdure audit``: examines graphs, prints what is found, and fails in CI if anything is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from perdure.cli.app import AsJson, ConfigFile, format_count, out, print_json, say, warn

if TYPE_CHECKING:
    from perdure.audit import AuditReport, Ignore
    from perdure.config.resolve import ResolvedConfig


def audit(
    graphs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=]MODULE:GRAPH",
            help="A graph, compiled or not, an Agent, or a function that returns one. Without any, those of "
            "perdure.toml or langgraph.json",
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CHECK[:PLACE]",
            help="Leave out a check, everywhere or at one channel or node; may be repeated",
        ),
    ] = None,
    list_checks: Annotated[bool, typer.Option("--list", help="List the checks and exit")] = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Find faults of graphs that LangGraph accepts and threads suffer from later.

    For the graph `graph` in ./app.py:

      perdure audit app:graph

    It examines the state, the reducers, the nodes' source and the subgraphs.
    Nodes are not run; reducers are, with generated values, and a finding shows
    the values with which one fails. `perdure audit --list` lists the checks.

    Exit code 0 if nothing was found, 1 otherwise. A finding that is intended is
    left out by its check and place:

      perdure audit app:graph --ignore bare-collection:docs
    """
    if list_checks:
        _print_checks(as_json)
        return
    import asyncio

    from perdure.config.resolve import add_import_folders, resolve_config, set_variables

    choices = _parse_choices(ignore or ())
    # Nothing is stored, so it does not matter whether a key is at hand.
    configuration = resolve_config(
        file=config, graphs=graphs or (), flags={}, environ=os.environ, has_key=True
    )
    set_variables(configuration.env)
    add_import_folders(configuration.import_folders())
    reports = asyncio.run(_examine(configuration, choices))
    for name, report in reports.items():
        _print(name if len(reports) > 1 else "", report, as_json)
    for choice in choices:
        if all(choice in report.unused for report in reports.values()):
            warn(f"--ignore {choice!s} matches no finding; remove it")
    if not all(report.is_sound for report in reports.values()):
        raise typer.Exit(1)


def _parse_choices(words: list[str] | tuple[str, ...]) -> list[Ignore]:
    from perdure.audit import Ignore

    try:
        return [Ignore.parse(word) for word in words]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--ignore") from None


async def _examine(configuration: ResolvedConfig, ignore: list[Ignore]) -> Mapping[str, AuditReport]:
    from langgraph.store.memory import InMemoryStore

    from perdure.audit import audit as examine
    from perdure.runtime.agents.graph_factories import Factory, Use
    from perdure.runtime.agents.loading import find, load_agent

    reports: dict[str, AuditReport] = {}
    for name, place in configuration.graphs("perdure audit app:graph").items():
        agent = await load_agent(find(place.place, root=configuration.root))
        async with AsyncExitStack() as stack:
            graph = agent.graph
            if isinstance(graph, Factory):
                use = Use("assistants.read", {**agent.config}, InMemoryStore())
                graph = await stack.enter_async_context(graph.open_graph(use))
            reports[name] = examine(graph, allow=agent.allow, codecs=agent.codecs, ignore=ignore)
    return reports


def _print(name: str, report: AuditReport, as_json: bool) -> None:
    for reason in report.unchecked:
        warn(f"not examined: {reason}")
    if as_json:
        for finding in report.findings:
            print_json({**({"graph": name} if name else {}), **finding.as_json()})
        return
    prefix = f"{name}: " if name else ""
    for finding in report.findings:
        typer.echo(f"{prefix}{finding}")
    line = f"{prefix}nothing was found"
    if report.findings:
        line = f"{prefix}{format_count(len(report.findings), 'finding')}"
    if report.ignored:
        line += f", {report.ignored} ignored"
    say(line)


def _print_checks(as_json: bool) -> None:
    from perdure.audit import CHECKS

    for check in CHECKS.values():
        if as_json:
            print_json({"check": check.id, "title": check.title, "why": check.why, "fix": check.fix})
            continue
        out.print(f"[bold]{check.id}[/]: {escape(check.title)}", soft_wrap=True)
        say(f"    why: {check.why}")
        say(f"    fix: {check.fix}")
