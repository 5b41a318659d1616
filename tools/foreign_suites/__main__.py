"""Runs test suites of LangGraph and LangChain with Perdure's saver and store in the place of theirs.

    python -m tools.foreign_suites [--suites langgraph,prebuilt] [--backends memory,sqlite,postgresql]

Their text is downloaded with pip, or taken from a checkout (``--source``), and copied to a folder outside the
repository. What the stock savers pass on this machine, Perdure must pass; exits 1 when it does not.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path

from . import places, running
from .arguments import names_among, parser_of
from .catalogue import SAVER_SUITES, SUITES, Suite, read_reasons
from .report import Comparison, compare, lines

_BY_NAME = {suite.name: suite for suite in (*SUITES, *SAVER_SUITES)}
_MAX_AGAIN = 20
_BACKENDS = ["memory", "sqlite", "postgresql"]


def main(arguments: list[str]) -> int:
    """Run what the arguments name; the exit status."""
    options = _parse_arguments(arguments)
    suites = [_BY_NAME[name] for name in options.suites]
    work = options.work.resolve()
    comparisons: list[Comparison] = []
    try:
        for suite in suites:
            comparisons += _compare(suite, options, work)
    except places.NotRun as error:
        print(error, file=sys.stderr)
        return 1
    except places.Unobtainable as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(lines(comparisons)))
    return int(any(comparison.failed for comparison in comparisons))


def _compare(suite: Suite, options: argparse.Namespace, work: Path) -> list[Comparison]:
    reasons = read_reasons()
    source = places.source_of(suite, work, options.source)
    python = places.environment_of([suite], work)
    found: list[Comparison] = []
    folder = places.copy_tests(suite, source, work / "runs" / f"{suite.name}-{options.name}")
    files = running.files_of(suite, folder, options.quick, options.only)
    with ExitStack() as stack:
        held = work / "stock" / f"{suite.name}-{suite.version}-{python.parts[-3]}.json"
        stock = {} if options.again else running.read_kept(held)
        have = {node.partition("::")[0] for node in stock}
        missing = [file for file in files if str(file.relative_to(folder)) not in have]
        if missing:
            backend = running.open_backend(running.STOCK, stack, suite)
            stock = {**stock, **running.run_files(python, folder, missing, backend, options.jobs)}
            if any(outcome.result == "passed" for outcome in stock.values()):
                running.keep(held, stock)
        names = {str(file.relative_to(folder)) for file in files}
        if not any(outcome.result == "passed" for outcome in stock.values()):
            raise places.NotRun(f"no test of {suite.name} passes on stock; see {folder / '.outcomes'}")
        expected = {node: outcome for node, outcome in stock.items() if node.partition("::")[0] in names}
        for name in options.backends:
            backend = running.open_backend(name, stack, suite)
            ours = running.run_files(python, folder, files, backend, options.jobs)
            compared = compare(suite.name, name, expected, ours, reasons)
            if 0 < len(compared.failed) <= _MAX_AGAIN:
                alone = running.run_tests(python, folder, [*compared.failed], backend)
                compared = compared.after(alone)
            found.append(compared)
            print("  ".join(found[-1].row), file=sys.stderr, flush=True)
    return found


def _parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = parser_of("tools.foreign_suites", __doc__, _BY_NAME)
    parser.add_argument(
        "--backends",
        type=names_among(running.backends()),
        default=_BACKENDS,
        metavar="NAMES",
        help=f"names, separated by commas; without it: {', '.join(_BACKENDS)}",
    )
    parser.add_argument(
        "--source", type=Path, help="a checkout of the suite's repository; else pip downloads it"
    )
    parser.add_argument("--name", default="whole", help="of this run; two at once need two")
    parser.add_argument("--quick", action="store_true", help="only the bounded part")
    parser.add_argument("--only", default="", help="only test files whose path contains this")
    parser.add_argument("--again", action="store_true", help="run the stock savers again, too")
    parser.add_argument("--jobs", type=int, default=1, help="how many files at once")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
