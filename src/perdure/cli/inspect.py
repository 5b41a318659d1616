"""Command ``perdure inspect``: pages of a database in a browser."""

from __future__ import annotations

import asyncio
import ipaddress
from typing import Annotated

import typer
from rich.markup import escape

from perdure.cli.app import KeyFile, Tenant, err, key_of, url_of
from perdure.errors import MissingExtra
from perdure.storage.url import redacted


def inspect(
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="[URL]",
            envvar=["PERDURE_DB", "DATABASE_URL"],
            help="The database, e.g. sqlite:///threads.db; without it that of perdure.toml here",
        ),
    ] = None,
    *,
    tenant: Tenant = "",
    host: Annotated[str, typer.Option(help="Listen on this address")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one", min=0, max=65535)] = 8770,
    browser: Annotated[bool, typer.Option(help="Open the page in your browser")] = True,
    key_file: KeyFile = None,
) -> None:
    """Look at threads in your browser: their timeline, state, changes, branches, queue and storage.

    The database is only read, so it may be a live one, or a copied file that cannot be written. No graph is
    needed. Only this machine can reach the page, unless --host says otherwise; there is no password.
    """
    try:
        from perdure.inspector.access import LocalAccess
        from perdure.inspector.listen import listening
        from perdure.inspector.serve import serve
    except ImportError as error:
        raise MissingExtra(
            f"perdure inspect needs {error.name}, which is not installed; pip install 'perdure[server]'"
        ) from error
    from perdure.database.base import handle_of
    from perdure.database.opening import open_for_reading

    found = url_of(url)
    database = open_for_reading(found, tenant=tenant, encryption_key=key_of(key_file))
    try:
        with listening(host, port) as listener:
            near = _is_loopback(host)
            address = f"http://{_shown(host)}:{listener.getsockname()[1]}/inspect/"

            def ready() -> None:
                err.print(f"[bold]Perdure inspector[/] {address}", soft_wrap=True)
                err.print(f"[dim]database[/] {escape(redacted(found))}, only read", soft_wrap=True)
                if not near:
                    err.print("[yellow]Anyone who reaches this port can read every thread.[/]")

            access = LocalAccess(handle_of(database), tenant, url=found)
            opening = address if browser else None
            asyncio.run(serve(access, listener, loopback=near, ready=ready, open_browser=opening))
    except KeyboardInterrupt:
        # uvicorn raises the signal again after its shutdown.
        err.print("Stopped.")
    finally:
        database.close()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _shown(host: str) -> str:
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared with, not bound to
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
