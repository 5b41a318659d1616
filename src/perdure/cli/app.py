"""Root command, and parts that all commands share: common options and the consoles."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import wraps
from inspect import Parameter, cleandoc, signature
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from perdure.cli.suggestions import Group
from perdure.errors import BadUrl
from perdure.model.records import INTERNAL
from perdure.storage.url import SCHEMES, redact

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from rich.progress import Progress

    from perdure.database.blocking import SyncDatabase
    from perdure.database.handle import DatabaseHandle
    from perdure.model.model_calls import Prices
    from perdure.storage.key_providers import KeyProvider

_HELP = """Durable threads for LangGraph agents.

Questions of an operator, and where they are answered:

  what failed, and why         perdure runs ls --by-error
  what waits for a person      perdure questions ls
  what is stuck                perdure threads stuck
  what will run                perdure runs upcoming
  how it is going, what costs  perdure top
  which node is slow           perdure top --nodes
  where a conversation is      perdure threads ls
  who uses how much            perdure users ls
  which limit is near its end  perdure limits ls

Each group and command has more with --help.
"""
app = typer.Typer(
    cls=Group,
    name="perdure",
    help=_HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# A service manager may start a program without standard streams; then nothing is printed.
sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - open until the process ends
sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
# Piped listings need whole ids, not a table cut to 80 columns; and :key: in an id is not an emoji.
out = Console(highlight=False, emoji=False, width=None if sys.stdout.isatty() else 200)
err = Console(stderr=True, highlight=False, emoji=False)

R = TypeVar("R")

Db = Annotated[
    str | None,
    typer.Option(
        "--db", envvar=["PERDURE_DB", "DATABASE_URL"], help="The database, e.g. sqlite:///threads.db"
    ),
]


@dataclass(frozen=True, slots=True)
class DataPlace:
    """Options of a command that say where its data is: the database, the tenant, and what provides the
    encryption keys. A command that takes ``place`` has them as ``--db``, ``--tenant`` and ``--keys``."""

    db: str | None = None
    tenant: str = ""
    keys: str | KeyProvider | None = None

    def with_key(self) -> DataPlace:
        """Return the place with the provider of its keys, so that several uses open the provider once."""
        return replace(self, keys=keys_of(self.keys))


Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")]
Tenant = Annotated[str, typer.Option(envvar="PERDURE_TENANT", help="The threads' tenant; none by default")]
Keys = Annotated[
    str | None,
    typer.Option(
        "--keys",
        metavar="KEYS",
        envvar="PERDURE_KEYS",
        help="The provider that wraps the keys of an encrypted database: a file with 32 bytes or 64 hex "
        "digits, or with a line of these for each key, the first of which wraps; aws-kms:KEY?region=…; or "
        "module:function. By default keys in perdure.toml",
    ),
]


def _check_thread_id(value: str) -> str:
    """Return a thread's id; refuse the URL of a database, which belongs to ``--db``."""
    if value.partition("://")[0] in SCHEMES and "://" in value:
        raise typer.BadParameter(f"{redact(value)} is a database; pass it as --db, and the thread's id here")
    return value


def check_new_id(value: str | None) -> str | None:
    """Return an id that a thread is to get; refuse the empty text, which no route can name, and the ids of
    the runtime's own threads."""
    if value is None:
        return None
    if not value:
        raise typer.BadParameter("a thread's id is not empty")
    if value.startswith(INTERNAL):
        raise typer.BadParameter(f"ids that begin with {INTERNAL!r} are the runtime's own; take another")
    return _check_thread_id(value)


