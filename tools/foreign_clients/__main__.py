"""Runs test suites of LangGraph's clients and servers against Perdure's server.

    python -m tools.foreign_clients [--suites sdk-py,langgraphjs-auth] [--reference] [--sources FOLDER]

Their text is cloned at one commit, or taken from checkouts in a folder, and run in a folder outside the
repository, with ports of their graphs where those are not in Python. Exits 1 when a test fails that
``excluded.toml`` does not name with a reason; with ``--reference`` LangGraph's own server is run beside.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from tools.foreign_suites import places
from tools.foreign_suites.places import Unobtainable

from . import running, sources
from .catalogue import PORTED, SUITES, Suite, read_reasons
from .report import Comparison
from .servers import NotStarted, serving

_BY_NAME = {suite.name: suite for suite in SUITES}


def main(arguments: list[str]) -> int:
    """Run what the arguments name; the exit status."""
    options = _parsed(arguments)
    reasons = read_reasons()
    comparisons: list[Comparison] = []
    try:
        for name in options.suites.split(","):
            suite = _BY_NAME[name]
            ours = _outcomes(suite, "perdure", options)
            reference = _outcomes(suite, "reference", options) if options.reference else {}
            comparisons.append(Comparison(suite.name, ours, reference, reasons))
            print("\n".join(comparisons[-1].lines()), flush=True)
    except (Unobtainable, NotStarted, running.NotRun) as error:
        print(error, file=sys.stderr)
        return 2
    return int(any(comparison.wrong for comparison in comparisons))


def _outcomes(suite: Suite, server: str, options: argparse.Namespace) -> dict[str, running.Outcome]:
    work = options.work.resolve()
    root = sources.checkout(suite, work, options.sources)
    folder = sources.copied(suite, root, work / "runs" / f"{suite.name}-{server}")
    place = folder / "server"
    if suite.is_ported:
        shutil.copytree(PORTED, folder / "ported")
        config = folder / "ported" / suite.config
    else:
        config = folder / suite.config
    with serving(server, sources.python_of(server, work), config, place) as url:
        sources.pointed(suite, folder, url)
        if suite.kind == "pytest":
            return running.run_pytest(suite, folder, sources.python_of("perdure", work), url)
        return running.run_vitest(suite, folder, sources.modules_of(work))


def _parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.foreign_clients", description=__doc__)
    parser.add_argument(
        "--suites",
        default=",".join(_BY_NAME),
        help=f"names, separated by commas; all without it: {', '.join(_BY_NAME)}",
    )
    parser.add_argument("--reference", action="store_true", help="run LangGraph's own server, too")
    parser.add_argument(
        "--sources", type=Path, help="a folder with checkouts of the suites' repositories, by their names"
    )
    parser.add_argument("--work", type=Path, default=places.cache_folder(), help="where all is kept and run")
    options = parser.parse_args(arguments)
    for name in options.suites.split(","):
        if name not in _BY_NAME:
            parser.error(f"no suite {name!r}; there are {', '.join(_BY_NAME)}")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
