"""Commands on the questions of all threads: which wait for an answer, and answering them."""

from __future__ import annotations

import json
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.app import (
    AsJson,
    DataPlace,
    ThreadId,
    add_listing,
    json_text,
    make_legible,
    new_group,
    print_all,
    print_result,
    quote_id,
    run_coroutine,
    say,
)
from perdure.cli.runs import Prefix, User, check_span, format_age, format_time, open_walk, parse_since
from perdure.errors import NotWaiting
from perdure.model.records import Partition

if TYPE_CHECKING:
    from perdure.runtime.operations.open_questions import AskedQuestion
    from perdure.runtime.operations.walk_by_activity import ThreadWalk
    from perdure.runtime.threads.rows import ThreadRow

questions = new_group("questions", "Look at the questions that wait for an answer, and answer them.")

_TEXT_MAX = 2000


def list_questions(
    *,
    older: Annotated[
        str | None,
        typer.Option(help="Only those asked this long ago or earlier, e.g. 2h or 1d", callback=check_span),
    ] = None,
    user: User = None,
    prefix: Prefix = "",
    waits: Annotated[
        bool, typer.Option("--waits", help="Include threads that sleep or wait for a signal")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="The maximum number, oldest first")
    ] = 100,
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """List the questions that wait for an answer, the oldest first, with what is asked.

    Busy threads are left out: the message that waits or runs answers or replaces their questions.
    With --json each question has the form of its answer, too.
    """
    from perdure.runtime.operations import entries

    with open_walk(place, prefix) as found:
        asked = run_coroutine(_find_all(found.walk, user, parse_since(older, found.now), with_waits=waits))
    asked.sort(key=lambda each: each.since)
    shown = map(entries.make_question_entry, asked[:limit])
    print_all(shown, as_json, partial(_print, found.now), "No thread waits for an answer.")


async def _find_all(
    walk: ThreadWalk, user: str | None, before: int | None, *, with_waits: bool
) -> list[AskedQuestion]:
    from perdure.runtime.operations import open_questions

    asked: list[AskedQuestion] = []
    search = open_questions.search(walk, user=user, asked_before=before, with_waits=with_waits)
    async with aclosing(search) as steps:
        async for step in steps:
            asked += step.questions
    return asked


def _print(now: int, entry: dict[str, Any]) -> None:
    line = f"{format_age(now - entry['since']):>7}  {quote_id(entry['thread_id'])}"
    for key, words, shown in (
        ("user", "of ", quote_id),
        ("title", "", make_legible),
        ("until", "until ", format_time),
        ("deadline", "deadline ", format_time),
        ("interrupt_id", "interrupt ", quote_id),
    ):
        if entry[key]:
            line += f"  {words}{shown(entry[key])}"
    say(line)
    text = entry["fault"] or entry["text"]
    if len(text) > _TEXT_MAX:
        text = f"{text[:_TEXT_MAX]}…"
    for part in make_legible(text, keep="\n").splitlines():
        say(f"         {part}")
    form = entry["form"]
    if form["kind"] == "choice":
        say(f"         one of {make_legible(json_text(form['options'], ascii_only=False))}")
    for action in form.get("actions", ()):
        takes = ", ".join(action["decisions"])
        say(f"         {quote_id(action['name'])} takes {takes}")
    for field in form.get("fields", ()):
        say(f"         {quote_id(field['name'])}: {field['type']}")


