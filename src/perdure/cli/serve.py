"""Command ``perdure serve``: a server process with the LangGraph API, until it is stopped."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from perdure.cli.app import ConfigFile, Keys, ServedDb, err
from perdure.cli.logs import LogLevel
from perdure.errors import BadSetting, MissingExtra
from perdure.storage.url import redact

if TYPE_CHECKING:
    from perdure.server.config import Config


Host = Annotated[str | None, typer.Option(help="The address to listen on", show_default="127.0.0.1")]
Port = Annotated[int | None, typer.Option(help="The port; 0 takes a free one", show_default="2024")]
Works = Annotated[
    bool, typer.Option("--work/--no-work", help="Run the graphs here, or only in perdure worker")
]
ServerLog = Annotated[LogLevel, typer.Option(help="Log from this level on")]


def serve(
    graphs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=]MODULE:GRAPH",
            help="A graph, as for perdure worker, or ./file.py:graph; without any, those of perdure.toml or "
            "langgraph.json",
        ),
    ] = None,
    *,
    db: ServedDb = None,
    config: ConfigFile = None,
    host: Host = None,
    port: Port = None,
    workers: Annotated[int, typer.Option(min=1, help="The number of server processes")] = 1,
    works: Works = True,
    dev: Annotated[
        bool | None, typer.Option("--dev", help="Development: a database of its own, migrated by itself")
    ] = None,
    page: Annotated[
        bool | None,
        typer.Option("--page/--no-page", help="A chat page at /chat", show_default="only with --dev"),
    ] = None,
    log_level: ServerLog = LogLevel.INFO,
    keys: Keys = None,
) -> None:
    """Serve graphs to the clients of LangGraph's server.

    With a graph in ./agent.py, on this machine:

      perdure serve ./agent.py:graph --dev

    For other machines, with a database for the threads:

      perdure migrate --db postgresql://me@host/threads
      perdure serve agent=./agent.py:graph --db postgresql://me@host/threads --host 0.0.0.0

    Accepted runs are durable and take effect once, even if a process ends. SIGTERM or Ctrl-C stops the
    server: it closes streams (their clients reconnect) and hands over runs.
    """
    try:
        from perdure.server.config import load
        from perdure.server.hosting.process import run_server
        from perdure.server.hosting.several_processes import serve_many
        from perdure.web.listening import listen
    except ImportError as error:
        raise MissingExtra(
            f"perdure serve needs {error.name}, which is not installed; pip install 'perdure[server]'"
        ) from error

    from perdure.runtime.log_output import configure_logging

    configure_logging(log_level)
    loaded = load(
        file=config,
        graphs=graphs or (),
        db=db,
        host=host,
        port=port,
        development=dev,
        page=page,
        environ=os.environ,
        keys=keys,
    )
    if loaded.development:
        from perdure.runtime.failures.failure_location import show_failures

        show_failures()
    if workers > 1 and loaded.database_url.startswith("memory:"):
        raise BadSetting(
            "--workers needs a database that processes can share; memory:// is one process's own"
        )
    listener = listen(loaded.http.host, loaded.http.port)

    def announce_ready() -> None:
        announce_address(loaded, listener.getsockname()[1])

    with listener:
        if workers > 1:
            announce_ready()
            if code := serve_many(loaded, listener, workers, works=works, log_level=log_level.upper()):
                raise typer.Exit(code)
        else:
            run_server(loaded, listener, works=works, ready=announce_ready)
    err.print("Stopped. Every accepted run is stored.")


def announce_address(config: Config, port: int) -> None:
    """Print what a server serves and where, its database, and where its configuration is from."""
    host = f"[{config.http.host}]" if ":" in config.http.host else config.http.host
    address = f"http://{host}:{port}{config.http.mount_prefix or ''}"
    err.print(f"[bold]Perdure[/] serves {escape(', '.join(config.graphs))} at {address}", soft_wrap=True)
    pages = [
        ("chat page", "/chat/", config.http.page),
        ("inspector", "/inspect/", config.http.inspector),
        ("API", "/docs", not config.http.disable_meta),
    ]
    lines = [(name, f"{address}{path}") for name, path, is_served in pages if is_served]
    lines.append(("database", escape(redact(config.database_url))))
    if config.sources:
        lines.append(("configured by", escape(", ".join(config.sources))))
    for name, text in lines:
        err.print(f"[dim]{name}[/] {text}", soft_wrap=True)
    if config.ignored:
        err.print(f"[yellow]Ignored:[/] {escape(', '.join(config.ignored))}", soft_wrap=True)
    if config.development:
        err.print("[yellow bold]DEVELOPMENT[/]: for this machine only. To serve others, leave out --dev.")
