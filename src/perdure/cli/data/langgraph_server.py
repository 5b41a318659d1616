"""Options of commands that speak with a LangGraph server, and the records that an import takes besides
threads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.app import run_coroutine
from perdure.errors import BadSetting

if TYPE_CHECKING:
    from langgraph.pregel import Pregel

    from perdure.imports.langgraph_server.source import ServerSource
    from perdure.storage.key_providers import KeyProvider

Headers = Annotated[
    list[str] | None,
    typer.Option(
        "--header", metavar="NAME: VALUE", help="Server: a header of every request; may be repeated"
    ),
]
Authorization = Annotated[
    str | None,
    typer.Option(
        envvar="PERDURE_SERVER_AUTHORIZATION",
        show_envvar=True,
        help="Server: the header Authorization; LANGGRAPH_API_KEY is sent as x-api-key",
    ),
]


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of a LangGraph server, as a command takes them: headers as ``NAME: VALUE``, the value of the
    header ``Authorization``, and graphs as ``[NAME=]PLACE``."""

    headers: list[str]
    authorization: str | None
    graphs: list[str]

    def require(self, *, is_used: bool) -> None:
        """Raise ``BadSetting`` if options were passed that are not used."""
        if not is_used and (self.headers or self.graphs):
            raise BadSetting("--graph and --header are for a LangGraph server; leave them out")

    def parse_headers(self) -> dict[str, str]:
        """Return the headers; raise ``BadSetting`` for a header without a name or a value."""
        headers: dict[str, str] = {}
        for given in self.headers:
            name, colon, value = given.partition(":")
            if not name.strip() or not colon or not value.strip():
                raise BadSetting("--header is NAME: VALUE, e.g. --header 'X-Tenant: acme'")
            headers[name.strip()] = value.strip()
        if self.authorization:
            headers["Authorization"] = self.authorization
        return headers


def open_server(url: str, options: ServerOptions) -> ServerSource:
    """Open a LangGraph server for reading."""
    from perdure.imports.langgraph_server.api import ServerApi
    from perdure.imports.langgraph_server.source import ServerSource

    headers = options.parse_headers()
    return ServerSource(ServerApi(url, headers), run_coroutine(load_graphs(options.graphs)))


async def load_graphs(words: list[str]) -> dict[str, Pregel[Any, Any, Any, Any]]:
    """Load graphs, by the names that they have at the server; a graph without a name is for all threads."""
    if not words:
        return {}
    import os

    from langgraph.pregel import Pregel

    from perdure.config.graph_choice import choose_graphs

    found: dict[str, Pregel[Any, Any, Any, Any]] = {}
    for word, chosen in zip(words, choose_graphs(words, file=None, environ=os.environ), strict=True):
        agent = await chosen.load(with_settings=False)
        if not isinstance(agent.graph, Pregel):
            raise BadSetting(f"{word} is a factory of graphs; name a compiled graph with --graph")
        name, equals, _ = word.partition("=")
        found[name if equals or ":" not in word else ""] = agent.graph
    return found


@dataclass(slots=True)
class RecordCounts:
    """Counts of a server's records that were written now, and the reasons of those that were skipped."""

    assistants: int = 0
    crons: int = 0
    threads: int = 0
    skipped: list[str] = field(default_factory=list)

    def count_written(self) -> dict[str, int]:
        """Return the numbers of written objects, by their names in a report."""
        return {"assistants": self.assistants, "crons": self.crons, "records": self.threads}


@dataclass(frozen=True, slots=True)
class RecordTarget:
    """The database that gets the records."""

    url: str
    tenant: str
    key: KeyProvider | None
    dry_run: bool