def answer(
    thread_id: ThreadId,
    value: Annotated[str | None, typer.Argument(help="The answer: JSON, or else text as it is")] = None,
    *,
    approve: Annotated[bool, typer.Option("--approve", help="Approve what the agent asks for")] = False,
    reject: Annotated[
        str | None, typer.Option(metavar="REASON", help="Reject it, for a reason, which may be empty")
    ] = None,
    edit: Annotated[
        str | None, typer.Option(metavar="ARGUMENTS", help="Approve it with changed arguments, as JSON")
    ] = None,
    as_text: Annotated[bool, typer.Option("--text", help="The answer is text, even if it is JSON")] = False,
    interrupt: Annotated[
        str | None, typer.Option(help="The interrupt's id, if the thread waits for several")
    ] = None,
    graph: Annotated[
        str | None, typer.Option(help="The graph that asked, if no run did that is stored")
    ] = None,
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """Answer the question of a thread. A worker with the graph goes on.

    --approve, --reject and --edit are for requests to review an action, such as those of LangChain's
    HumanInTheLoopMiddleware; of several actions in one request, they decide on all. Of two answers to a
    question the second is refused.
    """
    decided = [approve, reject is not None, edit is not None, value is not None]
    if decided.count(True) != 1:
        raise typer.BadParameter("give one answer: a VALUE, --approve, --reject REASON or --edit ARGUMENTS")
    from perdure.model.missing_thread import missing_thread
    from perdure.runtime.operations import open_questions
    from perdure.runtime.threads.rows import load_row

    partition = Partition(place.tenant, thread_id)
    with open_walk(place) as found:
        given: Any = value
        row = found.walk.database.run(load_row(partition))
        if row is None:
            raise missing_thread(partition)
        if value is not None and not as_text:
            given = _parse_json_or_text(value)
        elif value is None:
            asked = run_coroutine(_find_asked(found.walk, row, interrupt))
            given = _make_decision(asked, approve=approve, reject=reject, edit=edit)
            interrupt = asked.interrupt_id
        run_id = run_coroutine(
            open_questions.answer(found.database, partition, given, interrupt_id=interrupt, graph=graph)
        )
    line = f"{quote_id(thread_id)}: answered; it goes on as run {run_id}"
    print_result(as_json, {"thread_id": thread_id, "run_id": run_id}, line)


async def _find_asked(walk: ThreadWalk, row: ThreadRow, interrupt: str | None) -> AskedQuestion:
    from perdure.runtime.operations import open_questions

    thread_id = row.thread_id
    found = await walk.database.arun(open_questions.load_questions(walk.database, walk.tenant, row))
    matching = [each for each in found if interrupt in (None, each.interrupt_id)]
    if not matching:
        where = f"thread {thread_id!r} waits for no answer"
        if interrupt is not None:
            where += f" to {interrupt!r}"
        raise NotWaiting(f"{where}; `perdure questions ls` has those that do")
    if len(matching) > 1:
        ids = ", ".join(str(each.interrupt_id) for each in matching)
        raise NotWaiting(f"thread {thread_id!r} waits for several answers; name one by --interrupt: {ids}")
    return matching[0]


def _make_decision(asked: AskedQuestion, *, approve: bool, reject: str | None, edit: str | None) -> Any:
    from perdure.channels.questions import UnusableAnswer, resume_value

    try:
        if approve:
            return resume_value(asked.value, "approve")
        if edit is not None:
            return resume_value(asked.value, "edit", edit)
        return resume_value(asked.value, "reject", reject or "")
    except UnusableAnswer as error:
        raise typer.BadParameter(str(error)) from None


def signal(
    thread_id: ThreadId,
    name: Annotated[str, typer.Argument(help="The name of the signal, as in wait_for")],
    value: Annotated[str | None, typer.Argument(help="Its value: JSON, or else text as it is")] = None,
    *,
    key: Annotated[
        str | None, typer.Option(help="Its key: sent again with the same key, it has no further effect")
    ] = None,
    one: Annotated[bool, typer.Option("--one", help="End one wait, if several branches wait for it")] = False,
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """Give a signal to a thread, whose graph goes on where it waits for one of this name.

    A worker with the graph does that. If the thread does not wait for it, it is kept until it does.
    """
    from perdure.runtime.operations import open_questions

    with open_walk(place) as found:
        try:
            sent = open_questions.give_signal(
                found.database,
                Partition(place.tenant, thread_id),
                name,
                value and _parse_json_or_text(value),
                key=key or None,
                to_all=not one,
            )
            receipt = run_coroutine(sent)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    line = f"{quote_id(thread_id)}: "
    line += "kept until it waits for it" if receipt.run_id is None else f"it goes on as run {receipt.run_id}"
    if receipt.is_duplicate:
        line += ", as it had been before"
    print_result(as_json, receipt._asdict(), line)


def _parse_json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


add_listing(questions, list_questions)
questions.command()(answer)
