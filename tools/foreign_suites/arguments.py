"""The arguments that the tools for suites written elsewhere have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from pathlib import Path

from .places import cache_folder


def parser_of(module: str, description: str | None, suites: Collection[str]) -> argparse.ArgumentParser:
    """The parser of a tool that is started as ``python -m module``, with what to run and where."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument(
        "--suites",
        type=names_among(suites),
        default=list(suites),
        metavar="NAMES",
        help=f"names, separated by commas; all without it: {', '.join(suites)}",
    )
    parser.add_argument("--work", type=Path, default=cache_folder(), help="where all is kept and run")
    return parser


def names_among(known: Collection[str]) -> Callable[[str], list[str]]:
    """Reads names that are separated by commas, and refuses those that there are not."""

    def read(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"no {name!r}; there are {', '.join(known)}")
        return names

    return read
