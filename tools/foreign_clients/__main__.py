"""Runs test suites of clients and of other servers against Perdure's server.

    python -m tools.foreign_clients [--suites sdk-py,langgraphjs-auth] [--reference] [--sources FOLDER]

Their text is cloned at one commit, or taken from checkouts in a folder, and run in a folder outside the
repository, with ports of their graphs where those are not in Python. Exits 1 when a test fails that
``excluded.toml`` does not name with a reason; with ``--reference`` LangGraph's own server is run beside.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.foreign_suites.arguments import parser_of
from tools.foreign_suites.places import Unobtainable
from tools.foreign_suites.reasons import read_entries, read_unsteady
from tools.foreign_suites.running import Outcome

from . import running, servers, sources
from .catalogue import PACKAGES, REASONS, SUITES, Suite
from .report import Comparison
from .servers import NotStarted, serve

_BY_NAME = {suite.name: suite for suite in SUITES}


def main(arguments: list[str]) -> int:
    """Run what the arguments name; the exit status."""
    options = _parse_arguments(arguments)
    reasons, unsteady = read_entries(REASONS), read_unsteady(REASONS)
    comparisons: list[Comparison] = []
    try:
        for name in options.suites:
            suite = _BY_NAME[name]
            ours = _outcomes(suite, "perdure", options)
            reference = _outcomes(suite, "reference", options) if options.reference else {}
            comparisons.append(Comparison(suite.name, ours, reference, reasons, unsteady))
            print("\n".join(comparisons[-1].lines()), flush=True)
    except (Unobtainable, NotStarted, running.NotRun) as error:
        print(error, file=sys.stderr)
        return 2
    return int(any(comparison.wrong for comparison in comparisons))


def _outcomes(suite: Suite, server: str, options: argparse.Namespace) -> dict[str, Outcome]:
    work = options.work.resolve()
    root = sources.checkout(suite, work, options.sources) if suite.repository else None
    folder = sources.copy_suite(suite, root, work / "runs" / f"{suite.name}-{server}")
    python = sources.python_of(server, work, suite.needs)
    with serve(server, python, folder / suite.config, folder / "server", suite.model) as url:
        sources.point_at(suite, folder, url)
        if suite.asked_first:
            servers.ask(url + suite.asked_first)
        if suite.kind == "pytest":
            return running.run_pytest(suite, folder, sources.python_of("perdure", work, suite.needs), url)
        modules = sources.modules_of(work / suite.packages, PACKAGES[suite.packages])
        run = running.run_vitest if suite.kind == "vitest" else running.run_scenarios
        return run(suite, folder, modules, url)


def _parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = parser_of("tools.foreign_clients", __doc__, _BY_NAME)
    parser.add_argument("--reference", action="store_true", help="run LangGraph's own server, too")
    parser.add_argument(
        "--sources", type=Path, help="a folder with checkouts of the suites' repositories, by their names"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
