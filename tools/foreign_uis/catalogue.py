"""The interfaces: where their text comes from, how it is built, and which versions from npm are used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PAGES = Path(__file__).parent / "pages"
"""Small pages of our own over the packages that are adapters, not applications."""


@dataclass(frozen=True, slots=True)
class Application:
    """An interface that is built with Next.js from its repository at one commit, as it is."""

    name: str
    repository: str
    commit: str
    install: tuple[str, ...]
    """What installs the packages that its lock file names, by ``npx``; no script of a package is run."""
    build: tuple[str, ...] = ()
    """More arguments of ``next build``."""
    folders: tuple[tuple[str, str], ...] = (("src", "src"),)
    """What a checkout has to hold."""


CHAT_UI = Application(
    name="agent-chat-ui",
    repository="https://github.com/langchain-ai/agent-chat-ui",
    commit="fdc87e65307581b02898d33c62b3f285e56bd85b",
    install=("pnpm@10.5.1", "install", "--frozen-lockfile", "--ignore-scripts"),
    build=("--no-lint",),
)

AGENT_INBOX = Application(
    name="agent-inbox",
    repository="https://github.com/langchain-ai/agent-inbox",
    commit="f38301b9d0bec1f5191eaf1946f4fb6a6d6cfe0a",
    install=(
        "yarn@1.22.22",
        "install",
        "--frozen-lockfile",
        "--ignore-scripts",
        "--ignore-engines",
        "--non-interactive",
        "--network-timeout",
        "600000",
    ),
)


@dataclass(frozen=True, slots=True)
class Pages:
    """Pages of our own, and the versions from npm that they are about."""

    name: str
    folder: str
    """The folder of ``PAGES``."""
    packages: Mapping[str, str]
    pinned: tuple[str, ...] = ()
    """Packages that packages need, and have to have this version, too."""

    @property
    def manifest(self) -> dict[str, object]:
        """The content of ``package.json``."""
        common = {"esbuild": "0.28.2", "react": "19.3.1", "react-dom": "19.3.1"}
        return {
            "private": True,
            "type": "module",
            "dependencies": {**self.packages, **common},
            "overrides": {name: f"${name}" for name in self.pinned},
        }


_LANGCHAIN = {"@langchain/core": "1.4.0", "@langchain/langgraph-sdk": "1.15.0"}

ASSISTANT_UI = Pages(
    name="assistant-ui",
    folder="assistant_ui",
    packages={
        **_LANGCHAIN,
        "@assistant-ui/core": "0.3.35",
        "@assistant-ui/react": "0.15.22",
        "@assistant-ui/react-langgraph": "0.14.25",
        "@assistant-ui/store": "0.3.23",
        "@assistant-ui/tap": "0.9.25",
    },
    pinned=("@assistant-ui/core", "@assistant-ui/store", "@assistant-ui/tap"),
)

COPILOTKIT = Pages(
    name="copilotkit",
    folder="copilotkit",
    packages={
        **_LANGCHAIN,
        "@ag-ui/client": "0.0.59",
        "@ag-ui/core": "0.0.59",
        "@ag-ui/langgraph": "0.0.43",
        "@copilotkit/react-core": "1.74.0",
        "@copilotkit/react-ui": "1.74.0",
        "@copilotkit/runtime": "1.75.0",
        "zod": "^3.25",
    },
)
