"""The suites that are run: where their text comes from, and against which server.

Nothing of their text is in this repository. Each is taken from its repository at one commit.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_REASONS = Path(__file__).parent / "excluded.toml"
PORTED = Path(__file__).parent / "ported"
"""Graphs of our own, for suites whose graphs are not in Python."""

REFERENCE = (
    "langgraph-api==0.16.7",
    "langgraph-runtime-inmem==0.36.7",
    "langgraph-cli[inmem]",
)
"""The server that Perdure's is compared with."""

GRAPHS = ("deepagents>=0.6.2", "langchain>=1.4", "pyjwt>=2.10")
"""What the suites' graphs need beside Perdure."""

TESTS = ("httpx", "pytest", "pytest-asyncio", "pytest-timeout", "websockets")

NODE = {
    "@langchain/core": "1.4.0",
    "@langchain/langgraph": "^1",
    "@langchain/langgraph-sdk": "1.9.31",
    "hono": "^4",
    "jose": "^6",
    "postgres": "^3",
    "vitest": "^4",
    "wait-port": "^1",
}


@dataclass(frozen=True, slots=True)
class Suite:
    """One suite. ``folder`` is below the root of its repository, ``tests`` below that. ``config`` is the
    ``langgraph.json`` that the server is started with, below ``folder``, or among the ported graphs.
    ``address`` stands in the text of the tests, and is replaced by the server's."""

    name: str
    repository: str
    commit: str
    folder: str
    tests: str
    config: str
    kind: Literal["pytest", "vitest"]
    address: str
    is_ported: bool = False
    copied: tuple[str, ...] = ()
    """What of ``folder`` is copied to run in."""


_LANGGRAPH = "https://github.com/langchain-ai/langgraph"
_LANGGRAPH_COMMIT = "f09cfe8ffc1eeffd68f4b628ed69c30f7cad229f"
_LANGGRAPHJS = "https://github.com/langchain-ai/langgraphjs"
_LANGGRAPHJS_COMMIT = "f8bdf16d4fe23a79e945ea5dc6f86bbf09abb77d"

SUITES = (
    Suite(
        "sdk-py",
        _LANGGRAPH,
        _LANGGRAPH_COMMIT,
        "libs/sdk-py",
        "tests/integration",
        "integration/langgraph.json",
        "pytest",
        "http://localhost:2024",
        copied=("tests", "integration", "langgraph_sdk"),
    ),
    Suite(
        "langgraphjs-auth",
        _LANGGRAPHJS,
        _LANGGRAPHJS_COMMIT,
        "libs/langgraph-api",
        "tests/auth.test.mts",
        "langgraph.auth.json",
        "vitest",
        "http://localhost:2025",
        is_ported=True,
        copied=("tests", "src"),
    ),
    Suite(
        "langgraphjs-api",
        _LANGGRAPHJS,
        _LANGGRAPHJS_COMMIT,
        "libs/langgraph-api",
        "tests/api.test.mts",
        "langgraph.json",
        "vitest",
        "http://localhost:2024",
        is_ported=True,
        copied=("tests", "src"),
    ),
)


def read_reasons(path: Path = _REASONS) -> dict[tuple[str, str], str]:
    """Why a test may fail, by suite and name. ``ValueError`` for one without a reason, or named twice."""
    found: dict[tuple[str, str], str] = {}
    for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("test", []):
        key = entry["suite"], entry["id"]
        if key in found or not entry.get("reason", "").strip():
            raise ValueError(f"{path.name}: {entry['id']} of {entry['suite']} needs one reason")
        found[key] = entry["reason"]
    return found