ThreadId = Annotated[
    str, typer.Argument(help="The thread's id, as in configurable.thread_id", callback=_check_thread_id)
]
Namespace = Annotated[str, typer.Option(help="A subgraph's namespace; empty for the graph itself")]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", help="The configuration file", show_default="perdure.toml or langgraph.json here"
    ),
]
ServedDb = Annotated[
    str | None,
    typer.Option("--db", help="The database, e.g. sqlite:///threads.db; else PERDURE_DB or DATABASE_URL"),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line")]


def quote_id(name: str) -> str:
    """Return an id for a line of a listing: quoted if it would affect the terminal or break the line."""
    if name.isprintable():
        return name
    return repr(name)


def make_legible(text: str, *, keep: str = "") -> str:
    """Return a text whose control characters, except those in ``keep``, are shown as escapes: any sender may
    have used them, and they would affect the terminal."""
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


def say(text: str) -> None:
    """Print a text to standard output as it is, without breaking its lines to the width of the terminal."""
    out.print(text, soft_wrap=True, markup=False)


def warn(text: str) -> None:
    """Print a text to standard error as it is, without breaking its lines to the width of the terminal."""
    err.print(text, soft_wrap=True, markup=False)


def new_group(name: str, purpose: str) -> typer.Typer:
    """Return a group of commands, which suggests the intended command for an unknown one."""
    return typer.Typer(cls=Group, name=name, help=purpose, no_args_is_help=True)


def add_listing(group: typer.Typer, listing: Callable[..., None]) -> None:
    """Add a group's listing command as ``ls``, and as ``list``, which the help leaves out."""
    group.command("ls")(listing)
    group.command("list", hidden=True)(listing)


def complete_commands(group: typer.Typer) -> None:
    """Give the commands of a group, and of the groups in it, the options of a ``DataPlace`` if they take one,
    and let their help fill the width of the terminal: the line breaks of a docstring are removed, except in
    paragraphs with indented lines."""
    for command in group.registered_commands:
        if command.callback is not None:
            command.help = command.help or reflow(command.callback.__doc__ or "")
            command.callback = _with_options_of_place(command.callback)
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            complete_commands(inner.typer_instance)


def _with_options_of_place(command: Callable[..., None]) -> Callable[..., None]:
    if "place" not in signature(command).parameters:
        return command
    own = signature(command, eval_str=True)
    of_place = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=getattr(DataPlace(), name), annotation=option)
        for name, option in (("db", Db), ("tenant", Tenant), ("keys", Keys))
    ]

    @wraps(command)
    def run(*args: Any, **given: Any) -> None:
        place = DataPlace(**{each.name: given.pop(each.name) for each in of_place})
        command(*args, place=place, **given)

    parameters: list[Parameter] = []
    for each in own.parameters.values():
        parameters += of_place if each.name == "place" else [each]
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def reflow(text: str) -> str:
    """Return a text with each paragraph on one line, except those with indented lines."""
    paragraphs = cleandoc(text).split("\n\n")
    return "\n\n".join(each if "\n " in f"\n{each}" else each.replace("\n", " ") for each in paragraphs)


def format_count(count: int, what: str) -> str:
    """Return a number and its noun, in the plural unless it is one: ``1 thread``, ``2,000 threads``."""
    if count == 1:
        return f"{count:,} {what}"
    return f"{count:,} {what}s"


def format_known(number: int | None) -> str:
    """Return a number, and nothing for one that is not known."""
    if number is None:
        return ""
    return str(number)


def require_consent(question: str, yes: bool) -> None:
    """Ask on the terminal whether to remove something, unless ``yes``. The command ends with exit code 1 if
    the answer is no, or if there is no terminal to ask on."""
    if yes:
        return
    try:
        if typer.confirm(question, err=True):
            return
    except typer.Abort:
        # The input has ended, or was interrupted, on the line of the question.
        err.print()
    warn("Nothing was removed. Pass --yes to remove it without a question.")
    raise typer.Exit(1)


def show_progress_bar(amount: str, *, is_hidden: bool = False) -> Progress:
    """Return a context that shows a progress bar with ``amount``, a template of Rich's, beside it. It shows
    nothing without a terminal."""
    from rich import progress

    return progress.Progress(
        progress.SpinnerColumn(),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn(amount),
        progress.TimeElapsedColumn(),
        progress.TextColumn("{task.description}"),
        console=err,
        transient=True,
        disable=is_hidden or not sys.stderr.isatty(),
    )


def track(items: Sequence[R], what: str, *, is_hidden: bool = False) -> Iterable[R]:
    """Iterate over items, and show the progress on a terminal if there are several."""
    from rich import progress

    is_hidden = is_hidden or len(items) == 1 or not sys.stderr.isatty()
    return progress.track(items, what, console=err, transient=True, disable=is_hidden)


def print_json(entry: dict[str, Any]) -> None:
    """Print an object on a line of its own."""
    typer.echo(json_text(entry))


def print_result(as_json: bool, entry: dict[str, Any], line: str) -> None:
    """Print what a command did: an object as JSON, or else a line."""
    if as_json:
        print_json(entry)
    else:
        say(line)


def print_all(
    entries: Iterable[dict[str, Any]], as_json: bool, show: Callable[[dict[str, Any]], object], nothing: str
) -> None:
    """Print entries, each as JSON or by ``show``. If there are none, print the text ``nothing``, but not as
    JSON."""
    is_empty = True
    for entry in entries:
        is_empty = False
        (print_json if as_json else show)(entry)
    if is_empty and not as_json:
        say(nothing)


def print_table(
    entries: Sequence[dict[str, Any]],
    as_json: bool,
    table: Table,
    row: Callable[[dict[str, Any]], Iterable[str]],
    nothing: str,
) -> None:
    """Print entries, each as JSON, or as the rows of a table. If there are none, print the text ``nothing``,
    but not as JSON."""
    print_all(entries, as_json, lambda entry: table.add_row(*map(escape, row(entry))), nothing)
    if table.row_count:
        out.print(table)


def new_table(*headings: str, numbers: Iterable[str] = ()) -> Table:
    """Return a table without lines, whose columns of numbers come last and are aligned at the right."""
    table = Table(*headings, box=None, pad_edge=False)
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table


