"""Demo command: a chat page over a durable agent with a real small model."""

from __future__ import annotations

from typing import Annotated

import typer


def demo(
    db: Annotated[
        str, typer.Option("--db", envvar="PERDURE_DB", help="The database of the conversations")
    ] = "sqlite:///perdure-demo.db",
    *,
    model: Annotated[
        str | None,
        typer.Option(help="provider:name, or local; otherwise OpenAI's with OPENAI_API_KEY set, else local"),
    ] = None,
    once: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Answer this one message on the terminal and exit")
    ] = None,
    thread: Annotated[str | None, typer.Option(help="With --once: the conversation to continue")] = None,
    host: Annotated[str, typer.Option(help="Listen on this address")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Listen here, or on the next free port", min=0, max=65535)] = 8765,
    browser: Annotated[bool, typer.Option(help="Open the page in your browser")] = True,
) -> None:
    """Chat with a durable agent in your browser. Kill it during an answer, and start it again to continue."""
    from perdure.demo.serve import main_demo

    raise typer.Exit(
        main_demo(db, host=host, port=port, model=model, once=once, thread=thread, open_browser=browser)
    )
