"""One message on the command line: accepted like a message of the page; its answer is printed as it is
generated."""

from __future__ import annotations

import json
import os
import shlex
import sys
import uuid
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from perdure.demo.running import GRAPH, Demo, open_demo
from perdure.model.runs.messages import FAILED
from perdure.runtime import Event, Options, StreamOptions

TITLE_CHARACTERS = 80
_STREAMED = Options(stream=StreamOptions(modes=("messages-tuple",)), attempts=1, on_failure="keep")


async def answer_once(text: str, url: str, model: str | None, thread: str | None) -> int:
    """Print one answer to stdout as it is generated; return 0, or 1 when there is none.

    Everything else is printed to stderr, including the thread's id to continue with. The message is stored
    before it is answered: if this process is interrupted, the next demo over the same database answers it.

    Args:
        text: The message.
        url: The URL of the database.
        model: The model to use, if one was named.
        thread: The thread to continue, if any.
    """
    console = Console(stderr=True, highlight=False)
    if not text.strip():
        console.print("[bold red]perdure demo:[/] The message is empty.")
        return 1
    thread_id = thread or uuid.uuid4().hex
    async with open_demo(url, model, console) as demo:
        problem = await _answer(demo, thread_id, text)
        if problem is not None:
            console.print(f"[bold red]perdure demo:[/] {escape(problem)}")
            return 1
        command = escape(write_command_to_go_on(url, model, thread_id))
        console.print(f"[dim]Go on with:[/] {command}", soft_wrap=True)
    return 0


def write_command_to_go_on(url: str, model: str | None, thread_id: str) -> str:
    """Return the command that continues a thread, as it can be typed in the current folder: with the path of
    the program, which need not be on the shell's search path."""
    program = Path(sys.argv[0]).absolute()
    if program.name == "__main__.py":
        words = [sys.executable, "-m", "perdure.demo"]
    else:
        here = Path.cwd()
        words = [str(program.relative_to(here) if program.is_relative_to(here) else program), "demo"]
    if url != os.environ.get("PERDURE_DB"):
        words += ["--db", url]
    if model is not None:
        words += ["--model", model]
    return shlex.join([*words, "--thread", thread_id, "--once", "And then?"])


async def _answer(demo: Demo, thread_id: str, text: str) -> str | None:
    """Write the answer to stdout; return the reason if there is none."""
    metadata = {"graph_id": GRAPH, "title": " ".join(text.split())[:TITLE_CHARACTERS]}
    await demo.runtime.threads.create(thread_id, metadata)
    asked = {"role": "user", "content": text, "id": uuid.uuid4().hex}
    ticket = await demo.runtime.submit(thread_id, {"messages": [asked]}, graph=GRAPH, options=_STREAMED)
    last_written = ""  # the id of the last message written; each paragraph is a message
    async for event in demo.runtime.follow(thread_id, ticket.id):
        if not isinstance(event, Event):
            if event.run is not None and event.run.state == FAILED:
                kind = event.run.note.get("kind", "an error")
                return f"The model gave no answer ({kind}). The message is stored."
        elif event.name == "messages":
            message = json.loads(event.data)[0]
            if (text := _read_text(message)) and last_written not in ("", message.get("id")):
                text = f"\n\n{text}"
            last_written = str(message.get("id")) if text else last_written
            sys.stdout.write(text)
            sys.stdout.flush()
    sys.stdout.write("\n")
    return None


def _read_text(message: dict[str, object]) -> str:
    """Return the text of a piece of an answer."""
    if not str(message.get("type")).startswith(("ai", "AI")):
        return ""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    if isinstance(content, str):
        return content
    return ""