def collect_fields(record: DataclassInstance) -> dict[str, Any]:
    """Return the fields of a record by name, as they are: ``asdict`` fails for deeply nested values."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def json_text(
    value: Any, *, ascii_only: bool = True, sort_keys: bool = False, indent: int | None = None
) -> str:
    """Return a value as JSON that strict parsers read. Values without a JSON form are shown by their type and
    text, and keys without one as text; half of a character is replaced.

    Args:
        value: Plain data of a state, a message or a call.
        ascii_only: Escape characters outside of ASCII.
        sort_keys: Order the keys of objects.
        indent: Number of spaces by which parts are indented, each on its own line; without it, all is on one
            line.
    """

    def dumps(data: Any) -> str:
        return json.dumps(
            data,
            ensure_ascii=ascii_only,
            allow_nan=False,
            sort_keys=sort_keys,
            indent=indent,
            default=_make_jsonable,
        )

    try:
        text = dumps(value)
        text.encode()
        if "\\ud" not in text:
            return text
    except (TypeError, ValueError):
        pass
    # Infinite numbers, keys that are not text or cannot be ordered, and halves of characters are rare, as
    # are whole ones that JSON escapes in halves: try without first.
    return dumps(_with_json_forms(value))


def _with_json_forms(value: Any) -> Any:
    if isinstance(value, str):
        return _make_well_formed(value)
    if isinstance(value, float) and not isfinite(value):
        return {"type": "float", "value": str(value)}
    if isinstance(value, dict):
        return dict(zip(map(_make_text_key, value), map(_with_json_forms, value.values()), strict=True))
    if isinstance(value, list | tuple):
        return list(map(_with_json_forms, value))
    return value


def _make_text_key(name: Any) -> str:
    if isinstance(name, str):
        return _make_well_formed(name)
    return json_text(name, ascii_only=False)


def _make_well_formed(text: str) -> str:
    if text.isascii():
        return text
    # Imported here: its imports take as long as those of all commands together.
    from perdure.model.runs.messages import replace_surrogates

    return replace_surrogates(text)


def _make_jsonable(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"type": "bytes", "value": value.hex()}
    return str(value)


@contextmanager
def open_database(place: DataPlace) -> Iterator[SyncDatabase]:
    """Open the database of a command; raise ``BadUrl`` if no URL was passed or set."""
    from perdure.database.opening import connect_sync

    with connect_sync(url_of(place.db), tenant=place.tenant, encryption_key=keys_of(place.keys)) as database:
        yield database


def run_coroutine(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine to its end, and return its result."""
    import asyncio

    return asyncio.run(coroutine)


def handle_in(database: SyncDatabase) -> DatabaseHandle:
    """Return the internal handle of an open database."""
    from perdure.database.base import handle_of

    return handle_of(database)


def url_of(url: str | None) -> str:
    """Return the URL that was passed or set, or else that of ``perdure.toml`` in the current folder.

    Raises:
        BadSetting: The file is invalid.
        BadUrl: There is no URL.
    """
    url = url or _read_setting_here("database_url")
    if url is None:
        from perdure.config.resolve import DEVELOPMENT_URL

        hint = ""
        if Path(DEVELOPMENT_URL.removeprefix("sqlite:///")).is_file():
            hint = f". The threads of perdure dev in this folder are in {DEVELOPMENT_URL}"
        raise BadUrl(
            "which database? Pass --db sqlite:///threads.db, set PERDURE_DB or DATABASE_URL, or write "
            f"database_url in perdure.toml{hint}"
        )
    return url


def _read_setting_here(key: str) -> str | None:
    """Return a setting of ``perdure.toml`` in the current folder, if the file exists and has it."""
    path = Path("perdure.toml")
    if not path.is_file():
        return None
    from perdure.config.settings import SETTINGS
    from perdure.config.sources import read_file, value_of

    entry = read_file(path).entries.get(key)
    if entry is None:
        return None
    return str(value_of(SETTINGS[key], entry))


def read_local_prices() -> Prices:
    """Return the prices of models that the environment or ``perdure.toml`` in the current folder sets.

    Raises:
        BadSetting: A price is invalid.
    """
    from perdure.config.prices import read_prices

    return read_prices(Path(), os.environ)


def keys_of(keys: str | KeyProvider | None) -> KeyProvider | None:
    """Return the provider of encryption keys that was passed or set, or else that of ``perdure.toml`` in the
    current folder; ``None`` without any. A provider is returned as it is.

    Raises:
        BadSetting: There is no provider of this name, or the file is invalid.
        DecryptionError: A key file contains no key.
    """
    return open_named_keys(_read_setting_here("keys") if keys is None else keys)


def open_named_keys(keys: str | KeyProvider | None) -> KeyProvider | None:
    """Return the provider of encryption keys that was passed, not that of ``perdure.toml``; ``None`` without
    one.

    Raises:
        BadSetting: There is no provider of this name.
        DecryptionError: A key file contains no key.
    """
    if not isinstance(keys, str):
        return keys
    from perdure.storage.key_providers import open_provider

    return open_provider(keys)


def _version(value: bool) -> None:
    if value:
        from importlib.metadata import version as version_of

        out.print(version_of("perdure"))
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Run one of the commands."""
