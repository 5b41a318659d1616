"""One message on the command line: accepted as the page's are, and its answer printed as it comes."""

from __future__ import annotations

import json
import sys
import uuid

from rich.console import Console
from rich.markup import escape

from perdure.demo.running import GRAPH, Demo, opened
from perdure.model.messages import FAILED
from perdure.model.records import Partition
from perdure.runtime import Event, Options, StreamOptions

TITLE_CHARACTERS = 80
_TOLD = Options(stream=StreamOptions(modes=("messages-tuple",)), attempts=1, on_failure="keep")


async def answer_once(text: str, url: str, model: str | None, thread: str | None) -> int:
    """Print one answer to stdout as it is written; 0, or 1 when there is none.

    Everything else, the thread's id to go on with among it, is printed to stderr. The message is stored
    before it is answered: when this is interrupted, the next demo over the same database answers it.
    """
    console = Console(stderr=True, highlight=False)
    if not text.strip():
        console.print("[bold red]perdure demo:[/] The message is empty.")
        return 1
    thread_id = thread or uuid.uuid4().hex
    async with opened(url, model, console) as demo:
        problem = await _answer(demo, thread_id, text)
        if problem is not None:
            console.print(f"[bold red]perdure demo:[/] {escape(problem)}")
            return 1
        again = f"--db {escape(url)} --thread {thread_id} --once …"
        console.print(f"[dim]Go on with:[/] perdure demo {again}", soft_wrap=True)
    return 0


async def _answer(demo: Demo, thread_id: str, text: str) -> str | None:
    """Write the answer to stdout; what kept it from being written, if something did."""
    metadata = {"graph_id": GRAPH, "title": " ".join(text.split())[:TITLE_CHARACTERS]}
    await demo.host.catalogue.create(Partition(demo.runtime.database.tenant, thread_id), metadata)
    message = {"role": "user", "content": text, "id": uuid.uuid4().hex}
    ticket = await demo.runtime.submit(thread_id, {"messages": [message]}, graph=GRAPH, options=_TOLD)
    async for told in demo.runtime.follow(thread_id, ticket.id):
        if not isinstance(told, Event):
            if told.run is not None and told.run.state == FAILED:
                kind = told.run.note.get("kind", "an error")
                return f"The model gave no answer ({kind}). The message is stored."
        elif told.name == "messages":
            sys.stdout.write(_text(json.loads(told.data)[0]))
            sys.stdout.flush()
    sys.stdout.write("\n")
    return None


def _text(message: dict[str, object]) -> str:
    """What a piece of an answer says."""
    said = message.get("content") if str(message.get("type")).startswith(("ai", "AI")) else None
    if isinstance(said, list):
        return "".join(str(part.get("text", "")) for part in said if isinstance(part, dict))
    return said if isinstance(said, str) else ""
