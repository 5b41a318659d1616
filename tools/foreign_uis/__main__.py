"""Drives chat interfaces that are written elsewhere, unmodified, over Perdure's server in Chromium.

    python -m tools.foreign_uis [--suites agent-chat-ui,copilotkit] [--only stop,edit] [--sources FOLDER]

Applications are built from their repositories at one commit, or from checkouts in a folder; adapters come
from npm, with small pages of ours. All of it is kept outside the repository. Exits 1 when an action fails, or
when a request to the server fails that need not.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.server.browsing import FLAGS
from tools.foreign_clients.servers import NotStarted, serve
from tools.foreign_suites.arguments import parser_of
from tools.foreign_suites.places import Unobtainable

from . import assistant_ui, building, chat_ui, copilotkit, inbox
from .catalogue import AGENT_INBOX, ASSISTANT_UI, CHAT_UI, COPILOTKIT, Application, Pages
from .driving import Failures, Unfulfilled, Visit, open_visit
from .report import Outcome, Told

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_CONFIG = Path(__file__).parent / "langgraph.json"

Action = Callable[[Visit], None]


@dataclass(frozen=True, slots=True)
class _Interface:
    source: Application | Pages
    actions: Mapping[str, Action]
    expected: Mapping[str, str]
    note_failures: Callable[[Visit], None] | None = None
    """Notes the failures of requests that do not come from the page."""


_INTERFACES = {
    "agent-chat-ui": _Interface(CHAT_UI, chat_ui.ACTIONS, {}),
    "agent-inbox": _Interface(AGENT_INBOX, inbox.ACTIONS, {}),
    "assistant-ui": _Interface(ASSISTANT_UI, assistant_ui.ACTIONS, {}),
    "copilotkit": _Interface(COPILOTKIT, copilotkit.ACTIONS, copilotkit.EXPECTED, copilotkit.note_failures),
}


def main(arguments: list[str]) -> int:
    """Drive what the arguments name; the exit status."""
    options = _parse_arguments(arguments)
    told: list[Told] = []
    try:
        for name in options.suites:
            told.append(_run_interface(name, options))
            print("\n".join(told[-1].lines()), flush=True)
    except (Unobtainable, NotStarted) as error:
        print(error, file=sys.stderr)
        return 2
    return int(any(each.wrong for each in told))


def _run_interface(name: str, options: argparse.Namespace) -> Told:
    interface, work = _INTERFACES[name], options.work.resolve()
    if isinstance(interface.source, Application):
        built = building.application(interface.source, work, options.sources)
    else:
        built = building.pages(interface.source, work)
    folder = work / "runs" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    outcomes: dict[str, Outcome] = {}
    with serve("perdure", Path(sys.executable), _CONFIG, folder) as server:
        if isinstance(interface.source, Application):
            served = building.serve_application(built, folder / "interface.log")
        else:
            served = building.serve_pages(built, server, folder / "interface.log")
        with served as address, _browser() as browser:
            for action, act in interface.actions.items():
                if not options.only or action in options.only:
                    outcomes[action] = _perform(
                        interface, browser, address, server, act, folder / f"{action}.png"
                    )
    return Told(name, outcomes, interface.expected)


def _perform(
    interface: _Interface, browser: Browser, address: str, server: str, act: Action, picture: Path
) -> Outcome:
    from playwright.sync_api import Error

    failures = Failures()
    with open_visit(browser, address, server, failures) as visit:
        try:
            act(visit)
            reason = ""
        except (Error, Unfulfilled) as error:
            visit.page.screenshot(path=picture)
            reason = " ".join(str(error).split())[:300]
        if interface.note_failures is not None:
            interface.note_failures(visit)
    return Outcome(reason, failures)


@contextmanager
def _browser() -> Iterator[Browser]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise Unobtainable("playwright is not installed; run this with the group test") from error
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        raise Unobtainable("there is no Chromium; install it with your system's packages")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def _parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = parser_of("tools.foreign_uis", __doc__, _INTERFACES)
    parser.add_argument("--only", type=lambda text: text.split(","), help="actions, separated by commas")
    parser.add_argument(
        "--sources", type=Path, help="a folder with checkouts of the repositories, by their names"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
