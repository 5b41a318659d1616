"""Command line: one module for each family of commands, and one place that prints errors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn

from perdure.cli.app import app, complete_commands, make_legible
from perdure.cli.audit import audit
from perdure.cli.care import care
from perdure.cli.data.copy import copy
from perdure.cli.data.export import export
from perdure.cli.data.fsck import fsck
from perdure.cli.data.import_data import import_
from perdure.cli.data.migrate import migrate
from perdure.cli.data.schema import schema
from perdure.cli.data.store import store
from perdure.cli.data.tenants import tenants
from perdure.cli.demo import demo
from perdure.cli.dev import dev
from perdure.cli.init import init
from perdure.cli.inspect import inspect
from perdure.cli.keys import keys
from perdure.cli.limits import limits
from perdure.cli.memory import memory
from perdure.cli.questions import questions
from perdure.cli.replay import replay
from perdure.cli.runs import runs
from perdure.cli.serve import serve
from perdure.cli.threads import threads
from perdure.cli.top import top
from perdure.cli.upcoming import list_upcoming
from perdure.cli.users import users
from perdure.cli.worker import worker
from perdure.errors import PerdureError

command: Callable[..., None]
for command in (init, dev, migrate, fsck, copy):
    app.command()(command)
app.command("import")(import_)
for command in (export, audit, worker, serve, inspect, replay, top, demo):
    app.command()(command)
runs.command("upcoming")(list_upcoming)
for group in (threads, runs, questions, limits, tenants, users, store, memory, care, schema, keys):
    app.add_typer(group)
complete_commands(app)


def main() -> None:
    """Run ``perdure``. Errors of Perdure and of the operating system are printed as one sentence, with exit
    code 1. The exit code is also 1 when the reader of the output has gone."""
    try:
        app()
    except PerdureError as error:
        _fail(str(error))
    except UnicodeEncodeError as error:
        # Stored text is printed with its lone surrogates escaped or replaced: these are of the command line.
        if error.reason == "surrogates not allowed":
            _fail(f"{error.object!r} is not text: it has bytes that are not UTF-8")
        _fail(f"{error.encoding} cannot show all characters; set PYTHONIOENCODING=utf-8")
    except OSError as error:
        _fail(str(error))


def _fail(text: str) -> NoReturn:
    sys.stderr.write("perdure: " + make_legible(text, keep="\n") + "\n")
    sys.exit(1)


__all__ = ["main"]
