"""The suites that are run: where their text comes from, and against which server.

Nothing of their text is in this repository. Each is taken from its repository at one commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

REASONS = Path(__file__).parent / "excluded.toml"
"""The tests that Perdure's server is not held to."""

PORTED = Path(__file__).parent / "ported"
"""What stands beside the suites' own text: graphs for those whose graphs are not in Python, a model."""

REFERENCE = (
    "langgraph-api==0.16.7",
    "langgraph-runtime-inmem==0.36.7",
    "langgraph-cli[inmem]",
)
"""The server that Perdure's is compared with."""

GRAPHS = ("deepagents>=0.6.2", "fastapi", "langchain>=1.4", "langchain-openai>=1.0", "pyjwt>=2.10")
"""What the suites' graphs need beside Perdure."""

TESTS = ("httpx", "pytest", "pytest-asyncio", "pytest-timeout", "websockets")

_LANGCHAIN = {"@langchain/core": "1.4.0", "@langchain/langgraph": "1.7.3"}

PACKAGES: Mapping[str, Mapping[str, str]] = {
    "node": {
        **_LANGCHAIN,
        "@hono/node-server": "^2",
        "@langchain/langgraph-checkpoint": "^1",
        "@langchain/langgraph-sdk": "1.15.0",
        "hono": "^4",
        "jose": "^6",
        "postgres": "^3",
        "vitest": "^4",
        "wait-port": "^1",
        "zod": "^4",
    },
    # With the SDK that @langchain/react asks for.
    "react": {
        **_LANGCHAIN,
        "@langchain/langgraph-sdk": "1.11.0",
        "@langchain/react": "1.1.0",
        "@vitejs/plugin-react": "^6",
        "@vitest/browser-playwright": "^4",
        "deepagents": "^1.14",
        "langchain": "^1.5",
        "playwright": "^1",
        "react": "19.3.1",
        "react-dom": "19.3.1",
        "vitest": "^4",
        "vitest-browser-react": "^2",
        "zod": "^4",
    },
    # The tool that tries servers of the Model Context Protocol. It needs Node 22.
    "scenarios": {"@modelcontextprotocol/conformance": "0.1.16"},
}
"""What suites in JavaScript run with, from npm."""


@dataclass(frozen=True, slots=True)
class Suite:
    """One suite, from its repository at one commit, or in a package of npm."""

    name: str
    repository: str
    """Empty for one that comes in a package."""
    commit: str
    folders: tuple[tuple[str, str], ...]
    """What is copied to run in: each folder of the repository, and what it is called there."""
    tests: str
    """What is run, below the copy; of scenarios, the path of the server that they ask."""
    config: str
    """The ``langgraph.json`` that the server is started with, below the copy."""
    kind: Literal["pytest", "vitest", "scenarios"]
    ported: str = ""
    """The folder of ``PORTED`` whose files are put into the copy."""
    address: str = ""
    """Stands in the text of the tests, and is replaced by the server's; else they read it from a variable."""
    marked: str = ""
    """The tests to run, as pytest selects them by their marks."""
    without: tuple[str, ...] = ()
    """Folders and files below the copy that are not run: they need a deployment or tables of a server."""
    needs: tuple[str, ...] = ()
    """What it needs beside ``GRAPHS`` and ``TESTS``."""
    arguments: tuple[str, ...] = ()
    """Further arguments of pytest; ``{url}`` in them is the server's address."""
    asked_first: str = ""
    """A path on the server that is asked before the tests, which would else wait for its imports."""
    packages: str = ""
    """Which of ``PACKAGES`` it runs with, if it is in JavaScript."""
    in_browser: bool = False
    """Whether its tests run in Chromium."""
    model: str = ""
    """The path on the server where its own application answers as OpenAI does, for graphs that call it."""


_LANGGRAPH = "https://github.com/langchain-ai/langgraph"
_LANGGRAPH_COMMIT = "f09cfe8ffc1eeffd68f4b628ed69c30f7cad229f"
_LANGGRAPHJS = "https://github.com/langchain-ai/langgraphjs"
_LANGGRAPHJS_COMMIT = "f8bdf16d4fe23a79e945ea5dc6f86bbf09abb77d"

