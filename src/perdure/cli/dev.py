"""Command ``perdure dev``: a server that reloads the project when one of its files changes."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.app import ConfigFile, Keys, err, warn
from perdure.cli.logs import LogLevel
from perdure.cli.serve import Host, Port, ServerLog, Works, announce_address
from perdure.errors import BadSetting, MissingExtra

if TYPE_CHECKING:
    from perdure.server.config import Config
    from perdure.server.hosting.reloading import Announcement


def dev(
    graphs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=]MODULE:GRAPH",
            help="A graph, as for perdure serve; without any, those of perdure.toml or langgraph.json",
        ),
    ] = None,
    *,
    db: Annotated[
        str | None,
        typer.Option(
            help="The database; else PERDURE_DB or DATABASE_URL", show_default="sqlite:///.perdure/dev.db"
        ),
    ] = None,
    config: ConfigFile = None,
    host: Host = None,
    port: Port = None,
    works: Works = True,
    log_level: ServerLog = LogLevel.INFO,
    keys: Keys = None,
) -> None:
    """Serve a project for development, and reload it whenever one of its files changes.

    In the folder of a perdure.toml or langgraph.json, or with a graph:

      perdure dev
      perdure dev ./agent.py:graph

    It is perdure serve --dev with a reload: of the configuration, and of every module that was imported and
    is not an installed package. Open runs go on with the new code, and pages reconnect. An error in an edit
    is printed, and the next save is waited for. Ctrl-C stops the server.
    """
    try:
        from perdure.server.config import load
        from perdure.server.hosting.reloading import DevelopmentTerms, serve_reloading
        from perdure.web.listening import listen
    except MissingExtra as error:
        raise MissingExtra("perdure dev needs an extra: pip install 'perdure[dev]'") from error
    except ImportError as error:
        raise MissingExtra(
            f"perdure dev needs {error.name}, which is not installed; pip install 'perdure[dev]'"
        ) from error

    from perdure.runtime.log_output import configure_logging

    configure_logging(log_level)
    flags: dict[str, Any] = {
        "file": config,
        "graphs": graphs or (),
        "db": db,
        "host": host,
        "development": True,
        "keys": keys,
    }
    loaded = load(**flags, port=port, environ=os.environ)
    if loaded.database_url.startswith("memory:"):
        raise BadSetting(
            "perdure dev needs a database that outlives a reload, and memory:// does not; leave --db out for "
            "a file in .perdure"
        )
    with listen(loaded.http.host, loaded.http.port) as listener:
        # Later processes are announced under the same address, even if the configuration has changed.
        port = listener.getsockname()[1]
        terms = DevelopmentTerms(
            load=partial(_load, {**flags, "host": loaded.http.host, "port": port}),
            announce=_announce,
            announce_failure=_announce_failure,
            works=works,
            log_level=log_level.upper(),
        )
        serve_reloading(loaded, terms, listener, warn)
    err.print("Stopped. Every accepted run is stored.")


def _load(flags: dict[str, Any]) -> Config:
    from perdure.server.config import load

    return load(**flags, environ=os.environ)


def _announce(made: Announcement) -> None:
    if not made.changed:
        announce_address(made.config, made.config.http.port)
        err.print("[dim]watching[/] the files that it imports; Ctrl-C stops the server")
        return
    names = ", ".join(os.path.relpath(path) for path in made.changed[:3])
    if len(made.changed) > 3:
        names += f" and {len(made.changed) - 3} more"
    warn(f"Reloaded after a change of {names}, in {made.took_s:.1f} s.")


def _announce_failure(text: str) -> None:
    warn(f"\n{text}\n")
    hint = " After an installation, save any file of the project." if "pip install" in text else ""
    err.print(f"[yellow bold]Waiting for the next save.[/]{hint} Ctrl-C stops the server.", soft_wrap=True)