_A2A = (
    "a2a-sdk[http-server]>=1",
    "gherkin-official",
    "googleapis-common-protos",
    "grpcio",
    "Jinja2",
    "jsonschema",
    "protobuf",
    "pytest-html",
)

_MCP = ("jsonschema>=4.20", "mcp>=2.3,<3")

_AEGRA = "https://github.com/aegra/aegra"
_AEGRA_COMMIT = "392a5457b25754cdc828f14b0053abdefe8b6766"
_OF_AEGRA = (("libs/aegra-api/tests/e2e", "tests/e2e"), ("examples", "examples"))
_OF_LANGGRAPHJS = (("libs/langgraph-api/tests", "tests"), ("libs/langgraph-api/src", "src"))

SUITES = (
    Suite(
        "sdk-py",
        _LANGGRAPH,
        _LANGGRAPH_COMMIT,
        (
            ("libs/sdk-py/tests", "tests"),
            ("libs/sdk-py/integration", "integration"),
            ("libs/sdk-py/langgraph_sdk", "langgraph_sdk"),
        ),
        "tests/integration",
        "integration/langgraph.json",
        "pytest",
        address="http://localhost:2024",
        marked="integration",
    ),
    Suite(
        "langgraphjs-auth",
        _LANGGRAPHJS,
        _LANGGRAPHJS_COMMIT,
        _OF_LANGGRAPHJS,
        "tests/auth.test.mts",
        "langgraph.auth.json",
        "vitest",
        ported="langgraphjs",
        packages="node",
        address="http://localhost:2025",
    ),
    Suite(
        "langgraphjs-api",
        _LANGGRAPHJS,
        _LANGGRAPHJS_COMMIT,
        _OF_LANGGRAPHJS,
        "tests/api.test.mts",
        "langgraph.json",
        "vitest",
        ported="langgraphjs",
        packages="node",
        address="http://localhost:2024",
    ),
    Suite(
        "langgraphjs-stream",
        _LANGGRAPHJS,
        _LANGGRAPHJS_COMMIT,
        _OF_LANGGRAPHJS,
        "tests/protocol-v2/stream-sdk.test.mts",
        "langgraph.json",
        "vitest",
        ported="langgraphjs",
        packages="node",
    ),
    Suite(
        "react",
        _LANGGRAPHJS,
        _LANGGRAPHJS_COMMIT,
        (("libs/sdk-react/src/tests", "src/tests"),),
        "src/tests",
        "langgraph.json",
        "vitest",
        ported="react",
        packages="react",
        in_browser=True,
    ),
    Suite(
        "aegra",
        _AEGRA,
        _AEGRA_COMMIT,
        _OF_AEGRA,
        "tests/e2e",
        "langgraph.json",
        "pytest",
        ported="aegra",
        marked="not manual_auth and not auth_only",
        without=(
            "tests/e2e/multi_instance",
            "tests/e2e/test_runs/test_run_reconciliation_e2e.py",
            "tests/e2e/test_threads/test_thread_deletion.py",
        ),
        model="/model/v1",
    ),
    Suite(
        "aegra-auth",
        _AEGRA,
        _AEGRA_COMMIT,
        _OF_AEGRA,
        "tests/e2e/manual_auth_tests",
        "langgraph.auth.json",
        "pytest",
        ported="aegra",
        marked="manual_auth or auth_only",
    ),
    Suite(
        "a2a-tck",
        "https://github.com/a2aproject/a2a-tck",
        "357c4a87afa2818731590647cccbea31c31733a2",
        (("tck", "tck"), ("tests", "tests"), ("specification", "specification")),
        "tests/compatibility",
        "langgraph.json",
        "pytest",
        ported="a2a",
        needs=_A2A,
        arguments=("--sut-host={url}", "--transport=jsonrpc", "--webhook-host=127.0.0.1"),
        asked_first="/.well-known/agent-card.json",
    ),
    Suite(
        "mcp-conformance",
        "",
        "",
        (),
        "/mcp",
        "langgraph.json",
        "scenarios",
        ported="mcp",
        packages="scenarios",
        needs=_MCP,
    ),
)
